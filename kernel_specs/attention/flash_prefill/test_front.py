"""FlashAttention's functions: its names, its masks, its caches, against the oracle."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

import runtime
from tools.families import oracle

reference: Callable[..., tuple[Tensor, Tensor]] = oracle("flash_prefill")

# As FlashAttention 2.8 has them.
UPSTREAM = {
    "flash_attn_func": "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes "
    "deterministic return_attn_probs",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
    "softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs "
    "block_table",
    "flash_attn_with_kvcache": "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens "
    "cache_batch_idx cache_leftpad block_table softmax_scale causal window_size softcap "
    "rotary_interleaved alibi_slopes num_splits return_softmax_lse",
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where tensors are made that say nothing else."""
    torch.set_default_device(request.param)
    yield
    torch.set_default_device(None)


everywhere = pytest.mark.usefixtures("device")


def on_gpu() -> bool:
    return torch.get_default_device().type == "cuda"


def random(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Of f32, or of bf16 on a GPU, whose kernels multiply 16 bits."""
    return torch.randn(shape).to(dtype or (torch.bfloat16 if on_gpu() else torch.float32))


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def close(got: Tensor, want: Tensor) -> None:
    """A GPU's kernels round probabilities to 16 bits, and rotated queries are rounded, too."""
    bound = (8 if on_gpu() else 2) * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound + 2.0**-18)


def close_lse(got: Tensor, want: Tensor) -> None:
    bound = 2.0 ** (-16 if on_gpu() else -20)
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=4 * bound)


@pytest.mark.parametrize("name", UPSTREAM)
def test_arguments_have_upstreams_names_and_order(name: str) -> None:
    parameters = inspect.signature(getattr(runtime, name)).parameters.values()
    by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_place == UPSTREAM[name].split()


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [2, 90])
def test_equal_lengths(queries: int, dtype: torch.dtype) -> None:
    """Few queries and many: two families, one function."""
    if on_gpu() and dtype == torch.float32:
        # Tensor cores multiply 16 bits: the dtypes of sm80's and sm90a's specs are bf16 and fp16.
        pytest.skip("no kernel takes f32 on GPUs")
    q = random(2, queries, 4, 72, dtype=dtype)
    k, v = random(2, 50, 2, 72, dtype=dtype), random(2, 50, 2, 40, dtype=dtype)
    slopes, sinks = torch.rand(4), random(4, dtype=dtype)
    o, lse, none = runtime.flash_attn_func(
        q, k, v, 0.0, 0.1, True, (20, 7), 3.0, slopes, False, True, s_aux=sinks
    )
    want, want_lse = reference(
        q, k, v, softmax_scale=0.1, window_left=20, window_right=0, softcap=3.0, s_aux=sinks,
        alibi_slopes=slopes.expand(2, 4),
    )  # fmt: skip
    close(o, want)
    assert none is None
    close_lse(lse, want_lse)
    assert torch.equal(runtime.flash_attn_func(q, k, v), runtime.flash_attn_func(q, k, v))
    close(runtime.flash_attn_func(q, k, v), reference(q, k, v)[0])


@everywhere
def test_gradients_of_what_has_them() -> None:
    q, k, v = (random(2, 40, 2, 64).requires_grad_() for _ in "qkv")
    got = torch.autograd.grad(runtime.flash_attn_func(q, k, v, causal=True).sum(), (q, k, v))
    want = torch.autograd.grad(runtime.attention(q, k, v, causal=True).sum(), (q, k, v))
    for a, b in zip(got, want, strict=True):
        close(a, b.double())  # on a GPU dq is added up in no order


@everywhere
def test_packed_lengths() -> None:
    q, k, v = random(70, 4, 64), random(100, 2, 64), random(100, 2, 64)
    places = {"cu_seqlens_q": ints(0, 30, 30, 70), "cu_seqlens_k": ints(0, 60, 80, 100)}
    o, lse, _ = runtime.flash_attn_varlen_func(
        q, k, v, *places.values(), 40, 60, causal=True, return_attn_probs=True
    )
    want, want_lse = reference(q[None], k[None], v[None], **places, window_right=0)
    close(o, want[0])
    close_lse(lse, want_lse[0])


@everywhere
@pytest.mark.parametrize("tokens", [1, 20])
def test_packed_queries_over_pages(tokens: int) -> None:
    """A page table brings its lengths as upstream's do: as cu_seqlens_k, or as seqused_k."""
    q = random(2 * tokens, 4, 64)
    k, v = random(7, 16, 2, 64), random(7, 16, 2, 64)
    table, lengths = ints(5, 1, 6, 0, 3, 2).view(2, 3), ints(33, 48)
    places = ints(0, tokens, 2 * tokens)
    options: dict[str, Any] = {"block_table": table, "causal": True, "return_attn_probs": True}
    o, lse, _ = runtime.flash_attn_varlen_func(
        q, k, v, places, ints(0, 33, 81), tokens, 48, **options
    )
    again, _, _ = runtime.flash_attn_varlen_func(
        q, k, v, places, None, tokens, 48, seqused_k=lengths, **options
    )
    want, want_lse = reference(
        q[None], k, v, cu_seqlens_q=places, seqused_k=lengths, block_table=table, window_right=0
    )
    close(o, want[0])
    close_lse(lse, want_lse[0])
    assert torch.equal(o, again)
    for with_lse in (False, True):
        out = torch.full_like(q, 7)
        options["return_attn_probs"] = with_lse
        found = runtime.flash_attn_varlen_func(
            q, k, v, places, None, tokens, 48, seqused_k=lengths, out=out, **options
        )
        assert (found[0] if with_lse else found).data_ptr() == out.data_ptr()
        assert torch.equal(out, o)
    torch.testing.assert_close(found[1], lse, rtol=0, atol=0)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, first: int, interleaved: bool) -> Tensor:
    """x, [S, heads, D], as complex numbers times powers of rotations, in fp64."""
    n, half = x.shape[0], cos.shape[1]
    turn = torch.complex(cos.double(), sin.double())[first : first + n, None]
    turned, rest = x[..., : 2 * half].double(), x[..., 2 * half :].double()
    pairs = turned.unflatten(-1, (half, 2) if interleaved else (2, half))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    product = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    product = product if interleaved else product.transpose(-1, -2)
    return torch.cat([product.flatten(-2), rest], -1)


