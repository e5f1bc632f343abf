"""Recovers a kernel's key from its mangled symbol, exactly and without a demangler.

A configuration is the C++ type kernelmint::configs::<family>::<target>::<tokens>, passed to its kernel as a template
argument, so the Itanium ABI spells it in the symbol as length-prefixed names: `10kernelmint7configs13flash_forward4sm80...`.
Where the kernel itself lives in namespace kernelmint, `kernelmint` was the first name of the symbol and the ABI (5.1.8,
compression) writes its repetition as `S_`: `NS_7configs13flash_forward...`.
"""

from __future__ import annotations

import re

KEY = re.compile(
    r"[a-z][a-z0-9]*(_[a-z0-9]+)*\.[a-z][a-z0-9]*(_[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*"
)
_CONFIGS = re.compile(r"(?:10kernelmint|S_)7configs(?=[1-9])")
_LENGTH = re.compile(r"[1-9][0-9]*")


def key_of_symbol(symbol: str) -> str | None:
    """The key of the first configuration named in `symbol`, or None where it names none."""
    for match in _CONFIGS.finditer(symbol):
        if match[0].startswith("S_") and not symbol.startswith("_ZN10kernelmint"):
            continue
        names: list[str] = []
        at = match.end()
        while len(names) < 3 and (length := _LENGTH.match(symbol, at)):
            end = length.end() + int(length[0])
            names.append(symbol[length.end() : end])
            at = end
        if len(names) == 3 and at < len(symbol):
            key = ".".join((names[0], names[1], names[2].replace("_", "-")))
            if KEY.fullmatch(key):
                return key
    return None
