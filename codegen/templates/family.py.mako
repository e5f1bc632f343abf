"""${title}"""

from __future__ import annotations

% if overloads:
from typing import Any, Literal, overload
% else:
from typing import Any
% endif

import torch

from runtime.kernel import Kernel


class ${class_name}(Kernel):
    """${summary}

% for line in lines:
    ${line}
% endfor
    """

    __slots__ = ()

% for returns, flags in overloads:
    @overload
    def __call__(
        self,
% for parameter in positional:
        ${parameter},
% endfor
        *,
% for parameter in keywords:
        ${parameter},
% endfor
% for flag in flags:
        ${flag},
% endfor
        out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    ) -> ${returns}: ...

% endfor
    def __call__(
        self,
% for parameter in positional:
        ${parameter},
% endfor
        *,
% for parameter in keywords:
        ${parameter},
% endfor
% for flag in plain_flags:
        ${flag},
% endfor
        out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    ) -> ${returns_any}:
        """${call_summary}"""
        return self._call(${inputs}, ${scalars}, ${requested}, out)


def output_specs(
    parameters: dict[str, Any], ${", ".join(f"{name}: torch.Tensor" for name in input_names)}
) -> tuple[tuple[tuple[Any, ...], str], ...]:
    """The shape and dtype name of every output, optional ones too, from the inputs' shapes."""
% for line in bindings:
    ${line}
% endfor
    return (
% for shape, dtype in outputs:
        (${shape}, ${dtype}),
% endfor
    )


KERNEL_CLASS = ${class_name}
OPERATOR = (
    ${operator}
)
