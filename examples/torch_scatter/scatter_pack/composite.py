"""torch-scatter's composite functions, made of sums and greatest values."""

import torch

from scatter_pack.layout import broadcast, extent_of, written
from scatter_pack.scatter import scatter_max, scatter_sum


@torch.jit.ignore
def _shifted(
    src: torch.Tensor, index: torch.Tensor, dim: int, dim_size: int | None, name: str
) -> torch.Tensor:
    """Subtracts from src the greatest value of its index."""
    if not src.is_floating_point():
        raise ValueError(f"{name}: got {src.dtype}, expected a floating dtype")
    return src - scatter_max(src, index, dim, None, dim_size)[0].gather(dim, index)


@torch.jit.ignore
def _softmax(
    src: torch.Tensor, index: torch.Tensor, dim: int, dim_size: int | None
) -> torch.Tensor:
    index = broadcast(index, src, dim)
    powers = _shifted(src, index, dim, dim_size, "scatter_softmax").exp()
    return powers / scatter_sum(powers, index, dim, None, dim_size).gather(dim, index)


def scatter_softmax(
    src: torch.Tensor, index: torch.Tensor, dim: int = -1, dim_size: int | None = None
) -> torch.Tensor:
    """Computes the softmax of the values of src that share an index."""
    return _softmax(src, index, dim, dim_size)


@torch.jit.ignore
def _log_softmax(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    eps: float,
    dim_size: int | None,
) -> torch.Tensor:
    index = broadcast(index, src, dim)
    shifted = _shifted(src, index, dim, dim_size, "scatter_log_softmax")
    sums = scatter_sum(shifted.exp(), index, dim, None, dim_size)
    return shifted - (sums + eps).log().gather(dim, index)


def scatter_log_softmax(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    eps: float = 1e-12,
    dim_size: int | None = None,
) -> torch.Tensor:
    """Computes the logarithm of scatter_softmax; `eps` is added to its argument."""
    return _log_softmax(src, index, dim, eps, dim_size)


@torch.jit.ignore
def _logsumexp(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    out: torch.Tensor | None,
    dim_size: int | None,
    eps: float,
) -> torch.Tensor:
    if not src.is_floating_point():
        raise ValueError(f"scatter_logsumexp: got {src.dtype}, expected a floating dtype")
    index = broadcast(index, src, dim)
    shape = list(src.shape)
    shape[dim] = dim_size = extent_of(index, out, dim, dim_size)
    greatest = scatter_max(src, index, dim, src.new_full(shape, float("-inf")))[0]
    shifted = src - greatest.gather(dim, index)
    shifted = shifted.masked_fill(shifted.isnan(), float("-inf"))
    sums = scatter_sum(shifted.exp(), index, dim, None, dim_size)
    if out is not None:
        sums = sums + (out - greatest).exp()
    return written(out, ((sums + eps).log() + greatest).nan_to_num(neginf=0.0))


def scatter_logsumexp(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> torch.Tensor:
    """Computes the logarithm of the sum of exp of the values of src that share an index, and of
    `out`."""
    return _logsumexp(src, index, dim, out, dim_size, eps)


@torch.jit.ignore
def _std(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    out: torch.Tensor | None,
    dim_size: int | None,
    unbiased: bool,
) -> torch.Tensor:
    index = broadcast(index, src, dim)
    if out is not None:
        dim_size = out.shape[dim]
    sums = scatter_sum(src, index, dim, None, dim_size)
    counts = scatter_sum(torch.ones_like(src), index, dim, None, dim_size).clamp(1)
    squares = (src - (sums / counts).gather(dim, index)).square()
    total = scatter_sum(squares, index, dim, out, dim_size)
    return (total / ((counts - 1).clamp(1) if unbiased else counts).add(1e-6)).sqrt()


def scatter_std(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> torch.Tensor:
    """Computes the standard deviation of the values of src that share an index."""
    return _std(src, index, dim, out, dim_size, unbiased)
