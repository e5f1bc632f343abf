"""The results so far, a line of JSON each: a tuner that is killed goes on from there."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import TuningError

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Finding(BaseModel):
    """The members of a line that a tuning reads; the rest is for people."""

    model_config = ConfigDict(extra="allow")


class _Rounds(_Finding):
    kind: Literal["rounds"]
    shape: str
    times: list[dict[str, _Seconds]]


class _Checked(_Finding):
    kind: Literal["checked"]
    id: str
    shape: str


class _Fault(_Finding):
    kind: Literal["fault"]
    id: str
    shape: str | None
    invalidity: str
    reason: str
    patience: float = 0.0


class _Lost(_Finding):
    kind: Literal["lost"]


_FINDING: TypeAdapter[_Rounds | _Checked | _Fault | _Lost] = TypeAdapter(
    Annotated[_Rounds | _Checked | _Fault | _Lost, Field(discriminator="kind")]
)


class Journal:
    """A file of findings. Each is written at once, whole; an invalid line, such as the torn
    last one of a killed writer, is passed over."""

    def __init__(self, path: Path, fresh: bool) -> None:
        """Opens the file, and with `fresh` forgets its findings. Raises TuningError if another
        process has it open."""
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise TuningError(
                f"{path}: {error.strerror}: name another folder in KERNELMINT_CACHE_DIR"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise TuningError(f"{path}: another tuning of this writes it") from None
        if fresh:
            os.ftruncate(self._file, 0)
        self.entries = list(_read(path))
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._file, b"\n")

    def add(self, kind: str, **values: Any) -> None:
        """Writes a finding. Raises TuningError if there is no space for it."""
        entry = {"kind": kind, **values}
        line = (json.dumps(entry) + "\n").encode()
        with self._lock:
            self.entries.append(entry)
            try:
                written = os.write(self._file, line)
                if written < len(line):  # the rest says why
                    os.write(self._file, line[written:])
            except OSError as error:
                raise TuningError(
                    f"{self.path}: {error.strerror}; it has all earlier results: the same "
                    "command goes on from it"
                ) from None

    def find(self, kind: str, **values: Any) -> list[dict[str, Any]]:
        """Returns the findings of a kind that have these values, the oldest first."""
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
    for line in path.read_bytes().splitlines():
        try:
            yield _FINDING.validate_json(line).model_dump()
        except ValidationError:
            continue
