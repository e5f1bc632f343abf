"""Values of parameters that only `make test-all` tries: those of the marker `slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Returns the values, those after the first `count` with the marker."""
    return [_slow(value) if i >= count else value for i, value in enumerate(values)]


def slow_if(condition: Callable[[str], bool], values: Iterable[Any]) -> list[Any]:
    """Returns the values, those strings for which the condition holds with the marker."""
    return [_slow(v) if isinstance(v, str) and condition(v) else v for v in values]


def _slow(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)
