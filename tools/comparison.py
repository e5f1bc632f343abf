"""The difference of two results: the one comparison that every checking tool uses.

`compare` decides as torch.allclose does, |actual - expected| <= atol + rtol * |expected| at every
element, NaN never passing, and reports all that helps to find a fault. `compare_selections`
compares lists of chosen indices by the oracle's scores of the chosen elements.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_RELATIVE_FLOOR = 1e-8  # |d| / (|expected| + this), as the relative difference of a zero
_QUANTILE_ELEMENTS = 1 << 24  # torch.quantile takes no more


@dataclass(frozen=True)
class Tolerance:
    """The rule of agreement: |actual - expected| <= atol + rtol * |expected|."""

    rtol: float = 1e-3
    atol: float = 1e-4


@dataclass(frozen=True)
class Element:
    """An element, its index decoded by the names of the dimensions."""

    index: tuple[int, ...]
    names: tuple[str, ...]
    actual: float
    expected: float

    def __str__(self) -> str:
        """Returns `b=0 t=17 h=3 d=5: 0.1 against 0.2`."""
        where = _place(self.names, self.index)
        return f"{where}: {self.actual:.9g} against {self.expected:.9g}"


@dataclass(frozen=True)
class Difference:
    """The result of `compare`. Differences are over finite pairs; counts are of elements."""

    name: str
    problem: str | None  # shapes or dtypes differ; nothing else was compared then
    tolerance: Tolerance
    compared: int = 0
    excluded: int = 0  # left out by the caller's mask
    beyond: int = 0  # fail the joint criterion
    beyond_rtol: int = 0  # relative difference > rtol
    beyond_atol: int = 0  # absolute difference > atol
    nan: tuple[int, int] = (0, 0)  # in actual, in expected
    inf: tuple[int, int] = (0, 0)
    max_abs: float = math.nan
    mean_abs: float = math.nan
    std_abs: float = math.nan
    max_rel: float = math.nan
    mean_rel: float = math.nan
    p99: float = math.nan
    p999: float = math.nan
    rms_ratio: float = math.nan  # rms(actual - expected) / rms(expected)
    max_ulp: float = math.nan  # in units of expected's last place, for its dtype
    range_actual: tuple[float, float] = (math.nan, math.nan)
    range_expected: tuple[float, float] = (math.nan, math.nan)
    worst: Element | None = None
    first: Element | None = None  # in the order of the indices, that fails; None if all agree
    failing: torch.Tensor | None = dataclasses.field(repr=False, default=None)
    """bool, one an element; None if nothing was compared."""

    def __str__(self) -> str:
        """Returns `o: worst: b=0 t=17 h=3 d=5: 0.1 against 0.2`."""
        return f"{self.name}: {self.problem or f'worst: {self.worst}'}"

    @property
    def passed(self) -> bool:
        """Returns whether all compared elements agree; comparing nothing is not agreement."""
        return self.problem is None and self.beyond == 0 and self.compared > 0

    @property
    def share_beyond(self) -> float:
        """Returns the share of elements that fail."""
        return self.beyond / self.compared if self.compared else math.nan


def refused(name: str, problem: str) -> Difference:
    """Returns the difference for results that cannot be compared element by element, with the
    reason."""
    return Difference(name, problem, Tolerance())


def compare(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    name: str,
    tolerance: Tolerance | None = None,
    dims: Sequence[str] = (),
    where: torch.Tensor | None = None,
    atol_scale: torch.Tensor | float = 1.0,
) -> Difference:
    """Compares element by element, in fp64. `where` (bool, broadcast) says which elements count.

    atol_scale: the unit of the tolerance's atol, broadcast: 1, or the magnitude of the terms of
    each element's sum.

    dims: names of the dimensions, for the worst element's index. Shapes must be equal, and so must
    dtypes, except that `expected` may be fp64 (an oracle).
    """
    tolerance = tolerance or Tolerance()
    problem = None
    if actual.shape != expected.shape:
        problem = f"shape {list(actual.shape)} against {list(expected.shape)}"
    elif actual.dtype != expected.dtype and expected.dtype != torch.float64:
        problem = f"dtype {actual.dtype} against {expected.dtype}"
    if problem is not None:
        return Difference(name, problem, tolerance)

    x, y = actual.detach().double(), expected.detach().double().to(actual.device)
    counted = torch.ones_like(x, dtype=torch.bool)
    if where is not None:
        counted &= where.to(x.device)
    compared = int(counted.sum())
    if compared == 0:
        problem = "no element is left to compare"
        return Difference(name, problem, tolerance, excluded=x.numel())
    nan = (_count(counted & x.isnan()), _count(counted & y.isnan()))
    inf = (_count(counted & x.isinf()), _count(counted & y.isinf()))
    finite = counted & x.isfinite() & y.isfinite()
    difference = torch.where(finite, (x - y).abs(), 0.0)
    relative = difference / (y.abs() + _RELATIVE_FLOOR)
    relative = torch.where(finite, relative, 0.0)
    atol = tolerance.atol * torch.as_tensor(atol_scale, dtype=x.dtype, device=x.device)
    agree = torch.where(
        finite, difference <= atol + tolerance.rtol * y.abs(), x == y
    )  # equal infinities agree, NaN does not
    # An element that is not finite on one side only is the worst there can be.
    severity = torch.where(counted & ~finite & (x != y), torch.inf, difference)
    names = _names(dims, x)

    def element(at: int) -> Element:
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), x.shape))
        return Element(index, names, float(x.flatten()[at]), float(y.flatten()[at]))

    failing = counted & ~agree
    kept, kept_y = difference[finite], y[finite]
    kept_rel = relative[finite]
    spacing = _spacing(y, expected.dtype if expected.dtype != torch.float64 else actual.dtype)
    return Difference(
        name=name,
        problem=None,
        tolerance=tolerance,
        compared=compared,
        excluded=x.numel() - compared,
        beyond=_count(failing),
        beyond_rtol=_count(counted & (relative > tolerance.rtol)),
        beyond_atol=_count(counted & (difference > atol)),
        nan=nan,
        inf=inf,
        max_abs=_or_nan(kept, "max"),
        mean_abs=_or_nan(kept, "mean"),
        std_abs=float(kept.std(correction=0)) if kept.numel() else math.nan,
        max_rel=_or_nan(kept_rel, "max"),
        mean_rel=_or_nan(kept_rel, "mean"),
        p99=_quantile(kept, 0.99),
        p999=_quantile(kept, 0.999),
        rms_ratio=_rms(kept) / max(_rms(kept_y), 1e-300),
        max_ulp=_or_nan((difference / spacing)[finite], "max"),
        range_actual=_range(x[counted]),
        range_expected=_range(y[counted]),
        worst=element(int(torch.where(counted, severity, -1.0).argmax())),
        first=element(int(failing.flatten().int().argmax())) if bool(failing.any()) else None,
        failing=failing,
    )


@dataclass(frozen=True)
class Selections:
    """The difference of two sets of ranked lists, row by row. `gap` is in the oracle's scores."""

    name: str
    problem: str | None
    rows: int = 0
    identical: int = 0
    order_only: int = 0  # the same blocks in another order, their scores within the gap's tolerance
    tie_explained: int = 0  # other blocks, their scores within the tolerance
    broken_ties: int = 0  # other blocks or order with equal scores: the tie rule was broken
    wrong: int = 0  # a gap beyond the tolerance
    largest_gap: float = 0.0  # among the explained
    worst: str | None = None
    differing: torch.Tensor | None = dataclasses.field(repr=False, default=None)
    """bool, one a row: the sets differ."""

    @property
    def passed(self) -> bool:
        """Returns whether no row is wrong."""
        return self.problem is None and self.wrong == 0 and self.broken_ties == 0


