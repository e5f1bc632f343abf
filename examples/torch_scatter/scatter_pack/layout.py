"""Tensors of any rank as the kernels have them, and back: [B, E, K], the dimensions before a
dimension, it, and those after it. Vectors and rows along the first dimension, which most calls
have, stay as they are: a view that is made in Python takes a third of a small kernel's call."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

import kernelmint


def by_rank(
    family: str, index: str, *tensors: str, rows: tuple[int, ...] = (1,), **flags: Any
) -> dict[int, Callable[..., Any]]:
    """Returns a function that calls a family along the first dimension of `tensors` of rank 1 and
    2, in its other layout.

    Args:
        family: its name.
        index: its index or pointers, a vector.
        tensors: its others.
        rows: the dimensions of the index beside tensors of rank 2, as the kernels have them.
        flags: the family's.
    """
    vectors, matrices = (dict.fromkeys(tensors, dims) for dims in ((1,), (1, 2)))
    return {
        1: kernelmint.Front(family, flags=flags, permuted={index: (1,), **vectors}),
        2: kernelmint.Front(family, flags=flags, permuted={index: rows, **matrices}),
    }


def folded(tensor: Tensor, dim: int) -> Tensor:
    """Returns a tensor as [B, E, K] around its dimension `dim`."""
    before, behind = tensor.shape[:dim].numel(), tensor.shape[dim + 1 :].numel()
    return tensor.reshape(before, tensor.shape[dim], behind)


def index_of(index: Tensor, src: Tensor, name: str) -> tuple[Tensor, int]:
    """Returns an index or pointers [..., E] as [B, E], and its last dimension's place in src. Its
    other dimensions are src's, or 1."""
    dim = index.dim() - 1
    if src.dim() <= dim:
        raise ValueError(f"{name}: got {index.dim()} dimensions, src has {src.dim()}")
    if dim == 0:
        return index[None], 0
    index = index.expand(*src.shape[:dim], index.shape[-1])
    return index.reshape(src.shape[:dim].numel(), index.shape[-1]), dim


def extent_of(index: Tensor, out: Tensor | None, dim: int, dim_size: int | None) -> int:
    """Returns a result's extent along `dim`: that of `out`, the requested one, or the one that the
    index needs."""
    if out is not None:
        return out.shape[dim]
    if dim_size is not None or index.numel() == 0:
        return 0 if dim_size is None else dim_size  # `or` would ask what a graph's symbol is
    return int(index if index.numel() == 1 else index.max()) + 1


def unfolded(folded: Tensor, like: Tensor, dim: int) -> Tensor:
    """Returns [B, N, K] with the other dimensions of `like`."""
    return folded.reshape(*like.shape[:dim], folded.shape[1], *like.shape[dim + 1 :])


def reduced(
    results: Tensor | tuple[Tensor, Tensor],
    index: Tensor,
    src: Tensor,
    dim: int,
    out: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Returns a kernel's results with the other dimensions of src; see `of_found`."""
    if isinstance(results, Tensor):
        return of_found(unfolded(results, src, dim), index, out)
    result, arg = results
    return of_found((unfolded(result, src, dim), unfolded(arg, src, dim)), index, out)


def of_found(
    results: Tensor | tuple[Tensor, Tensor], index: Tensor, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns the result, in `out` if it is given, and the places of its values; the index, which
    nothing reads, if a kernel gives no places."""
    result, arg = (results, index) if isinstance(results, Tensor) else results
    return written(out, result), arg


def broadcast(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """Returns an index of the values of src along `dim`, in src's shape."""
    if index.shape == src.shape:
        return index
    dim = dim if dim >= 0 else src.dim() + dim
    if index.dim() == 1:
        index = index.reshape(*[1] * dim, -1)
    index = index.reshape(*index.shape, *[1] * (src.dim() - index.dim()))
    return index.expand(src.shape)


def written(out: Tensor | None, result: Tensor) -> Tensor:
    """Returns the result, in `out` if it is given."""
    return result if out is None else out.copy_(result)
