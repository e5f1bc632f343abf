"""${name}: kernels of its own, called like functions or by key.

    import ${name}

    ${name}.${family}(x, y, alpha=0.5)

    import runtime

    runtime.kernels("${family}")                      # what there is
    runtime.kernel(key)(x, y, alpha=0.5)
"""

from runtime import ${family}

__all__ = ["${family}"]
