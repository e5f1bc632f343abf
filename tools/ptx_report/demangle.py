"""Readable names for foreign kernels, found in this process.

By pycxxfilt (LLVM), else by cxxfilt (the host's libstdc++), else there are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

# nvcc names an anonymous namespace after a hash of the file, which changes from build to build:
# 39_GLOBAL__N__b00f04da_7_misc_cu_e3d5275c becomes the ABI's own spelling.
_ANONYMOUS = re.compile(r"(\d{1,9})(_GLOBAL__N__)")
_STANDARD = "12_GLOBAL__N_1"


def without_hash(symbol: str) -> str:
    """The symbol with nvcc's anonymous namespaces, spelt as the ABI does."""
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


@lru_cache(maxsize=1)
def _demangler() -> Callable[[str], str | None] | None:
    try:
        import pycxxfilt
    except ImportError:
        pass
    else:

        def llvm(symbol: str) -> str | None:
            try:
                return str(pycxxfilt.demangle(symbol) or symbol)
            except ValueError:
                return None

        return llvm
    try:
        import cxxfilt
    except ImportError:
        return None

    def gnu(symbol: str) -> str | None:
        try:
            return str(cxxfilt.demangle(symbol))
        except cxxfilt.InvalidName:
            return None

    return gnu


def demangle(symbols: Iterable[str]) -> dict[str, str]:
    """Demangled names by symbol; one that is no mangled name, or that no library reads, stays."""
    function = _demangler()
    names: dict[str, str] = {}
    for symbol in symbols:
        if symbol not in names:
            clean = without_hash(symbol)
            readable = function(clean) if function and clean.startswith("_Z") else None
            names[symbol] = readable or clean
    return names
