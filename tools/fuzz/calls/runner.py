"""Runs numbered cases in child processes, and takes note of the ones that kill them."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_SLOWEST = 120.0  # seconds that a case may take before it counts as one that does not end

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
    """Runs the cases 0 to count - 1."""
    found = Found()
    with tempfile.TemporaryDirectory() as folder, mmap.mmap(-1, 8) as progress:
        results, begin = Path(folder) / "results", 0
        while begin < count:
            child = os.fork()
            if child == 0:
                _work(case, seed, range(begin, count), progress, results)
            ended = _wait(child, progress)
            for line in results.read_text(encoding="utf-8").splitlines():
                number, outcome, failed = json.loads(line)
                if failed:
                    found.failures.append(Failure(number, outcome))
                else:
                    found.counts[outcome] += 1
            if ended is None:
                break
            begin = struct.unpack("q", progress[:])[0]
            found.failures.append(Failure(begin, ended))
            begin += 1
    return found


def _work(case: Case, seed: int, numbers: range, progress: mmap.mmap, results: Path) -> None:
    """The child: writes each case's number before it, and its outcome after it; never returns."""
    status = 1
    try:
        with results.open("w", encoding="utf-8", buffering=1) as file:
            for number in numbers:
                progress[:] = struct.pack("q", number)
                try:
                    line = (number, case(seed, number), False)
                except BaseException as error:
                    line = (number, f"{type(error).__name__}: {error}"[:2000], True)
                file.write(json.dumps(line) + "\n")
        status = 0
    finally:
        os._exit(status)


def _wait(child: int, progress: mmap.mmap) -> str | None:
    """How the child ended, where not by itself."""
    seen, since = progress[:], time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code == 0 else f"the process died ({_name(code)})"
        if progress[:] != seen:
            seen, since = progress[:], time.monotonic()
        elif time.monotonic() - since > _SLOWEST:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"not done after {_SLOWEST:.0f} s"
        time.sleep(0.05)


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
