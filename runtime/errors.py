"""Errors that calling a kernel can raise, beside PyTorch's own."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Sequence

from codegen.core.packs import PackError as PackError
from codegen.core.words import did_you_mean


class KernelNotFound(KeyError):  # noqa: N818 - the public name of the contract
    """The error for a kernel that is not there: no built kernel suits the key or the call."""

    def __str__(self) -> str:
        # KeyError shows its argument's repr, which would put this message on one quoted line.
        return str(self.args[0]) if self.args else ""


class InvalidArgument(ValueError):  # noqa: N818 - the public name of the contract
    """The error for a wrong argument: its name, what was passed and what was expected."""


class TargetUnavailable(RuntimeError):  # noqa: N818 - the public name of the contract
    """The error for a kernel that exists, but not for this build, processor or device."""


class BuildError(RuntimeError):
    """The error for a kernel that cannot be built; it begins with its author's file and line."""


class _Repr(reprlib.Repr):
    def repr1(self, x: object, level: int) -> str:
        torch = sys.modules.get("torch")  # commands that call no kernel do without PyTorch
        if torch is not None and isinstance(x, torch.Tensor):
            # A tensor's memory may be freed, or on a busy device.
            return f"a {type(x).__name__} of shape {list(x.shape)}"
        return super().repr1(x, level)

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # more digits than Python writes out
            return f"an integer of {x.bit_length()} bits"


_repr = _Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 160


def shown(value: object) -> str:
    """Returns `repr(value)` for a message: never long, and never an error of its own."""
    return _repr.repr(value)


def unexpected(name: object, value: object, expected: str) -> InvalidArgument:
    """Returns the error for a value whose type is wrong."""
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return InvalidArgument(f"{name}: got {article} {kind}, expected {expected}")


def unlisted(name: str, value: str, texts: Sequence[str]) -> str:
    """Returns the message for a text that is not among those that an argument takes."""
    meant = did_you_mean(value, texts, list_few=False)
    return f"{name}: got {shown(value)}, expected one of {', '.join(map(repr, texts))}{meant}"


def text(value: object) -> str:
    """Returns a parameter's value for a message: a str as it is, but never long."""
    return value if isinstance(value, str) and len(value) <= _repr.maxstring else shown(value)


for _error in (KernelNotFound, InvalidArgument, TargetUnavailable, PackError, BuildError):
    _error.__module__ = "runtime"
