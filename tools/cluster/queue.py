"""The order of a cluster's jobs: the longest first, by the seconds that they took before, and short
ones together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from runtime.ondemand.cache import Cache, digest

_TOGETHER = 2.0  # seconds of jobs that go to a node as one, so that sending them does not count
_MOST = 500  # jobs that go as one


class Seconds:
    """The seconds that jobs took on one processor, kept in the cache between commands."""

    def __init__(self, cache: Cache, what: str) -> None:
        """Reads the seconds of `what`, such as builds."""
        self._cache = cache
        self._question = digest(["seconds", what])
        noted = cache.noted(self._question)
        noted = noted if isinstance(noted, dict) else {}
        self._of = {k: v for k, v in noted.items() if isinstance(v, int | float)}

    def of(self, key: str) -> float | None:
        """Returns the seconds of a job; those of its target on average, if it is new; None if all
        of the target's are."""
        if key in self._of:
            return self._of[key]
        target = f"{key.rpartition('.')[0]}."
        alike = [seconds for other, seconds in self._of.items() if other.startswith(target)]
        return sum(alike) / len(alike) if alike else None

    def note(self, measured: Mapping[str, float]) -> None:
        """Keeps the seconds of jobs."""
        self._of |= {key: round(seconds, 3) for key, seconds in measured.items()}
        self._cache.note(self._question, self._of)


class Queue:
    """Jobs that wait, in the order in which they are begun: unknown ones, then the longest."""

    def __init__(self, keys: Sequence[str], seconds: Seconds) -> None:
        estimates = {key: seconds.of(key) for key in keys}
        self._estimates = {key: s for key, s in estimates.items() if s is not None}
        order = sorted(keys, key=lambda key: -self._estimates.get(key, math.inf))
        self._waiting = list(reversed(order))
        self._alone: set[str] = set()
        self.measured: dict[str, float] = {}
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, key: str, seconds: float) -> None:
        """Notes the seconds that a job took; 0 if it was done before."""
        if seconds > 0:
            self.measured[key] = seconds
            self._total += seconds

    def again(self, key: str) -> None:
        """Puts a job that was lost back, to go to a node by itself: it may be what ended it."""
        self._alone.add(key)
        self._waiting.insert(0, key)

    def _estimate(self, key: str) -> float:
        if key in self._estimates:
            return self._estimates[key]
        return self._total / len(self.measured) if self.measured else _TOGETHER

    def take(self, places: int) -> list[str]:
        """Returns the next jobs for one of so many places: few enough that all places end
        together."""
        most = max(1, min(_MOST, len(self._waiting) // (2 * places)))
        batch = [self._waiting.pop()]
        seconds = self._estimate(batch[0])
        while (
            self._waiting and len(batch) < most and not self._alone & {batch[0], self._waiting[-1]}
        ):
            seconds += self._estimate(self._waiting[-1])
            if seconds > _TOGETHER:
                break
            batch.append(self._waiting.pop())
        return batch

    def left(self, places: int) -> float:
        """Returns the seconds that the waiting jobs take on so many places."""
        return sum(map(self._estimate, self._waiting)) / max(1, places)
