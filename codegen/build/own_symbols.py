"""Compiler launcher: gives the functions of an object that other objects may define as well names
of their own.

    own_symbols.py OBJCOPY NAME -- compiler ... -c SOURCE -o OBJECT

compiles, then appends .NAME to the symbol of each weak function of the object: inline functions,
and instances of templates. The linker keeps one of several weak functions of a name, whatever flags
each was compiled with. A name that holds a configuration's type stays: only one object of an
instruction set has it. Data, such as a function's static variables, stays shared. Standard library
only.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is run by its path

from codegen.core.elf import Elf, Section

_SYMTAB, _GROUP = 2, 17  # types of sections
_WEAK = 2  # a symbol's binding
_FUNCTION = 2  # a symbol's type
_SYMBOL = struct.Struct("<IBBHQQ")
_CONFIGURATIONS = "7configs"  # the mangled namespace of configurations' types


class _Symbol(NamedTuple):
    name: str
    kind: int
    binding: int
    section: int  # an index; 0 if the object does not define the symbol


def _symbols(elf: Elf, table: Section) -> list[_Symbol]:
    names = elf.read(elf.sections[table.link])
    symbols = []
    for name, info, _, section, _, _ in _SYMBOL.iter_unpack(elf.read(table)):
        text = names[name : names.index(b"\0", name)].decode()
        symbols.append(_Symbol(text, info & 0xF, info >> 4, section))
    return symbols


def shared_functions(elf: Elf) -> Iterator[str]:
    """Yields the weak functions that an object defines and that no configuration names, and the
    names by which the linker tells their groups of sections apart."""
    tables = {i: s for i, s in enumerate(elf.sections) if s.kind == _SYMTAB}
    symbols = {i: _symbols(elf, table) for i, table in tables.items()}
    sections = set()
    for symbol in (symbol for of_table in symbols.values() for symbol in of_table):
        is_shared = symbol.binding == _WEAK and symbol.kind == _FUNCTION and symbol.section
        if is_shared and _CONFIGURATIONS not in symbol.name:
            sections.add(symbol.section)
            yield symbol.name
    for group in (section for section in elf.sections if section.kind == _GROUP):
        _, *members = struct.unpack(f"<{group.size // 4}I", elf.read(group))
        if sections.intersection(members):
            yield symbols[group.link][group.info].name


def main(arguments: list[str]) -> int:
    """Runs the compiler named after `--`, and renames; returns the exit status."""
    objcopy, name, _, *command = arguments
    status = subprocess.run(command, check=False).returncode
    if status != 0 or "-c" not in command:
        return status
    made = Path(command[command.index("-o") + 1])
    renamed = sorted(set(shared_functions(Elf(made.read_bytes()))))
    if not renamed:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".symbols") as listed:
        listed.writelines(f"{symbol} {symbol}.{name}\n" for symbol in renamed)
        listed.flush()
        return subprocess.run(
            [objcopy, f"--redefine-syms={listed.name}", str(made)], check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
