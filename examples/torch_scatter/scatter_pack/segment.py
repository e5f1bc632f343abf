"""segment_csr, segment_coo and the gathering functions, with torch-scatter's signatures.

TorchScript calls the functions that are marked as its `ignore` back in Python.
"""

import torch
from torch import Tensor

import kernelmint
from scatter_pack.layout import (
    by_rank,
    extent_of,
    folded,
    index_of,
    of_found,
    reduced,
    unfolded,
    written,
)

_REDUCED = ("src", "result", "arg")
_CSR = by_rank("torch_scatter_segment_csr", "indptr", *_REDUCED, reduce="sum")
_COO = by_rank("torch_scatter_segment_coo", "index", "initial", *_REDUCED, reduce="sum")
_GATHER_CSR = by_rank("torch_scatter_gather_csr", "indptr", "src", "result")
_GATHER_COO = by_rank("torch_scatter_gather_coo", "index", "src", "result")


@torch.jit.ignore
def _csr(src: Tensor, indptr: Tensor, out: Tensor | None, reduce: str) -> tuple[Tensor, Tensor]:
    has_arg = reduce in ("min", "max")
    if indptr.dim() == 1 and (call := _CSR.get(src.dim())) is not None:
        results = call((src.contiguous(), indptr), (), (has_arg,), None, (reduce,), True)
        return of_found(results, indptr, out)
    pointers, dim = index_of(indptr, src, "indptr")
    results = kernelmint.torch_scatter_segment_csr(
        folded(src, dim).contiguous(), pointers, reduce=reduce, return_arg=has_arg
    )
    return reduced(results, pointers, src, dim, out)


@torch.jit.ignore
def _coo(
    src: Tensor, index: Tensor, out: Tensor | None, dim_size: int | None, reduce: str
) -> tuple[Tensor, Tensor]:
    if out is None and dim_size is None:
        dim_size = extent_of(index[..., -1:], out, index.dim() - 1, dim_size)
    has_arg = reduce in ("min", "max")
    if index.dim() == 1 and (call := _COO.get(src.dim())) is not None:
        initial = None if out is None else out.detach().clone().contiguous()
        inputs, extent = (src.contiguous(), index, initial), extent_of(index, out, 0, dim_size)
        return of_found(call(inputs, (extent,), (has_arg,), None, (reduce,), True), index, out)
    places, dim = index_of(index, src, "index")
    results = kernelmint.torch_scatter_segment_coo(
        folded(src, dim).contiguous(),
        places,
        None if out is None else folded(out.detach().clone(), dim).contiguous(),
        N=extent_of(index, out, dim, dim_size),
        reduce=reduce,
        return_arg=has_arg,
    )
    return reduced(results, places, src, dim, out)


@torch.jit.ignore
def _gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None) -> Tensor:
    call = _GATHER_CSR.get(src.dim()) if indptr.dim() == 1 else None
    pointers, dim = (indptr, 0) if call is not None else index_of(indptr, src, "indptr")
    if src.numel() == 0:
        return src.narrow(dim, 0, 0) if out is None else out
    values = src.contiguous() if call is not None else folded(src, dim).contiguous()
    last = indptr if call is not None else indptr.flatten()
    # A GPU has nothing to do from where this has waited for it until the kernel is launched.
    extent, zeroed = (int(last[-1]), False) if out is None else (out.shape[dim], True)
    if call is not None:
        return written(out, call((values, pointers), (extent, zeroed), (), None, (), True))
    result = kernelmint.torch_scatter_gather_csr(values, pointers, E=extent, zeroed=zeroed)
    return written(out, unfolded(result, src, dim))


@torch.jit.ignore
def _gather_coo(src: Tensor, index: Tensor, out: Tensor | None) -> Tensor:
    if index.dim() == 1 and (call := _GATHER_COO.get(src.dim())) is not None:
        return written(out, call((src.contiguous(), index), (), (), None, (), True))
    places, dim = index_of(index, src, "index")
    result = kernelmint.torch_scatter_gather_coo(folded(src, dim).contiguous(), places)
    return written(out, unfolded(result, src, dim))


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Repeats each value of src at all places between its pointers: the inverse of segment_csr."""
    return _gather_csr(src, indptr, out)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns the values of src at an index, along its last dimension: the inverse of
    segment_coo."""
    return _gather_coo(src, index, out)


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Computes the sums of src between the pointers indptr[..., i] and indptr[..., i + 1], along
    the last dimension of indptr; its others are src's, or 1."""
    return _csr(src, indptr, out, "sum")[0]


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Computes means, as segment_sum_csr does sums: 0 without values; of integers, rounded towards
    0."""
    return _csr(src, indptr, out, "mean")[0]


def segment_min_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Computes least values, as segment_sum_csr does sums, 0 without values, and their places."""
    return _csr(src, indptr, out, "min")


def segment_max_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Computes greatest values, as segment_sum_csr does sums, 0 without values, and their
    places."""
    return _csr(src, indptr, out, "max")


def segment_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum"
) -> Tensor:
    """Calls segment_<reduce>_csr; returns only the values of min and max."""
    if reduce not in ("sum", "add", "mean", "min", "max"):
        raise ValueError(f"reduce: got '{reduce}', expected sum, add, mean, min or max")
    return _csr(src, indptr, out, "sum" if reduce == "add" else reduce)[0]


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Computes the sums of the values of src that share an index, along its last dimension, in
    which indices ascend; its others are src's, or 1. With `out`, they are added to it."""
    return _coo(src, index, out, dim_size, "sum")[0]


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Computes means, as segment_sum_coo does sums; with `out`, of its value and theirs, by their
    count."""
    return _coo(src, index, out, dim_size, "mean")[0]


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Computes least values, as segment_sum_coo does sums, 0 without values, and their places."""
    return _coo(src, index, out, dim_size, "min")


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Computes greatest values, as segment_sum_coo does sums, 0 without values, and their
    places."""
    return _coo(src, index, out, dim_size, "max")


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Calls segment_<reduce>_coo; returns only the values of min and max."""
    if reduce not in ("sum", "add", "mean", "min", "max"):
        raise ValueError(f"reduce: got '{reduce}', expected sum, add, mean, min or max")
    return _coo(src, index, out, dim_size, "sum" if reduce == "add" else reduce)[0]


segment_add_csr = segment_sum_csr
segment_add_coo = segment_sum_coo
