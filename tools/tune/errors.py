"""The errors of a tuning, by who is at fault."""

from __future__ import annotations


class TuningError(Exception):
    """A tuning that was asked for is not possible; the message says why."""


class LostError(Exception):
    """A process or a machine ended, or gives no answer, and no kernel is at fault: its work can be
    done again, there or elsewhere."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class CandidateError(Exception):
    """A kernel cannot be used: `kind` is T4's word for its invalidity."""

    def __init__(self, key: str, kind: str, reason: str) -> None:
        super().__init__(key, kind, reason)
        self.key = key
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason.removeprefix(f'{self.key}: ')}"


class InputsError(Exception):
    """Inputs or right results of a shape cannot be made."""
