"""What a call costs before the kernel runs: `python -m tools.bench_dispatch`.

Three CPU tensors with an empty batch, so that everything is checked and allocated and no kernel
runs. Each row is the least of several repeats; compare rows of one run only.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

import runtime

REPEATS = 25
CALLS = 20_000


def nanoseconds(call: Callable[[], object]) -> float:
    """The least mean time of one call over the repeats."""
    return min(timeit.repeat(call, number=CALLS, repeat=REPEATS)) / CALLS * 1e9


def main() -> None:
    """Prints the table."""
    info = next(
        info
        for info in runtime.kernels("flash_forward", "cpu", "dtype == 'f32' and not causal")
        if info.available
    )
    kernel = runtime.kernel(info.key)
    d_head = info.parameters["d_head"]
    q, k, v = torch.randn(3, 0, 16, 2, d_head).unbind()
    out = torch.empty_like(q)
    shape, cpu = tuple(q.shape), torch.device("cpu")
    a, b, c = torch.randn(3, 1, 1, 1, d_head).unbind()
    operator = torch.ops.kernelmint.flash_forward.default
    rows: list[tuple[str, Callable[[], object]]] = [
        ("an empty function", lambda: None),
        ("torch.empty of the output", lambda: torch.empty(shape, dtype=torch.float32, device=cpu)),
        ("kernel(q, k, v)", lambda: kernel(q, k, v)),
        ("kernel(q, k, v, out=out)", lambda: kernel(q, k, v, out=out)),
        ("runtime.attention(q, k, v)", lambda: runtime.attention(q, k, v)),
        ("torch.ops.kernelmint.flash_forward", lambda: operator(info.key, q, k, v)),
        ("scaled_dot_product_attention, 1 row", lambda: F.scaled_dot_product_attention(a, b, c)),
    ]
    print(f"{info.key}, PyTorch {torch.__version__}; nanoseconds a call")
    times = {}
    for name, call in rows:
        times[name] = nanoseconds(call)
        print(f"  {name:<38}{times[name]:>8.0f}")
    own = times["kernel(q, k, v)"] - times["torch.empty of the output"]
    print(f"  {'kernel(q, k, v) less torch.empty':<38}{own:>8.0f}")


if __name__ == "__main__":
    main()
