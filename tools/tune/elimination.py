"""The statistics that find the fastest kernel from times taken in turns, without a clock or a
kernel.

Every candidate of a round is timed once beside the others, so that whatever disturbs one disturbs
all; only ratios within a round are compared.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..bench.intervals import Interval, interval

MARGIN = 0.01  # the gain that a candidate must have
_LEAST_PROCESSES = 3  # where a process puts its memory shifts all its times alike
# A candidate that is slower than this is given up before other processes have confirmed it.
_MARGIN_AT_ONCE = 0.05
_MARGIN_OF_SCREENING = 0.25
_SCREENING = 11  # rounds, with fewer of which no interval has the confidence


@dataclass(frozen=True)
class Round:
    """Times of some candidates, in seconds, taken in turns by one process."""

    process: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Gain:
    """The gain in speed of one candidate over another: 0.02 for 2%."""

    interval: Interval
    rounds: int
    by_process: tuple[tuple[float, ...], ...]  # seconds of each round, in order

    def exceeds(self, margin: float) -> bool:
        """Returns whether the gain is surely more, and each process found so for itself: its median
        is more, and three quarters of its rounds gain at all."""
        return self.interval.low > margin and all(
            statistics.median(gains) > margin and gains[len(gains) // 4] > 0
            for gains in self.by_process
        )


@dataclass(frozen=True)
class Result:
    """The outcome; times are medians, in seconds."""

    winner: str
    seconds: float
    runner_up: str | None
    runner_up_seconds: float | None
    tie: bool


class Elimination:
    """Candidates against the best one; those that are surely slower than it, or than the fastest so
    far, are eliminated.

    The best candidate is surely faster than the best one before it; the fastest may not be sure
    yet.

    Threads may share an Elimination: a thread that measures elsewhere may find that a candidate
    crashes.
    """

    def __init__(self, candidates: Sequence[str], incumbent: str | None = None) -> None:
        """Takes the first of the candidates as the best to begin with; the incumbent, if it is
        another candidate, wins a tie."""
        self.best = candidates[0]
        self.remaining = list(candidates)  # the best one among them
        self._incumbent = candidates[0] if incumbent is None else incumbent
        self._candidates = tuple(candidates)
        self._rounds: list[Round] = []
        self._lock = threading.Lock()

    def remove(self, candidate: str) -> None:
        """Removes a candidate that crashed. The candidates that it eliminated are back."""
        with self._lock:
            self._candidates = tuple(c for c in self._candidates if c != candidate)
            self.remaining = list(self._candidates)
            if not self.remaining:
                return
            if self.best == candidate:
                self.best = (
                    self._incumbent
                    if self._incumbent in self.remaining
                    else min(self.remaining, key=self._median)
                )
            self._settle()

    def add(self, rounds: Iterable[Round]) -> None:
        """Takes measurements, and eliminates slow candidates."""
        with self._lock:
            self._rounds += rounds
            self._settle()

    def _settle(self) -> None:
        for _ in self.remaining:
            winners = [c for c in self.remaining if self._is_faster(c, self.best)]
            if not winners:
                break
            self.best = max(winners, key=lambda c: self._median_gain(c, self.best))
        fastest = max(self.remaining, key=lambda c: self._median_gain(c, self.best))
        self.remaining = [
            c
            for c in self.remaining
            if c == self.best
            or not (self._eliminates(self.best, c) or self._eliminates(fastest, c))
        ]

    def result(self) -> Result:
        """Returns the best candidate, or the incumbent if it is not surely slower, and the best of
        the others."""
        winner = self.best
        if self._incumbent in self.remaining and self._times(self._incumbent):
            winner = self._incumbent
        runner_up = max(
            (c for c in self._candidates if c != winner and self._times(c)),
            key=lambda c: (c in self.remaining, self._median_gain(c, winner)),
            default=None,
        )
        return Result(
            winner=winner,
            seconds=self._median(winner),
            runner_up=runner_up,
            runner_up_seconds=None if runner_up is None else self._median(runner_up),
            tie=runner_up in self.remaining and not self._is_faster(winner, str(runner_up)),
        )

    def ranking(self) -> list[tuple[str, float]]:
        """Returns all timed candidates with their median seconds: the winner, then by time."""
        winner = self.result().winner
        times = [(c, self._median(c)) for c in self._candidates if self._times(c)]
        return sorted(times, key=lambda found: (found[0] != winner, found[1]))

    def gain(self, one: str, over: str) -> Gain | None:
        """Returns the gain of one candidate over another; None if they were never timed
        together."""
        by_process: dict[int, list[float]] = {}
        for round_ in self._rounds:
            if one in round_.seconds and over in round_.seconds:
                ratio = round_.seconds[over] / round_.seconds[one]
                by_process.setdefault(round_.process, []).append(ratio - 1)
        gains = [gain for gains_ in by_process.values() for gain in gains_]
        if not gains:
            return None
        ordered = tuple(tuple(sorted(gains_)) for gains_ in by_process.values())
        return Gain(interval(gains), len(gains), ordered)

    def _is_faster(self, one: str, over: str) -> bool:
        gain = self.gain(one, over)
        return (
            gain is not None
            and gain.rounds >= _SCREENING
            and len(gain.by_process) >= _LEAST_PROCESSES
            and gain.exceeds(MARGIN)
        )

    def _eliminates(self, one: str, other: str) -> bool:
        """Returns whether another candidate is surely slower."""
        gain = None if one == other else self.gain(one, other)
        if gain is None:
            return False
        if gain.rounds < _SCREENING:
            return gain.exceeds(_MARGIN_OF_SCREENING)
        confirmed = len(gain.by_process) >= _LEAST_PROCESSES
        return gain.exceeds(MARGIN if confirmed else _MARGIN_AT_ONCE)

    def _times(self, candidate: str) -> list[float]:
        return [r.seconds[candidate] for r in self._rounds if candidate in r.seconds]

    def _median(self, candidate: str) -> float:
        times = self._times(candidate)
        return statistics.median(times) if times else math.inf

    def _median_gain(self, one: str, over: str) -> float:
        gain = None if one == over else self.gain(one, over)
        return 0.0 if gain is None else gain.interval.median
