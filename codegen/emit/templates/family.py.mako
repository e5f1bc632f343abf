"""${title}"""

from __future__ import annotations

% if has_lists:
from collections.abc import Sequence
% endif
% if typing:
from typing import ${", ".join(typing)}
% endif
% if typing or has_lists:

% endif
import torch

% if front and front["functions"]:
from codegen.core.expressions import ${", ".join(front["functions"])}
% endif
% if front:
from runtime.front import Front${", to_extents" if front["bounded"] else ""}
% endif
from runtime.handle import Kernel, is_dynamo_compiling


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
% if has_keywords:
        *,
% endif
% for parameter in keywords:
        ${parameter},
% endfor
% for flag in flags:
        ${flag},
% endfor
% if out:
        out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
% endif
    ) -> ${returns}: ...

% endfor
    def __call__(
        self,
% for parameter in positional:
        ${parameter},
% endfor
% if has_keywords:
        *,
% endif
% for parameter in keywords:
        ${parameter},
% endfor
% for flag in plain_flags:
        ${flag},
% endfor
% if out:
        out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
% endif
    ) -> ${returns_any}:
        """${call_summary}"""
        if is_dynamo_compiling():
            return self._call(${inputs}, ${scalars}, ${requested}, ${out})
        return self._run(${inputs}, ${scalars}, ${requested}, ${out})
% if trace_lines:

    def trace(
        self,
% for parameter in positional:
        ${parameter},
% endfor
% if has_keywords:
        *,
% endif
% for parameter in keywords:
        ${parameter},
% endfor
% for flag in plain_flags:
        ${flag},
% endfor
% if out:
        out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
% endif
    ) -> tuple[${returns_any}, dict[str, torch.Tensor]]:
        """Runs a traced kernel; returns what a call returns, and the trace by name.

% for i, line in enumerate(trace_lines):
        ${"    " if i else ""}${line}
% endfor

        What the kernel does not write is NaN. InvalidArgument if the kernel is not traced.
        """
        return self._trace(${inputs}, ${scalars}, ${requested}, ${out})
% endif


KERNEL_CLASS = ${class_name}
% if front:

_front = Front("${family}"${", " + front["rule"] if front["rule"] else ""}, flags=${front["defaults"]})
_chosen = _front.__call__  # bound once: a call of the object itself is slower


def ${front["name"]}(
% for parameter in (*positional, *keywords[: front["positional_scalars"]]):
    ${parameter},
% endfor
% if front["has_keywords"]:
    *,
% endif
% for parameter in (*keywords[front["positional_scalars"] :], *front["flags"], *plain_flags):
    ${parameter},
% endfor
% if front["bounded"]:
    sliced: bool = False,
% endif
% if out:
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
% endif
) -> ${returns_any}:
    """${summary}

% for line in (*lines, *front["lines"]):
    ${line}
% endfor

    The kernel is chosen by what the call says; KernelNotFound if none suits.
    """
% if front["bounded"]:
    result = _chosen(${inputs}, ${scalars}, ${requested}, ${out}, ${front["passed"]})
    return to_extents("${family}", result, ${requested}) if sliced else result  # type: ignore[no-any-return]  # one front serves all families
% else:
    return _chosen(${inputs}, ${scalars}, ${requested}, ${out}, ${front["passed"]})  # type: ignore[no-any-return]  # one front serves all families
% endif
% endif
