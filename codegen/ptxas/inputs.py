"""Opens what a user names: logs, folders of them, gzip, standard input."""

from __future__ import annotations

import codecs
import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from codegen.core.ptxas_rows import ReportError, Row
from codegen.ptxas.events import Statistics
from codegen.ptxas.parser import CHUNK, parse

OBJECT_LOG = ".ptxas.log"  # ends the name of the log that the build keeps beside each object
_LOGS = (".log", ".txt", ".log.gz", ".txt.gz")
_OBJECT_SOURCE = re.compile(r"(.+\.\w+)\.\w+\.ptxas\.log")  # <source>.<target>.ptxas.log


def log_files(folder: Path) -> list[Path]:
    """Returns the logs under a folder, sorted: the build's per-object logs, else every .log and
    .txt."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    logs = [path for path in files if path.name.endswith((OBJECT_LOG, OBJECT_LOG + ".gz"))]
    return logs or [path for path in files if path.name.endswith(_LOGS)]


def source_name(path: Path, folder: Path | None) -> str:
    """Returns a log's name: for the build's per-object log its source file, else its own path."""
    name = path.relative_to(folder).as_posix() if folder else path.name
    match = _OBJECT_SOURCE.fullmatch(name.removesuffix(".gz"))
    return match[1] if match else name


def read_log(path: Path, source: str, statistics: Statistics) -> Iterator[Row]:
    """Records of one log file, gzipped or not.

    Raises ReportError for a file that cannot be read or is not text.
    """
    try:
        with path.open("rb") as raw:
            head = raw.read(4096)
            raw.seek(0)
            if head.startswith(b"\x1f\x8b"):
                with gzip.open(raw) as stream:
                    yield from parse(_chunks(stream, path), source, statistics)
            else:
                yield from parse(_chunks(raw, path), source, statistics)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ReportError(f"{path}: cannot be read: {reason}") from error


def read_standard_input(statistics: Statistics) -> Iterator[Row]:
    """Records of the log on standard input."""
    yield from parse(_chunks(sys.stdin.buffer, Path("-")), "-", statistics)


def _chunks(stream: BinaryIO | gzip.GzipFile, path: Path) -> Iterator[bytes]:
    """Yields the bytes of a stream, which must begin with text; UTF-16, which PowerShell writes, as
    UTF-8."""
    chunk = stream.read(CHUNK).removeprefix(codecs.BOM_UTF8)
    encoding = _utf_16(chunk[:4096])
    if encoding is None and b"\0" in chunk[:4096]:
        raise ReportError(
            f"{path}: a binary file, neither a log nor CUDA's code: give the build's log"
        )
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    while chunk:
        yield decoder.decode(chunk).encode() if decoder else chunk
        chunk = stream.read(CHUNK)


def _utf_16(head: bytes) -> str | None:
    """Returns the encoding of a text in UTF-16: by its mark, else by its letters, mostly ASCII."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    most = 3 * len(head) // 8
    evens, odds = head[::2].count(0), head[1::2].count(0)
    if evens > most and not odds:
        return "utf-16-be"
    return "utf-16-le" if odds > most and not evens else None
