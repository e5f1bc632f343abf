"""flash_backward: every kernel that can run here against the fp64 oracle, on fresh random inputs.

P and dS are rounded to the dtype before they are multiplied, and so are the results: the relative
error of a whole gradient is held to 2 roundings of the dtype, as that of PyTorch's operators is in
flash_forward's tests. dS is P times a difference, dP - D, of sums of up to 128 products in f32:
where it is nearly nothing, with few keys, it is off by some 1e-5, which is 2 roundings of 1e-2. In
f32 only sums and exponents are rounded, these by more the greater they are: the CPU's are held to
2e-6 for log-sum-exps up to 8, or to 2^-21 an element, times the root of how many queries a key has;
twice that on instruction sets without FMA, which round each product and each sum.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from kernel_specs.attention.reference import attention, attention_backward
from runtime import packs
from tests import warm_python
from tests.kernels.lengths import EMULATED, Inputs, keys_of
from tests.slow import slow_after, slow_if

HERE, ON_GPU = keys_of(
    "flash_backward", "*.sm90a.bf16-d64-r*", "*.sm90a.fp16-d64-causal-det*",
    "*.sm90a.bf16-d96-causal-r*", "*.sm90a.fp16-d128-det*", "*.sm90a.bf16-d128-causal-r*",
    "*.sm90a.bf16-d192-causal-r*", "*.sm90a.fp16-d192-det*", "*.sm90a.bf16-d256-r*",
    "*.sm90a.fp16-d256-causal-det*", "*.sm80.bf16-d64-r*",
    "*.sm80.fp16-d64-causal-det*", "*.sm80.bf16-d96-causal-r*", "*.sm80.fp16-d128-det*",
    "*.sm80.bf16-d128-causal-r*",
)  # fmt: skip
ON_CPU = [key for key in HERE if not key.startswith(EMULATED)]
PLAIN = [key for key in ON_CPU if "-det-" not in key]  # the same code as the deterministic
HERE = [key for key in HERE if key.startswith(EMULATED)]
KERNELS = [*ON_CPU, *HERE, *ON_GPU]
ONCE = [*PLAIN, *ON_GPU]  # each code
BF16 = [key.values[0] for key in ON_GPU if ".bf16-" in key.values[0]]
ROUNDINGS = {torch.bfloat16: 2 * 2**-8, torch.float16: 2 * 2**-11, torch.float32: 2e-6}
BUILT_FOR = packs.of("flash_backward").isas
ISAS = [isa for isa in runtime._native.supported_cpu_isas() if isa in BUILT_FOR]
HAS_FMA = os.environ.get("KERNELMINT_CPU_ISA", ISAS[-1] if ISAS else "") != "baseline"
F32_FLOOR = 2**-21 if HAS_FMA else 2**-20
# Around the boundaries of blocks of queries, of keys, and of warpgroups' keys.
BOUNDARIES = [n + d for n in (0, 64, 80, 96, 128, 160, 256) for d in (-1, 0, 1) if n + d > 0]


def is_slow(key: str) -> bool:
    """The emulator runs the same code of either dtype."""
    return "-d64-" not in key or (key.startswith(EMULATED) and ".fp16-" in key)


class Call(Inputs):
    """A call of a kernel, and what its gradients are in fp64."""

    def __init__(
        self,
        key: str,
        seq_len_q: int,
        seq_len_k: int,
        *,
        batch: int = 1,
        heads: int = 2,
        kv_heads: int = 1,
        scale: float | None = None,
    ) -> None:
        super().__init__(key)
        d_head = self.info.parameters["d_head"]
        self.causal = self.info.parameters["causal"]
        self.scale = d_head**-0.5 if scale is None else scale
        self.q, self.dout = (self.random(batch, seq_len_q, heads, d_head) for _ in range(2))
        self.k, self.v = (self.random(batch, seq_len_k, kv_heads, d_head) for _ in range(2))
        self.attend()

    def attend(self) -> None:
        """Makes the output and the log-sum-exps that a forward would have given."""
        o, lse = attention(
            self.q, self.k, self.v, causal=self.causal, scale=self.scale, return_lse=True
        )
        self.o, self.lse = o.to(self.dtype), lse.float()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.dout, self.q, self.k, self.v, self.o, self.lse

    def expected(self) -> tuple[Tensor, ...]:
        return attention_backward(*self.inputs, scale=self.scale, causal=self.causal)

    def run(self) -> tuple[Tensor, ...]:
        """The kernel's, written over NaN."""
        out = tuple(torch.full_like(t, math.nan) for t in (self.q, self.k, self.v))
        self.kernel(*self.inputs, scale=self.scale, out=out)
        return out

    @property
    def rounding(self) -> float:
        if self.dtype != torch.float32:
            return ROUNDINGS[self.dtype]
        exponents = [8.0, *self.lse[self.lse.isfinite()].abs().flatten().tolist()]
        return ROUNDINGS[self.dtype] * max(exponents) / 8

    def check(self) -> None:
        least = 1e-2 * self.rounding
        if self.dtype == torch.float32:
            least = F32_FLOOR * math.sqrt(max(1, self.q.shape[1] / max(1, self.k.shape[1])))
        for name, ours, exact in zip(("dq", "dk", "dv"), self.run(), self.expected(), strict=True):
            finite = exact.isfinite()
            assert torch.equal(ours.isfinite(), finite), name
            norm = exact[finite].norm().item()
            allowed = max(self.rounding * norm, least * finite.sum().item() ** 0.5)
            error = (ours - exact)[finite].norm().item()
            assert error <= allowed, (name, error, allowed)