@everywhere
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("where", ["caches", "pages", "some caches", "padded caches"])
@pytest.mark.parametrize("queries", [1, 40])
def test_a_cache_takes_the_newest_keys(queries: int, where: str, interleaved: bool) -> None:
    """Rotated, in place, each batch entry from its own length on; nothing else is touched."""
    angles = torch.rand(200, 12)
    cos, sin = angles.cos(), angles.sin()
    lengths = [30, 7]
    q = random(2, queries, 4, 64)
    new_k, new_v = random(2, queries, 2, 64), random(2, queries, 2, 64)
    k_cache, v_cache = random(6, 16 if where == "pages" else 80, 2, 64), random(6, 80, 2, 64)
    options: dict[str, Any] = {}
    entries = [0, 1]
    if where == "pages":
        k_cache, v_cache = random(12, 16, 2, 64), random(12, 16, 2, 64)
        options["block_table"] = ints(5, 1, 6, 0, 3, 2, 11, 10, 9, 8).view(2, 5)
    elif where == "some caches":
        options["cache_batch_idx"] = ints(4, 2)
        entries = [4, 2]
    elif where == "padded caches":
        options["cache_leftpad"] = ints(10, 3)
        k_cache, v_cache = k_cache[:2], v_cache[:2]
    else:
        k_cache, v_cache = k_cache[:2], v_cache[:2]
    before = k_cache.clone(), v_cache.clone()
    o = runtime.flash_attn_with_kvcache(
        q, k_cache, v_cache, new_k, new_v, cos, sin, ints(*lengths), causal=True,
        rotary_interleaved=interleaved, **options,
    )  # fmt: skip
    for b, n in enumerate(lengths):
        pad = int(options["cache_leftpad"][b]) if where == "padded caches" else 0
        lines = [t[entries[b]] for t in before]
        if where == "pages":
            lines = [t[options["block_table"][b]].flatten(0, 1) for t in before]
        turned = rotated(new_k[b], cos, sin, n, interleaved)  # as upstream, which counts padding
        lines[0] = torch.cat([lines[0][:n].double(), turned])[None, pad:]
        lines[1] = torch.cat([lines[1][:n], new_v[b]])[None, pad:]
        own = rotated(q[b], cos, sin, n, interleaved)[None]
        close(o[b], reference(own, *lines, window_right=0)[0][0])
    changed = (k_cache != before[0]).any(-1).sum(), (v_cache != before[1]).any(-1).sum()
    assert [int(n) for n in changed] == [2 * 2 * queries] * 2


@everywhere
def test_without_a_mask_queries_are_rotated_by_one_position() -> None:
    """As upstream does it."""
    angles = torch.rand(50, 32)
    q, new = random(1, 3, 1, 64), random(1, 1, 1, 64)
    k_cache, v_cache = random(1, 20, 1, 64), random(1, 20, 1, 64)
    o = runtime.flash_attn_with_kvcache(
        q, k_cache, v_cache, new, new, angles.cos(), angles.sin(), 9, rotary_interleaved=False
    )
    own = rotated(q[0].transpose(0, 1), angles.cos()[9:10], angles.sin()[9:10], 0, False)
    close(o, reference(own.transpose(0, 1)[None], k_cache[:, :10], v_cache[:, :10])[0])


@everywhere
def test_in_a_compiled_graph() -> None:
    """One graph, which writes the cache in place."""
    q, new = random(2, 1, 4, 64), random(2, 1, 2, 64)
    caches = random(2, 2, 40, 2, 64)
    packed, places, used = random(60, 4, 64), ints(0, 25, 60), ints(7, 12)

    def step(caches: Tensor) -> tuple[Tensor, Tensor]:
        k, v = caches.unbind()
        o = runtime.flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=used)
        return o, runtime.flash_attn_varlen_func(
            packed, packed, packed, places, places, 35, 35, causal=True, window_size=(9, 0)
        )

    expected = caches.clone()
    want = step(expected)
    got = torch.compile(step, fullgraph=True, backend="aot_eager")(caches)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(caches, expected)


def _newest(batch: int, new: int) -> tuple[Tensor, ...]:
    """Queries, caches of 20 keys, as many new keys as queries, their values, and lengths."""
    caches = random(batch, 20, 2, 64), random(batch, 20, 2, 64)
    newest = random(batch, new, 2, 64), random(batch, new, 2, 64)
    return random(batch, new, 4, 64), *caches, *newest, torch.full((batch,), 7, dtype=torch.int32)


@pytest.mark.parametrize("traced", [(1, 1), (2, 1), (2, 4)], ids=str)
@pytest.mark.parametrize("what", ["lengths", "slopes", "rotary"])
def test_traced_by_jit_it_serves_other_batches_and_lengths(
    traced: tuple[int, int], what: str
) -> None:
    angles = torch.rand(40, 8)
    options = {
        "slopes": {"alibi_slopes": torch.rand(4)},
        "rotary": {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()},
    }.get(what, {})

    def step(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Any:
        o = runtime.flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens=n, causal=True, **options
        )
        return o, k_cache, v_cache

    recorded = torch.jit.trace(step, _newest(*traced), check_trace=False)
    for batch, new in ((2, 1), (3, 1), (2, 4), (3, 2)):
        inputs = _newest(batch, new)
        want = step(*(t.clone() for t in inputs))
        for a, b in zip(recorded(*inputs), want, strict=True):
            torch.testing.assert_close(a, b)


