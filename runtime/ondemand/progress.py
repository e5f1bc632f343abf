"""A line on a terminal for a build that takes more than a second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_PATIENCE = 1.0  # seconds


class Progress:
    """A line on a terminal's standard error, which goes when the build ends; nothing elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._waiting = ""
        self._begin = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def update(self, done: int, total: int, name: str) -> None:
        """Shows that so many are done, `name` the last."""
        if total > 1:
            self._text = f"[{done}/{total}] {name}"

    def wait_for(self, builder: str) -> None:
        """Shows that it waits until another process has built, `builder`; "" ends the wait."""
        self._waiting = f": waiting for {builder}" if builder else ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        shown = False
        while not self._ended.wait(_PATIENCE if not shown else 0.2):
            seconds = time.monotonic() - self._begin
            sys.stderr.write(f"\r\033[Kkernelmint: {self._text}{self._waiting} ({seconds:.0f} s)")
            sys.stderr.flush()
            shown = True
        if shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
