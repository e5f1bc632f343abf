"""${name}: kernels, called like functions or by key.

% if bare:
    from kernelmint import ${name}_scale as scale     # the front of a family

    __all__ = ["scale"]
"""

__all__: list[str] = []
% else:
    import kernelmint, ${name}

    ${name}.${function}(x, y, alpha=0.5)
    kernelmint.kernels("${family}")                   # its kernels
    kernelmint.kernel(key)(x, y, alpha=0.5)
"""

from kernelmint import ${family}${"" if function == family else f" as {function}"}

__all__ = ["${function}"]
% endif
