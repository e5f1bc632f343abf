"""Compiler launcher: runs nvcc so that an object's bytes do not depend on where and when it is
made.

    reproducible.py --root FOLDER ... -- nvcc ... -c SOURCE -o OBJECT

nvcc writes the source's path into the object, and makes the names of internal symbols and of
temporary files, which symbol tables have, from that path and its process. So nvcc compiles a file
that includes the source, at a path that is the same below every build folder, and makes names from
that path and the object's. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path


def name_of(source: Path, roots: list[Path]) -> Path:
    """Returns a name of a source that is the same in every folder: relative to the root that holds
    it, or made of its content."""
    within = (root.resolve() for root in roots)
    root = next((root for root in within if source.is_relative_to(root)), None)
    if root is not None:
        return source.relative_to(root)
    return Path(hashlib.sha256(source.read_bytes()).hexdigest()[:16], source.name)


def write(path: Path, text: str) -> None:
    """Writes a file whole, unless it has this content: a new time makes ninja compile it."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def command_for(command: list[str], roots: list[Path]) -> list[str]:
    """Returns the command that runs in place of this one."""
    at = command.index("-c") + 1
    source = Path(command[at]).resolve()
    name = name_of(source, roots)
    wrapper = Path("reproducible", name)  # below the build folder, where ninja runs
    write(wrapper, f'#include "{source}"\n')
    named = ("-frandom-seed", str(name), "-Xcudafe", f"--orig_src_path_name={name}", "-objtemp")
    return [*command[:at], str(wrapper), *command[at + 1 :], *named]


def main(arguments: list[str]) -> None:
    """Becomes the compiler named after `--`."""
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    if "-c" in command:
        command = command_for(command, [Path(root) for root in options[1::2]])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
