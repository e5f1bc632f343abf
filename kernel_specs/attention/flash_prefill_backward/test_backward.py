"""flash_prefill_backward, and flash_slopes_backward, which also gives the slopes' gradient: every
kernel that can run here against the fp64 oracle, on fresh random inputs, written over NaN. Bounds
are those of flash_backward's tests."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from kernel_specs.attention.reference import prefill, slopes_backward
from tests.kernels.lengths import EMULATED, Inputs, keys_of
from tests.slow import slow_after, slow_if

HERE, ON_GPU = keys_of(
    "flash_prefill_backward", "*.sm90a.bf16-d64-r*", "*.sm90a.fp16-d64-det*",
    "*.sm90a.bf16-d96-r*", "*.sm90a.fp16-d128-det*", "*.sm90a.bf16-d128-r*",
    "*.sm90a.bf16-d192-r*", "*.sm90a.fp16-d256-det*", "*.sm80.bf16-d64-r*",
    "*.sm80.fp16-d128-det-r64-c64-*",
)  # fmt: skip
GIVES_SLOPES = "flash_slopes_backward"
SLOPES_HERE, SLOPES_ON_GPU = keys_of(GIVES_SLOPES, "*.sm90a.*", "*.sm80.*")
HERE += SLOPES_HERE
ON_GPU += SLOPES_ON_GPU
ON_CPU = [key for key in HERE if not key.startswith(EMULATED)]
HERE = [key for key in HERE if key.startswith(EMULATED)]
KERNELS = [*ON_CPU, *ON_GPU]
ROUNDINGS = {torch.bfloat16: 2 * 2**-8, torch.float16: 2 * 2**-11, torch.float32: 2e-6}

WINDOWS = [(-1, -1), (-1, 0), (9, 0), (70, 20), (-1, 300), (200, -1)]
CAPS = [0.0, 1.5, math.inf]
# Of four sequences: lengths of queries and of keys, and what of them is used.
LENGTHS = {
    "equal": None,
    "packed": ([60, 0, 1, 150], [60, 0, 1, 150]),
    "other keys": ([64, 65, 1, 128], [129, 0, 257, 40]),
    "used": ([60, 20, 70, 150], [200, 33, 5, 150]),
}


def is_slow(key: str) -> bool:
    """The emulator runs the same code of either dtype."""
    return "-d64-" not in key or (key.startswith(EMULATED) and ".fp16-" in key)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small wait for a second thread longer than they take
    yield
    torch.set_num_threads(threads)


class Call(Inputs):
    """A call of a kernel, whose tensors hold NaN where no sequence is."""

    def __init__(self, key: str, lengths: str, window: tuple[int, int], softcap: float,
                 has_sinks: bool, has_slopes: bool, head_dims: tuple[int, int],
                 heads: tuple[int, int]) -> None:  # fmt: skip
        super().__init__(key)
        self.gives_slopes = self.info.family == GIVES_SLOPES
        head_dim, value_dim = (min(d, self.info.parameters["d_head"]) for d in head_dims)
        of_q, of_k = LENGTHS[lengths] or ([70], [130])
        batch, total_q, total_k = (1, sum(of_q), sum(of_k)) if LENGTHS[lengths] else (3, 70, 130)
        self.q = self.random(batch, total_q, heads[0], head_dim)
        self.k = self.random(batch, total_k, heads[1], head_dim)
        self.v = self.random(batch, total_k, heads[1], value_dim)
        self.dout = self.random(batch, total_q, heads[0], value_dim)
        count = len(of_q) if LENGTHS[lengths] else batch
        options: dict[str, Any] = {}
        if LENGTHS[lengths]:
            options["cu_seqlens_q"] = self.ints([0, *itertools.accumulate(of_q)])
            options["cu_seqlens_k"] = self.ints([0, *itertools.accumulate(of_k)])
        if lengths == "used":
            options["seqused_q"] = self.ints([60, 0, 69, 100])
            options["seqused_k"] = self.ints([131, 33, 0, 150])
            options["leftpad_k"] = self.ints([2, 0, 0, 129])
        if has_sinks:
            options["s_aux"] = self.random(heads[0])
        if has_slopes or self.gives_slopes:
            options["alibi_slopes"] = torch.rand(count, heads[0], device=self.device) / 8
        options |= {"window_left": window[0], "window_right": window[1], "softcap": softcap}
        options["softmax_scale"] = 1.5 * head_dim**-0.5
        self.options = options
        self.attend()
        if lengths == "used":
            for tensor, of_each, used in (
                (self.q, of_q, "seqused_q"),
                (self.dout, of_q, "seqused_q"),
                (self.k, of_k, "seqused_k"),
                (self.v, of_k, "seqused_k"),
            ):
                begin = 0
                for length, rows in zip(of_each, options[used].tolist(), strict=True):
                    tensor[0, begin + rows : begin + length] = math.nan
                    begin += length

    def attend(self) -> None:
        """Makes the output and the log-sum-exps that a forward would have given."""
        o, lse = prefill(self.q, self.k, self.v, **self.options)
        self.o, self.lse = o.to(self.dtype), lse.float()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.dout, self.q, self.k, self.v, self.o, self.lse

    def check(self, *, asks_ds_aux: bool = True, **_: Any) -> None:
        like = {"dq": self.q, "dk": self.k, "dv": self.v}
        if self.gives_slopes:
            like["dalibi_slopes"] = self.options["alibi_slopes"]
        if asks_ds_aux:
            like["ds_aux"] = self.q[0, 0, :, 0]
        outputs = {name: torch.full_like(tensor, math.nan) for name, tensor in like.items()}
        self.kernel(
            *self.inputs, **self.options, return_ds_aux=asks_ds_aux, out=(*outputs.values(),)
        )
        names = ("dq", "dk", "dv", "dalibi_slopes", "ds_aux")
        exact = dict(zip(names, slopes_backward(*self.inputs, **self.options), strict=True))
        for name, ours in outputs.items():
            true = exact[name]
            # A slope's terms, f32, cancel each other: their sum is less than a tenth of them.
            rounding = 1e-5 if name == "dalibi_slopes" else ROUNDINGS[ours.dtype]
            finite = true.isfinite()
            assert torch.equal(ours.isfinite(), finite), (name, self.options)
            norm = true[finite].norm().item()
            allowed = max(rounding * norm, 1e-2 * rounding * finite.sum().item() ** 0.5)
            error = (ours - true)[finite].norm().item()
            assert error <= allowed, (name, error, allowed, self.options)


def features() -> list[tuple[Any, ...]]:
    """Returns calls in which every pair of values of two features occurs."""
    axes = [
        list(LENGTHS), WINDOWS, CAPS, [False, True], [False, True],
        [(64, 64), (40, 64), (64, 8), (256, 136)], [(2, 2), (4, 1), (6, 2)],
    ]  # fmt: skip
    draw = random.Random(1)
    missing = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(axes)), 2)
        for a in range(len(axes[i]))
        for b in range(len(axes[j]))
    }
    calls = []
    while missing:
        i, a, j, b = min(missing)
        places = [draw.randrange(len(axis)) for axis in axes]
        places[i], places[j] = a, b
        missing -= {
            (m, places[m], n, places[n]) for m, n in itertools.combinations(range(len(axes)), 2)
        }
        calls.append(tuple(axis[place] for axis, place in zip(axes, places, strict=True)))
    return calls


@pytest.mark.parametrize("key", KERNELS)
def test_all_features_crossed_pairwise(key: str) -> None:
    """A dtype's kernels, one for each head dimension, share the calls."""
    info = runtime.kernel(key).info
    d_heads = {
        kernel.parameters["d_head"]: None
        for kernel in runtime.kernels(info.family)
        if kernel.target == info.target
    }
    for call in features()[list(d_heads).index(info.parameters["d_head"]) :: len(d_heads)]:
        Call(key, *call).check()


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize("lists", ["many", "falling"])
def test_the_order_of_the_emulated(lists: str) -> None:
    """More sequences than a warp or a thread block sorts at a time; and a list that falls, whose
    sequences overlap, ends all the same."""
    key = next(key for key in HERE if ".sm90a.bf16-d64-r" in key)
    lengths = [1, 2, 0, 3] * 75
    LENGTHS["many"] = ([*lengths, 150, 1], [*lengths, 300, 140])
    call = Call(key, "many", (-1, 0), 0.0, False, False, (64, 64), (2, 1))
    if lists == "many":
        call.check()
    else:
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            call.options[name][100:200] = 0
        outputs = [torch.empty_like(tensor) for tensor in (call.q, call.k, call.v)]
        call.kernel(*call.inputs, **call.options, out=tuple(outputs))


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize("key", slow_if(is_slow, HERE))
def test_the_emulated_are_right(key: str) -> None:
    first = HERE.index(key)
    for call in features()[first :: 3 * len(HERE)]:
        Call(key, *call).check()


