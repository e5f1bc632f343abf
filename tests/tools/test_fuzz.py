"""Fuzzers, as far as CI runs them; `python -m tools.fuzz` goes on."""

import pytest

from tools.fuzz import logs


@pytest.fixture(scope="module")
def samples():
    return logs.samples()


@pytest.mark.parametrize("seed", range(4))
def test_damaged_logs(samples, seed):
    for number in range(100):
        logs.attempt(samples, seed, number, limit=60)