class OfLength(torch.nn.Module):
    """A call with a number that is an extent."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, q: Tensor, keys: Tensor) -> Tensor:
        return self.call(q, keys, keys.shape[1] - 5)


@pytest.mark.parametrize("how", ["export", "export strict", "make_fx"])
@pytest.mark.parametrize(
    "call",
    [
        lambda q, keys, n: runtime.flash_attn_with_kvcache(q, keys, keys, cache_seqlens=n),
        lambda q, keys, n: runtime.flash_attn_with_kvcache(
            q, keys.clone(), keys.clone(), q, q, cache_seqlens=n
        ),
        lambda q, keys, n: runtime.flash_attn_func(q, keys, keys, window_size=(n, 0)),
        lambda q, keys, n: runtime.decode(q, keys, keys, window_size=(n, 0)),
    ],
    ids=["cache_seqlens", "newest", "window_size", "decode"],
)
def test_numbers_may_be_symbols(how: str, call: Callable[..., Tensor]) -> None:
    """Those of a graph for many lengths."""
    module = OfLength(call)
    inputs = random(2, 1, 4, 64), random(2, 40, 4, 64)
    if how == "make_fx":
        recorded: Any = make_fx(module, tracing_mode="symbolic")(*inputs)
    else:
        shapes = (None, {1: torch.export.Dim("keys", min=10, max=4096)})
        recorded = torch.export.export(
            module, inputs, dynamic_shapes=shapes, strict=how == "export strict"
        ).module()
    for length in (40, 77, 200):
        keys = random(2, length, 4, 64)
        torch.testing.assert_close(recorded(inputs[0], keys), module(inputs[0], keys))


CACHE = torch.zeros(2, 20, 2, 64)
NEW = torch.ones(2, 1, 2, 64)
COS = torch.rand(20, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": NEW[:, :, :1]}, "k: got shape [2, 1, 1, 64], expected [2, any, 2, 64]"),
        ({"k": NEW[..., :1]}, "k: got shape [2, 1, 2, 1], expected"),
        ({"k": NEW[:1]}, "k: got shape [1, 1, 2, 64], expected"),
        ({"k": NEW.expand(2, 3, 2, 64)}, "v: got shape [2, 1, 2, 64], expected [2, 3, 2, 64]"),
        ({"k": NEW.clone().requires_grad_()}, "k: requires_grad is set"),
        ({"k_cache": CACHE.clone().requires_grad_()}, "k_cache: requires_grad is set"),
        ({"k_cache": CACHE.bfloat16()}, "k_cache: got dtype torch.bfloat16, expected"),
        ({"v_cache": CACHE.bfloat16()}, "v_cache: got dtype torch.bfloat16, expected"),
        ({"v_cache": CACHE[:, :9]}, "v_cache: got shape [2, 9, 2, 64], expected [2, 20, 2, any]"),
        ({"v_cache": CACHE[:, :, :1].expand(2, 20, 2, 64)}, "v_cache: got a tensor with elements"),
        ({"cache_seqlens": ints(9, 9).long()}, "cache_seqlens: got dtype torch.int64, expected"),
        ({"cache_seqlens": ints(9)}, "cache_seqlens: got shape [1], expected [2]"),
        ({"cache_seqlens": ints(9, 20)}, "cache_seqlens: got 20, expected from 0 to 19: the new"),
        ({"cache_seqlens": 20}, "cache_seqlens: got 20, expected from 0 to 19: the new"),
        ({"cache_seqlens": ints(-1, 3)}, "cache_seqlens: got -1, expected from 0 to 19: the new"),
        ({"cache_leftpad": ints(0, 0).long()}, "cache_leftpad: got dtype torch.int64, expected"),
        ({"cache_batch_idx": ints(0, 2)}, "cache_batch_idx: got 2, expected from 0 to 1: there"),
        ({"cache_batch_idx": ints(0, -1)}, "cache_batch_idx: got -1, expected from 0 to 1: there"),
        ({"cache_batch_idx": ints(0)}, "cache_batch_idx: got shape [1], expected [2]"),
        ({"page_table": ints(0, 1)}, "page_table: got shape [2], expected a tensor of 2 dim"),
        ({"rotary_cos": COS[:9], "rotary_sin": COS[:9]}, "rotary_cos: got 9 positions, expected 2"),
        ({"rotary_cos": COS, "rotary_sin": COS[:, :1]}, "rotary_sin: got shape [20, 1], expected"),
        (
            {"rotary_cos": COS.repeat(1, 3), "rotary_sin": COS.repeat(1, 3)},
            "rotary_cos: got 48 columns, expected at most 32",
        ),
        ({"alibi_slopes": torch.ones(3)}, "alibi_slopes: got shape [3], expected [2]"),
        ({"s_aux": torch.ones(3)}, "s_aux: got shape [3], expected"),
        ({"softcap": -1.0}, "requires softcap >= 0"),
        ({"window_size": (-5, 0)}, "requires window_left >= -1"),
        (
            {"q": NEW.clone().requires_grad_(), "page_table": ints(0, 1).view(2, 1)},
            "with pages (block_table, or cache_batch_idx) neither a kernel",
        ),
    ],
)
@pytest.mark.parametrize("queries", [1, 40])
def test_what_is_wrong_is_refused_before_a_cache_is_written(
    arguments: dict[str, Any], message: str, queries: int
) -> None:
    """After a call that was right, too, which is remembered as such."""
    usual: dict[str, Any] = {
        "q": NEW, "k_cache": CACHE.clone(), "v_cache": CACHE.clone(), "k": NEW, "v": NEW,
        "cache_seqlens": ints(9, 9),
    }  # fmt: skip
    right = usual | {"q": NEW.repeat(1, queries, 1, 1)}
    right |= {name: CACHE.clone() for name in ("k_cache", "v_cache")}
    runtime.flash_attn_with_kvcache(**right)
    assert right["k_cache"].any()
    given = usual | arguments
    given["q"] = given["q"].repeat(1, queries, 1, 1)
    with pytest.raises(runtime.InvalidArgument, match=re.escape(message)):
        runtime.flash_attn_with_kvcache(**given)
    assert not usual["k_cache"].any()
    assert not usual["v_cache"].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache_seqlens": ints(21, 3)}, "cache_seqlens: got 21, expected from 0 to 20: there"),
        ({"cache_seqlens": ints(3, -1)}, "cache_seqlens: got -1, expected from 0 to 20: there"),
        ({"cache_seqlens": 21}, "cache_seqlens: got 21, expected from 0 to 20: there"),
        ({"cache_seqlens": [3, 3]}, "cache_seqlens: got a list, expected an int or a torch.Tensor"),
        ({"cache_leftpad": ints(0, 30)}, "cache_leftpad: got 30, expected from 0 to 20: there are"),
        ({"block_table": [[0], [1]]}, "block_table: got a list, expected a torch.Tensor"),
        (
            {"cache_seqlens": ints(9, 21), "cache_batch_idx": ints(1, 0)},
            "cache_seqlens: got 21, expected from 0 to 20: there are no more keys",
        ),
        (
            {"cache_seqlens": ints(41, 9), "block_table": ints(0, 1, 1, 0).view(2, 2)},
            "cache_seqlens: got 41, expected from 0 to 40: there are no more keys",
        ),
    ],
)
@pytest.mark.parametrize("queries", [1, 40])
def test_lengths_that_no_cache_has_are_refused(
    arguments: dict[str, Any], message: str, queries: int
) -> None:
    q = NEW.repeat(1, queries, 1, 1)
    runtime.flash_attn_with_kvcache(q, CACHE, CACHE, cache_seqlens=ints(0, 20))
    with pytest.raises(runtime.InvalidArgument, match=re.escape(message)):
        runtime.flash_attn_with_kvcache(q, CACHE, CACHE, **arguments)


def test_a_compiled_call_asks_nothing_of_what_eager_calls_were() -> None:
    """One graph stays, whatever other calls are made and remembered meanwhile."""
    graphs = CompileCounter()
    compiled = torch.compile(runtime.flash_attn_with_kvcache, fullgraph=True, backend=graphs)
    for heads in (2, 4, 6):
        compiled(NEW, CACHE.clone(), CACHE.clone(), NEW, NEW, cache_seqlens=ints(9, 9))
        k_cache, v_cache = (torch.zeros(2, 20, heads, 64) for _ in range(2))
        new = torch.ones(2, 1, heads, 64)
        runtime.flash_attn_with_kvcache(new, k_cache, v_cache, new, new, cache_seqlens=ints(9, 9))
    assert graphs.frame_count == 1


def test_to_explain_a_call_writes_nothing() -> None:
    k_cache, v_cache = CACHE.clone(), CACHE.clone()
    given = (NEW, k_cache, v_cache, NEW, NEW)
    runtime.flash_attn_with_kvcache(NEW, CACHE.clone(), CACHE.clone(), NEW, NEW, cache_seqlens=9)
    found = runtime.explain_call(runtime.flash_attn_with_kvcache, *given, cache_seqlens=9)
    assert found.family == "flash_decode"
    assert not k_cache.any()
    assert not v_cache.any()


@everywhere
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("cache", ["caches", "pages"])
def test_queries_packed_over_a_cache(cache: str, windowed: bool) -> None:
    """As FlashAttention-3's: sequences of any numbers of queries, rotated, too."""
    angles = torch.rand(64, 12)
    cos, sin = angles.cos(), angles.sin()
    k_cache, v_cache = random(3, 64, 2, 64), random(3, 64, 2, 64)
    options: dict[str, Any] = {}
    if cache == "pages":
        options["page_table"] = ints(*range(12)).view(3, 4)
        k_cache, v_cache = (t.reshape(12, 16, 2, 64) for t in (k_cache, v_cache))
    new_k, new_v = random(3, 2, 2, 64), random(3, 2, 2, 64)
    lengths, begins, places = [30, 7, 0], [33, 7, 5], [0, 20, 20, 22]
    q = random(25, 4, 64)  # three are of no sequence
    lines = [t.clone().reshape(3, 64, 2, 64) for t in (k_cache, v_cache)]
    o, lse = runtime.flash_attn_with_kvcache(
        q, k_cache, v_cache, new_k, new_v, cos, sin, ints(*lengths), causal=windowed,
        rotary_seqlens=ints(*begins), cu_seqlens_q=ints(*places), max_seqlen_q=20,
        return_softmax_lse=True, **options,
    )  # fmt: skip
    assert lse.shape == (4, 25)
    for b, (n, begin, first) in enumerate(zip(lengths, begins, places, strict=False)):
        own = q[first : places[b + 1]]
        turn = cos[begin:], sin[begin:]
        if not windowed:
            turn = cos[begin : begin + 1].expand(40, -1), sin[begin : begin + 1].expand(40, -1)
        own = rotated(own, *turn, 0, True)[None]
        key = torch.cat([lines[0][b, :n].double(), rotated(new_k[b], cos, sin, begin, True)])
        value = torch.cat([lines[1][b, :n], new_v[b]])
        want, want_lse = reference(own, key[None], value[None], window_right=0 if windowed else -1)
        close(o[first : places[b + 1]], want[0])
        bound = 2.0 ** (-5 if on_gpu() else -18)  # rotated tensors are rounded on a GPU
        found = lse[:, first : places[b + 1]].double()
        torch.testing.assert_close(found, want_lse[0], rtol=bound, atol=bound)
    assert not o[22:].any()


