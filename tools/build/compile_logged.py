"""Compiler launcher: runs nvcc, shows its output where it matters, and keeps it beside the object.

    compile_logged.py --log-dir DIR --root FOLDER ... --target TARGET -- nvcc ... -c SOURCE -o OBJ

The log is DIR/<source>.<TARGET>.ptxas.log, the source relative to the first FOLDER that holds it,
and holds the compiler's output verbatim. It is replaced only when the compiler succeeds or fails,
never left half written, so a report over the folder is whole after an incremental build. ptxas's
`info` lines are not shown: with dozens of kernels they would bury the warnings. Standard library
only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path


def log_path(log_dir: Path, roots: list[Path], target: str, command: list[str]) -> Path:
    """The log of one object."""
    source = Path(command[command.index("-c") + 1]).resolve()
    within = (root.resolve() for root in roots)
    root = next((root for root in within if source.is_relative_to(root)), source.parent)
    name = source.relative_to(root)
    return log_dir / f"{name}.{target}.ptxas.log"


def worth_showing(line: bytes) -> bool:
    """Whether a line of a successful compilation tells a person something."""
    text = line.strip()
    if not text or b"bytes stack frame" in text:
        return False
    return not text.startswith(b"ptxas info") or b"(C75" in text


def main(arguments: list[str]) -> int:
    """Run the compiler named after `--`; return its exit status."""
    split = arguments.index("--")
    command = arguments[split + 1 :]
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--root", type=Path, action="append", default=[])
    parser.add_argument("--target", required=True)
    options = parser.parse_args(arguments[:split])
    if "-c" not in command:  # a link or a query: nothing to keep
        return subprocess.run(command, check=False).returncode
    log = log_path(options.log_dir, options.root, options.target, command)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    log.parent.mkdir(parents=True, exist_ok=True)
    partial = log.with_name(f"{log.name}.{os.getpid()}.part")
    partial.write_bytes(done.stdout)
    partial.replace(log)
    shown = done.stdout.splitlines(keepends=True)
    if done.returncode == 0:
        shown = [line for line in shown if worth_showing(line)]
    sys.stderr.buffer.write(b"".join(shown))
    if done.returncode != 0:
        sys.stderr.write(f"kernelmint: compiling failed; the whole log is {log}\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
