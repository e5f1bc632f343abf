"""The errors of a cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """Nodes cannot do what a command asks of them; the message says why."""


class LostError(Exception):
    """A process or a machine ended, or gives no answer, and no kernel is at fault: its work can be
    done again, there or elsewhere."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class GivenUpError(Exception):
    """A job was lost so often that it is at fault, for its memory for one."""
