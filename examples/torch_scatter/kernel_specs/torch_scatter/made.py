"""Inputs that the kernels are checked with, and the rule for a reduction's results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from kernelmint.tools.comparison import Difference, Tolerance, compare
from kernelmint.tools.families import oracle
from kernelmint.tools.problem import UNITS, Problem

from codegen.core.dtypes import TABLE

_DTYPES = {dtype.name: getattr(torch, dtype.torch, None) for dtype in TABLE}


def source(
    sizes: Mapping[str, int], extent: str, parameters: Mapping[str, Any], generator: torch.Generator
) -> torch.Tensor:
    """Makes src [B, extent, K]: normal; small integers, whose products fit."""
    shape = (sizes["B"], sizes[extent], sizes["K"])
    values = torch.randn(shape, generator=generator, device=generator.device)
    dtype = _DTYPES[parameters["dtype"]]
    return values.to(dtype) if dtype.is_floating_point else (values * 2).abs().to(dtype)


def indices(
    sizes: Mapping[str, int], below: int, generator: torch.Generator, *more: int
) -> torch.Tensor:
    """Makes indices [B, E, *more], in no order."""
    shape = (sizes["B"], sizes["E"], *more)
    return torch.randint(0, max(below, 1), shape, generator=generator, device=generator.device)


def pointers(
    sizes: Mapping[str, int], extent: int, generator: torch.Generator, whole: bool
) -> torch.Tensor:
    """Makes indptr [B, P], ascending up to `extent`; `whole`: from 0, and to it."""
    shape = (sizes["B"], sizes["P"])
    ends = torch.randint(0, extent + 1, shape, generator=generator, device=generator.device)
    ends = ends.sort(1).values
    if whole and sizes["P"]:
        ends[:, 0], ends[:, -1] = 0, extent
    return ends


def differences(
    problem: Problem, out: tuple[torch.Tensor, ...], segments: torch.Tensor
) -> list[Difference]:
    """Returns the differences of a reduction's results. Upstream's kernels add and multiply in the
    dtype, so each of the values of a segment may round; of several that are least or greatest, any
    may be the arg. `segments`: where in the result each value goes, [B, E, K]."""
    src, reduce = problem.tensors["src"], problem.parameters["reduce"]

    def reduced(values: torch.Tensor, how: str) -> torch.Tensor:
        other = dataclasses.replace(
            problem,
            tensors=problem.tensors | {"src": values},
            parameters=problem.parameters | {"reduce": how},
            scalars={k: v for k, v in problem.scalars.items() if k != "return_arg"},
            shapes=problem.shapes[:1],
        )
        return other.by(oracle(problem.family.name))[0].double()

    unit, want = UNITS.get(src.dtype, 0.0), problem.expected[0].double()
    scale = want.abs()
    if reduce in ("sum", "mean"):
        scale = reduced(src.abs(), reduce) * reduced(torch.ones_like(src), "sum")
    elif reduce == "mul":
        if src.is_floating_point():  # a product that falls below the normal ones may grow again
            kind = torch.finfo(src.dtype)
            scale += kind.eps * kind.tiny / unit * reduced(src.abs().clamp(min=1), "mul")
        scale *= torch.zeros_like(want).scatter_add_(1, segments, torch.ones_like(src).double())
    compared = [compare(
        out[0], want, name="result", tolerance=Tolerance(unit, unit), atol_scale=scale
    )]  # fmt: skip
    if len(out) > 1:
        nothing = src.new_full((src.shape[0], 1, src.shape[2]), -1).double()
        values = torch.cat([src.double(), nothing], 1)
        rows = torch.arange(want.shape[1], device=src.device)[None, :, None].expand(want.shape)
        places = torch.cat([segments, rows[:, :1] - 1], 1)

        def at(arg: torch.Tensor) -> torch.Tensor:  # NaN if it is not of the row
            known = arg.clamp(0, src.shape[1])
            is_of_row = (known == arg) & ((places.gather(1, known) == rows) | (arg == src.shape[1]))
            return values.gather(1, known).where(is_of_row, torch.nan)

        compared.append(compare(at(out[1]), at(problem.expected[1]), name="arg"))
    return compared