@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("key", [key for key in ON_CPU if "-d64-" in key and "-det-" not in key])
def test_what_is_not_finite_reaches_only_who_sees_it(key: str, name: str) -> None:
    """The gradients of other queries and keys keep their bits."""
    call = Call(key, "equal", (20, 5), 0.0, False, False, (40, 64), (2, 1))
    before = call.kernel(*call.inputs, **call.options)
    getattr(call, name)[0, 50, 0, 3] = math.nan
    after = call.kernel(*call.inputs, **call.options)
    seen = (torch.ones(70, 130).tril(65) > 0) & (torch.ones(70, 130).triu(40) > 0)
    queries = seen[:, 50] if name in "kv" else torch.arange(70) == 50
    keys = seen[queries].any(0)
    for reached, one, other in zip((queries, keys, keys), before[:3], after[:3], strict=True):
        assert torch.equal(one[0, ~reached], other[0, ~reached])


HIDING = [  # calls that hide keys
    ("equal", (20, 5), 0.0, False, False, (64, 64), (4, 2)),
    ("packed", (-1, 0), 1.5, False, True, (40, 64), (2, 2)),
    ("other keys", (40, 0), 0.0, True, False, (64, 40), (2, 1)),
    ("packed", (3, -1), 0.0, True, True, (64, 64), (4, 1)),
]


