"""Times of several contenders, taken in turns, so that whatever disturbs one disturbs all."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .contenders import Call

# More than any GPU's second-level cache holds, and a quarter of a millisecond on an H200: in that
# time the host queues the call, whose time would otherwise be the host's where the call is short.
_FLUSH_BYTES = 2**30
_LEAST_TURNS = 3


class _Cpu:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def time(self, call: Call) -> float:
        begin = self._clock()
        call()
        return self._clock() - begin


class _Gpu:
    """Between two CUDA events, after the second-level cache was overwritten."""

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)

    def time(self, call: Call) -> float:
        start, end = (self._event() for _ in range(2))
        self._flush.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    @staticmethod
    def _event() -> Any:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch's


def timer(
    device: torch.device, cpu_clock: Callable[[], float] = time.perf_counter
) -> Callable[[Call], float]:
    """A function that makes a call and says how long it took, in seconds."""
    return (_Gpu(device) if device.type == "cuda" else _Cpu(cpu_clock)).time


def medians(
    calls: Mapping[str, Call],
    device: torch.device,
    seconds: float,
    cpu_clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, int]]:
    """The median time of each call, in seconds, and how often it was made.

    Each is called once to warm up; then all take turns, each until it has had `seconds` and three
    turns at least. Each round has an order of its own: at a GPU's power limit, whoever follows a
    contender that draws less power is faster, by 3% on an H200. On a CPU `cpu_clock` gives the
    time.
    """
    time_of = timer(device, cpu_clock)
    for call in calls.values():
        time_of(call)
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    while waiting := [t for t in times if len(times[t]) < _LEAST_TURNS or sum(times[t]) < seconds]:
        for name in order.sample(waiting, len(waiting)):
            times[name].append(time_of(calls[name]))
    return {name: (statistics.median(taken), len(taken)) for name, taken in times.items()}
