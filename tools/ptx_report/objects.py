"""Reads the instructions of compiled objects through cuobjdump."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from codegen.build import nvcc
from codegen.core.ptxas_rows import ReportError, Row

from . import sass


def find_cuobjdump() -> str | None:
    """Finds cuobjdump: on PATH, beside nvcc, under CUDA_HOME, PyPI's, Triton's; else None."""
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


def with_machine_code(rows: Iterable[Row], paths: Sequence[Path]) -> list[Row]:
    """Returns the rows, each with the registers that its machine code in one of the objects reads
    and never writes.

    Disassembling takes some 5 s for 10 MB of objects. Raises ReportError, also for a kernel that
    none of them holds, and if cuobjdump is missing.
    """
    found: dict[tuple[str, str | None], tuple[int, str]] = {}
    for path in paths:
        for function in _functions(path):
            for arch in (function.arch, None):  # it prints sm_100 for sm_100f
                name = function.symbol, arch
                found[name] = max(found.get(name, (0, "")), function.unwritten)
    result = []
    for row in rows:
        of_any = found.get((row.symbol, None), (None, ""))
        times, first = found.get((row.symbol, row.arch), of_any)
        if times is None and row.kind not in ("function", "ptx"):  # code within its kernel's
            raise ReportError(
                f"{row.kernel_config} [{row.kernel}, {row.arch}]: its machine code is not in "
                f"{', '.join(map(str, paths)) or 'any library'}"
            )
        result.append(row._replace(unwritten=times, unwritten_at=first or None))
    return result


def _functions(path: Path) -> Iterator[sass.Function]:
    """Yields the functions in an object's machine code."""
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
    """Returns the tool that reads an object. Raises ReportError if there is none."""
    tool = find_cuobjdump()
    if tool is None:
        raise ReportError(
            f"{path}: reading its instructions needs cuobjdump, which is neither on PATH nor "
            "beside nvcc: pip install 'nvidia-cuda-cuobjdump>=13.2' 'nvidia-cuda-nvdisasm>=13.2'"
        )
    return tool


def _first_line(output: str) -> str:
    return next((line.strip() for line in output.splitlines() if line.strip()), "nothing")