@pytest.mark.parametrize("call", HIDING, ids=str)
@pytest.mark.parametrize("key", [*slow_if(lambda key: "-d64-" not in key, ON_CPU), *ON_GPU])
def test_hidden_values_that_are_not_finite_reach_no_gradient(key: str, call: Any) -> None:
    """In a block some queries see them."""
    for name in ("q", "k", "v", "dout"):
        for bad in (math.nan, math.inf):
            broken = Call(key, *call)
            getattr(broken, name)[0, 50, 0, 3] = bad
            broken.attend()
            broken.check()


MAKE_D = [key for key in (*HERE, *ON_GPU) if ".sm90a." in str(key) and "-d64-" in str(key)]


@pytest.mark.parametrize("window", [(-1, 0), *slow_after(0, [((400, 0),), ((-1, -1),)])], ids=str)
@pytest.mark.parametrize("key", slow_if(lambda key: "-det-" in key, MAKE_D))
def test_the_main_kernel_makes_d_of_long_sequences(key: str, window: tuple[int, int]) -> None:
    LENGTHS["long"] = ([1100, 900], [1100, 1000])
    heads = (2, 1) if key.startswith(EMULATED) else (45, 45)  # so many tiles are enough
    call = Call(key, "long", window, 0.0, False, False, (48, 24), heads)
    call.options["seqused_q"] = call.ints([1000, 900])
    call.attend()
    for tensor in (call.q, call.dout):
        tensor[0, 1000:1100] = math.nan
    call.check(asks_ds_aux=False)
    call.q[0, 700, 0, 3] = call.dout[0, 1700, 1, 3] = math.inf
    call.attend()
    call.check(asks_ds_aux=False)


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("key", slow_if(lambda key: "-det-" in key, MAKE_D))
def test_later_tiles_of_a_thread_block_have_slopes_of_their_own(key: str, softcap: float) -> None:
    LENGTHS["long"] = ([300, 260], [700, 260])
    heads = (6, 2) if key.startswith(EMULATED) else (99, 33)  # so many tiles are enough
    Call(key, "long", (-1, -1), softcap, False, True, (64, 64), heads).check()


