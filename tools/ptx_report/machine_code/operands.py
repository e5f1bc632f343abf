"""The registers that an instruction reads and writes, by its text.

The widths are those of NVIDIA's listing of live registers (`nvdisasm -plr`). An unknown form reads
one register where its text names one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# A set of registers is an integer with a bit for each; the bits of a kind begin here.
_FIRST = {"R": 0, "UR": 256, "P": 512, "UP": 520, "B": 528}
_COUNTS = {"R": 255, "UR": 255, "P": 7, "UP": 7, "B": 16}
GENERAL = (1 << 256) - 1
UNIFORM = GENERAL << _FIRST["UR"] | 0x7F << _FIRST["UP"]
_PREDICATES = 0x7F << _FIRST["P"]
EVERY = (1 << 544) - 1

_REGISTER = re.compile(r"(?<![.\w])(UR|UP|R|P|B)(\d+)(\.64)?\b")
_RESULT = re.compile(r"U?R(?:\d+|Z)(?:\.\w+)*")
_PREDICATE = re.compile(r"U?P[0-7T]")
_DESCRIPTOR = re.compile(r"(g|i|)desc\[(UR|R)(\d+)")
_PRODUCT = re.compile(r"\d+x(\d+)x\d+")
# MOV R8, R26; IMAD.MOV.U32 R8, RZ, RZ, R26; MOV.64 R26, R158.
_COPIED = re.compile(r"R(\d+), (?:RZ, RZ, )?R(\d+)(?:\.reuse)?")
_COPIES = {"MOV": 1, "IMAD.MOV.U32": 1, "MOV.64": 2}
_SPILLED = re.compile(r"\[R1(?:\+-?0x[0-9a-f]+)?\], R")
_HALVES = {"0x7610", "0x7632", "0x5410", "0x3210", "0x1054"}

_WITHOUT_RESULT = {
    "BAR", "BPT", "BRA", "BREAK", "BRX", "BRXU", "BSYNC", "CALL", "DEPBAR", "EXIT", "JMP", "JMX",
    "JMXU", "KILL", "NANOSLEEP", "R2B", "RET", "RPCMOV", "SETLMEMBASE", "WARPSYNC", "YIELD",
}  # fmt: skip
_TEXTURES = {"SULD", "TEX", "TLD", "TLD4", "TMML", "TXD", "TXQ"}
_MATRICES = {"BMMA", "DMMA", "HMMA", "IMMA", "OMMA", "QMMA"}
ASYNCHRONOUS = {"BGMMA", "HGMMA", "IGMMA", "QGMMA"}
_DOUBLE = {"DADD", "DFMA", "DMNMX", "DMUL", "DSETP", "FADD2", "FFMA2", "FMUL2"}
_MEMORY = re.compile(r"LD|ST|ATOM|RED(?!UX)|ULDC|SYNCS")
_CONVERSION = re.compile(r"U?([FI])2([FI])$")
_SIZES = {"64": 2, "F64": 2, "96": 3, "128": 4, "256": 8}
# Registers of a tensor's copy before its coordinates: shared memory's address, a barrier's.
_BEFORE_COORDINATES = {"UTMALDG": 2, "UTMASTG": 1, "UTMAREDG": 1, "UTMAPF": 0}
_LONG = {"F64", "S64", "U64"}


class Effect(NamedTuple):
    """The registers of an instruction."""

    reads: int
    writes: int
    addresses: int  # the registers that it reads as a part of an address or a descriptor
    product: int  # the registers that an asynchronous product reads and writes after it was issued
    moved: int = 0  # the registers that it reads only to copy or to spill them
    copies: tuple[tuple[int, int], ...] = ()  # registers, each with the register copied to it


class _Widths(NamedTuple):
    """How many registers operands have."""

    result: int
    sources: tuple[int, ...]  # the last of them is also that of all further ones


def registers(kind: str, first: int, count: int = 1) -> int:
    """Returns the set of `count` registers from `first` on."""
    count = min(count, _COUNTS[kind] - first)
    return ((1 << count) - 1) << (_FIRST[kind] + first) if count > 0 else 0


def names(of: int) -> str:
    """Returns the names of a set's registers: UR0 UR1 P3."""
    return " ".join(
        f"{kind}{number}"
        for kind, count in _COUNTS.items()
        for number in range(count)
        if of >> _FIRST[kind] + number & 1
    )


