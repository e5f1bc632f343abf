"""scatter_sum, …, scatter_max, with torch-scatter's signatures. Sums and means are PyTorch's own
scatter_add_, as they are upstream."""

import torch

import kernelmint
from scatter_pack.layout import broadcast, folded, unfolded, written


@torch.jit.ignore
def _scatter(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    out: torch.Tensor | None,
    dim_size: int | None,
    reduce: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    dim = dim if dim >= 0 else src.dim() + dim
    if out is not None:
        dim_size = out.shape[dim]
    elif dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() else 0
    shape = src.shape[:dim].numel(), src.shape[dim], src.shape[dim + 1 :].numel()
    has_arg = reduce != "mul"
    found = kernelmint.torch_scatter_scatter(
        folded(src, dim),
        broadcast(index, src, dim).reshape(shape),
        None if out is None else folded(out.detach().clone(), dim),
        N=dim_size,
        reduce=reduce,
        return_arg=has_arg,
    )
    result, arg = found if has_arg else (found, index)
    result = written(out, unfolded(result, src, dim))
    return result, unfolded(arg, src, dim) if has_arg else arg


@torch.jit.ignore
def _sum(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    out: torch.Tensor | None,
    dim_size: int | None,
    mean: bool,
) -> torch.Tensor:
    places = broadcast(index, src, dim)
    if out is None:
        if dim_size is None:
            dim_size = int(index.max()) + 1 if index.numel() else 0
        shape = list(src.shape)
        shape[dim] = dim_size
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
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """The sums of the values of src that share an index along `dim`; added to `out`, if given. The
    index has src's shape, or can be broadcast to it."""
    return _sum(src, index, dim, out, dim_size, False)


def scatter_add(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """scatter_sum."""
    return _sum(src, index, dim, out, dim_size, False)


def scatter_mul(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """As scatter_sum, the products."""
    return _scatter(src, index, dim, out, dim_size, "mul")[0]


def scatter_mean(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """As scatter_sum, the means; of integers, rounded down."""
    return _sum(src, index, dim, out, dim_size, True)


def scatter_min(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As scatter_sum, the least values, 0 of none, and where they are."""
    return _scatter(src, index, dim, out, dim_size, "min")


def scatter_max(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As scatter_sum, the greatest values, 0 of none, and where they are."""
    return _scatter(src, index, dim, out, dim_size, "max")


def scatter(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """scatter_<reduce>, of min and max the values alone."""
    if reduce == "sum" or reduce == "add":
        return _sum(src, index, dim, out, dim_size, False)
    if reduce == "mean":
        return _sum(src, index, dim, out, dim_size, True)
    if reduce not in ("mul", "min", "max"):
        raise ValueError(f"reduce: got '{reduce}', expected sum, add, mul, mean, min or max")
    return _scatter(src, index, dim, out, dim_size, reduce)[0]
