"""Lines on standard error while the jobs of a command run on a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType

import click

from codegen.core.words import counted

from .errors import LostError
from .nodes import Cluster, Node, alive

_EVERY = 5.0  # seconds between two lines


class Told:
    """The count of jobs that are done."""

    def __init__(self, verb: str, what: str, total: int, cluster: Cluster) -> None:
        """Says `verb`, such as "built", and so many of `what`."""
        self._verb = verb
        self._what = what
        self._total = total
        self._cluster = cluster
        self._done = 0
        self._failed = 0
        self._begin = self._last = time.monotonic()
        self._lost = ""

    def __enter__(self) -> Told:
        return self

    def done(self) -> None:
        """Counts a job that is done."""
        self._done += 1
        if time.monotonic() - self._last > _EVERY:
            self._say()

    def failed(self, text: str) -> None:
        """Says why a job failed, and counts it."""
        click.echo(text, err=True)
        self._failed += 1

    def lost(self, error: LostError) -> None:
        """Says once that jobs of a node are lost."""
        if error.reason != self._lost:
            self._lost = error.reason
            click.echo(f"{error}; others repeat what it did not finish", err=True)

    def _say(self, known: Iterable[Node] | None = None) -> None:
        """Prints the line, of the live nodes that are known."""
        self._last = time.monotonic()
        seconds = self._last - self._begin
        ended = self._done + self._failed
        live = alive().values() if known is None else known
        nodes = sum(1 for node in live if node.cpus)
        waiting = self._total - ended
        left = f", {seconds / ended * waiting:.0f} s left" if ended and waiting else ""
        failed = f", {self._failed} failed" if self._failed else ""
        click.echo(
            f"{self._verb} {self._done} of {self._total} {self._what}{failed} on "
            f"{counted(nodes, 'node')} in {seconds:.0f} s{left}",
            err=True,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._say(self._cluster.answering() if self._lost and kind is None else None)
        if kind is KeyboardInterrupt:
            click.echo("interrupted: the same command goes on from there", err=True)
