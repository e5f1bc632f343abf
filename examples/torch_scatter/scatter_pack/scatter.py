"""scatter_sum, …, scatter_max, with torch-scatter's signatures. Sums and means are PyTorch's own
scatter_add_, as they are upstream."""

import torch
from torch import Tensor

import kernelmint
from scatter_pack.layout import broadcast, by_rank, extent_of, folded, of_found, reduced

_SCATTER = by_rank(
    "torch_scatter_scatter", "index", "src", "initial", "result", "arg", rows=(1, 2), reduce="mul"
)


@torch.jit.ignore
def _scatter(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: str
) -> tuple[Tensor, Tensor]:
    dim = dim if dim >= 0 else src.dim() + dim
    extent, has_arg = extent_of(index, out, dim, dim_size), reduce != "mul"
    if dim == 0 and (call := _SCATTER.get(src.dim())) is not None:
        initial = None if out is None else out.detach().clone().contiguous()
        inputs = src.contiguous(), broadcast(index, src, dim), initial
        return of_found(call(inputs, (extent,), (has_arg,), None, (reduce,), True), index, out)
    results = kernelmint.torch_scatter_scatter(
        folded(src, dim).contiguous(),
        folded(broadcast(index, src, dim), dim),
        None if out is None else folded(out.detach().clone(), dim).contiguous(),
        N=extent,
        reduce=reduce,
        return_arg=has_arg,
    )
    return reduced(results, index, src, dim, out)


@torch.jit.ignore
def _sum(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, mean: bool
) -> Tensor:
    places = broadcast(index, src, dim)
    if out is None:
        shape = list(src.shape)
        shape[dim] = extent_of(index, out, dim, dim_size)
        out = src.new_zeros(shape)
    out = out.scatter_add_(dim, places, src)
    if not mean:
        return out
    at = min(dim if dim >= 0 else src.dim() + dim, index.dim() - 1)
    shape = list(index.shape)
    shape[at] = out.shape[dim]
    ones = src.new_ones(index.shape)
    counts = src.new_zeros(shape).scatter_add_(at, index, ones).clamp_(min=1)
    counts = broadcast(counts, out, dim)
    return out.div_(counts, rounding_mode=None if out.is_floating_point() else "floor")


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Computes the sums of the values of src that share an index along `dim`; added to `out`, if
    given. The index has src's shape, or can be broadcast to it."""
    return _sum(src, index, dim, out, dim_size, False)


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Computes products, as scatter_sum does sums."""
    return _scatter(src, index, dim, out, dim_size, "mul")[0]


def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Computes means, as scatter_sum does sums; of integers, rounded down."""
    return _sum(src, index, dim, out, dim_size, True)


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes least values, as scatter_sum does sums, 0 without values, and their places."""
    return _scatter(src, index, dim, out, dim_size, "min")


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes greatest values, as scatter_sum does sums, 0 without values, and their places."""
    return _scatter(src, index, dim, out, dim_size, "max")


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Calls scatter_<reduce>; returns only the values of min and max."""
    if reduce in ("sum", "add", "mean"):
        return _sum(src, index, dim, out, dim_size, reduce == "mean")
    if reduce not in ("mul", "min", "max"):
        raise ValueError(f"reduce: got '{reduce}', expected sum, add, mul, mean, min or max")
    return _scatter(src, index, dim, out, dim_size, reduce)[0]


scatter_add = scatter_sum