@everywhere
def test_a_query_each_packed_over_a_cache() -> None:
    q, k_cache, v_cache = random(3, 4, 64), random(3, 20, 2, 64), random(3, 20, 2, 64)
    options = {"cache_seqlens": ints(3, 0, 20), "causal": True, "return_softmax_lse": True}
    o, lse = runtime.flash_attn_with_kvcache(
        q, k_cache, v_cache, cu_seqlens_q=ints(0, 1, 2, 3), max_seqlen_q=1, **options
    )
    want, want_lse = runtime.flash_attn_with_kvcache(q[:, None], k_cache, v_cache, **options)
    assert torch.equal(o, want[:, 0])
    assert torch.equal(lse, want_lse[:, :, 0].T)


# Where sequences begin: with one query each, or none, or rows around that are nobody's; and where
# max_seqlen_q is less than what a sequence has.
PLACES = [
    [0, 1, 2, 3, 4], [0, 0, 1, 1, 2], [0, 1, 1, 2, 2], [0, 1, 1, 1, 1], [0, 2, 2, 2, 3],
    [1, 2, 2, 3, 3], [2, 2, 3, 3, 4],
]  # fmt: skip


@everywhere
@pytest.mark.parametrize("mask", [(-1, 0), (9, 0), (-1, -1), (9, 4)], ids=str)
@pytest.mark.parametrize("cache", ["caches", "pages"])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_with_max_seqlen_q_1_a_row_is_its_sequences(
    places: list[int], cache: str, mask: tuple[int, int]
) -> None:
    """Found where the lengths lie: as many rows as sequences do not make them one each."""
    q, sinks, slopes = random(4, 4, 64), random(4), torch.rand(4, 4)
    k_cache, v_cache = random(4, 48, 2, 64), random(4, 48, 2, 64)
    lengths, pads = ints(20, 25, 30, 41), ints(0, 3, 1, 5)
    keys = {"k": k_cache, "v": v_cache}
    options: dict[str, Any] = {"cu_seqlens_q": ints(*places)}
    if cache == "pages":
        options["block_table"] = ints(5, 1, 6, 0, 3, 2, 11, 10, 9, 8, 4, 7).view(4, 3)
        k_cache, v_cache = (t.reshape(12, 16, 2, 64) for t in (k_cache, v_cache))
        keys = {"k": k_cache, "v": v_cache}
    want, want_lse = reference(
        q[None], *keys.values(), seqused_k=lengths, leftpad_k=pads, s_aux=sinks,
        alibi_slopes=slopes, window_left=mask[0], window_right=mask[1], **options,
    )  # fmt: skip
    options |= {"cache_seqlens": lengths, "cache_leftpad": pads, "window_size": mask}
    o, lse = runtime.flash_attn_with_kvcache(
        q, k_cache, v_cache, max_seqlen_q=1, return_softmax_lse=True, s_aux=sinks,
        alibi_slopes=slopes, **options,
    )  # fmt: skip
    close(o, want[0])
    close_lse(lse, want_lse[0])
    assert not o[places[-1] :].any()
    assert lse[:, places[-1] :].isneginf().all()


