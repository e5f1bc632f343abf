"""CUDA kernels run by the emulator, and what the emulator finds."""

from __future__ import annotations

import pytest
import torch

from tests.slow import slow_if
from tools import problem
from tools.families import oracle

from .kernels import EmulatorError, Kernel, keys

PATTERNS = {
    "flash_forward": ("sm80.bf16-d64-causal-r64", "sm90a.bf16-d64-r192", "sm90a.fp16-d128-causal"),
    "flash_prefill": ("sm80.fp16-d64", "sm90a.bf16-d128", "sm90a.bf16-d256"),
    "flash_decode": ("sm80.bf16-d128-paged",),
}
KEYS = [
    key
    for family, patterns in PATTERNS.items()
    for pattern in patterns
    for key in [key for key in keys(family) if key.startswith(f"{family}.{pattern}")][:1]
]
PREFILL = "flash_prefill.sm90a.bf16-d256-r128-c64-wg2-q1-s2-pp"
WARPGROUP, MAINLOOP = "attention/sm90a_warpgroup.cuh", "attention/sm90a_prefill.cuh"


@pytest.mark.skipif(not KEYS, reason="built without CUDA")
@pytest.mark.parametrize("key", slow_if(lambda key: "-d64-" not in key, KEYS))
def test_a_kernel_is_right(key: str) -> None:
    kernel = Kernel(key)
    for case in problem.cases_of(kernel.info):
        for difference in problem.of_case(kernel.info, case, torch.device("cpu")).check(kernel):
            assert difference.passed, difference


FAULTS = {
    "values are read before they are there": (
        WARPGROUP, "    values_.wait_full(shared_);\n    multiply", "    multiply"),
    "buffers are written while they are read": (
        "attention/sm90a_prefill_producer.cuh", "    ring.wait_empty(shared_);\n", ""),
    "scores are read before they are there": (
        MAINLOOP, "    ptx::wgmma_wait_group<1>();\n    complete_scores<false>",
        "    complete_scores<false>"),
    "buffers of keys are never given back": (
        MAINLOOP, "    keys_.release(shared_);\n    keys_.advance();\n    if constexpr",
        "    keys_.advance();\n    if constexpr"),
}  # fmt: skip


@pytest.mark.skipif(PREFILL not in keys("flash_prefill"), reason="built without CUDA")
@pytest.mark.parametrize("fault", slow_if(lambda fault: fault.endswith("there"), FAULTS))
def test_a_fault_is_found(fault: str) -> None:
    file, text, instead = FAULTS[fault]
    kernel = Kernel(PREFILL, [(file, text, instead)])
    q, k, v = (torch.randn(1, 700, 5, 64).bfloat16() for _ in "qkv")
    q *= 8  # few keys count: what a wrong block does to the output is not small
    out = torch.full_like(q, float("nan"))
    want, _ = oracle("flash_prefill")(q, k, v)
    found = []
    for _ in range(5):  # in other orders
        try:
            kernel(q, k, v, out=out)
        except EmulatorError as error:
            found.append(str(error))
        else:
            found.append((out - want).abs().max().item() > 0.1)
        if found[-1]:
            break
    assert any(found)
    if "never" in fault:
        assert str(found[0]).startswith("block 0 waits without end; thread 0 waits for mbarrier ")
