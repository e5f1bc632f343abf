import torch


def row_lengths(x: torch.Tensor) -> torch.Tensor:
    return x.double().norm(dim=1)
