"""What was found so far, a line of JSON each: a tuner that is killed goes on from there."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """A file of findings. Each is written at once, whole; a torn last line, of a killed writer, is
    passed over."""

    def __init__(self, path: Path, fresh: bool) -> None:
        """Opens the file, and with `fresh` forgets what it holds."""
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self.entries = list(_read(path))
        torn = path.exists() and not path.read_bytes().endswith((b"\n",)) and path.stat().st_size
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if torn:
            os.write(self._file, b"\n")

    def add(self, kind: str, **values: Any) -> None:
        """Writes a finding."""
        entry = {"kind": kind, **values}
        with self._lock:
            self.entries.append(entry)
            os.write(self._file, (json.dumps(entry) + "\n").encode())

    def find(self, kind: str, **values: Any) -> list[dict[str, Any]]:
        """The findings of a kind that have these values, the oldest first."""
        with self._lock:
            return [
                entry
                for entry in self.entries
                if entry["kind"] == kind and all(entry.get(k) == v for k, v in values.items())
            ]

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def _read(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "kind" in entry:
            yield entry
