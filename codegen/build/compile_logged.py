"""Compiler launcher: runs nvcc, shows its output if it matters, and keeps it beside the object.

    compile_logged.py --log-dir DIR --root FOLDER ... --target TARGET -- nvcc ... -c SOURCE -o OBJ

The log is DIR/<source>.<TARGET>.ptxas.log, the source relative to the first FOLDER that holds it,
and holds the compiler's output verbatim. It is replaced only when the compiler succeeds or fails,
never left half written, so a report over the folder is whole after an incremental build. ptxas's
`info` lines are not shown: with dozens of kernels they would bury the warnings.

Beside it, <source>.<TARGET>.cost.json says what the compilation took: `seconds`, and `mib`, the
most memory of one of its processes. What ccache replays took nothing, and leaves the file as it
was. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
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


def cost_path(log: Path) -> Path:
    """What the compilation of a log took."""
    return log.with_name(log.name.removesuffix(".ptxas.log") + ".cost.json")


@dataclass(frozen=True)
class Compilation:
    """How a command went, and what it took; `mib` is the most memory of one of its processes."""

    status: int
    output: bytes
    seconds: float
    mib: int
    is_replayed: bool  # by ccache, so what it took says nothing


def compile_measured(command: list[str], statistics: Path) -> Compilation:
    """Run the compiler; ccache, if it takes part, writes into `statistics` what it did."""
    begin = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, "CCACHE_STATSLOG": str(statistics)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    seconds = time.monotonic() - begin
    # The only child of this process, and what it started.
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    said = statistics.read_text() if statistics.exists() else ""
    statistics.unlink(missing_ok=True)
    return Compilation(done.returncode, done.stdout, seconds, mib, "cache_hit" in said)


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(content)
    partial.replace(path)


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
    log.parent.mkdir(parents=True, exist_ok=True)
    done = compile_measured(command, log.with_name(f"{log.name}.{os.getpid()}.ccache"))
    replace(log, done.output)
    if done.status == 0 and not done.is_replayed:
        cost = {"seconds": round(done.seconds, 2), "mib": done.mib}
        replace(cost_path(log), json.dumps(cost).encode())
    shown = done.output.splitlines(keepends=True)
    if done.status == 0:
        shown = [line for line in shown if worth_showing(line)]
    sys.stderr.buffer.write(b"".join(shown))
    if done.status != 0:
        sys.stderr.write(f"kernelmint: compiling failed; the whole log is {log}\n")
    return done.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
