"""The first tensor and element in which a kernel's intermediates differ from the simulation's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from kernelmint.tools.comparison import Difference, Tolerance, compare
from torch import Tensor

from .trace import DIMS, Step

_PRODUCT = 2.0**-18  # error of sums of products in f32, relative to the sum of magnitudes
_EXPONENTIAL = 1e-4  # relative error of an exponential whose exponent has that error
_EXPONENT = 2.0**-20  # error of an exponent, relative to its maximum
_ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "f32": 2.0**-24}
_TINY = 1e-7  # probabilities and factors that may round to nothing


@dataclass(frozen=True)
class Divergence:
    """The first tensor that differs, in the order in which the kernel makes them."""

    head: int
    query_block: int
    block: int
    name: str
    difference: Difference
    warp: int | None

    def __str__(self) -> str:
        """Returns one line: block, tensor, element, and what stands there."""
        d = self.difference
        where = f"block {self.block}, {self.name}" if self.block >= 0 else self.name
        if d.first is None:
            return f"head {self.head}, query block {self.query_block}: {where}: {d.problem}"
        warp = "" if self.warp is None else f" (warp {self.warp})"
        return (
            f"head {self.head}, query block {self.query_block}: {where}, {d.first}{warp}; "
            f"{d.beyond} of {d.compared} elements differ"
        )


@dataclass(frozen=True)
class Rows:
    """The keys that the rows of a block of queries see."""

    valid: Tensor  # bool, [B_r]: rows before Sq
    seen: Tensor  # int, [B_r]: how many keys each sees

    @classmethod
    def of(
        cls, parameters: Mapping[str, Any], query_block: int, seq_len_q: int, seq_len_k: int
    ) -> Rows:
        """Returns the rows of a query block; under the mask, query i sees i + Sk - Sq + 1 keys."""
        row = query_block * parameters["B_r"] + torch.arange(parameters["B_r"])
        seen = row + seq_len_k - seq_len_q + 1 if parameters["causal"] else row * 0 + seq_len_k
        valid = row < seq_len_q
        return cls(valid, torch.where(valid, seen.clamp(0, seq_len_k), 0))


class Judge:
    """Compares the steps of one block of queries, in order; remembers what bounds need."""

    def __init__(self, parameters: Mapping[str, Any], rows: Rows, fused: bool) -> None:
        self.rows = rows
        self.B_c: int = parameters["B_c"]
        self.unit = _ROUNDING[parameters["dtype"]]
        scale = parameters["d_head"] ** -0.5
        self.factor = 1.0 if fused else scale
        self.to_exponent = math.log2(math.e) * (scale if fused else 1.0)  # from M, to base 2
        self.expected: dict[str, Tensor] = {}  # keys of the block at hand
        self.greatest = torch.zeros(len(rows.seen), dtype=torch.float64)  # |Q| |K|^T, by row
        self.magnitude: Tensor | float = 0.0  # sum of P |V|, rescaled as O is
        self.fused = fused
        self.maximum = torch.zeros_like(self.greatest)  # |M| before this block, 0 without one
        self.relative = torch.zeros_like(self.greatest)  # error of exponentials, by row

    def compare(self, actual: Step, expected: Step) -> Difference:
        """Compares one tensor; `expected` must come in the simulation's order, none left out."""
        self.expected[expected.name] = expected.value
        tolerance, scale = self._tolerance(expected.name)
        return compare(
            actual.value.double(),
            expected.value,
            name=expected.name,
            tolerance=tolerance,
            dims=DIMS[expected.name],
            where=self._where(expected),
            atol_scale=scale,
        )

    def _where(self, step: Step) -> Tensor:
        """Marks the elements that a kernel must have: of rows and keys that exist, scores seen."""
        rows = self.rows.valid
        key = step.block * self.B_c + torch.arange(self.B_c)
        match step.name:
            case "K" | "V":
                return (key < int(self.rows.seen.max()))[:, None]
            case "S_pre_scaling":
                return key < self.rows.seen[:, None]
            case "M" | "O_scale":  # rows that have seen a key
                return rows & (self.rows.seen > step.block * self.B_c)
            case "L":
                return rows
            case _:
                return rows[:, None]

    def _tolerance(self, name: str) -> tuple[Tolerance, Tensor | float]:
        expected = self.expected
        match name:
            case "Q" | "K" | "V":
                return Tolerance(0, 0), 1.0
            case "S_pre_scaling":
                products = expected["Q"].abs() @ expected["K"].abs().T
                if self.fused:  # the products may have started from -M
                    products += self.maximum[:, None]
                self.greatest = torch.maximum(self.greatest, products.amax(-1))
                return Tolerance(0, _PRODUCT), products
            case "M":
                self.maximum = expected["M"].abs().nan_to_num(posinf=0.0)
                exponents = self.to_exponent * self.maximum
                error = _EXPONENTIAL + torch.expm1((_EXPONENT * exponents).clamp(max=700))
                self.relative = torch.maximum(self.relative, error)
                return Tolerance(0, _PRODUCT), self.factor * self.greatest
            case "L" | "O_scale":
                return Tolerance(0, 1), self.relative * expected[name] + _TINY
            case "P":
                relative = self.relative[:, None] + 2 * self.unit
                return Tolerance(0, 1), relative * expected["P"] + _TINY
            case "O":
                rescaled = expected["O_scale"][:, None] * self.magnitude
                self.magnitude = rescaled + expected["P"] @ expected["V"].abs()
                return Tolerance(0, 1), (self.relative[:, None] + self.unit) * self.magnitude
            case _:
                sums = expected["L"][:, None] if "L" in expected else 1.0
                scale = torch.as_tensor(self.magnitude / sums).nan_to_num(0.0)
                return Tolerance(self.unit, self.unit + _EXPONENTIAL), scale


def first_divergence(
    actual: Sequence[Step],
    expected: Sequence[Step],
    parameters: Mapping[str, Any],
    rows: Rows,
    *,
    fused: bool,
    head: int,
    query_block: int,
) -> Divergence | None:
    """Returns the first tensor of one block of queries that differs, or None if all agree.

    Tensors come in the order of `simulate`, the same on both sides. Tolerances: Q, K and V are
    equal; S_pre_scaling and M lie within 2^-18 of |Q| |K|^T, and in the fused form of the maximum
    so far, from which products may start; L and O_scale within 1e-4, and P, O
    and O_final within that and a rounding to the dtype, O and O_final relative to P |V|. Exponents
    inherit the rounding of the maximum, 2^-20 of it, so that if scores are in the millions,
    exponentials may be off by a factor, the same in P, L and O; O_final may not.
    """
    judge = Judge(parameters, rows, fused)
    for mine, theirs in zip(actual, expected, strict=True):
        if (mine.block, mine.name) != (theirs.block, theirs.name):
            raise ValueError(f"{mine.block}, {mine.name} against {theirs.block}, {theirs.name}")
        difference = judge.compare(mine, theirs)
        if difference.passed or (difference.compared == 0 and math.isnan(difference.max_abs)):
            continue
        # Warps that compute, four of each warpgroup of sm90a's kernels; the CPU's have none.
        warps = parameters.get("n_warps", 4 * parameters.get("n_warpgroups", 0))
        warp = None
        if warps and difference.first is not None and difference.first.names[0] == "row":
            warp = difference.first.index[0] // (parameters["B_r"] // warps)
        return Divergence(head, query_block, mine.block, mine.name, difference, warp)
    return None