def predicates(text: str) -> int:
    """Returns the registers that a text names, each of them one wide: a guard's."""
    found = 0
    for kind, number, _ in _REGISTER.findall(text):
        found |= registers(kind, int(number))
    return found


@lru_cache(1 << 17)
def effect(operation: str, operands: str) -> Effect:
    """Returns the registers of an instruction, without its guard."""
    name, *modifiers = operation.split(".")
    parts = operands.split(", ") if operands else []
    results = _results(name, parts)
    width, sources = _widths(name, modifiers, parts)
    if "ENL2" in modifiers:  # 256 bits are two operands of four registers
        results, width, sources = results + bool(results), min(width, 4), (min(sources[0], 4),)
    reads = writes = addresses = 0
    for part in parts[:results]:
        if part == "PR":
            writes |= _PREDICATES
        for kind, number, _ in _REGISTER.findall(part):
            writes |= registers(kind, int(number), width if kind in ("R", "UR") else 1)
    position = 0
    for index, part in enumerate(parts[results:], results):
        if "[" in part:
            address = _address(name, modifiers, part, index, parts)
            reads |= address
            if not part.startswith("c["):
                addresses |= address
            position += name not in ASYNCHRONOUS
            continue
        for kind, number, is_pair in _REGISTER.findall(part):
            count = 1 if kind not in ("R", "UR") else sources[min(position, len(sources) - 1)]
            reads |= registers(kind, int(number), 2 if is_pair else count)
        position += 1
    product = (reads | writes) & GENERAL if name in ASYNCHRONOUS else 0
    reads &= ~_kept(name, parts, writes)
    copies = _copies(operation, operands)
    moved = reads & ~addresses if name == "STL" and _SPILLED.match(operands) else 0
    for _, source in copies:
        moved |= source
    return Effect(reads, writes, addresses, product, moved, copies)


def _copies(operation: str, operands: str) -> tuple[tuple[int, int], ...]:
    """Returns the registers that an instruction copies others to, each with its source."""
    match = _COPIED.fullmatch(operands) if operation in _COPIES else None
    if match is None:
        return ()
    to, source = int(match[1]), int(match[2])
    return tuple((1 << to + i, 1 << source + i) for i in range(_COPIES[operation]))


def _kept(name: str, parts: list[str], writes: int) -> int:
    """Returns the registers that an instruction names as sources, and whose former value may be
    anything: it replaces bits of them, does not read them, or sums to them only if a predicate
    holds."""
    if name in ("PRMT", "UPRMT") and parts[2] in _HALVES:
        return writes
    if name == "LOP3" and parts[-4].startswith("0x") and int(parts[-4], 16).bit_count() in (1, 31):
        return writes
    if name in ASYNCHRONOUS:
        return writes if any(part.startswith("UP") for part in parts) else 0
    return EVERY if name == "BMOV" and parts[0] == "RZ" else 0  # it clears a barrier


def _results(name: str, parts: list[str]) -> int:
    """Returns how many operands, from the first on, an instruction writes."""
    if not parts or name in _WITHOUT_RESULT or "[" in parts[0]:
        return 0
    if name in ("VOTE", "VOTEU"):
        return len(parts) - 1
    if name in ("BMOV", "BSSY", "FCHK", "R2P"):
        return 1
    if name in _TEXTURES or name == "ELECT" or name.rstrip("2").endswith("SETP") or "PLOP3" in name:
        return 2
    at = _after_predicates(parts, 0)
    if at < len(parts) and _RESULT.fullmatch(parts[at]):
        at = _after_predicates(parts, at + 1)
    return at


def _after_predicates(parts: list[str], at: int) -> int:
    while at < len(parts) and _PREDICATE.fullmatch(parts[at]):
        at += 1
    return at