@contextlib.contextmanager
def multiprocessors(count: int) -> Iterator[None]:
    """The emulator has as many as PyTorch has threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def two_multiprocessors() -> Iterator[None]:
    with multiprocessors(2):
        yield


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize("key", slow_if(is_slow, HERE))
@pytest.mark.parametrize(
    ("batch", "seq_len_q", "seq_len_k", "heads", "kv_heads"),
    [(1, 129, 257, 2, 1), (1, 257, 129, 1, 1), (2, 1, 65, 4, 2)],
)
def test_the_emulated_are_right(
    key: str, batch: int, seq_len_q: int, seq_len_k: int, heads: int, kv_heads: int
) -> None:
    Call(key, seq_len_q, seq_len_k, batch=batch, heads=heads, kv_heads=kv_heads).check()


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize(
    "config", slow_after(2, [
        "bf16-d64-causal-r128-c128-q2-s2-v8", "bf16-d64-causal-det-r128-c128-q2-s2-v8",
        "bf16-d96-causal-r80-c128-q2-s2-v4", "bf16-d128-causal-r80-c128-q2-s2-v4",
        "bf16-d192-causal-r64-c96-q2-s1-v0", "bf16-d192-causal-det-r64-c96-q2-s1-v0",
        "bf16-d256-causal-r64-c80-q2-s1-v0", "bf16-d256-causal-det-r64-c80-q2-s1-v0",
    ])
)  # fmt: skip
@pytest.mark.usefixtures("two_multiprocessors")  # of four tiles two go from the diagonal on
def test_tiles_go_there_and_back(config: str) -> None:
    key = f"{EMULATED}flash_backward.sm90a.{config}"
    for seq_len_q, seq_len_k, batch, heads, kv_heads in (
        (512, 512, 1, 4, 2), (700, 500, 1, 3, 1), (500, 700, 2, 4, 1), (500, 600, 1, 3, 3),
    ):  # fmt: skip
        Call(key, seq_len_q, seq_len_k, batch=batch, heads=heads, kv_heads=kv_heads).check()


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize(
    "config", slow_after(1, [
        "bf16-d128-causal-det-r80-c128-q2-s2-v4", "bf16-d128-causal-r80-c128-q2-s2-v4",
        "bf16-d256-causal-r64-c80-q2-s1-v0",
    ])
)  # fmt: skip
def test_two_of_many_shared_heads_at_a_time(config: str) -> None:
    with multiprocessors(10):  # 31 heads of two blocks of keys are six times as many tiles
        key = f"{EMULATED}flash_backward.sm90a.{config}"
        Call(key, 90, 140, heads=62, kv_heads=31).check()


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize(
    "config", slow_after(1, [
        "fp16-d64-causal-det-r64-c128-w4-k1-n32-m2-q2-s2-x2",
        "fp16-d128-det-r64-c128-w8-k2-n32-m2-q2-s2-x1",
    ])
)  # fmt: skip
def test_each_warp_looks_for_turns_and_says_that_dq_is_added(config: str) -> None:
    key = f"{EMULATED}flash_backward.sm80.{config}"
    Call(key, 600, 200, heads=3, kv_heads=3).check()  # ten steps of eight warps or of four


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize(
    "config", slow_after(2, [
        "bf16-d64-causal-det-r128-c128-q2-s2-v8", "bf16-d128-det-r80-c128-q2-s2-v4",
        "bf16-d256-causal-det-r64-c80-q2-s1-v0",
    ])
)  # fmt: skip
@pytest.mark.usefixtures("two_multiprocessors")
def test_blocks_of_keys_of_many_heads_in_turn_where_queries_are_few(config: str) -> None:
    Call(f"{EMULATED}flash_backward.sm90a.{config}", 70, 300, heads=7, kv_heads=7).check()


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize(
    "config", slow_after(2, [
        "bf16-d64-causal-r128-c128-q2-s2-v8", "bf16-d64-r128-c128-q2-s2-v8",
        "bf16-d64-causal-det-r128-c128-q2-s2-v8", "bf16-d64-det-r128-c128-q2-s2-v8",
    ])
)  # fmt: skip
@pytest.mark.usefixtures("two_multiprocessors")  # a section is one head
def test_the_main_kernel_makes_d_of_heads_after_the_first_section(config: str) -> None:
    key = f"{EMULATED}flash_backward.sm90a.{config}"
    for seq_len_q, seq_len_k, batch, heads, kv_heads in (
        (300, 400, 2, 4, 2), (1, 400, 3, 2, 2), (260, 390, 1, 3, 3),
    ):  # fmt: skip
        call = Call(key, seq_len_q, seq_len_k, batch=batch, heads=heads, kv_heads=kv_heads)
        call.check()
    call.o = call.o[:, :1].expand_as(call.o)  # one row: the first kernel makes D
    call.check()


def test_each_call_of_sm80_has_a_kernel_for_blocks_of_99_kib() -> None:
    least: dict[tuple[Any, ...], int] = {}
    for info in runtime.kernels("flash_backward", "sm80"):
        call = tuple(info.parameters[n] for n in ("dtype", "d_head", "causal", "deterministic"))
        needed = info.derived["smem_bytes"]
        least[call] = min(needed, least.get(call, needed))
    assert all(needed <= 99 * 1024 for needed in least.values()), least


@pytest.mark.parametrize(
    "key", slow_if(lambda key: key.startswith(EMULATED) and "-d64-" not in key, KERNELS)
)
@pytest.mark.parametrize("empty", [(0, 5), (5, 0)], ids=str)
def test_without_queries_or_keys_they_are_zero(key: str, empty: tuple[int, int]) -> None:
    for gradient in Call(key, *empty).run():
        assert not gradient.any()


@pytest.mark.parametrize("key", slow_if(lambda key: "-d64-" not in key, ONCE))
def test_lengths_around_the_boundaries_of_blocks(key: str) -> None:
    for seq_len_q in BOUNDARIES:
        for seq_len_k in (1, 63, 64, 65, 127, 128, 129, seq_len_q, seq_len_q + 3):
            Call(key, seq_len_q, seq_len_k).check()


@pytest.mark.parametrize("key", ONCE)
@pytest.mark.parametrize(
    ("heads", "kv_heads"), slow_after(4, [(1, 1), (8, 8), (8, 2), (6, 1), (40, 5)]), ids=str
)
def test_heads_that_share_keys(key: str, heads: int, kv_heads: int) -> None:
    for batch, length in ((1, 1000), (3, 333)):
        length //= 3 if key in PLAIN else 1  # the oracle takes its time
        Call(key, length, length + 77, batch=batch, heads=heads, kv_heads=kv_heads).check()


@pytest.mark.parametrize("key", ONCE)
@pytest.mark.parametrize("scale", [0.0, -0.2, 0.3, 1e-6])
def test_any_scale(key: str, scale: float) -> None:
    Call(key, 200, 300, scale=scale).check()


@pytest.mark.parametrize("key", ONCE)
def test_scores_that_are_far_below_zero(key: str) -> None:
    """exp(-lse) overflows there: what lies past the last key must not come in."""
    call = Call(key, 130, 200)
    call.q[..., 0], call.k[..., 0] = 60, -60
    call.attend()
    assert call.lse[torch.isfinite(call.lse)].max() < -100
    for ours, exact in zip(call.run(), call.expected(), strict=True):
        assert torch.isfinite(ours).all()
        # Exponents of hundreds are off by some 1e-4. What is multiplied by 60 is left out: rows of
        # dS add up to nothing, but not when they are rounded.
        ours, exact = ours[..., 1:], exact[..., 1:]
        assert (ours - exact).norm() < 4 * call.rounding * exact.norm()


@pytest.mark.parametrize("key", ONCE)
def test_tensors_that_lie_heads_first(key: str) -> None:
    call = Call(key, 300, 200, batch=2, heads=4, kv_heads=2)
    for name in ("dout", "q", "k", "v", "o"):
        tensor = getattr(call, name)
        setattr(call, name, tensor.transpose(1, 2).contiguous().transpose(1, 2))
    call.check()


@pytest.mark.parametrize("key", ONCE)
def test_what_is_not_finite_stays_in_its_batch_entry(key: str) -> None:
    call = Call(key, 200, 200, batch=2)
    call.q[0, 5, 0, 0] = math.nan
    call.attend()
    for ours, exact in zip(call.run(), call.expected(), strict=True):
        assert torch.isfinite(ours[1]).all()
        assert torch.isnan(ours[0]).any()
        assert torch.isnan(exact[0]).any()


@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("key", [key for key in PLAIN if "-causal-" in key])
def test_what_is_not_finite_reaches_only_who_sees_it(key: str, name: str) -> None:
    """The gradients of other queries and keys keep their bits."""
    for bad in (math.nan, math.inf):
        call = Call(key, 150, 170)
        before = call.run()
        getattr(call, name)[0, 70, 0, 3] = bad
        seen = torch.ones(150, 170).tril(20) > 0
        queries = seen[:, 70] if name in "kv" else torch.arange(150) == 70
        keys = seen[queries].any(0)
        for reached, one, other in zip((queries, keys, keys), before, call.run(), strict=True):
            assert torch.equal(one[0, ~reached], other[0, ~reached])


@pytest.mark.parametrize(
    "key",
    [*slow_if(is_slow, [k for k in [*PLAIN, *HERE] if "-causal-" in k]),
     *(k for k in ON_GPU if "-causal-" in k.values[0])],
)  # fmt: skip
def test_hidden_values_that_are_not_finite_reach_no_gradient(key: str) -> None:
    """In a block some queries see them. Each entry of the batch has others."""
    # On a GPU so many tiles that the main kernel makes D.
    kv_heads = 2 if key.startswith(EMULATED) or ".cpu." in key else 40
    call = Call(key, 150, 400, batch=5, heads=2 * kv_heads, kv_heads=kv_heads)
    call.q[0, 70, 0, 3] = math.nan
    call.k[1, 300, 0, 3] = math.inf
    call.v[2, 395, 0, 3] = -math.inf
    call.dout[3, 70, 1, 3] = math.inf
    call.q[4, 100:, 1, 3] = -math.inf
    call.attend()
    call.check()


@pytest.mark.parametrize("key", [key for key in ON_GPU if "-det-" in key.values[0]])
def test_the_deterministic_are_the_same_bit_for_bit(key: str) -> None:
    call = Call(key, 2000, 2000, batch=2, heads=16, kv_heads=4)
    first = call.run()
    for _ in range(20):
        for ours, again in zip(first, call.run(), strict=True):
            assert torch.equal(ours, again)


@pytest.mark.parametrize("key", slow_if(lambda key: "-d64-" not in key, PLAIN))
def test_the_cpus_are_the_same_bit_for_bit_with_any_number_of_threads(key: str) -> None:
    call = Call(key, 1100, 1200, heads=4, kv_heads=2)
    threads = torch.get_num_threads()
    try:
        first = call.run()
        for number in (1, 2, 3, 8, 50):
            torch.set_num_threads(number)
            for ours, again in zip(first, call.run(), strict=True):
                assert torch.equal(ours, again)
    finally:
        torch.set_num_threads(threads)
    call.check()


@pytest.mark.parametrize("key", PLAIN)
def test_any_strides(key: str) -> None:
    call = Call(key, 70, 90, batch=2, heads=4, kv_heads=2)
    call.dout = call.dout[:, :1].expand(call.dout.shape)
    call.q = call.q.repeat(1, 2, 1, 2)[:, ::2, :, : call.q.shape[3]]
    call.k = call.k[:, :, :1].expand(call.k.shape)
    call.v = call.v[:1].expand(call.v.shape)
    call.attend()
    call.lse = call.lse.repeat(1, 2, 2)[:, ::2, : call.lse.shape[2]]
    call.check()


@pytest.mark.parametrize("key", PLAIN)
def test_the_error_is_no_more_than_pytorchs_on_the_cpu(key: str) -> None:
    call = Call(key, 600, 600, heads=4, kv_heads=4)
    *heads_first, lse = call.inputs
    theirs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *(t.transpose(1, 2) for t in heads_first), lse, 0.0, call.causal, scale=call.scale
    )
    # In f32 both only round, as many times: which is ahead depends on the numbers.
    most = 1.1 if call.dtype == torch.float32 else 1.0
    for ours, other, exact in zip(call.run(), theirs, call.expected(), strict=True):
        assert (ours - exact).norm() < most * (other.transpose(1, 2) - exact).norm()


@pytest.mark.parametrize("key", PLAIN)
def test_the_cpus_in_a_few_shapes(key: str) -> None:
    for seq_len_q, seq_len_k in ((1, 1), (1, 300), (300, 1), (65, 129), (129, 31)):
        Call(key, seq_len_q, seq_len_k, batch=2).check()


@pytest.mark.parametrize("isa", slow_after(1, ISAS[:-1]))  # this process runs the last
def test_the_cpus_on_the_other_instruction_sets(isa: str) -> None:
    """Again, each time in a process that is held to one instruction set."""
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    tests = "test_the_cpus_in_a_few_shapes or test_scores_that_are_far_below_zero"
    result = warm_python.run(
        program, "-qx", "-p", "no:cacheprovider", __file__, "-k", tests,
        folder=Path(__file__).parents[3], environment={**os.environ, "KERNELMINT_CPU_ISA": isa},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("key", BF16)
def test_the_error_is_no_more_than_flash_attention_2s(key: str) -> None:
    call = Call(key, 1024, 1024, batch=2, heads=4, kv_heads=4)
    unused = torch.empty(2, dtype=torch.uint64, device="cuda")
    theirs = torch.ops.aten._flash_attention_backward(
        *(call.dout, call.q, call.k, call.v, call.o, call.lse, None, None, 1024, 1024, 0.0),
        *(call.causal, unused, unused[:0]), scale=call.scale,
    )  # fmt: skip
    for ours, other, exact in zip(call.run(), theirs, call.expected(), strict=True):
        assert (ours - exact).norm() < 1.02 * (other - exact).norm()


@pytest.mark.gpu
def test_two_streams_and_a_graph() -> None:
    call = Call(BF16[0], 1000, 1000, batch=2, heads=8, kv_heads=2)
    expected = call.expected()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(call.kernel(*call.inputs, scale=call.scale))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results.append(call.kernel(*call.inputs, scale=call.scale))
    for gradient in results[-1]:
        gradient.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    for result in results:
        for ours, exact in zip(result, expected, strict=True):
            assert (ours - exact).norm() < ROUNDINGS[call.dtype] * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("key", BF16[:1])
def test_in_a_thread_that_has_asked_cuda_for_nothing(key: str) -> None:
    """Autograd's threads are such: no context of the driver is current there."""
    call = Call(key, 200, 200)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call.check).result()