@pytest.mark.gpu
@everywhere
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_a_graph_that_was_captured_takes_other_sequences() -> None:
    """What serving engines pad to: some of a graph's sequences have no query."""
    q, k, v = random(4, 4, 64), random(8, 16, 2, 64), random(8, 16, 2, 64)
    places, lengths = ints(0, 1, 2, 3, 4), ints(9, 32, 17, 30)
    options: dict[str, Any] = {"block_table": torch.arange(8).int().view(4, 2), "causal": True}

    def call(most: int | None) -> Tensor:
        found: Tensor = runtime.flash_attn_varlen_func(
            q, k, v, places, None, most, 32, seqused_k=lengths, **options
        )
        return found

    call(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call(1)
    for other in PLACES:
        places.copy_(ints(*other))
        graph.replay()
        close(o, call(None).double())
        assert not o[other[-1] :].any()


@everywhere
@pytest.mark.parametrize("cache", ["caches", "pages"])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_packed_queries_beside_newest_keys(places: list[int], cache: str) -> None:
    """Whether max_seqlen_q is said or not: the same keys are written, and the same rows come."""
    q, new = random(4, 4, 64), random(4, 1, 2, 64)
    options: dict[str, Any] = {"cu_seqlens_q": ints(*places), "causal": True}
    caches = random(4, 48, 2, 64)
    if cache == "pages":
        options["page_table"] = torch.randperm(12).int().view(4, 3)
        caches = caches.view(12, 16, 2, 64)
    found = []
    for most in (1, None):
        k_cache, v_cache = caches.clone(), caches.clone()
        for step in range(2):  # the second call is like one that was found right
            o = runtime.flash_attn_with_kvcache(
                q, k_cache, v_cache, new, new, cache_seqlens=ints(5, 9, 15, 47 - step),
                max_seqlen_q=most, **options,
            )  # fmt: skip
        found.append((o, k_cache, v_cache))
    close(found[0][0], found[1][0].double())
    for a, b in zip(found[0][1:], found[1][1:], strict=True):
        assert torch.equal(a, b)


@everywhere
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [1, 3, 90])
def test_num_splits_1_makes_a_row_depend_on_its_own_sequence_alone(
    queries: int, dtype: torch.dtype
) -> None:
    """Bit for bit: alone, beside others of any lengths, packed, padded, over caches and pages."""
    lengths, others = ints(1000, 7, 700), [queries, 1, 130]
    q = random(sum(others), 4, 64, dtype=dtype)
    k, v = random(3, 1008, 2, 64, dtype=dtype), random(3, 1008, 2, 64, dtype=dtype)
    own, options = q[None, :queries], {"causal": True, "num_splits": 1}
    used = {"seqused_k": lengths[:1]}
    want = runtime.flash_attn_func(own, k[:1], v[:1], **used, **options)[0]
    found = [
        runtime.flash_attn_func(own.repeat(3, 1, 1, 1), k, v, seqused_k=lengths, **options)[0],
        runtime.flash_attn_func(own, k[:1, :1000], v[:1, :1000], **options)[0],
        runtime.flash_attn_with_kvcache(own, k[:1], v[:1], cache_seqlens=1000, **options)[0],
    ]
    padded = q[:queries].new_zeros(2, 140, 4, 64)
    padded[0, :queries] = own
    found += [
        runtime.flash_attn_func(
            padded, k[:2], v[:2], seqused_q=ints(queries, 9), seqused_k=lengths[:2], **options
        )[0, :queries]
    ]
    table = torch.arange(3 * 63).int().view(3, 63)
    pages = [t.reshape(-1, 16, 2, 64) for t in (k, v)]
    for count in (1, 2, 3):
        total, most = sum(others[:count]), max(others[:count])
        places = ints(*[sum(others[:i]) for i in range(count + 1)])
        cached = {"cu_seqlens_q": places, "max_seqlen_q": most, "cache_seqlens": lengths[:count]}
        found += [
            runtime.flash_attn_varlen_func(
                q[:total], *pages, places, None, most, 1000, block_table=table[:count],
                seqused_k=lengths[:count], **options,
            ),
            runtime.flash_attn_with_kvcache(
                q[:total], k[:count], v[:count], **cached, **options
            ),
        ]  # fmt: skip
    for o in found:
        assert torch.equal(o[:queries], want)
    called = runtime.explain_call(runtime.flash_attn_func, own, k[:1], v[:1], **options)
    assert called.family == "flash_prefill"  # flash_forward's rows ask how many heads a batch has


