"""The interval that holds a median: that of the sign test, order statistics of the samples.

It is exact whatever their distribution.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

CONFIDENCE = 0.999  # many intervals are looked at


@dataclass(frozen=True)
class Interval:
    """A median, and the interval that holds that of the distribution."""

    low: float
    median: float
    high: float

    @property
    def reach(self) -> float:
        """Returns the distance of the farther end from the median."""
        return max(self.high - self.median, self.median - self.low)

    def scaled(self, factor: float) -> Interval:
        """Returns the interval in another unit; `factor` is positive."""
        return Interval(factor * self.low, factor * self.median, factor * self.high)


@functools.cache
def _rank(count: int) -> int:
    """Returns how many values to leave out at each end: the most that keeps the confidence."""
    most = int((1 - Fraction(CONFIDENCE)) / 2 * 2**count)  # outcomes of 2^count, at each end
    tail, term, rank = 0, 1, 0  # the sum of binomial coefficients, and the next one
    while rank < count // 2:
        tail += term
        if tail > most:
            break
        term = term * (count - rank) // (rank + 1)
        rank += 1
    return max(rank - 1, 0)


def interval(values: Sequence[float]) -> Interval:
    """Returns the interval of a distribution's median, from independent samples. Of fewer than
    eleven samples it is their range, which holds the median with less confidence."""
    ordered = sorted(values)
    rank = _rank(len(ordered))
    return Interval(ordered[rank], statistics.median(ordered), ordered[-1 - rank])
