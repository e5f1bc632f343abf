"""Values that several commands' options take: durations, sizes, architectures; and the options that
all commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from codegen import completion
from codegen.core import architectures

_SECONDS = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(
    r"(\d+(?:\.\d*)?|\.\d+)\s*"
    r"(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:eeks?)?)?\s*"
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b?", re.IGNORECASE)


class Duration(click.ParamType):  # type: ignore[type-arg]  # only newer clicks have it
    """Seconds, written with their unit, `90s`, `5m`, `1h30m`, `3d`, or as a number of `unit`."""

    name = "TIME"

    def __init__(self, unit: str, least: float = 0.0) -> None:
        self.unit = unit
        self.least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the seconds; a default is also a number of the unit."""
        parts = _PART.findall(text := str(value).strip().lower())
        alone = len(parts) == 1  # several have a unit each
        if _PART.sub("", text) or not parts or not (alone or all(unit for _, unit in parts)):
            self.fail(
                f"got {value!r}, expected a duration such as 90s, 5m, 1h30m or 3d", param, ctx
            )
        units = (unit if unit == "ms" else (unit or self.unit)[0] for _, unit in parts)
        seconds = sum(
            float(number) * _SECONDS[unit] for (number, _), unit in zip(parts, units, strict=True)
        )
        if seconds < self.least:
            self.fail(f"got {value!r}, expected at least {self.least:g}s", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg]  # only newer clicks have it
    """Bytes, written as 500M or 2G; Ki, Mi and Gi count by 1,024."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the bytes."""
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"got {value!r}, expected a size such as 500M or 2G", param, ctx)
        base = 1024 if match[3] else 1000
        return int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))


class Architectures(click.ParamType):  # type: ignore[type-arg]  # only newer clicks have it
    """CUDA architectures as a build names them, 90a or 90a;100f; the spellings of nvcc and of
    people are accepted."""

    name = "ARCH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Returns the architectures' names."""
        names = [architectures.spelt(name) for name in re.split("[;,]", str(value))]
        if None in names:
            message = (
                f"got {value!r}, expected a name such as 80, 90a or 100f, also sm_90a and 9.0a"
            )
            self.fail(message, param, ctx)
        return tuple(map(str, names))


_Command = Callable[..., Any]


def where(of: str) -> Callable[[_Command], _Command]:
    """Makes the option `--where EXPR`, over configurations or kernels."""
    return click.option(
        "--where", metavar="EXPR", shell_complete=completion.expressions,
        help=f"Only {of} for which this expression holds, such as \"target == 'cpu'\".",
    )  # fmt: skip


def set_name(help_text: str, **others: Any) -> Callable[[_Command], _Command]:
    """Makes the option `--set NAME`."""
    return click.option(
        "--set",
        "set_name",
        metavar="NAME",
        shell_complete=completion.sets,
        help=help_text,
        **others,
    )
