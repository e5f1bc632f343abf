"""Calls in a process that may hang or crash: another process takes its place then."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl(2)
_START = 600.0  # seconds: importing torch, and starting a GPU


class NoAnswerError(Exception):
    """A process hung (`timed_out`) or ended; it is gone."""

    def __init__(self, reason: str, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


class NotStartedError(NoAnswerError):
    """A process does not start, whatever it is asked."""


class Process:
    """The near side of a process that answers over a pipe; the process starts at the first request,
    and again after its end."""

    def __init__(self, serve: Callable[..., None], *arguments: object) -> None:
        """Prepares a process that runs `serve(pipe, *arguments)`, which says that it is ready
        before it answers."""
        self._arguments = (serve, *arguments)
        self._process: Any = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Returns the process's number; None without a process."""
        return None if self._process is None else int(self._process.pid)

    def is_alive(self) -> bool:
        """Returns whether the process was started, and has not ended."""
        return self._process is not None and bool(self._process.is_alive())

    def send(self, request: object) -> None:
        """Sends a request. Raises NoAnswerError, NotStartedError."""
        if self._process is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(request)
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended() from None

    def receive(self, patience: float) -> Any:
        """Returns the process's next message, which may take so many seconds. Raises
        NoAnswerError."""
        assert self._pipe is not None
        try:
            if self._pipe.poll(patience):
                return self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise self._ended() from None
        self.stop()
        raise NoAnswerError(f"no answer in {patience:g} s", timed_out=True)

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _ended(self) -> NoAnswerError:
        self._process.join()
        code = self._process.exitcode
        self._process = None
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return NoAnswerError(f"its process ended: {how}")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.receive(_START)
        except NoAnswerError as error:
            why = "" if error.timed_out else ": its output says why"
            raise NotStartedError(f"a process does not start{why}") from None


def _run(pipe: Connection, serve: Callable[..., None], *arguments: object) -> None:
    """Runs in the process: serves until the pipe is closed, and ends when its parent does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        serve(pipe, *arguments)
    except EOFError:
        return
