"""The seed's short form and its configuration dataclass, wherever a key is taken."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest
import torch

import runtime
from runtime import KernelNotFound, choice, finding, tensors

SHORT = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"
KEY = "flash_forward.sm80.bf16-d128-r64-c64-w4-async-eager-swz-q0-k0-v0-opt"
BUILT = any(info.key == KEY and info.built for info in runtime.kernels("flash_forward"))
needs_the_kernel = pytest.mark.skipif(not BUILT, reason="this build has no such kernel")


class DType(enum.Enum):
    BF16 = torch.bfloat16


@dataclass(frozen=True)
class FlashForwardKernelConfig:
    """The seed's thirteen parameters, under its names."""

    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
    async_copy: bool
    eager_load_blocks: bool
    swizzled: bool
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int
    V_mma_load_K_tiles: int
    mma_double_buffer_loads: bool
    optimized_softmax: bool


CONFIG = FlashForwardKernelConfig(
    DType.BF16, 128, 64, 64, 4, True, True, True, 0, 0, 0, False, True
)


def test_every_kernel_of_sm80_has_a_short_form_of_its_own():
    infos = runtime.kernels("flash_forward", "sm80")
    assert len({info.short for info in infos}) == len(infos)
    assert {info.short for info in runtime.kernels("flash_forward", "cpu")} == {None}
    assert next(info.short for info in infos if info.key == KEY) == SHORT


@needs_the_kernel
@pytest.mark.parametrize(
    "text",
    [
        SHORT,
        SHORT.lower().replace(" ", ""),
        " (bf16,128 , 64,64,4) : opt_softmax + load_0_0_0_tiles+swizzled+EAGER+async\n",
    ],
)
def test_a_short_form_is_a_key(text):
    assert runtime.kernel(text) is runtime.kernel(KEY)


@needs_the_kernel
def test_the_seeds_dataclass_is_a_key():
    assert runtime.kernel(CONFIG) is runtime.kernel(KEY)
    assert finding.resolve(CONFIG) == KEY


def test_an_unknown_short_form_names_the_nearest_and_the_command():
    wanted = SHORT.replace("async+", "")
    with pytest.raises(KernelNotFound) as caught:
        runtime.kernel(wanted)
    message = str(caught.value)
    assert f"no kernel was generated for {wanted}. Nearest: " in message
    assert SHORT in message
    assert f"kernelmint explain '{wanted}'" in message


def test_every_short_form_leads_to_its_kernel():
    for info in runtime.kernels("flash_forward", "sm80"):
        assert finding._key_of_short(info.short) == info.key


def test_attention_never_takes_a_traced_kernel():
    q = torch.randn(1, 33, 2, 64)
    for dtype, causal in ((torch.float32, False), (torch.bfloat16, True)):
        wanted = {"dtype": tensors.dtype_name(dtype), "d_head": 64, "causal": causal}
        sizes = {"B": 1, "Sq": 33, "Sk": 33, "H": 2, "Hk": 2, "D": 64}
        chosen = choice.choose("flash_forward", q.device, wanted, sizes)
        assert chosen.info.parameters["trace"] is False
