"""flash_dropout and its gradients against the fp64 oracle, whose mask is computed in PyTorch."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import runtime
from kernel_specs.attention.reference import kept, philox, prefill, prefill_backward
from tests.emulated import kernels as emulated
from tests.kernels.lengths import EMULATED, Inputs, keys_of
from tests.slow import slow_if

# Rounding of operands and results; sums of f32 are some ulp off.
ROUNDINGS = {torch.float32: 2e-6, torch.bfloat16: 2 * 2**-8, torch.float16: 2 * 2**-11}
HERE, ON_GPU = keys_of("flash_dropout", "*.sm90a.bf16-d128-*", "*.sm80.bf16-d64-*")
KERNELS = [*HERE, *ON_GPU]
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


GRADIENTS = ("dq", "dk", "dv", "ds_aux")
# Lengths of queries and keys around the units' and tiles' ends, and what else there may be.
CASES: list[dict[str, Any]] = [
    {"rows": (2, 70), "keys": (2, 130), "heads": (4, 2)},
    {"rows": (2, 3), "keys": (2, 200), "heads": (8, 2), "window_right": 0},
    {"rows": (2, 257), "keys": (2, 129), "heads": (2, 1), "window_left": 20, "window_right": 5},
    {"rows": (2, 70), "keys": (2, 130), "leftpad_k": ints(3, 17), "softcap": 2.0, "slopes": True,
     "widths": (96, 72)},
    {"rows": (1, 100), "keys": (1, 143), "cu_seqlens_q": ints(5, 60, 60, 61, 90), "sinks": True,
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


def unwritten(like: Tensor) -> Tensor:
    return torch.full_like(like, torch.nan)


def close(name: str, ours: Tensor, true: Tensor) -> None:
    assert (ours - true).norm() <= ROUNDINGS[ours.dtype] * true.norm() + 1e-6, name


def gradients_of(forward: Inputs, width: int) -> list[Any]:
    """Returns the kernels of a kernel's gradients: of an emulated kernel one, on a GPU those for
    fewer columns as well."""
    of_forward, is_emulated = forward.info.parameters, isinstance(forward.kernel, emulated.Kernel)
    where = f"dtype == {of_forward['dtype']} and d_head <= {of_forward['d_head']}"
    where += f" and d_head >= {of_forward['d_head'] if is_emulated else width}"
    infos = runtime.kernels("flash_dropout_backward", forward.info.target, where)
    if is_emulated:
        return [emulated.Kernel(infos[0].key)]
    return [runtime.kernel(info.key) for info in infos if info.built]


@pytest.mark.parametrize(
    "key", slow_if(lambda key: key.startswith(EMULATED + "flash_dropout.sm90a"), KERNELS)
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernels_drop_what_the_oracle_drops(key: str, case: dict[str, Any]) -> None:
    draws = list(zip(SEEDS, (0.1, 0.5, 0.97), strict=True))
    check(key, case, draws[1:2] if key.startswith(EMULATED) else draws)


@pytest.mark.parametrize("key", [*(key for key in HERE if key.startswith(EMULATED)), *ON_GPU])
def test_hidden_values_that_are_not_finite_reach_no_gradient(key: str) -> None:
    """In a block some queries see them. Each entry of the batch has others."""
    forward = Inputs(key)
    case = {"rows": (4, 70), "keys": (4, 130), "heads": (2, 1), "window_right": 0}
    (dout, q, k, v), options = made(case, forward.dtype, forward.info.parameters["d_head"])
    q[0, 30, 0, 3] = k[1, 80, 0, 3] = dout[3, 30, 1, 3] = torch.nan
    v[2, 125, 0, 3] = torch.inf
    rng, options = torch.tensor([42, 7]), options | {"dropout_p": 0.5}
    o, lse = prefill(q, k, v, rng, **options)
    inputs = [t.to(forward.device) for t in (dout, q, k, v, o.to(q.dtype), lse.float(), rng)]
    expected = prefill_backward(*inputs, **options)
    for backward in gradients_of(forward, q.shape[3]):
        gradients = [unwritten(t) for t in inputs[1:4]]
        backward(*inputs, **options, out=tuple(gradients))
        for name, ours, true in zip(GRADIENTS, gradients, expected, strict=False):
            finite = true.isfinite()  # NaN that is dropped may be 0
            close(name, ours[finite], true[finite])


def check(key: str, case: dict[str, Any], draws: list[tuple[tuple[int, int], float]]) -> None:
    """Holds a kernel and its gradients' to the oracle, twice: the output has the same bits, and so
    have gradients of kernels that say so."""
    forward = Inputs(key)
    device = forward.device
    (dout, q, k, v), options = made(case, forward.dtype, forward.info.parameters["d_head"])
    dout, q, k, v = (t.to(device) for t in (dout, q, k, v))
    options = {n: o.to(device) if isinstance(o, Tensor) else o for n, o in options.items()}
    for seed, p in draws:
        rng = torch.tensor(seed, device=device)
        options |= {"dropout_p": p}
        results = []
        for _ in range(2):
            lse = torch.full((len(q), *q.shape[2:0:-1]), torch.nan, device=device)
            results.append((unwritten(dout), lse))
            forward.kernel(q, k, v, rng, **options, return_lse=True, out=results[-1])
        o, lse = results[0]
        assert torch.equal(o, results[1][0])
        true_o, true_lse = prefill(q, k, v, rng, **options)
        close("o", o, true_o)
        torch.testing.assert_close(lse.double(), true_lse, rtol=1e-5, atol=1e-5)
        inputs = dout, q, k, v, o, lse, rng
        expected = prefill_backward(*inputs, **options)
        asks = {"return_ds_aux": True} if "s_aux" in options else {}
        sinks = [options["s_aux"]] if asks else []
        for backward in gradients_of(forward, max(q.shape[3], v.shape[3])):
            found = [tuple(map(unwritten, (q, k, v, *sinks))) for _ in range(2)]
            for out in found:
                backward(*inputs, **options, **asks, out=out)
            for name, ours, true in zip(GRADIENTS, found[0], expected, strict=False):
                close(f"{backward.info.key}: {name}", ours, true)
            if backward.info.parameters["deterministic"]:
                assert all(map(torch.equal, *found)), backward.info.key


@pytest.mark.parametrize("key", ON_GPU)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_around_the_boundaries_of_blocks(key: str, causal: bool) -> None:
    lengths = [1, 15, 63, 64, 65, 80, 113, 127, 128, 129, 225]
    each = list(itertools.product(lengths, lengths))
    of_q, of_k = ([0, *itertools.accumulate(n)] for n in zip(*each, strict=True))
    case = {
        "rows": (1, of_q[-1]), "keys": (1, of_k[-1]), "heads": (2, 1),
        "cu_seqlens_q": ints(*of_q), "cu_seqlens_k": ints(*of_k),
        "window_right": 0 if causal else -1,
    }  # fmt: skip
    check(key, case, [(SEEDS[2], 0.2)])


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
class TestFunctionsOnGPUs:
    """The functions of the group."""

    @pytest.fixture(autouse=True)
    def _inputs(self) -> None:
        shapes = ((2, 200, 4, 64), (2, 300, 2, 64), (2, 300, 2, 64), (2, 200, 4, 64))
        *leaves, self.dout = (torch.randn(s, device="cuda").bfloat16() for s in shapes)
        self.inputs = [t.requires_grad_() for t in leaves]

    def results(self) -> list[Tensor]:
        o = runtime.attention(*self.inputs, causal=True, dropout_p=0.2)
        return [o.detach(), *torch.autograd.grad(o, self.inputs, self.dout)]

    def expected(self, seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        rng = torch.randint(0, 2**63 - 1, (2,), device="cuda")
        inputs = [t.detach() for t in self.inputs]
        options: dict[str, Any] = {"dropout_p": 0.2, "window_right": 0}
        o, lse = prefill(*inputs, rng, **options)
        of_inputs = prefill_backward(self.dout, *inputs, o.bfloat16(), lse.float(), rng, **options)
        return [o, *of_inputs[:3]]

    def test_the_seed_is_pytorchs(self) -> None:
        expected = self.expected(1)
        torch.manual_seed(1)
        for name, ours, true in zip(("o", *GRADIENTS), self.results(), expected, strict=False):
            close(name, ours, true)

    def test_each_replay_of_a_graph_draws_another_mask(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.results()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.results()
        outputs = []
        for seed in (3, 3, 4):
            expected = self.expected(seed)
            torch.manual_seed(seed)
            graph.replay()
            for name, ours, true in zip(("o", *GRADIENTS), results, expected, strict=False):
                close(name, ours, true)
            outputs.append(results[0].clone())
        graph.replay()  # goes on with the generator's state
        assert torch.equal(outputs[0], outputs[1])
        assert not torch.equal(outputs[0], outputs[2])
        assert not torch.equal(outputs[2], results[0])
