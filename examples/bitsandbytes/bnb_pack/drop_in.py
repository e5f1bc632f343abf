"""bitsandbytes' own operators, by this pack's kernels, on the CPU and on GPUs:

import bitsandbytes, bnb_pack.drop_in   # or, with pytest, -p bnb_pack.drop_in

Everything of bitsandbytes that quantises calls them: its functions, its modules, its optimisers'
states. `calls` counts the calls of each.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from typing import Any

import bitsandbytes  # noqa: F401 - which registers its own kernels first
import torch

import bnb_pack

calls: collections.Counter[str] = collections.Counter()
_library = torch.library.Library("bitsandbytes", "IMPL")


def _register(name: str, function: Callable[..., Any]) -> None:
    def call(*arguments: Any) -> Any:
        calls[name] += 1
        result = function(*arguments)
        return None if name.endswith(".out") else result

    for device in ("CPU", "CUDA"):
        _library.impl(name, call, device, allow_override=True)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # each replaces a kernel, as is meant
    for _name in bnb_pack.__all__:
        _register(_name, getattr(bnb_pack, _name))
        if _name.startswith("dequantize"):
            _register(f"{_name}.out", getattr(bnb_pack, _name))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says how often tests called each operator."""
    for name, count in sorted(calls.items()):
        terminalreporter.write_line(f"{count} calls of bitsandbytes::{name} by bnb_pack")
