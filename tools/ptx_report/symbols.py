"""Recovers a kernel's key from its mangled symbol, exactly and without a demangler.

A configuration is the C++ type kernelmint::configs::<family>::<target>::<tokens>, passed to its
kernel as a template argument, so the Itanium ABI spells it in the symbol as names behind their
lengths: `10kernelmint7configs13flash_forward4sm80...`. Where the kernel itself lives in namespace
kernelmint, that was the first name of the symbol, and the ABI (5.1.10, compression) writes its
repetition as `S_`: `NS_7configs13flash_forward...`.
"""

from __future__ import annotations

import re

KEY = re.compile(r"[a-z]\w*\.[a-z]\w*\.[a-z0-9]+(?:-[a-z0-9]+)*")
_LENGTH = re.compile(r"[1-9][0-9]{0,8}")


def key_of_symbol(symbol: str) -> str | None:
    """The key of the first configuration named in `symbol`, or None where it names none."""
    at = symbol.find("7configs")
    while at >= 0:
        if symbol.endswith("10kernelmint", 0, at) or (
            symbol.endswith("S_", 0, at) and symbol.startswith("_ZN10kernelmint")
        ):
            names = _names(symbol, at + len("7configs"))
            if names is not None:
                family, target, tokens = names
                key = f"{family}.{target}.{tokens.replace('_', '-')}"
                if KEY.fullmatch(key):
                    return key
        at = symbol.find("7configs", at + 1)
    return None


def kernel_of_symbol(symbol: str) -> str:
    """The function's own name, without namespaces, template arguments and parameters; for a
    symbol that is not mangled, or not in a plain way, all of it."""
    at = 3 if symbol.startswith("_ZN") else 2 if symbol.startswith("_Z") else len(symbol)
    name = symbol
    while length := _LENGTH.match(symbol, at):
        at = length.end() + int(length[0])
        name = symbol[length.end() : at]
    return name


def _names(symbol: str, at: int) -> list[str] | None:
    """Three names behind their lengths, with something behind them; None where there are fewer."""
    names: list[str] = []
    for _ in range(3):
        length = _LENGTH.match(symbol, at)
        if length is None:
            return None
        start = length.end()
        at = start + int(length[0])
        names.append(symbol[start:at])
    return names if at < len(symbol) else None
