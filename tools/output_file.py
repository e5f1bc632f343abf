"""A file that a command writes when its work is done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class OutputFile(click.Path):
    """An option's file. One that cannot be written is refused before the work begins."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        """The path. Raises click.BadParameter."""
        path = Path(os.fsdecode(super().convert(value, parameter, context)))
        if not path.exists() and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            self.fail(f"{path}: {path.parent} is not a folder that can be written")
        return path
