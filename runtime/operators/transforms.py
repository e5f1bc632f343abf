"""The operators under torch.func.vmap: one call for each of vmap's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from runtime.errors import InvalidArgument
from runtime.handle import Result
from runtime.operators.arguments import NAMESPACE, result_of
from runtime.tensors import is_batched


def mapped(operator: str, names: Sequence[str], written: Sequence[str]) -> Callable[..., Any]:
    """Returns an operator's implementation for vmap.

    Args:
        operator: the operator's name.
        names: the names of its arguments.
        written: those that it writes.
    """

    def call(*arguments: Any, **options: Any) -> Result:
        return _mapped(operator, written, dict(zip(names, arguments, strict=False)) | options)

    return call


def _mapped(operator: str, written: Sequence[str], values: dict[str, Any]) -> Result:
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    functorch = torch._C._functorch
    level = retrieve_current_functorch_interpreter().level()
    call = getattr(getattr(torch.ops, NAMESPACE), operator).default
    axes: dict[str, torch.Tensor] = {}  # tensors with an axis of vmap's, which comes first in them
    for name, value in values.items():
        if isinstance(value, (list, tuple)) and any(map(is_batched, value)):
            raise InvalidArgument(f"{name}: vmap takes no list of tensors")
        if not isinstance(value, torch.Tensor):
            continue
        values[name], axis = functorch._unwrap_batched(value, level)
        if axis is not None:
            axes[name] = values[name].movedim(axis, 0)
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)
    with torch._C._ExcludeDispatchKeyGuard(below):
        if not axes:
            return call(**values)  # type: ignore[no-any-return]  # operators have no types
        for name in written:
            if name not in axes and values.get(name) is not None:
                raise InvalidArgument(
                    f"{name}: each of vmap's calls writes it, and there is one for all; pass one "
                    "for each, with an axis in in_dims"
                )
        # Kernels may require contiguous rows, which vmap's axis prevents unless it comes first.
        packed = {name: tensor.contiguous() for name, tensor in axes.items()}
        count = len(next(iter(packed.values())))
        if count == 0:
            raise InvalidArgument(f"{next(iter(axes))}: vmap's axis has no elements")
        rows = zip(*(tensor.unbind() for tensor in packed.values()), strict=True)
        results = [call(**{**values, **dict(zip(packed, row, strict=True))}) for row in rows]
        for name in written:
            if name in axes and packed[name] is not axes[name]:
                axes[name].copy_(packed[name])
        if results[0] is None:
            return None
        if isinstance(results[0], torch.Tensor):
            stacked = [torch.stack(results)]
        else:
            stacked = [torch.stack(parts) for parts in zip(*results, strict=True)]
    return result_of([functorch._add_batch_dim(tensor, 0, level) for tensor in stacked])
