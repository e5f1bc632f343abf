"""`make build`: an editable install that shows its progress and keeps its whole log.

    python tools/build/install.py [pip arguments, such as -C cmake.define.KERNELMINT_CUDA=OFF]

It compiles for development: the CPU's kernels for this processor's best instruction set, and
CUDA's, if there is no GPU, for the newest architecture that a target names. KERNELMINT_ISAS=all
and KERNELMINT_WITHOUT_GPU=all in the environment compile for all, KERNELMINT_LINE_INFO=ON names
lines of sources to profilers.

pip hides a build's output unless it fails, and then prints all of it. This shows the progress
(which nvcc, how many kernels, ninja's count), keeps the rest in build/install.log, and if the build
fails prints the failing object's own output. Standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOG = Path(os.environ.get("KERNELMINT_INSTALL_LOG", ROOT / "build" / "install.log"))
STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] (.*)$")
SAID = re.compile(r"^\s*(?:-- )?(Kernelmint: .*)$")
MOST_FAILURE_LINES = 80
FOR_DEVELOPMENT = {
    "KERNELMINT_ISAS": "native",
    "KERNELMINT_WITHOUT_GPU": "newest",
    "KERNELMINT_LINE_INFO": "OFF",
}


def interesting(line: str) -> bool:
    """Returns whether a line of a failed build belongs to the failure rather than to its noise."""
    return not STEP.match(line) and "ptxas info" not in line and "bytes stack frame" not in line


def report_failure(lines: list[str]) -> None:
    """Prints the failure: from ninja's or CMake's first word of it on."""
    first = next(
        (
            n
            for n, line in enumerate(lines)
            if re.match(r"\s*(FAILED:|CMake Error|ERROR:|error:)", line)
        ),
        max(0, len(lines) - MOST_FAILURE_LINES),
    )
    shown = [line for line in lines[first:] if interesting(line)][:MOST_FAILURE_LINES]
    sys.stderr.write("".join(shown))
    sys.stderr.write(f"kernelmint: the build failed; its whole log is {LOG}\n")


def main(arguments: list[str]) -> int:
    """Installs, streaming progress; returns pip's exit status."""
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--no-build-isolation"]
    command += ["--no-deps", "-e", "."]
    for name, value in FOR_DEVELOPMENT.items():
        command += ["-C", f"cmake.define.{name}={os.environ.get(name, value)}"]
    command += arguments
    LOG.parent.mkdir(exist_ok=True)
    on_terminal = sys.stdout.isatty()
    lines: list[str] = []
    with (
        LOG.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            lines.append(line)
            if step := STEP.match(line):
                text = f"[{step[1]}/{step[2]}] {Path(step[3].split()[-1]).name}"
                if on_terminal:
                    print(f"\r\033[K{text}", end="", flush=True)
                elif int(step[1]) % 10 == 0 or step[1] == step[2]:
                    print(text, flush=True)
            elif progress := SAID.match(line):
                print(progress[1], flush=True)
    if on_terminal:
        print("\r\033[K", end="")
    if pip.returncode:
        report_failure(lines)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
