"""Reads the kernels of compiled files, large ones in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from pathlib import Path

from codegen.core.elf import Bytes
from codegen.core.ptxas_rows import ReportError, Row

from . import containers, cubin, fatbin, ptx
from .containers import File
from .fatbin import BinaryError

_PART = 1 << 25  # decompressed bytes that one process reads at a time
_READERS = {fatbin.CUBIN: cubin.kernels, fatbin.PTX: ptx.kernels}


def read(path: Path) -> list[Row]:
    """Returns the rows of every kernel in a file or a folder, in the files' order; none if it
    holds no code for GPUs.

    `smem` is what a block takes: from compute capability 9.0 on with the 1,024 bytes that the
    driver reserves. Raises ReportError.
    """
    try:
        with tempfile.TemporaryDirectory() as work:
            return _read(_parts(containers.files(path, Path(work))))
    except BinaryError as error:
        raise ReportError(f"{path}: {error}") from None
    except BrokenProcessPool:
        raise ReportError(f"{path}: a process that read it was ended: is there memory?") from None
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from None


def _parts(files: Iterable[File]) -> Iterator[list[File]]:
    """Yields the files and their entries in parts, each of about as much work."""
    part: list[File] = []
    size = 0
    for file in files:
        part.append(file._replace(entries=[]))
        size += file.packed
        for entry in file.entries:
            if size > _PART:
                yield part
                part, size = [file._replace(entries=[])], 0
            part[-1].entries.append(entry)
            size += entry.size or entry.end - entry.begin
        if size > _PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def _read(parts: Iterator[list[File]]) -> list[Row]:
    first = list(_taken(parts, 4))
    if len(first) < 4 or (cores := len(os.sched_getaffinity(0))) < 2:
        return [row for part in chain(first, parts) for row in rows_of(part)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context) as pool:
        return [row for rows in pool.map(rows_of, chain(first, parts)) for row in rows]


def _taken(parts: Iterator[list[File]], most: int) -> Iterator[list[File]]:
    for _, part in zip(range(most), parts, strict=False):
        yield part


def rows_of(part: Iterable[File]) -> list[Row]:
    """Returns the rows of some files' entries. Raises BinaryError."""
    rows: list[Row] = []
    for file in part:
        for content, inner in containers.contents(file):
            rows += _rows(content, inner)
    return rows


def _rows(content: Bytes, file: File) -> list[Row]:
    try:
        rows: list[Row] = []
        for entry in file.entries:
            if kernels := _READERS.get(entry.kind):
                found = kernels(entry.read(content), entry.arch, file.source)
                rows += _shared(list(found), entry.end - entry.begin)
        return rows
    except BinaryError as error:
        raise BinaryError(f"{file.source}: {error}") from None


def _shared(rows: list[Row], stored: int) -> list[Row]:
    """Returns the rows of a cubin or PTX, each with its share of what that takes in its file."""
    sizes = [(row.code_bytes or 0) + (row.ptx_bytes or 0) for row in rows]
    whole, before = sum(sizes) or 1, 0
    shared = []
    for row, size in zip(rows, sizes, strict=True):
        after = before + size
        share = stored * after // whole - stored * before // whole
        shared.append(row._replace(stored_bytes=share))
        before = after
    return shared
