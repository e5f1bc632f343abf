"""The errors of a tuning, by who is at fault."""

from __future__ import annotations


class TuningError(Exception):
    """A tuning that was asked for is not possible; the message says why."""


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
