"""Calls of every public function and of every CPU family's kernels: wrong ones end in the runtime's
own errors, right ones in the oracles' values."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runtime
from tests.fuzz import right_calls, wrong_calls

MANY = {"suppress_health_check": list(HealthCheck)}


@pytest.mark.slow
@settings(max_examples=15 * settings.default.max_examples, **MANY)
@given(st.randoms(use_true_random=False))
def test_wrong_calls(rng):
    wrong_calls.case(rng)


@settings(max_examples=settings.default.max_examples * 3 // 2, **MANY)
@given(st.randoms(use_true_random=False))
def test_right_calls(rng):
    right_calls.case(rng)


def test_an_error_that_is_not_the_runtimes_is_seen(monkeypatch):
    def broken(**arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(wrong_calls, "_calls", lambda: [wrong_calls._Call(broken, {"q": 1})])
    with pytest.raises(ZeroDivisionError):
        wrong_calls.case(random.Random(0))


def test_a_wrong_element_is_seen(monkeypatch):
    kernel = runtime.kernel

    def off(key):
        def call(*arguments, **options):
            results = kernel(key)(*arguments, **options)
            results[0].flatten()[0] += 1
            return results

        return call

    monkeypatch.setattr(runtime, "kernel", off)
    with pytest.raises(AssertionError):
        right_calls.case(random.Random(0))
