"""Readable names for foreign kernels.

By pycxxfilt (LLVM), else by cxxfilt (the host's libstdc++), else there are none. A log may hold any
name, and neither library bounds what one takes: 700 bytes may ask for minutes and gigabytes, 160 kB
of nesting overflow the stack. So they run in a process of their own, whose standard library is all
that this file needs.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable

_LONGEST = 1 << 15  # characters, and so the depth, of a symbol; of a name; CUTLASS's have 20,000
_SECONDS = 0.2  # processor time for one name; CUTLASS's take a thousandth
_FAILURES = 10  # names that may take too much; what comes after so many stays mangled

# nvcc names an anonymous namespace after a hash of the file, which changes from build to build:
# 39_GLOBAL__N__b00f04da_7_misc_cu_e3d5275c becomes the ABI's own spelling.
_ANONYMOUS = re.compile(r"(\d{1,9})(_GLOBAL__N__)")
_STANDARD = "12_GLOBAL__N_1"


def without_hash(symbol: str) -> str:
    """Returns the symbol with nvcc's anonymous namespaces, spelt as the ABI does."""
    parts: list[str] = []
    at = 0
    while match := _ANONYMOUS.search(symbol, at):
        # A digit before belongs to the length or ends another name: the longest length that fits.
        for start in range(match.start(1), match.end(1)):
            length = symbol[start : match.end(1)]
            end = match.end(1) + int(length)
            if length[0] != "0" and end <= len(symbol):
                parts += [symbol[at:start], _STANDARD]
                at = end
                break
        else:
            parts.append(symbol[at : match.end()])
            at = match.end()
    return "".join((*parts, symbol[at:]))


def _demangler() -> Callable[[str], str] | None:
    try:
        import pycxxfilt
    except ImportError:
        pass
    else:
        return lambda symbol: str(pycxxfilt.demangle(symbol))
    try:
        import cxxfilt
    except ImportError:
        return None
    return lambda symbol: str(cxxfilt.demangle(symbol))


def demangle(symbols: Iterable[str]) -> dict[str, str]:
    """Returns demangled names by symbol. A name stays if it is not mangled, if no library reads it,
    or if it takes more than the limits above."""
    names = {symbol: without_hash(symbol) for symbol in dict.fromkeys(symbols)}
    mangled = {name for name in names.values() if name.startswith("_Z") and len(name) <= _LONGEST}
    readable = _demangled(sorted(mangled))
    return {symbol: readable.get(name) or name for symbol, name in names.items()}


def _demangled(symbols: list[str]) -> dict[str, str | None]:
    """Returns the libraries' names, made in a process that a hostile symbol ends."""
    found: dict[str, str | None] = {}
    for _ in range(_FAILURES):
        if not symbols:
            break
        done = subprocess.run(
            [sys.executable, __file__], input=json.dumps(symbols), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
        names = [json.loads(line) for line in done.stdout.splitlines()]
        found.update(zip(symbols, names, strict=False))
        symbols = symbols[len(names) + 1 :]  # the next one has ended it
    return found


def main() -> None:
    """Demangles the list on standard input, a line each; ends at what takes too much."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    function = _demangler()
    for symbol in json.load(sys.stdin):
        name = None
        if function is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)  # the timer's signal ends the process
            with contextlib.suppress(Exception):  # each library has its own for what is not a name
                name = function(symbol)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        print(json.dumps(name if name is None or len(name) <= _LONGEST else None), flush=True)


if __name__ == "__main__":
    main()
