"""The verdict on a pair of implementations, for one case and one mode.

Lists are compared by the oracle's scores; `o` three ways: each side against the fp64 oracle that is
made to use that side's own lists (teacher-forced: a selection's freedom is taken out, and a wrong
side shows by itself), and end to end, pair against pair, on the tokens whose lists agree. LayerNorm
couples all heads of a token, so a token is left out as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from kernelmint.tools import comparison
from kernelmint.tools.comparison import Difference, Selections, Tolerance

from .. import semantics
from ..block_sparse import reference
from .cases import Case, Inputs
from .implementations import Implementation

JAGGED = "hstu_attention_with_bsa"  # the function that has jagged sequences
OUTPUT_DIMS = ("b", "t", "h", "d")
_BUDGET = ("max_abs", "rms_ratio", "share_beyond", "max_ulp")  # the members of an error in JSON


@dataclass(frozen=True)
class Verdict:
    """All comparisons of one function's results from a pair of implementations."""

    function: str
    differences: tuple[Difference, ...]
    selections: Selections | None
    budgets: dict[str, Difference]  # distance of each result from fp64
    excluded_tokens: float  # the share that was left out of the end-to-end comparison
    places: tuple[str, ...]  # for what failed: row classes and shares by head

    @property
    def passed(self) -> bool:
        """Returns whether everything agrees."""
        lists = self.selections is None or self.selections.passed
        return lists and all(difference.passed for difference in self.differences)

    def as_dict(self) -> dict[str, Any]:
        """Returns a form for JSON."""
        return {
            "function": self.function,
            "passed": self.passed,
            "differences": [*map(comparison.as_dict, self.differences)],
            "selections": self.selections and comparison.as_dict(self.selections),
            "budgets": {
                name: {figure: getattr(budget, figure) for figure in _BUDGET}
                for name, budget in self.budgets.items()
            },
            "excluded_tokens": self.excluded_tokens,
        }


class Oracle:
    """The reference in fp64 on padded tensors, for one case and mode, also with another's lists."""

    def __init__(
        self,
        tensors: tuple[torch.Tensor, ...],
        case: Case,
        mode: semantics.Mode,
        valid: torch.Tensor | None = None,
    ) -> None:
        """Takes q, k, v, u, g_cmp, and the rows that are not padding, bool [B, T]."""
        self.flags = semantics.semantics_of(mode)
        self.case = case
        self.valid = valid
        self._tensors = reference.to_double(*tensors)
        self.own = self._trace(None)
        self.ranking = self.own.ranking  # [B, H, T, C], a shared list's being its owner's
        if self.flags.share == "heads" and self.ranking.shape[1] > 1:
            self.ranking = self.ranking.clone()
            self.ranking[:, 1::2] = self.ranking[:, 0::2]
        elif self.flags.share == "time":
            self.ranking = self.ranking.clone()
            self.ranking[:, :, 1::2] = self.ranking[:, :, :-1:2]

    def _trace(self, lists: torch.Tensor | None) -> reference.Trace:
        return reference.trace(
            *self._tensors,
            block_count=self.case.block_count,
            block_size=self.case.block_size,
            mode=self.flags,
            block_indices=lists,
        )

    def forced(self, lists: torch.Tensor) -> torch.Tensor:
        """Returns o [B, T, H, L] in fp64 if the selection were `lists`."""
        if torch.equal(lists, self.own.block_indices):
            return self.own.o
        return self._trace(lists).o

    def accepts(self, lists: torch.Tensor) -> bool:
        """Returns whether `lists` could be a selection at all."""
        own = self.own.block_indices
        if lists.shape != own.shape or lists.dtype != own.dtype:
            return False
        return int(lists.min()) >= -1 and int(lists.max()) < self.ranking.shape[-1]

    def compare_lists(self, actual: torch.Tensor, expected: torch.Tensor, name: str) -> Selections:
        """Lists against lists, by the oracle's scores."""
        return comparison.compare_selections(
            actual,
            expected,
            self.ranking,
            name=name,
            absent_rank=self.flags.masked_rank,
            dims=("b", "h", "t"),
        )


