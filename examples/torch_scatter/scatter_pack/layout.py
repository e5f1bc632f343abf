"""Tensors of any rank as the kernels have them: [B, E, K], which is all before a dimension, it, and
all behind it; and back."""

from __future__ import annotations

import torch


def folded(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """A tensor as [B, E, K] around its dimension `dim`, contiguous."""
    before, behind = tensor.shape[:dim].numel(), tensor.shape[dim + 1 :].numel()
    return tensor.reshape(before, tensor.shape[dim], behind).contiguous()


def index_of(index: torch.Tensor, src: torch.Tensor, name: str) -> tuple[torch.Tensor, int]:
    """An index or pointers [..., E] as [B, E], and its last dimension's place in src. Its other
    dimensions are src's, or 1."""
    dim = index.dim() - 1
    if src.dim() <= dim:
        raise ValueError(f"{name}: got {index.dim()} dimensions, src has {src.dim()}")
    index = index.expand(*src.shape[:dim], index.shape[-1])
    return index.reshape(src.shape[:dim].numel(), index.shape[-1]), dim


def unfolded(folded: torch.Tensor, like: torch.Tensor, dim: int) -> torch.Tensor:
    """[B, N, K] with the other dimensions of `like`."""
    return folded.reshape(*like.shape[:dim], folded.shape[1], *like.shape[dim + 1 :])


def broadcast(index: torch.Tensor, src: torch.Tensor, dim: int) -> torch.Tensor:
    """An index of the values of src along `dim`, of src's shape."""
    dim = dim if dim >= 0 else src.dim() + dim
    if index.dim() == 1:
        index = index.reshape(*[1] * dim, -1)
    index = index.reshape(*index.shape, *[1] * (src.dim() - index.dim()))
    return index.expand(src.shape)


def written(out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    """The result, in `out` if it is given."""
    return result if out is None else out.copy_(result)
