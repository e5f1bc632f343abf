"""What the tools know of torch_scatter_scatter beyond its spec and its reference."""

from __future__ import annotations

__all__ = ["CASES"]

_INDEX = (((3,), (0,), (1,), (1,), (0,), (3,), (1,), (3,), (0,)),)

CASES = tuple(
    {
        "parameters": {"reduce": reduce},
        "sizes": {"B": 1, "E": 9, "K": 1, "N0": 4},
        "values": {"index": _INDEX},
        "options": {"N": 4} | ({} if reduce == "mul" else {"return_arg": True}),
    }
    for reduce in ("mul", "min", "max")
)
