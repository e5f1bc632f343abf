"""The lists on which the three families are checked, and how near their results have to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from kernelmint.tools.comparison import Difference, Tolerance, compare
from kernelmint.tools.problem import Problem, single
from torch import Tensor

_DTYPES = {
    "f32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
}  # fmt: skip
_SHAPES = ((3,), (), (64, 33), (7000,), (0,), (5, 1, 7))
_OPTIONS: dict[str, Any] = {"betas": (0.9, 0.999), "epsilon": 1e-8}
# Kernels compute in f32: a result is the sum of terms of at most 14 roundings.
_ROUNDINGS = 16 * 2.0**-24


def lists(
    names: Sequence[str],
    sizes: Mapping[str, int],
    parameters: Mapping[str, Any],
    generator: torch.Generator,
) -> dict[str, Any]:
    """Returns lists of L tensors: g and p are of the kernel's dtype, the others of f32."""
    dtype = _DTYPES[str(parameters["dtype"])]
    shapes = [_SHAPES[i % len(_SHAPES)] for i in range(sizes["L"])]

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        drawn = torch.randn(shape, generator=generator, device=generator.device)
        return drawn.to(dtype) if name in "gp" else drawn.square() if name == "v" else drawn

    return {name: [tensor(name, shape) for shape in shapes] for name in names}


def cases(**options: Any) -> tuple[dict[str, Any], ...]:
    """Returns calls of few and of many tensors, in both modes. The numbers are f32's, as
    kernels get them: 1 - 0.999 differs by 1.3e-5 of itself there."""
    common = _OPTIONS | options
    return tuple(
        {
            "sizes": {"L": count},
            "options": {name: _in_f32(value) for name, value in (common | others).items()},
        }
        for count, others in (
            (6, {}),
            (90, {"mode": "l2", "decay": 0.1, "chunk_size": 64}),
            (6, {"decay": 0.1, "unbiased": False, "chunk_size": 1000}),
        )
    )


def _in_f32(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_in_f32, value))
    return torch.tensor(value).item() if isinstance(value, float) else value


def differences(
    problem: Problem, out: tuple[Tensor, ...], rounded: bool = False
) -> Iterator[Difference]:
    """Yields the difference of each changed tensor: right within the roundings of f32 in its terms,
    and one to the dtype of the tensor, or to that of the gradients if all are `rounded` to it."""
    results = single(problem.tensors, problem.changed)
    to = _DTYPES[str(problem.parameters["dtype"])]
    for (name, got), want, magnitude in zip(
        results.items(), problem.expected, problem.magnitudes, strict=True
    ):
        if got.numel() == 0:
            continue
        dtype = torch.finfo(to if rounded else got.dtype)
        unit = max(dtype.eps, torch.finfo(torch.float32).eps) / 2
        subnormal = dtype.smallest_normal * dtype.eps
        scale = magnitude + subnormal / 2 / _ROUNDINGS
        tolerance = Tolerance(unit, _ROUNDINGS)
        yield compare(got, want, name=name, tolerance=tolerance, atol_scale=scale, dims=())
