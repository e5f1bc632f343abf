"""What the fronts of both HSTU families do: check options, and choose a kernel."""

from __future__ import annotations

from typing import Any

import torch

from runtime import choice
from runtime.errors import InvalidArgument, shown
from runtime.handle import Kernel


def check_options(mode: object, options: dict[str, str | None], **integers: object) -> None:
    """Checks the types of `mode`, of the options that may be None, and of integers."""
    for name, value in {"mode": mode, **options}.items():
        if not isinstance(value, str) and (value is not None or name == "mode"):
            raise InvalidArgument(f"{name}: got a {type(value).__name__}, expected a str")
    for name, number in integers.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise InvalidArgument(f"{name}: got a {type(number).__name__}, expected an int")
        if number.bit_length() > 63:
            raise InvalidArgument(f"{name}: got {shown(number)}, expected an int of 64 bits")


def choose(
    family: str,
    device: torch.device,
    options: dict[str, str | None],
    facts: dict[str, Any],
    **wanted: Any,
) -> Kernel:
    """The kernel with these parameters; `options` has target, dot and schedule, None for open."""
    target, dot, schedule = (options[name] for name in ("target", "dot", "schedule"))
    if dot == "ieee" and device.type == "cpu":
        dot = None  # what the CPU's products always are
    return choice.take(family, device, {**wanted, "dot": dot, "schedule": schedule}, facts, target)