def _widths(name: str, modifiers: list[str], parts: list[str]) -> _Widths:
    if name in ASYNCHRONOUS:
        shape = next(match for m in modifiers if (match := _PRODUCT.fullmatch(m)))
        count = int(shape[1]) // (4 if "F16" in modifiers else 2)
        return _Widths(count, (4, count) if _is_left_in_registers(parts) else (count,))
    if name in _MATRICES:
        return _matrix(name, modifiers)
    if name in ("LDSM", "STSM"):
        count = int(modifiers[-1]) if modifiers[-1] in ("2", "4") else 1
        return _Widths(count, (count,))
    if name == "LDTM":
        return _Widths(128, (1,))
    if name in _TEXTURES:
        return _Widths(4, (1,))
    if name in ("CS2R", "CS2UR"):
        return _Widths(1 if "32" in modifiers else 2, (1,))
    if name == "LEPC":
        return _Widths(2, (1,))
    if name in _DOUBLE:
        return _Widths(2, (2,))
    if name in ("RET", "BRX", "JMX"):
        return _Widths(0, (2,))
    if _MEMORY.match(name):
        size = max((_SIZES.get(modifier, 1) for modifier in modifiers), default=1)
        if name == "SYNCS":
            return _Widths(2, (size,))
        loads = name.startswith(("LD", "ULD"))
        return _Widths(4 if name == "LDGMC" else size, (1 if loads else size,))
    if match := _CONVERSION.match(name):
        return _converted(match, modifiers)
    if "WIDE" in modifiers:
        return _Widths(2, (1, 1, 2, 1))
    is_long = not name.endswith("SHF") and not {"64", *_LONG}.isdisjoint(modifiers)
    return _Widths(2, (2,)) if is_long else _Widths(1, (1,))


def _matrix(name: str, modifiers: list[str]) -> _Widths:
    if name == "DMMA":
        return _Widths(4, (2, 2, 4))
    if not modifiers[0].startswith("168"):
        return _Widths(8 if modifiers[0] == "884" else 4, (1,))
    count = 2 if modifiers[-1] == "F16" else 4
    is_half = modifiers[0] == "1688" and "TF32" not in modifiers
    return _Widths(count, (2, 1, count, 1) if is_half else (4, 2, count, 1))


def _converted(match: re.Match[str], modifiers: list[str]) -> _Widths:
    """Returns the widths of F2I, I2F, F2F: the modifiers name the result before the source."""
    long = [modifier for modifier in modifiers if modifier in _LONG]
    if match[1] == match[2]:
        kinds = [modifier for modifier in modifiers if modifier[-2:] in ("16", "32", "64")]
        pair = [2 if kind in _LONG else 1 for kind in kinds]
        return _Widths(pair[0], (pair[1],)) if len(pair) == 2 else _Widths(2, (1,))
    of_result = {"F": ("F64",), "I": ("S64", "U64")}[match[2]]
    return _Widths(
        2 if any(m in of_result for m in long) else 1,
        (2 if any(m not in of_result for m in long) else 1,),
    )


def _is_left_in_registers(parts: list[str]) -> bool:
    return len(parts) > 2 and "desc[" in parts[2]


def _address(name: str, modifiers: list[str], part: str, index: int, parts: list[str]) -> int:
    """Returns the registers of an address or a descriptor."""
    found = 0
    for kind, number, is_pair in _REGISTER.findall(part):
        count = 2 if is_pair else 1
        if name in _BEFORE_COORDINATES and index < 2:
            dimensions = next(int(m[0]) for m in modifiers if m in ("1D", "2D", "3D", "4D", "5D"))
            count = 2 if index else dimensions + _BEFORE_COORDINATES[name]  # 2: the tensor map
        found |= registers(kind, int(number), count)
    for which, kind, number in _DESCRIPTOR.findall(part):
        first = int(number)
        if which == "g" and name in ASYNCHRONOUS:
            left = _is_left_in_registers(parts)
            found &= ~registers(kind, first)  # then only the second half is the right operand's
            found |= registers(kind, first + 2, 2) if left else registers(kind, first, 4)
        elif which != "i":
            # Beside a uniform part of the other address there is room for its upper half.
            is_half = name == "LDGSTS" and f"UR{first - 1}" in re.split(r"[+\]]", parts[0])
            found |= registers(kind, first, 1 if is_half else 2)
    return found
