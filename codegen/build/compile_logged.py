"""Compiler launcher: runs nvcc, shows the output that matters, and keeps all of it beside the
object.

    compile_logged.py --log-dir DIR --root FOLDER ... --target TARGET -- nvcc ... -c SOURCE -o OBJ

The log is DIR/<source>.<TARGET>.ptxas.log, the source relative to the first FOLDER that holds it,
and holds the compiler's output verbatim. It is replaced only when the compiler succeeds or fails,
never left half written, so a report over the folder is whole after an incremental build. ptxas's
`info` lines are not shown: with dozens of kernels they would bury the warnings.

Beside it, <source>.<TARGET>.cost.json has the cost of the compilation: `seconds`, and `mib`, the
most memory of one of its processes. An object that ccache replays costs nothing, and leaves the
file as it was. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is run by its path

from codegen.core.words import below


def log_path(log_dir: Path, roots: list[Path], target: str, command: list[str]) -> Path:
    """Returns the path of an object's log."""
    source = Path(command[command.index("-c") + 1])
    place = below(source, roots)
    return log_dir / f"{place[1] if place else source.name}.{target}.ptxas.log"


def worth_showing(line: bytes) -> bool:
    """Returns whether a line of a successful compilation tells a person something."""
    text = line.strip()
    if not text or b"bytes stack frame" in text:
        return False
    return not text.startswith(b"ptxas info") or b"(C75" in text


def replace(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(content)
    partial.replace(path)


def main(arguments: list[str]) -> int:
    """Runs the compiler named after `--`; returns its exit status."""
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
    statistics = log.with_name(f"{log.name}.{os.getpid()}.ccache")  # ccache's, if it takes part
    begin = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, "CCACHE_STATSLOG": str(statistics)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    seconds = round(time.monotonic() - begin, 2)
    replace(log, done.stdout)
    is_replayed = statistics.exists() and "cache_hit" in statistics.read_text()
    statistics.unlink(missing_ok=True)
    if done.returncode == 0 and not is_replayed:
        # The only child of this process, and the child's children.
        mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        cost = log.with_name(log.name.removesuffix(".ptxas.log") + ".cost.json")
        replace(cost, json.dumps({"seconds": seconds, "mib": mib}).encode())
    shown = done.stdout.splitlines(keepends=True)
    if done.returncode == 0:
        shown = [line for line in shown if worth_showing(line)]
    sys.stderr.buffer.write(b"".join(shown))
    if done.returncode != 0:
        sys.stderr.write(f"kernelmint: compiling failed; the whole log is {log}\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
