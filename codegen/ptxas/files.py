"""Writes what a user names: whole files, never over an input, never in place of a device.

The standard library alone: the build runs it in an isolated environment.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from codegen.core.ptxas_rows import ReportError

_Identity = tuple[int, int] | str


def write_text(path: Path, text: str) -> None:
    """Writes a text file as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file at once: no reader ever sees half of it. Raises ReportError.

    A symbolic link stays, and its file is written. What is not a regular file (a device, a pipe,
    /dev/stdout) is written to, and so is the file to which standard output or error goes.
    """
    try:
        status = _status(path)
        if status is not None and not stat.S_ISREG(status.st_mode):
            with path.open("wb") as out:
                out.write(data)
        elif status is not None and (own := _standard_stream(status)) is not None:
            sys.stdout.flush()
            with os.fdopen(os.dup(own), "wb") as out:
                out.write(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror or error}") from error


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        if path.exists():
            shutil.copymode(path, temporary)
        else:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _standard_stream(status: os.stat_result) -> int | None:
    """Returns the descriptor of standard output or error that writes to that file; None without
    one."""
    for descriptor in (1, 2):
        try:
            if os.path.samestat(status, os.fstat(descriptor)):
                return descriptor
        except OSError:  # closed
            continue
    return None


def check_outputs(outputs: Sequence[Path], inputs: Iterable[Path | int]) -> None:
    """Raises ReportError if an output is an input, or another output.

    Args:
        outputs: files to be written.
        inputs: files, or open descriptors, that were read.
    """
    read = {
        identity: "standard input" if isinstance(file, int) else str(file)
        for file in inputs
        if (identity := _identity(file)) is not None
    }
    written: dict[_Identity, Path] = {}
    for path in outputs:
        identity = _identity(path)
        if identity is None:
            continue
        if identity in read:
            raise ReportError(
                f"{path}: is an input ({read[identity]}) and would be overwritten: "
                "name another file"
            )
        if identity in written:
            raise ReportError(f"{path}: two outputs would go there: name another file for one")
        written[identity] = path


def _identity(file: Path | int) -> _Identity | None:
    """Returns a value that two names of one file share; None if writing does not overwrite."""
    status = _status(file)
    if status is None:
        return None if isinstance(file, int) else os.path.realpath(file)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _status(file: Path | int) -> os.stat_result | None:
    """Returns the file's status; None if there is no such file, or no way to it."""
    try:
        return os.stat(file)
    except OSError:
        return None
