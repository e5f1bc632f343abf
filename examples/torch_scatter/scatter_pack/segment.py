"""segment_csr, segment_coo and what gathers, with torch-scatter's signatures.

TorchScript calls the functions that are marked as its `ignore` back in Python.
"""

import torch

import kernelmint
from scatter_pack.layout import folded, index_of, unfolded, written


@torch.jit.ignore
def _csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    pointers, dim = index_of(indptr, src, "indptr")
    has_arg = reduce in ("min", "max")
    found = kernelmint.torch_scatter_segment_csr(
        folded(src, dim), pointers, reduce=reduce, return_arg=has_arg
    )
    result, arg = found if has_arg else (found, pointers)
    result = written(out, unfolded(result, src, dim))
    return result, unfolded(arg, src, dim) if has_arg else arg


@torch.jit.ignore
def _coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None,
    dim_size: int | None,
    reduce: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    index, dim = index_of(index, src, "index")
    if out is not None:
        dim_size = out.shape[dim]
    elif dim_size is None:
        dim_size = int(index[:, -1].max()) + 1 if index.numel() else 0
    has_arg = reduce in ("min", "max")
    found = kernelmint.torch_scatter_segment_coo(
        folded(src, dim),
        index,
        None if out is None else folded(out.detach().clone(), dim),
        N=dim_size,
        reduce=reduce,
        return_arg=has_arg,
    )
    result, arg = found if has_arg else (found, index)
    result = written(out, unfolded(result, src, dim))
    return result, unfolded(arg, src, dim) if has_arg else arg


def gather_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Each value of src at all places between its pointers: what segment_csr undoes."""
    return _gather_csr(src, indptr, out)


def gather_coo(
    src: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The values of src at an index, along its last dimension: what segment_coo undoes."""
    return _gather_coo(src, index, out)


def segment_sum_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The sums of src between the pointers indptr[..., i] and indptr[..., i + 1], along the last
    dimension of indptr; its others are src's, or 1."""
    return _csr(src, indptr, out, "sum")[0]


def segment_add_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """segment_sum_csr."""
    return _csr(src, indptr, out, "sum")[0]


def segment_mean_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """As segment_sum_csr, the means: 0 of no values; of integers, rounded towards 0."""
    return _csr(src, indptr, out, "mean")[0]


def segment_min_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As segment_sum_csr, the least values, 0 of none, and where they are."""
    return _csr(src, indptr, out, "min")


def segment_max_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As segment_sum_csr, the greatest values, 0 of none, and where they are."""
    return _csr(src, indptr, out, "max")


def segment_csr(
    src: torch.Tensor,
    indptr: torch.Tensor,
    out: torch.Tensor | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """segment_<reduce>_csr, of min and max the values alone."""
    if reduce not in ("sum", "add", "mean", "min", "max"):
        raise ValueError(f"reduce: got '{reduce}', expected sum, add, mean, min or max")
    return _csr(src, indptr, out, "sum" if reduce == "add" else reduce)[0]


@torch.jit.ignore
def _gather_csr(src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    pointers, dim = index_of(indptr, src, "indptr")
    if src.numel() == 0:
        return src.narrow(dim, 0, 0) if out is None else out
    extent = int(indptr.flatten()[-1]) if out is None else out.shape[dim]
    result = kernelmint.torch_scatter_gather_csr(
        folded(src, dim), pointers, E=extent, zeroed=out is not None
    )
    return written(out, unfolded(result, src, dim))


def segment_sum_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """The sums of the values of src that share an index, along its last dimension, in which indices
    ascend; its others are src's, or 1. With `out`, they are added to it."""
    return _coo(src, index, out, dim_size, "sum")[0]


def segment_add_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """segment_sum_coo."""
    return _coo(src, index, out, dim_size, "sum")[0]


def segment_mean_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """As segment_sum_coo, the means; with `out`, of its value and theirs, by their count."""
    return _coo(src, index, out, dim_size, "mean")[0]


def segment_min_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As segment_sum_coo, the least values, 0 of none, and where they are."""
    return _coo(src, index, out, dim_size, "min")


def segment_max_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As segment_sum_coo, the greatest values, 0 of none, and where they are."""
    return _coo(src, index, out, dim_size, "max")


def segment_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """segment_<reduce>_coo, of min and max the values alone."""
    if reduce not in ("sum", "add", "mean", "min", "max"):
        raise ValueError(f"reduce: got '{reduce}', expected sum, add, mean, min or max")
    return _coo(src, index, out, dim_size, "sum" if reduce == "add" else reduce)[0]


@torch.jit.ignore
def _gather_coo(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    places, dim = index_of(index, src, "index")
    result = kernelmint.torch_scatter_gather_coo(folded(src, dim), places)
    return written(out, unfolded(result, src, dim))
