"""${title}"""

from __future__ import annotations

% if overloads:
from typing import Literal, overload

% endif
import torch

from runtime.handle import Kernel


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


KERNEL_CLASS = ${class_name}
OPERATOR = (
    ${operator}
)
