"""A file that a command writes when its work is done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from codegen.core.ptxas_rows import ReportError
from codegen.ptxas.files import write_bytes


class OutputFile(click.Path):
    """An option's file. A file that cannot be written is refused before the work begins."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        """Returns the path. Raises click.BadParameter."""
        path = Path(os.fsdecode(super().convert(value, parameter, context)))
        if not path.exists() and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            self.fail(f"{path}: {path.parent} is not a folder that can be written")
        return path


def write(path: Path, data: str | bytes) -> None:
    """Writes the text of such a file, whole or not at all. Raises click.ClickException."""
    try:
        write_bytes(path, data.encode() if isinstance(data, str) else data)
    except ReportError as error:
        raise click.ClickException(str(error)) from None


def cannot_write(error: OSError) -> click.ClickException:
    """Returns the error for a standard output that takes no more, such as on a full disk. Nothing
    more is written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # buffered text is written when Python ends
    return click.ClickException(f"standard output: {error.strerror or error}")
