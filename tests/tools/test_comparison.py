"""The comparison core: what it counts, where it points, and what it lets pass."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.comparison import Tolerance, compare, compare_selections


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]))
def test_it_decides_as_allclose_does(seed: int, noise: float) -> None:
    g = torch.Generator().manual_seed(seed)
    expected = torch.randn(3, 4, 5, generator=g)
    actual = expected + noise * torch.randn(3, 4, 5, generator=g)
    found = compare(actual, expected, name="x", tolerance=Tolerance(1e-3, 1e-4))
    assert found.passed == torch.allclose(actual.double(), expected.double(), rtol=1e-3, atol=1e-4)
    assert found.max_abs == pytest.approx(float((actual - expected).abs().max()))


def test_it_counts_and_points() -> None:
    expected = torch.ones(2, 3, 4, 5)
    actual = expected.clone()
    actual[1, 2, 0, 3] = 1.5
    actual[0, 1, 2, 4] = 1.0005
    found = compare(actual, expected, name="x", dims=("b", "t", "h", "d"))
    assert (found.beyond, found.beyond_rtol, found.beyond_atol) == (1, 1, 2)
    assert found.worst is not None
    assert str(found.worst) == "b=1 t=2 h=0 d=3: 1.5 against 1"
    assert found.max_ulp == pytest.approx(0.5 / 2**-23)
    assert found.range_actual == (1.0, 1.5)
    assert found.rms_ratio == pytest.approx(math.sqrt((0.25 + 2.5e-7) / 120), rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_fails_and_is_the_worst(bad: float) -> None:
    expected = torch.zeros(10)
    actual = expected.clone()
    actual[7] = bad
    found = compare(actual, expected, name="x", tolerance=Tolerance(1.0, 1.0))
    assert not found.passed
    assert found.worst is not None
    assert found.worst.index == (7,)
    assert found.nan[0] + found.inf[0] == 1
    both = compare(actual, actual, name="x")
    assert both.passed == (not math.isnan(bad))  # equal infinities agree, NaN never does


def test_what_cannot_be_compared_does_not_pass() -> None:
    x = torch.zeros(2, 3)
    assert compare(x, x.T, name="x").problem == "shape [2, 3] against [3, 2]"
    assert not compare(x, x.half(), name="x").passed
    assert compare(x, x.double(), name="an fp64 oracle").passed
    nothing = compare(x, x, name="x", where=torch.zeros(2, 3, dtype=torch.bool))
    assert not nothing.passed


def test_a_mask_leaves_out_elements() -> None:
    x, y = torch.zeros(4), torch.tensor([0.0, 9.0, 0.0, 0.0])
    keep = torch.tensor([True, False, True, True])
    found = compare(x, y, name="x", where=keep)
    assert found.passed
    assert (found.compared, found.excluded) == (3, 1)


def test_the_budget_is_the_error_against_the_oracle() -> None:
    oracle = torch.randn(1000, dtype=torch.float64)
    found = compare(oracle.float(), oracle, name="x")
    assert found.max_ulp <= 0.5
    assert found.rms_ratio < 1e-7
    assert found.share_beyond == 0


RANKING = torch.tensor([[0.5, 0.5, 0.2, 0.2 + 1e-9, -0.1, -math.inf]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("actual", "expected", "kind"),
    [
        ([0, 1, 3], [0, 1, 3], "identical"),
        ([0, 1, 2], [0, 1, 3], "tie_explained"),  # 2 and 3 differ by 1e-9
        ([0, 2, 3], [0, 3, 2], "order_only"),
        ([1, 0, 3], [0, 1, 3], "broken_ties"),  # 0 and 1 tie exactly: the lower goes first
        ([0, 1, 4], [0, 1, 3], "wrong"),
        ([0, 1, -1], [0, 1, 3], "wrong"),
        ([0, 1, 5], [0, 1, -1], "broken_ties"),  # the same rank, -inf, but no block
    ],
)
def test_lists_are_compared_by_the_scores_of_what_they_choose(
    actual: list[int], expected: list[int], kind: str
) -> None:
    found = compare_selections(
        torch.tensor([actual]), torch.tensor([expected]), RANKING, name="x", absent_rank=-math.inf
    )
    counts = {
        name: getattr(found, name)
        for name in ("identical", "order_only", "tie_explained", "broken_ties", "wrong")
    }
    assert counts == {name: int(name == kind) for name in counts}
    assert found.passed == (kind in ("identical", "order_only", "tie_explained"))


def test_an_index_out_of_range_is_a_problem_not_a_crash() -> None:
    found = compare_selections(
        torch.tensor([[6]]), torch.tensor([[0]]), RANKING, name="x", absent_rank=-math.inf
    )
    assert not found.passed
    assert found.problem is not None
    assert "outside -1 to 5" in found.problem
