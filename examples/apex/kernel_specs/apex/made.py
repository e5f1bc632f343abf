"""The lists on which the three families are checked, and how near their results have to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from kernelmint.tools.comparison import Difference, Tolerance, compare
from kernelmint.tools.problem import UNITS, Problem, single
from torch import Tensor

_DTYPES = {"f32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_SHAPES = ((3,), (), (64, 33), (7000,), (0,), (5, 1, 7))
_OPTIONS: dict[str, Any] = {"betas": (0.9, 0.999), "epsilon": 1e-8}


def lists(
    names: Sequence[str],
    sizes: Mapping[str, int],
    parameters: Mapping[str, Any],
    generator: torch.Generator,
) -> dict[str, Any]:
    """Returns lists of L tensors: g and p are of the kernel's dtype, the others of f32."""
    dtype = _DTYPES.get(str(parameters["dtype"]), torch.float64)
    shapes = [_SHAPES[i % len(_SHAPES)] for i in range(sizes["L"])]

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        drawn = torch.randn(shape, generator=generator, device=generator.device)
        return drawn.to(dtype) if name in "gp" else drawn.square() if name == "v" else drawn

    return {name: [tensor(name, shape) for shape in shapes] for name in names}


def cases(**options: Any) -> tuple[dict[str, Any], ...]:
    """Returns calls of few and of many tensors, in both modes."""
    common = {**_OPTIONS, **options}
    return tuple(
        {"sizes": {"L": count}, "options": {**common, **others}}
        for count, others in (
            (6, {}),
            (90, {"mode": "l2", "decay": 0.1, "chunk_size": 64}),
            (6, {"decay": 0.1, "unbiased": False, "chunk_size": 1000}),
        )
    )


def differences(problem: Problem, out: tuple[Tensor, ...]) -> Iterator[Difference]:
    """Yields the difference of each changed tensor: kernels compute in f32, whatever the dtype."""
    results = single(problem.tensors, problem.changed)
    for (name, got), want in zip(results.items(), problem.expected, strict=True):
        unit = max(UNITS[got.dtype], UNITS[torch.float32])
        if got.numel() != 0:
            tolerance = Tolerance(unit, unit)
            scale = want.abs().max()
            yield compare(got, want, name=name, tolerance=tolerance, atol_scale=scale, dims=())
