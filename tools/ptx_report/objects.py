"""Reads compiled objects through cuobjdump: registers, stack and shared memory, but no spills; and
their machine code."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from codegen.build import nvcc
from codegen.core.ptxas_rows import ReportError, Row

from . import sass

_FUNCTION = re.compile(r"\s*Function (\S+):")
_ARCH = re.compile(r"arch = (sm_\w+)")
_FIELD = re.compile(r"([A-Z]+(?:\[\d+\])?):(\d+)")


def find_cuobjdump() -> str | None:
    """cuobjdump on PATH, beside nvcc, under CUDA_HOME, PyPI's, Triton's; None if there is none."""
    candidates = [shutil.which("cuobjdump")]
    if compiler := nvcc.of_machine():
        program = shutil.which(compiler.command[0]) or compiler.command[0]
        candidates.append(str(Path(program).resolve().parent / "cuobjdump"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            candidates.append(str(Path(home, "bin", "cuobjdump")))
    candidates += reversed(nvcc.in_pypi("cuobjdump"))
    if (triton := importlib.util.find_spec("triton")) and triton.origin:
        candidates.append(str(Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"))
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def read_object(path: Path) -> list[Row]:
    """Rows of every kernel in an object, shared library or cubin.

    `smem` is what the driver allocates: from compute capability 9.0 on with the 1,024 bytes that it
    reserves. Raises ReportError, also if cuobjdump is missing.
    """
    done = subprocess.run(
        [_cuobjdump(path), "--dump-resource-usage", str(path)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    rows = parse_resource_usage(done.stdout, path.name)
    if done.returncode != 0 or not rows:
        said = _first_line(done.stderr + done.stdout)
        raise ReportError(f"{path}: no kernel in it; cuobjdump says: {said}")
    return rows


def with_machine_code(rows: Iterable[Row], paths: Sequence[Path]) -> list[Row]:
    """The rows, each with the registers that its machine code in one of the objects reads and never
    writes.

    Disassembling takes some 5 s for 10 MB of objects. Raises ReportError, also for a kernel that
    none of them holds, and if cuobjdump is missing.
    """
    found: dict[tuple[str, str | None], tuple[int, str]] = {}
    for path in paths:
        for function in _functions(path):
            for arch in (function.arch, None):  # a cubin's rows do not name theirs
                name = function.symbol, arch
                found[name] = max(found.get(name, (0, "")), function.unwritten)
    result = []
    for row in rows:
        times, first = found.get((row.symbol, row.arch), (None, ""))
        if times is None and row.kind != "function":  # its code is within its kernel's
            raise ReportError(
                f"{row.kernel_config} [{row.kernel}, {row.arch}]: its machine code is not in "
                f"{', '.join(map(str, paths)) or 'any library'}"
            )
        result.append(row._replace(unwritten=times, unwritten_at=first or None))
    return result


def _functions(path: Path) -> Iterator[sass.Function]:
    """The functions in an object's machine code."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(
            [_cuobjdump(path), "-sass", str(path)],
            stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            is_empty = True
            for function in sass.functions(process.stdout):
                is_empty = False
                yield function
        if process.returncode != 0 or is_empty:
            errors.seek(0)
            said = _first_line(errors.read())
            raise ReportError(f"{path}: cannot be disassembled; cuobjdump says: {said}")


def _cuobjdump(path: Path) -> str:
    """The tool that reads an object. Raises ReportError if there is none."""
    tool = find_cuobjdump()
    if tool is None:
        raise ReportError(
            f"{path}: reading an object needs cuobjdump, which is neither on PATH nor beside nvcc: "
            "pip install 'nvidia-cuda-cuobjdump>=13.2' 'nvidia-cuda-nvdisasm>=13.2', or give the "
            "build's log"
        )
    return tool


def _first_line(output: str) -> str:
    return next((line.strip() for line in output.splitlines() if line.strip()), "nothing")


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
