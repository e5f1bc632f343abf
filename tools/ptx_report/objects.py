"""Reads the instructions of compiled files through nvdisasm."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path

from codegen.build import nvcc
from codegen.core.ptxas_rows import ReportError, Row

from .binary import containers, fatbin
from .machine_code import faults, listing
from .machine_code.faults import Faults
from .machine_code.listing import Function


def find_tool(name: str) -> str | None:
    """Finds a tool of the toolkit, nvdisasm: on PATH, beside nvcc, under CUDA_HOME, PyPI's,
    Triton's; else None."""
    candidates = [shutil.which(name)]
    if compiler := nvcc.of_machine():
        program = shutil.which(compiler.command[0]) or compiler.command[0]
        candidates.append(str(Path(program).resolve().parent / name))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            candidates.append(str(Path(home, "bin", name)))
    candidates += reversed(nvcc.in_pypi(name))
    if (triton := importlib.util.find_spec("triton")) and triton.origin:
        candidates.append(str(Path(triton.origin).parent / "backends/nvidia/bin" / name))
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def with_machine_code(rows: Iterable[Row], paths: Sequence[Path]) -> list[Row]:
    """Returns the rows, each with the faults of its machine code in one of the files or folders.

    Disassembling takes some 4 s for 10 MB of machine code. Raises ReportError, also for a kernel
    that none of the files holds, and if nvdisasm is missing.
    """
    found: dict[tuple[str | None, str, str | None], Faults] = {}
    for path in paths:
        for source, function, own in _faults(path):
            # A build's row does not name its library; nvdisasm may print sm_100 for sm_100f.
            for place, arch in product((source, None), (function.arch, None)):
                name = place, function.symbol, arch
                found[name] = max(found.get(name, own), own, key=lambda each: sum(map(len, each)))
    result = []
    for row in rows:
        place = row.source if row.kind == "object" else None
        names = ((place, row.symbol, arch) for arch in (row.arch, None))
        own_faults = next((found[name] for name in names if name in found), None)
        if own_faults is None:
            if row.kind not in ("function", "ptx"):  # code within its kernel's
                raise ReportError(
                    f"{row.kernel_config} [{row.kernel}, {row.arch}]: its machine code is not in "
                    f"{', '.join(map(str, paths)) or 'any library'}"
                )
            result.append(row)
            continue
        unwritten, in_flight = own_faults
        result.append(
            row._replace(
                unwritten=len(unwritten),
                unwritten_at=next(iter(unwritten), None),
                in_flight=len(in_flight),
                in_flight_at=next(iter(in_flight), None),
            )
        )
    return result


def _faults(path: Path) -> Iterator[tuple[str, Function, Faults]]:
    """Yields the functions in the machine code of a file or a folder, with the names of their files
    and their faults."""
    tool = find_tool("nvdisasm")
    if tool is None:
        raise ReportError(
            f"{path}: reading its instructions needs nvdisasm, which is neither on PATH nor beside "
            "nvcc: pip install 'nvidia-cuda-nvdisasm>=13.2'"
        )
    cores = len(os.sched_getaffinity(0))
    try:
        with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(cores) as pool:
            cubins = _cubins(path, Path(work))
            while batch := list(islice(cubins, cores)):
                listings = pool.map(lambda each: _disassembled(tool, path, *each), batch)
                for (source, cubin), text in zip(batch, listings, strict=True):
                    for function, own in _of_listing(tool, path, source, cubin, text):
                        yield source, function, own
                    cubin.unlink()
    except fatbin.BinaryError as error:
        raise ReportError(f"{path}: {error}") from None


def _of_listing(
    tool: str, path: Path, source: str, cubin: Path, text: str
) -> Iterator[tuple[Function, Faults]]:
    """Yields the functions of a cubin; of one with faults with lines of the source, if the code
    has them."""
    read = [(function, faults.of_function(function)) for function in listing.functions(text)]
    if any(any(own) for _, own in read):
        functions = listing.functions(_disassembled(tool, path, source, cubin, "-g"))
        read = [(function, faults.of_function(function)) for function in functions]
    yield from read


def _cubins(path: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """Writes the cubins of a file or a folder; yields the names of their files, and where they
    are."""
    number = 0
    for file in containers.files(path, work):
        for content, inner in containers.contents(file):
            for entry in inner.entries:
                if entry.kind == fatbin.CUBIN:
                    number += 1
                    cubin = work / f"{number}.cubin"
                    cubin.write_bytes(entry.read(content))
                    yield inner.source, cubin


def _disassembled(tool: str, path: Path, source: str, cubin: Path, *options: str) -> str:
    """Returns what nvdisasm prints of a cubin. Raises ReportError if it does not read it."""
    process = subprocess.run(
        [tool, "-c", *options, str(cubin)], capture_output=True, text=True, errors="replace"
    )
    if process.returncode != 0 or not process.stdout.strip():
        message = next(
            (line.strip() for line in process.stderr.splitlines() if line.strip()), "nothing"
        )
        raise ReportError(f"{path}: {source}: cannot be disassembled; nvdisasm says: {message}")
    return process.stdout
