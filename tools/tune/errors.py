"""What goes wrong in a tuning, and whose fault it is."""

from __future__ import annotations


class TuningError(Exception):
    """What is asked for cannot be tuned; the message says why."""


class LostError(Exception):
    """A process or a machine that ended, or gives nothing, for no kernel's sake: what it did can be
    done again, there or elsewhere."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class CandidateError(Exception):
    """A kernel that cannot be used: `kind` is what T4 calls its invalidity."""

    def __init__(self, key: str, kind: str, reason: str) -> None:
        super().__init__(key, kind, reason)
        self.key = key
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason.removeprefix(f'{self.key}: ')}"


class InputsError(Exception):
    """Inputs or right results of a shape cannot be made."""