@pytest.mark.parametrize("key", slow_if(lambda key: "-det-" in key, MAKE_D))
@pytest.mark.parametrize("far", [1e4, math.inf])
def test_scores_far_beyond_the_cap_have_no_gradient(key: str, far: float) -> None:
    """Times a key so large the least gradient would be a large one of its query."""
    call = Call(key, "packed", (-1, 0), 1.5, False, False, (64, 64), (2, 2))
    call.k[0, 50, 0, 3] = far
    call.attend()
    call.check()


@pytest.mark.skipif(not HERE, reason="built without CUDA")
@pytest.mark.parametrize("key", slow_if(is_slow, HERE))
def test_hidden_values_reach_no_gradient_of_the_emulated(key: str) -> None:
    place = HERE.index(key)
    call = Call(key, *HIDING[place % len(HIDING)])
    name = ("q", "k", "v", "dout")[place // 2 % 4]
    getattr(call, name)[0, 50, 0, 3] = math.inf if place % 2 else math.nan
    call.attend()
    call.check()


@pytest.mark.parametrize("key", [*(key for key in HERE if ".sm80.bf16-d64-" in key), *ON_GPU])
def test_lengths_around_the_boundaries_of_blocks(key: str) -> None:
    blocks = Inputs(key).info.parameters
    around_q, around_k = (
        (1, size - 1, size, size + 1, 2 * size + 1) for size in (blocks["B_r"], blocks["B_c"])
    )
    each = list(itertools.product(around_q, around_k))
    LENGTHS["boundaries"] = ([q for q, _ in each], [k for _, k in each])
    for window in ((-1, 0), (blocks["B_c"] - 1, 1)):
        Call(key, "boundaries", window, 0.0, False, False, (64, 64), (1, 1)).check()


@pytest.mark.parametrize("key", [key for key in ON_GPU if "-det-" in key.values[0]])
@pytest.mark.parametrize("window", WINDOWS[:4], ids=str)
def test_the_deterministic_are_the_same_bit_for_bit(key: str, window: tuple[int, int]) -> None:
    LENGTHS["long"] = ([2000, 1, 700, 3000], [2000, 300, 700, 2000])
    call = Call(key, "long", window, 0.0, True, False, (128, 128), (16, 4))
    call.check()
    first = call.kernel(*call.inputs, **call.options, return_ds_aux=True)
    for _ in range(20):
        again = call.kernel(*call.inputs, **call.options, return_ds_aux=True)
        assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("key", ON_CPU)
def test_the_same_bits_with_any_number_of_threads(key: str) -> None:
    call = Call(key, "other keys", (70, 20), 0.0, True, True, (64, 64), (4, 2))
    inputs = call.inputs
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(call.kernel(*inputs, **call.options, return_ds_aux=True))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for first, again in zip(results[0], other, strict=True):
            assert torch.equal(first, again)


def test_many_sequences_and_a_long_one_in_one_call() -> None:
    key = next(key for key in ON_CPU if ".f32-d64-" in key)
    LENGTHS["many"] = ([900, *range(1, 40)], [700, *range(40, 1, -1)])
    Call(key, "many", (-1, 0), 0.0, False, False, (64, 64), (2, 1)).check()