@pytest.mark.parametrize("name", ["block_table", "page_table"])
@pytest.mark.parametrize("page", [-1, 7, 10**8])
def test_a_page_that_is_not_there_is_refused_where_it_would_be_used(page: int, name: str) -> None:
    k_cache, v_cache, new = torch.zeros(5, 16, 2, 64), torch.zeros(5, 16, 2, 64), NEW[:1]
    q = torch.zeros(1, 1, 4, 64)

    def call(length: int, *table: int, **options: Any) -> None:
        options[name] = ints(*table)[None]
        runtime.flash_attn_with_kvcache(
            q, k_cache, v_cache, cache_seqlens=ints(length), causal=True, **options
        )

    message = f"_table: got {page}, expected (from )?0 to 4: there are no more pages"
    newest = {"k": new, "v": new}
    call(16, 1, page)
    call(40, page, 2, 0, window_size=(9, 0))
    call(40, page, 2, 0, cache_leftpad=ints(16))
    call(15, 1, page, **newest)
    call(20, page, 2, **newest, window_size=(3, 0))
    for cache in (k_cache, v_cache):
        assert cache.flatten(1).any(1).tolist() == [False, True, True, False, False]
        cache.zero_()
    for wrong in (lambda: call(17, 1, page), lambda: call(40, 1, page, 2, window_size=(9, 0))):
        with pytest.raises(runtime.InvalidArgument, match=message):
            wrong()
    for table in ((1, page), (page, 1)):
        with pytest.raises(runtime.InvalidArgument, match=message):
            call(16, *table, **newest)
    with pytest.raises(runtime.InvalidArgument, match=message):
        call(40, page, 2, 0, **newest, window_size=(25, 0))
    assert not k_cache.any()
    assert not v_cache.any()


@pytest.mark.gpu
@everywhere
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("queries", [1, 40])
def test_what_has_no_place_on_a_gpu_touches_nothing_else(queries: int) -> None:
    """Nothing waits for the device, which has no way to refuse: other sequences are as without."""
    q, new = random(6, queries, 4, 64), random(6, 1, 2, 64)
    table = ints(1, 2, -1, -1, 10**8, 3, 4, 5, 6, -1, 7, 8).view(6, 2)
    lengths = ints(3, 0, 5, 32, 16, -1)  # of the second to the last no place is there
    k_cache, v_cache = random(9, 16, 2, 64), random(9, 16, 2, 64)
    wanted = k_cache.clone(), v_cache.clone()
    angles = torch.rand(32, 8)
    given = q, *wanted, new, new, angles.cos(), angles.sin()
    want = runtime.flash_attn_with_kvcache(
        *(t[:1] if t.shape[0] == 6 else t for t in given), lengths[:1], block_table=table[:1],
        causal=True,
    )  # fmt: skip
    begins = ints(3, -7, 10**6, 32, 16, 10**9)
    o = runtime.flash_attn_with_kvcache(
        q, k_cache, v_cache, new, new, angles.cos(), angles.sin(), lengths, block_table=table,
        causal=True, rotary_seqlens=begins,
    )  # fmt: skip
    close(o[:1], want.double())
    assert torch.equal(k_cache, wanted[0])
    assert torch.equal(v_cache, wanted[1])
    nowhere = ints(9, -1, 10**8, 9, 9, 9)
    runtime.flash_attn_with_kvcache(
        q, k_cache, v_cache, new, new, cache_seqlens=lengths.clamp(0, 9), cache_batch_idx=nowhere
    )
    assert torch.equal(k_cache, wanted[0])


