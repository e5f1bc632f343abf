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
_HOST_CALLS = 100  # a turn: fewer than a stream takes before it makes the host wait

Call = Callable[[], Any]


def timer(
    device: torch.device, cpu_clock: Callable[[], float] = time.perf_counter
) -> Callable[[Call], float]:
    """Returns a function that makes a call and says how long it took, in seconds: on a GPU between
    two CUDA events, after the second-level cache was overwritten."""

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


def host_timer(device: torch.device) -> Callable[[Call], float]:
    """Returns a function that says after how long the host is free again, in seconds."""

    def time_of(call: Call) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(_HOST_CALLS):
            call()
        return (time.perf_counter() - begin) / _HOST_CALLS

    return time_of


def captured(call: Call) -> Call | str:
    """Returns the replay of a CUDA graph of the call, which has no gaps between its launches, or
    why there can be none: a call that waits for the device cannot be captured."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize()
        return str(error).partition("\n")[0]
    return graph.replay


def one_round(
    names: Sequence[str], take: Callable[[str], float], order: random.Random
) -> dict[str, float]:
    """Returns what `take` says of each name, in a random order.

    At a GPU's power limit a contender is faster after another that draws less power, by 3% on an
    H200: in a fixed order, or a rotated one, that would always be the same contender.
    """
    return {name: take(name) for name in order.sample(names, len(names))}


@dataclass(frozen=True)
class Measured:
    """Times of several contenders, and the clocks that they were taken at."""

    contenders: tuple[str, ...]
    rounds: tuple[Mapping[str, float], ...]  # seconds by contender
    clocks: Mapping[str, Spread]

    def times(self, name: str) -> list[float]:
        """Returns one contender's times, in seconds, in order."""
        return [seconds[name] for seconds in self.rounds if name in seconds]

    def seconds(self, name: str) -> Interval:
        """Returns the median time of one contender, and its interval."""
        return interval(self.times(name))

    def ratio(self, name: str, over: str) -> Interval:
        """Returns how many times as fast as another a contender is: the median of the ratios within
        rounds."""
        rounds = [times for times in self.rounds if name in times and over in times]
        return interval([times[over] / times[name] for times in rounds])


def measure(
    calls: Mapping[str, Call],
    device: torch.device,
    seconds: float,
    cpu_clock: Callable[[], float] = time.perf_counter,
    host: bool = False,
) -> Measured:
    """Times each call, one after the other, round by round.

    Each is called once to warm up; then all take turns, each until it has had `seconds` and three
    turns at least. On a CPU `cpu_clock` gives the time; with `host`, of any device, the clock of
    the host does, for a hundred calls a turn that wait for nothing.
    """
    repeated = _HOST_CALLS if host else 1
    time_of = host_timer(device) if host else timer(device, cpu_clock)
    for call in calls.values():
        time_of(call)
    rounds: list[dict[str, float]] = []
    turns = dict.fromkeys(calls, 0)
    had = dict.fromkeys(calls, 0.0)
    order = random.Random(0)
    with Watch(device) as watch:
        while waiting := [n for n in calls if turns[n] < _LEAST_TURNS or had[n] < seconds]:
            times = one_round(waiting, lambda name: time_of(calls[name]), order)
            for name, taken in times.items():
                turns[name] += 1
                had[name] += repeated * taken
            rounds.append(times)
    return Measured(tuple(calls), tuple(rounds), watch.spreads())
