"""`make test` passes or fails by what the code is, not by what was drawn."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st


def draws() -> list[int]:
    drawn: list[int] = []

    @given(st.integers())
    def test(number: int) -> None:
        drawn.append(number)

    test()
    return drawn


def test_every_run_draws_the_same_examples() -> None:
    assert len(draws()) > 1
    assert draws() == draws()


def test_random_tensors_do_not_depend_on_the_tests_before() -> None:
    drawn = torch.randn(3)
    torch.manual_seed(0)
    assert torch.equal(torch.randn(3), drawn)
