"""The cost of a call before the kernel runs: `python -m tools.bench_dispatch`.

Ours and PyTorch's get the same tensors: two rows of one batch (cuDNN refuses one), so that a call
is all overhead, on the CPU and on the GPU if there is one. There, nothing waits for the device: a
row is the time after which the host is free again. The first row is only the kernel's launch, in a
loop in C++; the first look-up of a key happens in a process that has called other kernels. The
calls take turns, in many short rounds, of which each row is the least: compare rows of one run
only.

`python -m tools.bench_dispatch --instructions` counts the instructions of one call on the CPU, and
its Python calls, with one thread and without gradients. A count repeats to within some hundreds
(addresses and hashes differ), whatever else the machine does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import timeit
from collections.abc import Callable

import click
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


def instructions(call: Callable[[], object]) -> int:
    """Counts the instructions of one call: a forked process makes it in single steps."""
    trace_me, resume, step = 0, 7, 9  # PTRACE_TRACEME, PTRACE_CONT, PTRACE_SINGLESTEP
    ptrace = ctypes.CDLL(None).ptrace
    if (child := os.fork()) == 0:
        for _ in range(30):
            call()
        ptrace(trace_me, 0, None, None)
        mark, own = signal.SIGUSR1, os.getpid()
        os.kill(own, mark)
        call()
        os.kill(own, mark)
        os._exit(0)
    count, marks = 0, 0
    while os.WIFSTOPPED(status := os.waitpid(child, 0)[1]):
        marks += os.WSTOPSIG(status) == signal.SIGUSR1
        count += marks == 1
        ptrace(step if marks == 1 else resume, child, None, None)
    return count


def python_calls(call: Callable[[], object]) -> int:
    """Counts the Python functions that one call runs, itself not counted."""
    events = []
    for _ in range(5):
        call()
    sys.setprofile(lambda frame, event, argument: events.append(event))
    call()
    sys.setprofile(None)
    return events.count("call") - 1


def count() -> None:
    """Prints the instructions and the Python calls of calls on the CPU."""
    torch.set_num_threads(1)
    q = torch.ones(1, 40, 2, 64)
    bhsd, one = q.transpose(1, 2), q[:, :1]
    new, lengths = torch.ones(2, 1, 2, 64), torch.tensor([5, 6], dtype=torch.int32)
    cache = torch.zeros(2, 64, 2, 64)
    key = next(info.key for info in runtime.kernels("flash_forward", "cpu", "dtype == f32"))
    kernel, operator = runtime.kernel(key), torch.ops.kernelmint.flash_forward.default
    calls: Calls = {
        "kernel(q, k, v), 40 queries": lambda: kernel(q, q, q),
        "torch.ops.kernelmint.flash_forward": lambda: operator(key, q, q, q),
        "attention": lambda: runtime.attention(q, q, q),
        "attention, 1 query": lambda: runtime.attention(one, q, q),
        "sdpa": lambda: runtime.sdpa(bhsd, bhsd, bhsd),
        "flash_attn_func": lambda: runtime.flash_attn_func(q, q, q),
        "decode, 1 query": lambda: runtime.decode(new, cache, cache, seqused_k=lengths),
        "flash_attn_with_kvcache, appending": lambda: runtime.flash_attn_with_kvcache(
            new, cache, cache, new, new, cache_seqlens=lengths
        ),
    }
    print(f"{key}, PyTorch {torch.__version__}; instructions, Python calls")
    empty = instructions(lambda: None)
    for name, call in calls.items():
        print(f"  {name:<38}{instructions(call) - empty:>9,}{python_calls(call):>5}")


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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--instructions", "counts", is_flag=True, help="Count instructions on the CPU.")
def main(counts: bool) -> None:
    """Prints the cost of a call before the kernel runs."""
    with torch.no_grad():
        if counts:
            count()
            return
        table("cpu", torch.device("cpu"))
        if torch.cuda.is_available():
            for target in runtime.targets():
                if target != "cpu":
                    table(target, torch.device("cuda"))


if __name__ == "__main__":
    main()
