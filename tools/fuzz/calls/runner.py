"""Runs numbered cases in child processes, and takes note of the ones that kill them."""

from __future__ import annotations

import json
import multiprocessing
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_SLOWEST = 120.0  # seconds that a case may take before it counts as one that does not end
# A forked child would have none of the threads that PyTorch waits for.
_SPAWN = multiprocessing.get_context("spawn")

Case = Callable[[int, int], str]
"""case(seed, number): what became of it; raises AssertionError for what must not be."""


@dataclass(frozen=True)
class Failure:
    """A case that failed, and how."""

    number: int
    what: str


@dataclass
class Found:
    """What running the cases showed."""

    failures: list[Failure] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def run(case: Case, seed: int, count: int) -> Found:
    """Runs the cases 0 to count - 1; `case` is a function of a module."""
    found, begin = Found(), 0
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        while begin < count:
            progress = _SPAWN.Value("q", begin, lock=False)
            child = _SPAWN.Process(target=_work, args=(case, seed, count, progress, results))
            child.start()
            ended = _wait(child, progress)
            for line in results.read_text(encoding="utf-8").splitlines():
                number, outcome, failed = json.loads(line)
                if failed:
                    found.failures.append(Failure(number, outcome))
                else:
                    found.counts[outcome] += 1
            if ended is None:
                break
            found.failures.append(Failure(progress.value, ended))
            begin = progress.value + 1
    return found


def _work(case: Case, seed: int, count: int, progress: Any, results: Path) -> None:
    """The child: writes each case's number before it, and its outcome after it."""
    with results.open("w", encoding="utf-8", buffering=1) as file:
        for number in range(progress.value, count):
            progress.value = number
            try:
                line = (number, case(seed, number), False)
            except BaseException as error:
                line = (number, f"{type(error).__name__}: {error}"[:2000], True)
            file.write(json.dumps(line) + "\n")


def _wait(child: BaseProcess, progress: Any) -> str | None:
    """How the child ended, where not by itself."""
    seen, since = -1, time.monotonic()
    while child.is_alive():
        child.join(0.2)
        if progress.value != seen:
            seen, since = progress.value, time.monotonic()
        elif time.monotonic() - since > _SLOWEST:
            child.kill()
            child.join()
            return f"not done after {_SLOWEST:.0f} s"
    code = child.exitcode or 0
    return f"the process died ({_name(code)})" if code else None


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
