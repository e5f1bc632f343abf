"""Checks and facts of arguments, before a kernel is chosen for them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch

from codegen.core import dtypes
from runtime.errors import InvalidArgument, unexpected, unlisted
from runtime.pytorch import traced_as_constant


class _Dtypes(dict[str, torch.dtype]):
    def __missing__(self, name: str) -> torch.dtype:
        raise InvalidArgument(f"PyTorch {torch.__version__} has no dtype {name}")


DTYPES = _Dtypes((d.name, getattr(torch, d.torch)) for d in dtypes.TABLE if hasattr(torch, d.torch))
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Looked up once: calls are short.
_is_jit_tracing = torch._C._is_tracing
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
is_autocast = torch._C._is_any_autocast_enabled  # on any kind of device


@traced_as_constant
def dtype_name(dtype: torch.dtype) -> str:
    """Returns a dtype as specs write it, or, if they lack it, as PyTorch does."""
    return _DTYPE_NAMES.get(dtype) or str(dtype)


def is_integer(value: object) -> TypeGuard[int]:
    """Returns whether a value is an integer or a symbol of a graph, and not a bool."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def autocast(*arguments: Any) -> tuple[Any, ...]:
    """Converts tensors to autocast's dtype if it is on, as PyTorch's own operators of lower
    precision do: those of floating point but float64."""
    return tuple(map(_autocast, arguments))


def _autocast(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def check(name: str, tensor: Any, rank: int) -> None:
    """Raises InvalidArgument unless `tensor` is a dense tensor of `rank` dimensions."""
    if not isinstance(tensor, torch.Tensor):
        raise unexpected(name, tensor, "a torch.Tensor")
    if tensor.is_nested:
        raise InvalidArgument(f"{name}: got a nested tensor, expected a dense tensor with data")
    if tensor.layout != torch.strided:
        raise InvalidArgument(
            f"{name}: got a tensor of layout {tensor.layout}, expected a dense tensor with data"
        )
    if tensor.is_meta:
        raise InvalidArgument(
            f"{name}: got a meta tensor, which has no memory; expected a tensor with data"
        )
    if tensor.dim() != rank:
        raise InvalidArgument(
            f"{name}: got shape {list(tensor.shape)}, expected a tensor of {rank} dimensions"
        )
    if not _is_dynamo_compiling():  # Dynamo looks at no memory
        _check_memory(name, tensor)


def check_list(name: str, value: Any) -> None:
    """Raises InvalidArgument unless `value` is a list or a tuple of tensors."""
    if not isinstance(value, (list, tuple)):
        raise unexpected(name, value, "a list or a tuple of tensors")
    for i, tensor in enumerate(value):
        if not isinstance(tensor, torch.Tensor):
            raise unexpected(f"{name}[{i}]", tensor, "a torch.Tensor")


def _check_memory(name: str, tensor: torch.Tensor) -> None:
    """Refuses tensors on which PyTorch's own functions would fail, unless a mode or a transform
    takes them."""
    if torch._C._len_torch_dispatch_stack() > 0:
        return
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        if isinstance(tensor, torch._subclasses.FakeTensor):
            raise InvalidArgument(
                f"{name}: got a FakeTensor, which has no memory; expected a tensor with data (a "
                "fake tensor goes with its mode: call this inside it)"
            )
        return
    if not tensor.data_ptr() and 0 not in _numbers(tensor.shape):
        raise InvalidArgument(f"{name}: got a tensor without memory, expected one with data")


def is_jit_tracing() -> bool:
    """Returns whether torch.jit.trace records: then extents are tensors, which are part of its
    graph."""
    return not _is_dynamo_compiling() and _is_jit_tracing()


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a call computes at once: nothing records or transforms it."""
    if _is_dynamo_compiling() or _is_jit_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def is_known(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's values can be read: not while a graph is recorded that must
    serve other values, nor within a transform."""
    if _is_dynamo_compiling() or _is_jit_tracing():
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    if torch._C._len_torch_dispatch_stack() == 0:
        return True
    try:  # a mode that records refuses this, or answers with a symbol
        return type(tensor.sum().item()) in (int, float)
    except RuntimeError:
        return False


def is_expanded(tensor: Any, dim: int) -> bool:
    """Returns whether the elements along a dimension are one in memory, and more than one; False
    for a tensor that is not dense or lacks the dimension, which kernels refuse."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.layout != torch.strided:
        return False
    if dim >= tensor.dim() or tensor.stride(dim) != 0:
        return False
    return bool(_numbers(tensor.shape)[dim] > 1)


def expanded(inputs: Sequence[Any], memory: Sequence[tuple[str, int, int]]) -> dict[str, bool]:
    """Returns `is_expanded` by name, for each (name, place of an input, dimension)."""
    answers = {}
    for name, place, dim in memory:
        answers[name] = is_expanded(inputs[place], dim)
    return answers


def is_batched(tensor: Any) -> bool:
    """Returns whether torch.func.vmap takes another tensor in its place for each of its calls."""
    return isinstance(tensor, torch.Tensor) and torch._C._functorch.is_batchedtensor(tensor)


def extents(name: str, tensor: Any, rank: int) -> tuple[Any, ...]:
    """Returns the extents of a tensor that `check` accepts.

    While torch.jit.trace makes tensors of extents, these are their values: a kernel is chosen by
    them, and any kernel serves all extents. Values read here become constants in the graph, so
    whatever else depends on extents must come from `tensor.shape`.
    """
    if type(tensor) is torch.Tensor and not (tensor.is_nested or tensor.is_meta):
        shape = tensor.shape
        # No symbol's or trace's extents. The kernel refuses whatever else may be wrong.
        if len(shape) == rank and (rank == 0 or type(shape[0]) is int):
            return shape
    check(name, tensor, rank)
    return _numbers(tensor.shape)


def _numbers(shape: torch.Size) -> tuple[Any, ...]:
    """Returns a shape's extents; while torch.jit.trace makes tensors of them, their values."""
    if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]  # PyTorch's
        return tuple(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit._trace.TracerWarning)
        return tuple(int(extent) for extent in shape)


