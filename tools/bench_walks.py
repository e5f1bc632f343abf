"""How far calls walk through Python: `python -m tools.bench_walks` counts, and with a row's name it
prints the functions of that row in the order of their calls.

A row is one call: how many Python functions it calls, and how many of these calls are returns: into
a file that the walk entered and left before. Comprehensions belong to their function. Each row runs
in a process of its own. "warm build" compiles its kernel unless the cache has it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import FrameType

import torch

Step = tuple[str, str]  # a file and a function
_KEY = "flash_forward.cpu.f32-d64-r32-c64"  # in no pack


def walk(call: Callable[[], object]) -> list[Step]:
    """Returns the Python functions that a call calls, in their order."""
    steps: list[Step] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and (code.co_name == "<lambda>" or not code.co_name.startswith("<")):
            steps.append((code.co_filename, code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return steps[1:]  # without `call`


def returns(steps: list[Step]) -> int:
    """Counts the calls into a file that the walk entered and left before."""
    entered: set[str] = set()
    count, here = 0, ""
    for file, _ in steps:
        count += file != here and file in entered
        entered.add(file)
        here = file
    return count


def _import() -> list[Step]:
    return walk(lambda: __import__("runtime"))


def _attend(length: int) -> Callable[[], object]:
    import runtime

    q = torch.ones(1, length, 2, 64)
    return lambda: runtime.attention(q, q, q)


def _first() -> list[Step]:
    return walk(_attend(9))


def _new_length() -> list[Step]:
    _attend(9)()
    return walk(_attend(10))


def _append() -> list[Step]:
    import runtime

    k, cache = torch.ones(2, 1, 2, 64), torch.zeros(2, 64, 2, 64)
    lengths = torch.tensor([5, 6], dtype=torch.int32)

    def call() -> object:
        return runtime.flash_attn_with_kvcache(k, cache, cache, k, k, cache_seqlens=lengths)

    call()
    return walk(call)


def _warm_build() -> list[Step]:
    import runtime

    runtime.kernel(_KEY, build=True)
    return walk(lambda: runtime.kernel(_KEY, build=True))


ROWS: dict[str, Callable[[], list[Step]]] = {
    "import": _import,
    "first call": _first,
    "new length": _new_length,
    "append to a cache": _append,
    "warm build": _warm_build,
}


def main(arguments: list[str]) -> None:
    """Prints the table, or a row's functions and its counts."""
    if not arguments:
        print(f"{'':<20}{'calls':>8}{'returns':>9}")
        for name in ROWS:
            command = [sys.executable, "-m", __spec__.name, name]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            calls, count = lines.splitlines()[-1].split()
            print(f"{name:<20}{calls:>8}{count:>9}")
        return
    steps = ROWS[" ".join(arguments)]()
    for file, function in steps:
        print(f"{'/'.join(file.split('/')[-2:])}: {function}")
    print(len(steps), returns(steps))


if __name__ == "__main__":
    main(sys.argv[1:])
