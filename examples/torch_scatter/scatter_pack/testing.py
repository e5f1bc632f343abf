"""Names that upstream's tests import beside the functions: the dtypes, devices and reductions of
their parameters, and a tensor of a list."""

from typing import Any

import torch

reductions = ["sum", "add", "mean", "min", "max"]
grad_dtypes = [torch.float, torch.double]
dtypes = [torch.half, torch.bfloat16, *grad_dtypes, torch.int, torch.long]
devices = [torch.device("cpu")]
if torch.cuda.is_available():
    devices.append(torch.device("cuda:0"))


def tensor(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Makes a tensor of the values; None of None."""
    return None if values is None else torch.tensor(values, device=device).to(dtype)