def check_heads(name: str, heads: Any, kv_name: str, kv_heads: Any) -> None:
    """Raises InvalidArgument if heads of queries cannot share heads of keys evenly."""
    if heads != 0 if kv_heads == 0 else heads % kv_heads != 0:
        raise InvalidArgument(
            f"{kv_name}: got {kv_heads} heads, expected a number that divides {heads}, that of "
            f"{name}'s: each serves a whole group of them"
        )


def check_width(name: str, width: Any) -> None:
    """Raises InvalidArgument for a head dimension that is no multiple of 8."""
    if width % 8 != 0:
        raise InvalidArgument(
            f"{name}: got a head dimension of {width}, expected a multiple of 8: rows are read 16 "
            "bytes at a time"
        )


def expect(
    name: str,
    tensor: Any,
    shape: tuple[Any, ...],
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> None:
    """Raises InvalidArgument unless a tensor has this shape, dtype and device; None allows any."""
    got_shape = extents(name, tensor, len(shape))
    for got, want in zip(got_shape, shape, strict=True):
        if want is not None and got != want:
            expected = ", ".join("any" if extent is None else str(extent) for extent in shape)
            raise InvalidArgument(f"{name}: got shape {list(got_shape)}, expected [{expected}]")
    if dtype is not None and tensor.dtype != dtype:
        raise InvalidArgument(f"{name}: got dtype {tensor.dtype}, expected {dtype}")
    if device is not None and tensor.device != device:
        raise InvalidArgument(f"{name}: got a tensor on {tensor.device}, expected one on {device}")


_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def number(name: str, value: Any, python: str, values: tuple[str, ...], is_required: bool) -> Any:
    """Returns a scalar's value, as conditions take it.

    Args:
        name: the scalar's name.
        value: the argument; None if it is left out.
        python: the type that callers pass: str, int, float or bool.
        values: the texts of an enum.
        is_required: whether the scalar has no default.

    Raises:
        InvalidArgument: no kernel takes the value.
    """
    if value is None:
        if is_required:
            raise InvalidArgument(f"{name}: got None, expected a value: there is no default")
        return None
    if values and isinstance(value, str):
        if value not in values:
            raise InvalidArgument(unlisted(name, value, values))
        return value
    if not values and isinstance(value, _NUMBERS):
        return value
    if not values and getattr(value, "ndim", None) == 0 and not getattr(value, "is_cuda", False):
        return value.item()  # a scalar tensor on the CPU, or NumPy's
    raise unexpected(name, value, f"{'an' if python == 'int' else 'a'} {python}")