def _attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    o: Tensor = runtime.attention(q, k, v, **options)
    return o


@pytest.mark.gpu
@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_differentiated_by_them(d_head: int, causal: bool) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    q, k, v = (
        torch.randn(2, 300, h, d_head, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for h in (4, 2, 2)
    )
    do = torch.randn_like(q)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        o = _attention(q, k, v, causal=causal)
        found = torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    assert any("flash_backward_sm90a" in event.name for event in profile.events())
    compiled = torch.compile(_attention, fullgraph=True)
    again = torch.autograd.grad(compiled(q, k, v, causal=causal), (q, k, v), do)
    lse = runtime.attention(q.detach(), k.detach(), v.detach(), causal=causal, return_lse=True)[1]
    exact = attention_backward(
        do, *(t.detach() for t in (q, k, v, o)), lse, scale=d_head**-0.5, causal=causal
    )
    for ours, compiled_ours, expected in zip(found, again, exact, strict=True):
        for gradient in (ours, compiled_ours):
            assert (gradient - expected).norm() < ROUNDINGS[q.dtype] * expected.norm()
    dq = torch.autograd.grad(_attention(q, k, v), q, do, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(dq.sum(), k)


@pytest.mark.parametrize(
    ("sizes", "causal", "in_turn"),
    [
        # B, Sq, Sk, heads of queries and of keys, D: many blocks of keys at work, or few
        ((1, 16384, 16384, 32, 32, 64), False, True),
        ((4, 4096, 4096, 32, 32, 64), False, True),
        ((4, 4096, 4096, 32, 32, 64), True, False),
        ((2, 8192, 8192, 32, 32, 64), True, True),
        ((2, 8192, 8192, 32, 8, 64), False, True),
        ((2, 8192, 8192, 32, 8, 64), True, False),
        ((1, 4096, 4096, 32, 32, 64), False, False),
        ((4, 256, 8192, 32, 32, 64), False, False),
        ((1, 16384, 16384, 16, 16, 128), False, False),
        ((64, 256, 256, 16, 16, 128), True, True),
        ((1, 256, 256, 16, 16, 128), True, False),
    ],
)
def test_hoppers_add_in_turn_where_that_is_faster(
    sizes: tuple[int, ...], causal: bool, in_turn: bool
) -> None:
    takes = packs.generated_front("flash_backward")._takes
    names = dict(zip(("B", "Sq", "Sk", "H", "Hk", "D"), sizes, strict=True), causal=causal)

    def taken(compute_capability: int, deterministic: bool) -> bool:
        values = takes(**names, compute_capability=compute_capability, deterministic=deterministic)
        return bool(values["deterministic"])

    assert taken(90, False) == in_turn
    assert not any(taken(other, False) for other in (0, 80, 100))
    assert taken(0, True)
    assert taken(90, True)


def test_a_head_dimension_that_no_pack_holds() -> None:
    key = "flash_backward.cpu.bf16-d96-causal-r32-c64"
    runtime.kernel(key, build=True)
    for lengths in ((200, 300), (130, 33)):
        Call(key, *lengths, heads=3).check()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_differentiated_by_them_on_the_cpu(causal: bool) -> None:
    q, k, v = (torch.randn(2, 90, h, 64, requires_grad=True) for h in (4, 2, 2))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _attention(q, k, v, causal=causal).sum().backward()
    assert any("flash_backward.cpu.f32-d64" in event.name for event in profile.events())


def test_emulated_kernels_are_there_if_there_are_kernels() -> None:
    assert bool(HERE) == bool(ON_GPU)