def padded_tensors(function: str, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Returns q, k, v, u, g_cmp as block-sparse attention gets them."""
    if function != JAGGED:
        return inputs.padded
    rows = inputs.jagged
    q, k, v, u = rows.by_heads()
    g_cmp, _, _ = rows.gate_model(q)
    return tuple(map(rows.pad, (q, k, v, u, g_cmp)))


class Computed:
    """Returns one implementation's results for one function's inputs.

    Attributes:
        lists: what it selects for the padded tensors.
        returned: the tensors that it returns, by name; the output is the first.
        o: the output, [B, T, H, L], if it has the right shape.
    """

    def __init__(self, function: str, one: Implementation, inputs: Inputs, mode: str) -> None:
        case = inputs.case
        self.o, self.lists = one.attention(
            *padded_tensors(function, inputs),
            block_count=case.block_count,
            block_size=case.block_size,
            mode=mode,
        )
        self.returned = {"o": self.o, "block_indices": self.lists}
        if function == JAGGED:
            self.o, *copies = one.run_hstu(inputs, mode)
            names = ("attn_output", "padded_q", "padded_k")
            self.returned = dict(zip(names, (self.o, *copies), strict=True))
            if self.o.shape == (case.offsets[-1], case.H * case.L):
                self.o = inputs.jagged.pad(self.o.reshape(-1, case.H, case.L))


class Judge:
    """Verdicts on pairs of results of one case; the oracle is computed once."""

    def __init__(self, function: str, inputs: Inputs, mode: str, tolerance: Tolerance) -> None:
        self.function = function
        self.inputs = inputs
        self.tolerance = tolerance
        valid = None
        if function == JAGGED:
            q = inputs.jagged.q
            valid = inputs.jagged.pad(torch.ones(len(q), dtype=torch.bool, device=q.device))
        self.oracle = Oracle(padded_tensors(function, inputs), inputs.case, mode, valid)

    def verdict(self, names: tuple[str, str], pair: tuple[Computed, Computed]) -> Verdict:
        """Compares pair[1] with pair[0], the expected side: outputs and lists, and the padded
        copies bit for bit."""
        oracle, tolerance = self.oracle, self.tolerance
        expected, actual = pair
        output, *copies = expected.returned
        for one in pair:
            if one.o.shape != oracle.own.o.shape:
                problem = f"shape {list(one.o.shape)}, expected {list(oracle.own.o.shape)}"
                refused = comparison.refused(f"output {output}", problem)
                return Verdict(self.function, (refused,), None, {}, 0.0, ())
        selections = oracle.compare_lists(actual.lists, expected.lists, "block_indices")
        valid = None if oracle.valid is None else oracle.valid[:, :, None, None]
        where, excluded = valid, 0.0
        if selections.differing is not None:
            used = reference.arrange(selections.differing[..., None], oracle.flags)[..., 0]
            agreeing = ~used.any(1)
            excluded = 1.0 - float(agreeing.double().mean())
            where = agreeing[:, :, None, None]
            where = where if valid is None else where & valid

        def compare(o: Any, against: Any, name: str, where: torch.Tensor | None) -> Difference:
            return comparison.compare(
                o, against, name=name, tolerance=tolerance, dims=OUTPUT_DIMS, where=where
            )

        differences = [compare(actual.o, expected.o, f"output {output}", where)]
        budgets = {}
        for name, one in zip(names, pair, strict=True):
            if not oracle.accepts(one.lists):
                continue
            title = f"{name} {output} against fp64 with its own lists"
            budgets[name] = compare(one.o, oracle.forced(one.lists), title, valid)
            differences.append(budgets[name])
            # a rule that both sides break shows only here
            by_oracle = oracle.compare_lists(
                one.lists, oracle.own.block_indices, f"{name} block_indices against fp64"
            )
            if selections.passed and not by_oracle.passed:
                selections = by_oracle
        places = _places(differences, oracle, actual.o)
        if self.function == JAGGED:
            differences += [
                comparison.compare(
                    actual.returned[name], expected.returned[name], name=f"{name} (bit for bit)",
                    tolerance=Tolerance(0.0, 0.0), dims=("b", "t", "h", "a"),
                )
                for name in copies
            ]  # fmt: skip
        return Verdict(self.function, tuple(differences), selections, budgets, excluded, places)


def row_class(t: int, case: Case) -> str:
    """Describes row t."""
    size = case.block_size
    if t < size - 1:
        return "before the first complete block"
    if case.T % size and t >= case.T - case.T % size:
        return "in the incomplete last block"
    if t % size in (0, size - 1):
        return "at a block's edge"
    return "inside a block"


def _places(differences: list[Difference], oracle: Oracle, o: torch.Tensor) -> tuple[str, ...]:
    case = oracle.case
    lines = []
    for difference in differences:
        if difference.passed or difference.worst is None:
            continue
        t = difference.worst.index[1]
        lines.append(
            f"{difference.name}: worst at row t={t} of block {t // case.block_size}, "
            f"{row_class(t, case)}"
        )
    if not lines:
        return ()
    tolerance = differences[0].tolerance
    expected = oracle.own.o
    beyond = ~((o - expected).abs() <= tolerance.atol + tolerance.rtol * expected.abs())
    heads = beyond.double().mean((0, 1, 3)).tolist()
    lines.append(
        "share beyond the tolerance, by head: "
        + " ".join(f"{h}:{share:.1%}" for h, share in enumerate(heads))
    )
    rows: dict[str, list[float]] = {}
    for t, share in enumerate(beyond.double().mean((0, 2, 3)).tolist()):
        rows.setdefault(row_class(t, case), []).append(share)
    lines.append("by row: " + ", ".join(f"{key} {sum(x) / len(x):.1%}" for key, x in rows.items()))
    return tuple(lines)


# With bf16's products a row's error is some 2^-8 of its deviation, by which LayerNorm divides: that
# is little in the short rows of these cases. The greatest error seen on an H200 is 0.07.
_TOLERANCES = {"bf16": Tolerance(5e-2, 1e-1)}


def differences(
    tensors: Sequence[torch.Tensor], o: torch.Tensor, lists: torch.Tensor, parameters: Any
) -> list[Difference]:
    """Returns how a kernel's o and block_indices differ from the oracle, with this selection.

    Args:
        tensors: q, k, v, u and g_cmp, [B, T, H, ...].
        o: the output.
        lists: the block_indices; those of kernels that round operands to bf16 may differ.
        parameters: the kernel's.
    """
    B, T, H, A = tensors[0].shape
    case = Case(
        "", B, T, H, A, tensors[2].shape[3],
        block_size=parameters["block_size"], block_count=parameters["block_count"],
    )  # fmt: skip
    oracle = Oracle(tuple(tensors), case, parameters["mode"])
    dot = parameters.get("dot")
    selections = oracle.compare_lists(lists, oracle.own.block_indices, "block_indices")
    if not selections.passed and (dot != "bf16" or selections.problem):
        return [comparison.refused(selections.name, str(selections.problem or selections.worst))]
    expected, u = oracle.forced(lists), tensors[3]
    # An infinite u times a branch that is 0 is NaN, and may be left out of the sum; NaN stays NaN.
    by_u = u.isinf() & ~expected.isfinite()
    if bool(o[by_u].isfinite().any()):
        return [comparison.refused("o", "it is finite where u is infinite and the oracle is not")]
    is_compared = ~(by_u | (o.isnan() & expected.isnan()))
    if not bool(is_compared.any()):
        return []
    tolerance = _TOLERANCES.get(str(dot), Tolerance(1e-3, 1e-3))
    return [
        comparison.compare(
            o, expected, name="o", tolerance=tolerance, dims=OUTPUT_DIMS, where=is_compared
        )
    ]
