"""The first tensor and element in which a kernel's intermediates differ from the simulation's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from kernelmint.tools.comparison import Difference, Tolerance, compare
from torch import Tensor

from runtime import manifest

_PRODUCT = 2.0**-18  # error of sums of products in f32, relative to the sum of magnitudes
_EXPONENT = 2.0**-21  # error of an exponent, relative to the terms that it is the difference of
_EXPONENTIAL = 2.0**-20  # relative error of an exponential whose exponent is right
_SUM = 2.0**-22  # error of a part of a sum that is seen as the difference of two sums
_ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "f32": 2.0**-24}
_TINY = 1e-7  # probabilities and gradients that may round to nothing

_AXES = {"B_r": "row", "B_c": "key", "d_head": "d"}
_TRACE = manifest.family("flash_backward").trace
assert _TRACE is not None

STEP = tuple(tensor.name for tensor in _TRACE.record)
DIMS = {t.name: tuple(_AXES[extent] for extent in t.shape) for t in _TRACE.record}
DIMS |= {"dv": ("key", "d"), "dk": ("key", "d"), "dq": ("row", "d")}


class Judge:
    """Compares tensors of one key head, step by step, in the order of `simulate_backward`.

    Each bound follows from the bounds of the tensors that the tensor is made of: Q, K, V and dO are
    equal; products in f32 are off by 2^-18 of their magnitudes; exponents by 2^-21 of theirs;
    P and dS also by a rounding to the dtype, on either side.
    """

    def __init__(
        self, parameters: Mapping[str, Any], lengths: tuple[int, int], scale: float, largest: float
    ) -> None:
        """Takes the lengths of queries and keys, and the largest |o|."""
        self.parameters, self.scale, self.largest = parameters, scale, largest
        self.seq_len_q, self.seq_len_k = lengths
        self.unit = _ROUNDING[parameters["dtype"]]
        self.expected: dict[str, Tensor] = {}  # the tensors of the step at hand
        self.bounds: dict[str, Tensor] = {}  # the tensors of the step, and sums over earlier steps
        self.queries: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        """By head and block of queries: the bound of all of dQ so far, and its terms' magnitude."""

    def begin_keys(self, key_block: int) -> None:
        """Begins a block of keys, whose sums dV and dK are zero."""
        self.first_key = key_block * self.parameters["B_c"]
        zeros = torch.zeros(self.parameters["B_c"], self.parameters["d_head"], dtype=torch.float64)
        self.bounds = {"dV": zeros, "dK": zeros}

    def compare(
        self, name: str, actual: Tensor, expected: Tensor, head: int, query_block: int
    ) -> Difference:
        """Compares one tensor; steps and tensors must come in their order, without gaps."""
        self.expected[name] = expected
        self.bounds[name] = bound = self._bound(name, (head, query_block))
        return compare(
            actual.double(),
            expected,
            name=name,
            tolerance=Tolerance(0, 1),
            dims=DIMS[name],
            where=self._where(name, query_block),
            atol_scale=bound,
        )

    def _where(self, name: str, query_block: int) -> Tensor:
        """Marks the elements that a kernel must have: of rows and keys that exist, scores that are
        seen, and the values of rows that see a key."""
        p = self.parameters
        row: Tensor = query_block * p["B_r"] + torch.arange(p["B_r"])
        key: Tensor = self.first_key + torch.arange(p["B_c"])
        last = row + self.seq_len_k - self.seq_len_q if p["causal"] else self.seq_len_k - 1
        seen: Tensor = torch.where(row < self.seq_len_q, last + 1, 0).clamp(0, self.seq_len_k)
        match name:
            case "S" | "dP":
                return key < seen[:, None]
            case "L" | "D":
                return seen > 0
            case "P" | "dS":
                return torch.ones(len(row), len(key), dtype=torch.bool)
            case "K" | "V" | "dK" | "dV" | "dk" | "dv":
                return (key < self.seq_len_k)[:, None]
            case _:
                return (row < self.seq_len_q)[:, None]

    def _bound(self, name: str, place: tuple[int, int]) -> Tensor:
        of, bounds, scale = self.expected, self.bounds, abs(self.scale)
        bound = torch.zeros(())  # Q, K, V and dO are equal
        match name:
            case "S":
                bound = _PRODUCT * (of["Q"].abs() @ of["K"].abs().T)
            case "L":
                bound = _EXPONENT * of["L"].abs()
            case "P":
                bound = (self._relative() + 2 * self.unit) * of["P"] + _TINY
            case "dP":
                bound = _PRODUCT * (of["dO"].abs() @ of["V"].abs().T)
            case "D":
                bound = _PRODUCT * self.largest * of["dO"].abs().sum(-1) + _TINY
            case "dS":
                difference = (of["dP"] - of["D"][:, None]).abs()
                error = bounds["dP"] + bounds["D"][:, None] + self._relative() * difference
                bound = of["P"] * error + 2 * self.unit * of["dS"].abs() + _TINY
            case "dV":
                bound = bounds["dV"] + self._product(bounds["P"], of["P"], of["dO"])
            case "dK":
                bound = bounds["dK"] + self._product(bounds["dS"], of["dS"], of["Q"])
            case "dQ":
                error = self._product(bounds["dS"].T, of["dS"].T, of["K"])
                before, terms = self.queries.get(place, (torch.zeros(()), torch.zeros(())))
                terms = terms + of["dS"].abs() @ of["K"].abs()
                self.queries[place] = (before + error, terms)
                bound = error + _SUM * terms
            case "dv":
                bound = bounds["dV"] + self.unit * of["dv"].abs()
            case "dk":
                bound = scale * bounds["dK"] + self.unit * of["dk"].abs()
            case "dq":  # 0 of rows without keys, which have no steps
                error, terms = self.queries.get(place, (torch.zeros(()), torch.zeros(())))
                bound = scale * (error + _SUM * terms) + self.unit * of["dq"].abs()
        return bound

    def _relative(self) -> Tensor:
        """Returns the relative error of exponentials."""
        terms = abs(self.scale) * self.expected["S"].abs() + self.expected["L"].abs()[:, None]
        exponent = abs(self.scale) * self.bounds["S"] + _EXPONENT * terms + _EXPONENTIAL
        return torch.expm1(exponent.clamp(max=1.0))

    @staticmethod
    def _product(error: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Returns the error of left^T right, for the error of left."""
        return (error + _PRODUCT * left.abs()).T @ right.abs()
