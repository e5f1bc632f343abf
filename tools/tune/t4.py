"""Results in T4, the format that auto-tuners share (github.com/odgaard/TuningSchema, branch T4)."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = "1.0.0"


@dataclass
class Outcome:
    """A configuration on a shape: its times in seconds, or why it has no times."""

    configuration: Mapping[str, Any]
    call: Mapping[str, Any]  # the call that is measured, beside it
    invalidity: str = "correct"  # or timeout, compile, runtime, correctness or constraints
    seconds: Sequence[float] = field(default_factory=list)


def document(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Returns the file's content. Times are in milliseconds; a configuration's parameters stand
    beside the call that they were measured on."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    return {"schema_version": SCHEMA_VERSION, "results": [_result(o, now) for o in outcomes]}


def _result(outcome: Outcome, timestamp: str) -> dict[str, Any]:
    milliseconds = [1e3 * seconds for seconds in outcome.seconds]
    measured = []
    if milliseconds:
        measured = [{"name": "time", "value": statistics.median(milliseconds), "unit": "ms"}]
    return {
        "timestamp": timestamp,
        "configuration": {**outcome.call, **outcome.configuration},
        "objectives": ["time"],
        "times": {
            "compilation_time": 0,
            "runtimes": milliseconds,
            "framework": 0,
            "search_algorithm": 0,
            "validation": 0,
        },
        "invalidity": outcome.invalidity,
        "correctness": int(outcome.invalidity != "correctness"),
        "measurements": measured,
    }