def as_dict(result: Difference | Selections) -> dict[str, Any]:
    """Returns a result for JSON, without its tensors."""
    plain = dataclasses.asdict(result)
    kept = {name: value for name, value in plain.items() if name not in ("failing", "differing")}
    return kept | {"passed": result.passed}


def compare_selections(
    actual: torch.Tensor,
    expected: torch.Tensor,
    ranking: torch.Tensor,
    *,
    name: str,
    absent_rank: float,
    gap: float = 1e-5,
    dims: Sequence[str] = (),
) -> Selections:
    """Compares ranked lists [..., S] (int64, -1: absent) by the oracle's ranking [..., C] (fp64).

    The scores at each index of the two lists must agree within gap * (1 + |score|); `absent_rank`
    is the score of an absent entry. Exactly equal scores leave no freedom: there the rule (lower
    index first) decides, so that any difference is a broken rule.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        problem = (
            f"{actual.dtype} {list(actual.shape)} against {expected.dtype} {list(expected.shape)}"
        )
        return Selections(name, problem)
    extent = ranking.shape[-1]
    for side in (actual, expected):
        if side.numel() and (int(side.min()) < -1 or int(side.max()) >= extent):
            problem = (
                f"an index lies outside -1 to {extent - 1}: {int(side.min())}, {int(side.max())}"
            )
            return Selections(name, problem)
    ranking = ranking.double()
    mine, theirs = (
        _ranks(side.to(ranking.device), ranking, absent_rank) for side in (actual, expected)
    )
    a, b = actual.to(ranking.device), expected.to(ranking.device)
    same = (a == b).all(-1)
    same_set = (a.sort(-1).values == b.sort(-1).values).all(-1)
    distance = torch.where(mine == theirs, 0.0, (mine - theirs).abs())
    allowed = gap * (1.0 + torch.where(theirs.isfinite(), theirs.abs(), 0.0))
    explained = (distance <= allowed).all(-1)
    broken = ((a != b) & (distance == 0.0)).any(-1) & explained
    wrong = ~explained
    largest = torch.where(explained[..., None], distance, 0.0)
    worst = None
    bad = wrong | broken
    if bool(bad.any()):
        where = torch.where(bad[..., None], distance, -1.0).amax(-1)
        index = tuple(map(int, torch.unravel_index(where.argmax(), where.shape)))
        chosen, expected_ = (
            f"{side[index].tolist()} (scores {_scores(ranks[index])})"
            for side, ranks in ((a, mine), (b, theirs))
        )
        worst = f"{_place(_names(dims, where), index)}: {chosen} against {expected_}"
    return Selections(
        name=name,
        problem=None,
        rows=same.numel(),
        identical=_count(same),
        order_only=_count(~same & same_set & explained & ~broken),
        tie_explained=_count(~same_set & explained & ~broken),
        broken_ties=_count(broken),
        wrong=_count(wrong),
        largest_gap=float(largest.max()) if largest.numel() else 0.0,
        worst=worst,
        differing=~same_set,
    )


def _ranks(index: torch.Tensor, ranking: torch.Tensor, absent: float) -> torch.Tensor:
    return torch.where(index < 0, absent, ranking.gather(-1, index.clamp(min=0)))


def _scores(ranks: torch.Tensor) -> str:
    return "[" + ", ".join(f"{score:.9g}" for score in ranks.tolist()) + "]"


def _names(dims: Sequence[str], x: torch.Tensor) -> tuple[str, ...]:
    return tuple(dims) if len(dims) == x.dim() else tuple(f"i{i}" for i in range(x.dim()))


def _place(names: Sequence[str], index: Sequence[int]) -> str:
    return " ".join(f"{name}={i}" for name, i in zip(names, index, strict=True))


def _count(mask: torch.Tensor) -> int:
    return int(mask.sum())


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else math.nan


def _or_nan(x: torch.Tensor, reduction: str) -> float:
    return float(getattr(x, reduction)()) if x.numel() else math.nan


def _range(x: torch.Tensor) -> tuple[float, float]:
    return (float(x.min()), float(x.max())) if x.numel() else (math.nan, math.nan)


def _quantile(x: torch.Tensor, q: float) -> float:
    if x.numel() == 0:
        return math.nan
    if x.numel() > _QUANTILE_ELEMENTS:
        return float(x.flatten().kthvalue(max(1, math.ceil(q * x.numel()))).values)
    return float(torch.quantile(x.flatten(), q))


def _spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the distance to the next number of `dtype` beyond each |value|; its least for tiny
    values."""
    if not dtype.is_floating_point:
        return torch.ones_like(values)
    info = torch.finfo(dtype)
    magnitude = values.abs().clamp(min=info.tiny)
    _, exponent = torch.frexp(torch.where(magnitude.isfinite(), magnitude, 1.0))
    return torch.ldexp(torch.full_like(values, info.eps), exponent - 1)
