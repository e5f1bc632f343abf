"""The cost of a call before the kernel runs: `python -m tools.bench_dispatch`.

Ours and PyTorch's get the same tensors: two rows of one batch (cuDNN refuses one), so that a call
is all overhead, on the CPU and on the GPU if there is one. There, nothing waits for the device: a
row is the time after which the host is free again. The first row is only the kernel's launch, in a
loop in C++; the first look-up of a key happens in a process that has called other kernels. The
calls take turns, in many short rounds, of which each row is the least: compare rows of one run
only.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch.nn.attention import SDPBackend, sdpa_kernel

import runtime
from runtime import finding, operators

ROUNDS = 100
CALLS = 200  # a round: fewer than a stream takes before it makes the host wait
BACKENDS = {
    "cpu": (SDPBackend.FLASH_ATTENTION,),
    "cuda": (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION),
}
LAUNCHES = "bare launch from C++"
Calls = dict[str, Callable[[], object]]


def microseconds(calls: Calls, device: torch.device) -> dict[str, float]:
    """Returns the least mean time of each call over the rounds."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            number = 1 if name == LAUNCHES else CALLS
            taken = timeit.timeit(call, number=number) / CALLS * 1e6
            best[name] = min(best[name], taken)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    return best


def calls_of(key: str, device: torch.device) -> Calls:
    """Returns calls of a kernel of flash_forward on two rows, and PyTorch's on the same tensors."""
    kernel = runtime.kernel(key)
    parameters = kernel.info.parameters
    d_head, dtype = parameters["d_head"], operators.DTYPES[parameters["dtype"]]
    q, k, v = torch.randn(3, 1, 2, 1, d_head).to(device, dtype).unbind()
    out = torch.empty_like(q)
    bhsd = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    operator = torch.ops.kernelmint.flash_forward.default
    config = {"family": "flash_forward", "target": kernel.info.target, **parameters}
    launch_times = kernel._native.launch_times

    def look_up() -> object:
        finding._kernels.pop(key)
        return runtime.kernel(key)

    return {
        LAUNCHES: lambda: launch_times((q, k, v), (None, None), (False,), out, CALLS),
        "torch.empty of the output": lambda: torch.empty(q.shape, dtype=dtype, device=device),
        "kernel(q, k, v, out=out)": lambda: kernel(q, k, v, out=out),
        "kernel(q, k, v)": lambda: kernel(q, k, v),
        "attention": lambda: runtime.attention(q, k, v),
        "attention, bhsd": lambda: runtime.attention(*bhsd, layout="bhsd"),
        "forward(key)": lambda: runtime.forward(key, q, k, v),
        "forward(config)": lambda: runtime.forward(config, q, k, v),
        "torch.ops.kernelmint.flash_forward": lambda: operator(key, q, k, v),
        "kernel(key), the first look-up": look_up,
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*bhsd),
    }


def table(target: str, device: torch.device) -> None:
    """Prints the rows of a target's first kernel."""
    rows = (
        info
        for info in runtime.kernels("flash_forward", target, "not causal and not trace")
        if info.available
    )
    if (info := next(rows, None)) is None:
        return
    calls = calls_of(info.key, device)
    for backend in BACKENDS[device.type]:
        print(f"{info.key}, beside {backend.name} of PyTorch {torch.__version__}; microseconds")
        with sdpa_kernel(backend):
            for name, taken in microseconds(calls, device).items():
                print(f"  {name:<38}{taken:>8.2f}")


def main() -> None:
    """Prints the tables."""
    with torch.no_grad():
        table("cpu", torch.device("cpu"))
        if torch.cuda.is_available():
            for target in runtime.targets():
                if target != "cpu":
                    table(target, torch.device("cuda"))


if __name__ == "__main__":
    main()
