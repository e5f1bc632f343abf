"""Reads compiled objects through cuobjdump: registers, stack and shared memory, but no spills."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from codegen.build import nvcc
from codegen.ptxas.rows import ReportError, Row

_FUNCTION = re.compile(r"\s*Function (\S+):")
_ARCH = re.compile(r"arch = (sm_\w+)")
_FIELD = re.compile(r"([A-Z]+(?:\[\d+\])?):(\d+)")


def find_cuobjdump() -> str | None:
    """cuobjdump on PATH, beside nvcc, under CUDA_HOME, or PyPI's; None if it is nowhere."""
    candidates = [shutil.which("cuobjdump")]
    if compiler := nvcc.of_machine():
        program = shutil.which(compiler.command[0]) or compiler.command[0]
        candidates.append(str(Path(program).resolve().parent / "cuobjdump"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            candidates.append(str(Path(home, "bin", "cuobjdump")))
    candidates += reversed(nvcc.in_pypi("cuobjdump"))
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def read_object(path: Path) -> list[Row]:
    """Rows of every kernel in an object, shared library or cubin.

    `smem` is what the driver allocates: from compute capability 9.0 on with the 1,024 bytes that it
    reserves. Raises ReportError, also if cuobjdump is missing.
    """
    tool = find_cuobjdump()
    if tool is None:
        raise ReportError(
            f"{path}: reading an object needs cuobjdump, which is neither on PATH nor beside nvcc: "
            "pip install 'nvidia-cuda-cuobjdump>=13.2', or give the build's log"
        )
    done = subprocess.run(
        [tool, "--dump-resource-usage", str(path)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    rows = parse_resource_usage(done.stdout, path.name)
    if done.returncode != 0 or not rows:
        said = next(
            (line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()),
            "nothing",
        )
        raise ReportError(f"{path}: no kernel in it; cuobjdump says: {said}")
    return rows


def parse_resource_usage(text: str, source: str) -> list[Row]:
    """Rows of what `cuobjdump --dump-resource-usage` prints."""
    rows: list[Row] = []
    arch: str | None = None
    symbol: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("Fatbin"):
            arch = None
        elif match := _ARCH.match(line):
            arch = match[1]
        elif match := _FUNCTION.fullmatch(line):
            symbol = match[1]
        elif symbol and (fields := dict(_FIELD.findall(line))):
            numbers = {name: int(value) for name, value in fields.items()}
            rows.append(
                Row(
                    symbol,
                    "object",
                    arch,
                    stack_frame=numbers.pop("STACK", None),
                    used_registers=numbers.pop("REG", None),
                    smem=numbers.pop("SHARED", None),
                    cmem0=numbers.pop("CONSTANT[0]", None),
                    other=tuple(
                        (name.lower(), str(value)) for name, value in numbers.items() if value
                    ),
                    source=source,
                    line=number,
                )
            )
            symbol = None
    return rows
