"""What is computed where kernels are tuned: inputs, and the right results."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codegen.manifest import Family
from codegen.manifest import Tensor as Argument
from codegen.spec.expressions import INT, ExpressionError, parse
from codegen.spec.model import Shape
from codegen.spec.where import parameter_kind
from runtime import manifest
from runtime.operators import DTYPES

from ..oracle import oracle
from .errors import NotTunableError

MAKER = "tuning_inputs"
# One rounding of a result; for f32 and f64 also that of the sums within.
UNITS = {
    torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-18,
    torch.float64: 2.0**-40,
}  # fmt: skip


@dataclass(eq=False)
class Problem:
    """The arguments of a call by name, and what it must return."""

    family: Family
    parameters: dict[str, Any]
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]
    shapes: tuple[tuple[torch.dtype, list[int]], ...]  # of the outputs
    device: torch.device

    def outputs(self) -> tuple[Tensor, ...]:
        """Memory for the results, poisoned."""
        return tuple(
            torch.full(shape, _poison(dtype), dtype=dtype, device=self.device)
            for dtype, shape in self.shapes
        )

    @functools.cached_property
    def expected(self) -> tuple[Tensor, ...]:
        """What the family's reference makes of the inputs."""
        reference = oracle(self.family.name)
        name = f"{self.family.spec_folder}/{self.family.reference}"
        accepted = inspect.signature(reference).parameters
        others = {k: v for k, v in (self.scalars | self.parameters).items() if k in accepted}
        if unknown := [k for k in self.tensors if k not in accepted]:
            raise NotTunableError(
                f"{name}: it has no parameter {', '.join(unknown)}: its parameters are named as "
                "the family's arguments"
            )
        found = reference(**self.tensors, **others)
        expected = found if isinstance(found, tuple) else (found,)
        if [list(t.shape) for t in expected] != [shape for _, shape in self.shapes]:
            raise NotTunableError(
                f"{name}: it returns {[list(t.shape) for t in expected]}, expected "
                f"{[shape for _, shape in self.shapes]}"
            )
        return expected

    def arguments(self, out: tuple[Tensor, ...]) -> dict[str, Any]:
        """What a kernel is called with."""
        return {**self.tensors, **self.scalars, "out": out if len(out) > 1 else out[0]}

    def wrong(self, results: tuple[Tensor, ...]) -> str | None:
        """What is wrong with results, or None.

        An element is right within unit * (|expected| + the largest |expected|): the second is for
        sums whose terms are larger than they are. Infinities and NaN are right where expected.
        """
        for i, (got, want) in enumerate(zip(results, self.expected, strict=True)):
            unit = UNITS.get(got.dtype, 0.0)
            if want.numel() == 0:
                continue
            want = want.double()
            largest = torch.where(want.isfinite(), want.abs(), 0.0).max()
            worst = (got.double() - want).abs()
            right = torch.where(
                want.isfinite(),
                worst <= unit * (want.abs() + largest),
                (got == want) | (got.isnan() & want.isnan()),
            )
            if not bool(right.all()):
                count = int((~right).sum())
                return (
                    f"output {i}: {count} of {right.numel()} elements are wrong, by up to "
                    f"{float(worst[~right].nan_to_num(torch.inf, torch.inf).max()):.3g}"
                )
        return None


def _poison(dtype: torch.dtype) -> float | int:
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min


def check(family: Family, parameters: Mapping[str, Any]) -> None:
    """Raises NotTunableError where no inputs can be made, or nothing says what is right."""
    if family.reference is None:
        raise NotTunableError(
            f"{family.name} names no reference: kernels are tuned that are known to be right; add "
            "`reference: file.py:function` to its family.yaml"
        )
    try:
        accepted = inspect.signature(oracle(family.name)).parameters
    except Exception as error:  # the file is the family's own
        raise NotTunableError(
            f"{family.spec_folder}/{family.reference}: {type(error).__name__}: {error}"
        ) from None
    if _maker(family) is None:
        _check_inputs(family, parameters, family.reference)
    for parameter in family.parameters:
        if parameter.name in accepted and parameter.name not in parameters:
            raise NotTunableError(
                f"{family.name}: what is right depends on '{parameter.name}', which its reference "
                "takes: name its values under `parameters` of the shapes"
            )


def _check_inputs(family: Family, parameters: Mapping[str, Any], reference: str) -> None:
    for argument in family.inputs:
        if argument.optional:
            continue
        dtype = parameters.get(argument.dtype, argument.dtype)
        if dtype not in DTYPES:
            raise NotTunableError(
                f"{family.name}: the dtype of '{argument.name}' is the parameter '{dtype}': name "
                "its values under `parameters` of the shapes"
            )
        if argument.mutated:
            why = "changes it in place"
        elif not DTYPES[dtype].is_floating_point:
            why = f"has the dtype {dtype}, and random integers may mean nothing"
        else:
            continue
        raise NotTunableError(
            f"{family.name}: no random input can be made of '{argument.name}', which {why}; write "
            f"`{MAKER}(sizes, parameters, generator)` in {reference.partition(':')[0]}, "
            "which returns the input tensors by name"
        )


def _maker(family: Family) -> Any:
    try:
        return oracle(family.name, MAKER)
    except AttributeError:
        return None


def make(name: str, shape: Shape, device: torch.device, seed: int) -> Problem:
    """Random inputs of a shape, normally distributed unless the family makes its own."""
    family = manifest.family(name)
    parameters, sizes = dict(shape.parameters), dict(shape.sizes)
    check(family, parameters)
    generator = torch.Generator(device).manual_seed(seed)
    maker = _maker(family)
    if maker is not None:
        tensors = dict(maker(sizes, parameters, generator))
    else:
        tensors = {
            a.name: torch.randn(
                _extents(family, a, parameters, sizes), generator=generator, device=device
            ).to(DTYPES[str(parameters.get(a.dtype, a.dtype))])
            for a in family.inputs
            if not a.optional
        }
    outputs = tuple(
        (DTYPES[str(parameters.get(a.dtype, a.dtype))], _extents(family, a, parameters, sizes))
        for a in family.outputs
        if not a.optional
    )
    return Problem(family, parameters, tensors, dict(shape.scalars), outputs, device)


def bytes_moved(family: Family, shape: Shape) -> int | None:
    """The bytes of the tensors of a shape, each counted once; None if what is tuned decides."""
    parameters, sizes = dict(shape.parameters), dict(shape.sizes)
    try:
        moved = [
            DTYPES[str(parameters.get(a.dtype, a.dtype))].itemsize
            * math.prod(_extents(family, a, parameters, sizes))
            for a in (*family.inputs, *family.outputs)
            if not a.optional
        ]
    except (NotTunableError, KeyError):
        return None
    return sum(moved)


def _extents(
    family: Family, argument: Argument, parameters: Mapping[str, Any], sizes: Mapping[str, int]
) -> list[int]:
    kinds = {p.name: parameter_kind(p) for p in family.parameters if p.name in parameters}
    scope = {**kinds, **dict.fromkeys(sizes, INT)}
    try:
        return [
            int(parse(text, scope, "int").evaluate({**parameters, **sizes}))
            for text in argument.dims
        ]
    except ExpressionError as error:
        raise NotTunableError(
            f"{family.name}: the extents of '{argument.name}' depend on what is tuned: {error}"
        ) from None