@pytest.mark.parametrize("lengths", [(5, 20, 19, -1), (20, 20, 33, -1)], ids=str)
@pytest.mark.parametrize("pages", [False, True])
def test_in_a_graph_what_has_no_place_is_not_written(pages: bool, lengths: tuple[int, ...]) -> None:
    """Where a graph is recorded, there are no lengths yet to refuse."""
    new, options = torch.ones(4, 1, 2, 64), {}
    shape = (4, 20, 2, 64)
    if pages:
        shape, options = (20, 4, 2, 64), {"block_table": torch.arange(20).int().view(4, 5)}
    k_cache, v_cache = torch.zeros(shape), torch.zeros(shape)
    angles = torch.rand(20, 8)
    compiled = torch.compile(runtime.flash_attn_with_kvcache, fullgraph=True, backend="aot_eager")
    compiled(
        torch.zeros(4, 1, 4, 64), k_cache, v_cache, new, new, angles.cos(), angles.sin(),
        ints(*lengths), causal=True, **options,
    )  # fmt: skip
    want = torch.zeros(4, 20)
    for entry, length in enumerate(lengths):
        if 0 <= length < 20:
            want[entry, length] = 1
    assert torch.equal(v_cache.view(4, 20, 2, 64)[..., 1, 3], want)
    assert torch.equal(k_cache.view(4, 20, 2, 64).any(-1).all(-1), want.bool())


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([14], {}, "cache_seqlens: got 14, expected from 0 to 12: 4 positions from there on"),
        ([3], {"rotary_seqlens": [13]}, "rotary_seqlens: got 13, expected from 0 to 12: 4 pos"),
        ([3], {"rotary_seqlens": [-2]}, "rotary_seqlens: got -2, expected from 0 to 12"),
        ([3], {"rotary_seqlens": [10**9]}, "rotary_seqlens: got 1000000000, expected"),
        ([3], {"rotary_seqlens": [16], "causal": False}, "rotary_seqlens: got 16, expected from 0 "
         "to 15: 1 positions"),
        ([3, 14], {"cu_seqlens_q": [0, 1, 4]}, "cache_seqlens: got 14, expected from 0 to 13"),
    ],
)  # fmt: skip
def test_positions_beyond_the_cosines_are_refused(
    lengths: list[int], options: dict[str, Any], message: str
) -> None:
    """Before anything is written; what is within them is taken, to the last."""
    batch = len(lengths)
    q, new = torch.randn(batch, 4, 2, 64), torch.randn(batch, 1, 2, 64)
    given = {"causal": True} | {n: ints(*o) if n != "causal" else o for n, o in options.items()}
    q = q[0] if "cu_seqlens_q" in given else q
    cos, sin = torch.randn(2, 16, 32).unbind()
    k_cache, v_cache = torch.zeros(2, batch, 16, 2, 64).unbind()
    call = functools.partial(runtime.flash_attn_with_kvcache, q, k_cache, v_cache, new, new)
    with pytest.raises(runtime.InvalidArgument, match=message):
        call(cos, sin, ints(*lengths), **given)
    assert not k_cache.any()
    longer = {n: t.clamp(0, 16) if n == "rotary_seqlens" else t for n, t in given.items()}
    call(torch.randn(20, 32), torch.randn(20, 32), ints(*lengths), **longer)
    assert k_cache.any()


# Of FlashAttention-3's arguments those that upstream's callers leave as they are, or may.
NEUTRAL = {
    **dict.fromkeys(("qv", "q_descale", "k_descale", "v_descale", "pack_gqa")),
    "attention_chunk": 0, "sm_margin": 0, "num_splits": 1,
}  # fmt: skip
OF_CACHES = ("scheduler_metadata", "cu_seqlens_k_new", "cu_seqlens_q", "rotary_seqlens")


@pytest.mark.parametrize("name", UPSTREAM)
def test_flash_attention_3s_arguments_are_taken_as_far_as_they_change_nothing(name: str) -> None:
    tensor = torch.randn(2, 40, 2, 64)
    given: tuple[Any, ...] = (tensor, tensor, tensor)
    neutral: dict[str, Any] = dict(NEUTRAL)
    if name == "flash_attn_varlen_func":
        given = (*(t.flatten(0, 1) for t in given), ints(0, 40, 80), ints(0, 40, 80), 40, 40)
    elif name == "flash_attn_with_kvcache":
        neutral |= {**dict.fromkeys(OF_CACHES), "max_seqlen_q": None}
    function = getattr(runtime, name)
    assert torch.equal(function(*given, **neutral), function(*given))
    hints = {**neutral, "pack_gqa": True, "sm_margin": 8}
    assert torch.equal(function(*given, **hints), function(*given))
    refused = dict.fromkeys(("qv", "q_descale", "k_descale", "v_descale"), tensor)
    for argument, value in {**refused, "attention_chunk": 7}.items():
        with pytest.raises(runtime.InvalidArgument, match=f"{argument}: got .*, expected"):
            function(*given, **{argument: value})
    if name == "flash_attn_with_kvcache":
        for argument in OF_CACHES[:2]:
            with pytest.raises(runtime.InvalidArgument, match=f"{argument}: got .*, expected"):
                function(*given, **{argument: tensor})


