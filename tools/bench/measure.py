"""Times of several contenders, taken in turns, so that whatever disturbs one disturbs all."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .clocks import Spread, Watch
from .intervals import Interval, interval

# More than any GPU's second-level cache holds, and a quarter of a millisecond on an H200: in that
# time the host queues the call, whose time would otherwise be the host's if the call is short.
_FLUSH_BYTES = 2**30
_LEAST_TURNS = 3

Call = Callable[[], Any]


def timer(
    device: torch.device, cpu_clock: Callable[[], float] = time.perf_counter
) -> Callable[[Call], float]:
    """A function that makes a call and says how long it took, in seconds: on a GPU between two CUDA
    events, after the second-level cache was overwritten."""

    def on_cpu(call: Call) -> float:
        begin = cpu_clock()
        call()
        return cpu_clock() - begin

    if device.type != "cuda":
        return on_cpu
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)

    def on_gpu(call: Call) -> float:
        new_event: Any = torch.cuda.Event
        start, end = new_event(enable_timing=True), new_event(enable_timing=True)
        flush.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return on_gpu


def one_round(
    names: Sequence[str], take: Callable[[str], float], order: random.Random
) -> dict[str, float]:
    """What `take` says of each name, once each, in an order of this round's own.

    At a GPU's power limit whoever follows one that draws less power is faster, by 3% on an H200:
    in an order that is kept, or rotated, it would be the same one that does.
    """
    return {name: take(name) for name in order.sample(names, len(names))}


@dataclass(frozen=True)
class Measured:
    """Times of several contenders, and the clocks that they were taken at."""

    contenders: tuple[str, ...]
    rounds: tuple[Mapping[str, float], ...]  # seconds by contender
    clocks: Mapping[str, Spread]

    def times(self, name: str) -> list[float]:
        """Those of one contender, in seconds, in order."""
        return [seconds[name] for seconds in self.rounds if name in seconds]

    def seconds(self, name: str) -> Interval:
        """The median time of one contender, and its interval."""
        return interval(self.times(name))

    def ratio(self, name: str, over: str) -> Interval:
        """How many times as fast as another one it is: the median of the ratios within rounds."""
        return interval(
            [found[over] / found[name] for found in self.rounds if name in found and over in found]
        )


def measure(
    calls: Mapping[str, Call],
    device: torch.device,
    seconds: float,
    cpu_clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Times each call, one after the other, round by round.

    Each is called once to warm up; then all take turns, each until it has had `seconds` and three
    turns at least. On a CPU `cpu_clock` gives the time.
    """
    time_of = timer(device, cpu_clock)
    for call in calls.values():
        time_of(call)
    rounds: list[dict[str, float]] = []
    turns = dict.fromkeys(calls, 0)
    had = dict.fromkeys(calls, 0.0)
    order = random.Random(0)
    with Watch(device) as watch:
        while waiting := [n for n in calls if turns[n] < _LEAST_TURNS or had[n] < seconds]:
            found = one_round(waiting, lambda name: time_of(calls[name]), order)
            for name, taken in found.items():
                turns[name] += 1
                had[name] += taken
            rounds.append(found)
    return Measured(tuple(calls), tuple(rounds), watch.spreads())
