"""flash_dropout and its gradients against the fp64 oracle, whose mask is computed in PyTorch."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import runtime
from kernel_specs.attention.reference import kept, philox, prefill, prefill_backward

# Rounding of operands and results; sums of f32 are some ulp off.
ROUNDINGS = {torch.float32: 2e-6, torch.bfloat16: 2 * 2**-8, torch.float16: 2 * 2**-11}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KERNELS = [info.key for info in runtime.kernels("flash_dropout", "cpu") if info.built]
SEEDS = [(0, 0), (-1, -3), (2**62 + 12345, 2**32 - 2)]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small wait for a second thread longer than they take
    yield
    torch.set_num_threads(threads)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)  # fmt: skip
def test_philox_has_the_known_answers(counter, key, words) -> None:
    """Random123's, which PyTorch's engine is tested with."""
    found = philox(tuple(map(torch.tensor, counter)), key)
    assert " ".join(f"{int(word):08x}" for word in found) == words


def mask(p: float, heads: int = 6, queries: int = 256, keys: int = 256) -> Tensor:
    """The mask of heads, queries and keys, drawn without the kernels."""
    places = (torch.arange(n) for n in (heads, queries, keys))
    head, query, key = torch.meshgrid(*places, indexing="ij")
    return kept(torch.tensor([42, 7]), p, head, query, key)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1 - 2**-10])
def test_so_many_are_kept_and_neighbours_are_independent(p: float) -> None:
    """Each count of four neighbours, along any pair of dimensions, and of the elements that share
    random words, is within 5 standard deviations."""
    are_kept = mask(p)
    count = are_kept.numel()
    assert abs(are_kept.sum() - (1 - p) * count) < 5 * (count * p * (1 - p)) ** 0.5
    for apart in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 8, 0), (0, 0, 8), (0, 16, 16), (1, 1, 1)):
        ends = [n - step for n, step in zip(are_kept.shape, apart, strict=True)]
        first = are_kept[: ends[0], : ends[1], : ends[2]]
        second = are_kept[apart[0] :, apart[1] :, apart[2] :]
        for here, there in ((True, True), (True, False), (False, True), (False, False)):
            share = (1 - p if here else p) * (1 - p if there else p)
            pairs = ((first == here) & (second == there)).sum()
            deviation = (2 * first.numel() * share * (1 - share)) ** 0.5  # pairs overlap
            assert abs(pairs - share * first.numel()) < 5 * deviation + 5, (apart, here, there)


def test_all_or_nothing_is_kept() -> None:
    assert mask(0.0).all()
    assert not mask(1.0).any()


# Lengths of queries and keys around the units' and tiles' ends, and what else there may be.
CASES: list[dict[str, Any]] = [
    {"rows": (2, 70), "keys": (2, 130), "heads": (4, 2)},
    {"rows": (2, 3), "keys": (2, 200), "heads": (8, 2), "window_right": 0},
    {"rows": (2, 257), "keys": (2, 129), "heads": (2, 1), "window_left": 20, "window_right": 5},
    {"rows": (2, 70), "keys": (2, 130), "leftpad_k": ints(3, 17), "softcap": 2.0, "slopes": True},
    {"rows": (1, 100), "keys": (1, 143), "cu_seqlens_q": ints(0, 60, 60, 61, 90), "sinks": True,
     "cu_seqlens_k": ints(3, 33, 43, 43, 140), "seqused_k": ints(29, 10, 0, 80),
     "widths": (40, 24)},
]  # fmt: skip


def made(case: dict[str, Any], dtype: torch.dtype, d_head: int) -> tuple[list[Tensor], dict]:
    """dout, q, k and v, and the options of a call."""
    case = dict(case)
    heads, kv_heads = case.pop("heads", (4, 4))
    width, of_values = (min(d, d_head) for d in case.pop("widths", (d_head, d_head)))
    rows, keys = case.pop("rows"), case.pop("keys")
    shapes = (
        (*rows, heads, of_values), (*rows, heads, width), (*keys, kv_heads, width),
        (*keys, kv_heads, of_values),
    )  # fmt: skip
    if case.pop("sinks", False):
        case["s_aux"] = torch.randn(heads).to(dtype)
    if case.pop("slopes", False):
        case["alibi_slopes"] = torch.rand(rows[0], heads) / 8
    return [torch.randn(shape).to(dtype) for shape in shapes], case


def close(name: str, ours: Tensor, true: Tensor) -> None:
    assert (ours - true).norm() <= ROUNDINGS[ours.dtype] * true.norm() + 1e-6, name


@pytest.mark.parametrize("key", KERNELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernels_drop_what_the_oracle_drops(key: str, case: dict[str, Any]) -> None:
    parameters = runtime.kernel(key).info.parameters
    (dout, q, k, v), options = made(case, DTYPES[parameters["dtype"]], parameters["d_head"])
    backward = runtime.kernel(key.replace("flash_dropout", "flash_dropout_backward"))
    for seed, p in zip(SEEDS, (0.1, 0.5, 0.97), strict=True):
        rng = torch.tensor(seed)
        options |= {"dropout_p": p}
        o, lse = runtime.kernel(key)(q, k, v, rng, **options, return_lse=True)
        true_o, true_lse = prefill(q, k, v, rng, **options)
        close("o", o, true_o)
        torch.testing.assert_close(lse.double(), true_lse, rtol=1e-5, atol=1e-5)
        inputs = dout, q, k, v, o, lse, rng
        found = backward(*inputs, **options, return_ds_aux=True)
        for name, ours, true in zip(
            ("dq", "dk", "dv", "ds_aux"), found, prefill_backward(*inputs, **options), strict=True
        ):
            close(name, ours, true)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_oracles_gradients_are_autograds_by_the_same_mask(case: dict[str, Any]) -> None:
    (dout, *inputs), options = made(case, torch.float64, 64)
    rng, sinks = torch.tensor([5, 6]), [options["s_aux"]] if "s_aux" in options else []
    leaves = [t.requires_grad_() for t in (*inputs, *sinks)]
    options["dropout_p"] = 0.3
    o, lse = prefill(*leaves[:3], rng, **options)
    expected = torch.autograd.grad(o, leaves, dout)
    found = prefill_backward(dout, *inputs, o.detach(), lse.detach(), rng, **options)
    for ours, true in zip(found, expected, strict=False):
        torch.testing.assert_close(ours.detach(), true, rtol=1e-10, atol=1e-10)


def test_nothing_is_dropped_at_0_nor_kept_at_1() -> None:
    (_, q, k, v), _ = made(CASES[0], torch.float32, 64)
    rng = torch.tensor([1, 2])
    drop = runtime.kernel("flash_dropout.cpu.f32-d64-r64-c128")
    whole = runtime.kernel("flash_prefill.cpu.f32-d64-r64-c128")
    assert torch.equal(drop(q, k, v, rng, dropout_p=0.0), whole(q, k, v))
    assert not drop(q, k, v, rng, dropout_p=1.0).any()
    with pytest.raises(runtime.InvalidArgument, match="it is a probability"):
        drop(q, k, v, rng, dropout_p=1.5)


class TestFunctions:
    """The functions of the group, on the CPU."""

    @pytest.fixture(autouse=True)
    def _inputs(self) -> None:
        shapes = ((2, 60, 4, 64), (2, 70, 2, 64), (2, 70, 2, 64))
        self.inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def results(self, call: Any, seed: int = 1) -> list[Tensor]:
        """The output of a call, and its gradients."""
        torch.manual_seed(seed)
        o = call(*self.inputs)
        return [o, *torch.autograd.grad(o.square().sum(), self.inputs)]

    @staticmethod
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return runtime.attention(q, k, v, causal=True, dropout_p=0.2)

    def test_the_seed_is_pytorchs(self) -> None:
        """So the mask is that of the seed which PyTorch's generator draws."""
        found = self.results(self.attention)
        assert all(map(torch.equal, found, self.results(self.attention)))
        assert not torch.equal(found[0], self.results(self.attention, 2)[0])
        torch.manual_seed(1)
        rng = torch.randint(0, 2**63 - 1, (2,))
        expected, _ = prefill(*self.inputs, rng, dropout_p=0.2, window_right=0)
        close("o", found[0].detach(), expected.detach())

    @pytest.mark.parametrize("way", ["flash_attn", "varlen", "sdpa", "bhsd", "checkpoint", "graph"])
    def test_every_way_drops_the_same(self, way: str) -> None:
        compiled = torch.compile(self.attention, fullgraph=True, backend="aot_eager")
        ends = ints(0, 60, 120), ints(0, 70, 140)

        def by_checkpoint(*inputs: Tensor) -> Any:
            return checkpoint(self.attention, *inputs, use_reentrant=False)

        def packed(*inputs: Tensor) -> Any:
            lists = (t.flatten(0, 1) for t in inputs)
            options: Any = {"dropout_p": 0.2, "causal": True}
            o = runtime.flash_attn_varlen_func(*lists, *ends, 60, 70, **options)
            return o.unflatten(0, (2, 60))

        def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Any:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            options: Any = {"causal": True, "layout": "bhsd", "dropout_p": 0.2}
            return runtime.attention(q, k, v, **options).transpose(1, 2)

        def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Any:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            options: Any = {"dropout_p": 0.2, "enable_gqa": True}
            return runtime.sdpa(q, k, v, **options).transpose(1, 2)

        ways = {
            "flash_attn": lambda *inputs: runtime.flash_attn_func(*inputs, 0.2, causal=True),
            "varlen": packed, "sdpa": sdpa, "bhsd": heads_first, "checkpoint": by_checkpoint,
            "graph": compiled,
        }  # fmt: skip
        expected: Any = self.attention
        if way == "sdpa":  # whose mask is aligned top-left
            expected = functools.partial(runtime.attention, dropout_p=0.2)
        found, wanted = self.results(ways[way]), self.results(expected)
        assert all(map(torch.equal, found, wanted))

    def test_the_log_sum_exp_is_of_all_scores_and_the_dtype_autocasts(self) -> None:
        _, lse, probabilities = runtime.flash_attn_func(*self.inputs, 0.2, return_attn_probs=True)
        _, expected = runtime.attention(*self.inputs, return_lse=True)
        torch.testing.assert_close(lse, expected)
        assert probabilities is None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert runtime.attention(*self.inputs, dropout_p=0.2).dtype == torch.bfloat16

    def test_wrong_probabilities_are_refused_by_name(self) -> None:
        for value, message in ((True, "a bool, expected a float"), (-0.1, "-0.1, expected 0 to 1")):
            for function in (runtime.attention, runtime.flash_attn_func):
                with pytest.raises(runtime.InvalidArgument, match=f"^dropout_p: got {message}"):
                    function(*self.inputs, dropout_p=value)

    @pytest.mark.gpu
    def test_gpus_are_refused_by_name(self) -> None:
        inputs = [t.detach().to("cuda", torch.bfloat16) for t in self.inputs]
        with pytest.raises(runtime.InvalidArgument, match=r"dropout_p: got 0\.1, expected 0 on cu"):
            runtime.attention(*inputs, dropout_p=0.1)