@pytest.mark.parametrize("rows", [40, 1])
@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("softmax_scale", "x", "a str, expected a float"),
        ("softmax_scale", True, "a bool, expected a float"),
        ("softcap", "x", "a str, expected a float"),
        ("softcap", None, "a NoneType, expected a float"),
        ("softcap", True, "a bool, expected a float"),
    ],
)
@pytest.mark.parametrize("name", ["decode", *UPSTREAM])
def test_what_is_no_number_is_refused_by_name(
    name: str, argument: str, value: object, expected: str, rows: int
) -> None:
    q = torch.zeros(2, rows, 2, 64)
    given: tuple[torch.Tensor, ...] = (q, CACHE, CACHE)
    if name == "flash_attn_varlen_func":
        given = (q[0], CACHE[0], CACHE[0], ints(0, rows), ints(0, 20))
    with pytest.raises(runtime.InvalidArgument, match=f"^{argument}: got {expected}"):
        getattr(runtime, name)(*given, **{argument: value})


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("flash_attn_func", {"dropout_p": 1.5}, "dropout_p: got 1.5, expected 0 to 1"),
        ("flash_attn_func", {"window_size": 5}, "window_size: got 5, expected two integers"),
        ("flash_attn_func", {"causal": 1}, "causal: got an int, expected a bool"),
        ("flash_attn_func", {"q": torch.zeros(2, 40, 3, 64)}, "k: got 2 heads, expected a"),
        ("flash_attn_func", {"q": torch.zeros(2, 40, 64)}, "q: got shape"),
        (
            "flash_attn_func",
            {"k": CACHE[..., :60], "q": torch.zeros(2, 40, 2, 60)},
            "q: got a head dimension of 60, expected a multiple of 8",
        ),
        ("flash_attn_func", {"v": CACHE[..., :60]}, "v: got a head dimension of 60, expected a"),
        ("flash_attn_func", {"seqused_k": ints(3)}, r"seqused_k: got shape \[1\], expected \[2\]"),
        ("flash_attn_func", {"leftpad_k": ints(3)}, r"leftpad_k: got shape \[1\], expected \[2\]"),
        ("flash_attn_func", {"s_aux": torch.zeros(3)}, r"s_aux: got shape \[3\], expected \[2\]"),
        (
            "flash_attn_func",
            {"alibi_slopes": torch.zeros(3, 2)},
            r"alibi_slopes: got shape \[3, 2\], expected \[2, 2\]",
        ),
        ("flash_attn_func", {"num_splits": True}, "num_splits: got a bool, expected an int"),
        ("flash_attn_func", {"num_splits": "x"}, "num_splits: got a str, expected an int"),
        ("flash_attn_func", {"num_splits": 2.5}, "num_splits: got a float, expected an int"),
        ("flash_attn_func", {"alibi_slopes": [0.5] * 2}, "alibi_slopes: got a list, expected a"),
        ("flash_attn_func", {"return_attn_probs": 1}, "return_attn_probs: got an int, expected a"),
        ("flash_attn_func", {"window_size": (True, 0)}, "window_size: got .* two integers"),
        (
            "flash_attn_varlen_func",
            {"seqused_k": ints(3)},
            r"seqused_k: got shape \[1\], expected \[2\]",
        ),
        (
            "flash_attn_varlen_func",
            {"max_seqlen_q": True},
            "max_seqlen_q: got a bool, expected an int",
        ),
        (
            "flash_attn_with_kvcache",
            {"q": torch.zeros(2, 40, 3, 64)},
            "k_cache: got 2 heads, expected a number that divides 3",
        ),
        (
            "flash_attn_with_kvcache",
            {"q": torch.zeros(2, 1, 2, 60), "k_cache": CACHE[..., :60]},
            "q: got a head dimension of 60, expected a multiple of 8",
        ),
        ("flash_attn_with_kvcache", {"cache_seqlens": True}, "cache_seqlens: got a bool, expected"),
        ("flash_attn_with_kvcache", {"return_softmax_lse": 1}, "return_softmax_lse: got an int"),
        ("flash_attn_varlen_func", {"cu_seqlens_k": None}, "cu_seqlens_k: got None"),
        ("flash_attn_varlen_func", {"cu_seqlens_k": ints(0, 1, 2, 3)}, r"k: got shape \[4\]"),
        ("flash_attn_varlen_func", {"cu_seqlens_q": torch.zeros(3)}, "cu_seqlens_q"),
        ("flash_attn_with_kvcache", {"k": CACHE}, "v: got None"),
        ("flash_attn_with_kvcache", {"k": CACHE, "v": CACHE}, "cache_seqlens: got None"),
        ("flash_attn_with_kvcache", {"rotary_cos": CACHE}, "rotary_sin: got None"),
        (
            "flash_attn_with_kvcache",
            {"rotary_cos": CACHE, "rotary_sin": CACHE},
            "rotary_cos: got a tensor without k",
        ),
        (
            "flash_attn_with_kvcache",
            {"page_table": ints(0)[None], "block_table": ints(0)[None]},
            "page_table: got block_table beside it: pass block_table or page_table, not both",
        ),
    ],
)
def test_what_no_kernel_does_is_refused_by_name(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    tensor = torch.zeros(2, 40, 2, 64)
    usual: dict[str, Any] = {"q": tensor, "k": CACHE, "v": CACHE}
    if name == "flash_attn_varlen_func":
        usual = {"q": tensor[0], "k": CACHE[0], "v": CACHE[0]}
        usual |= {"cu_seqlens_q": ints(0, 3, 40), "cu_seqlens_k": ints(0, 3, 20)}
    elif name == "flash_attn_with_kvcache":
        usual = {"q": tensor, "k_cache": CACHE, "v_cache": CACHE}
    with pytest.raises(runtime.InvalidArgument, match=message):
        getattr(runtime, name)(**usual | arguments)
