"""flash_decode: every kernel that can run here against the fp64 oracle, on fresh random inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import runtime
from tests.kernels.lengths import (
    CAPS,
    DTYPES,
    EMULATED,
    FEATURES,
    Features,
    Inputs,
    check_in_pairs,
    keys_of,
    one_thread,  # noqa: F401 - a fixture
)
from tests.slow import slow_if
from tools.families import oracle

pytestmark = pytest.mark.usefixtures("one_thread")
CPU, ON_GPU = keys_of("flash_decode", "*.sm80.bf16-d64-paged-*", "*.sm80.bf16-d64-c*-s5")
KERNELS = [*CPU, *ON_GPU]
PAGE_SIZES = (16, 48, 256)
LENGTHS = [
    n + d for n in (0, 16, 48, 64, 128, 256, 320, 512, 640) for d in (-1, 0, 1) if n + d >= 0
]


def test_kernels_are_there() -> None:
    assert CPU


class Cache(Inputs):
    """Random queries, and caches of keys and values."""

    def __init__(
        self,
        key: str,
        lengths: list[int],
        *,
        seq_q: int = 1,
        heads: int = 4,
        kv_heads: int = 2,
        width: int | None = None,
        value_width: int | None = None,
        pads: list[int] | None = None,
        page_size: int | None = None,
        spare: int = 3,
    ) -> None:
        super().__init__(key)
        p = self.info.parameters
        if p.get("paged"):
            page_size = page_size or 16
        elif self.info.is_cuda:
            page_size = None
        d = width or p.get("d_head", 64)
        batch, capacity = len(lengths), max(lengths) + spare
        self.q = self.random(batch, seq_q, heads, d)
        self.k = self.random(batch, capacity, kv_heads, d)
        self.v = self.random(batch, capacity, kv_heads, value_width or d)
        self.options["seqused_k"] = self.ints(lengths)
        if pads is not None:
            self.options["leftpad_k"] = self.ints(pads)
        for b, length in enumerate(lengths):
            for t in (self.k, self.v):
                t[b, length:] = t[b, : pads[b] if pads else 0] = float("nan")
        if page_size is not None:
            self.lay_in_pages(page_size)

    def check(self, **options: Any) -> None:
        super().check(rounds_probabilities=self.info.is_cuda, **options)


@pytest.mark.parametrize("page_size", [None, *PAGE_SIZES])
@pytest.mark.parametrize("key", KERNELS)
def test_lengths_around_every_boundary(key: str, page_size: int | None) -> None:
    """Of tiles, pages and parts, all in one batch; empty ones, and shorter than the queries."""
    for seq_q in (1, 3):
        Cache(key, LENGTHS, seq_q=seq_q, page_size=page_size).check()


@pytest.mark.parametrize("softcap", CAPS)
@pytest.mark.parametrize("key", KERNELS)
def test_a_cap_costs_no_precision(key: str, softcap: float) -> None:
    """However far it is above the scores, or below; an infinite one is none. NaN stays NaN."""
    cache = Cache(key, [130, 70], seq_q=3)
    cache.check(softcap=softcap)
    cache.q[1, 2] = float("nan")
    o, _ = cache.call(softcap=softcap)
    assert torch.equal(o.isnan().any(-1).any(-1).nonzero(), torch.tensor([[1, 2]]).to(o.device))


@pytest.mark.parametrize("key", ON_GPU)
def test_more_heads_than_there_are_clusters(key: str) -> None:
    """A few small caches are clusters', on devices that have them; these are not."""
    for seq_q in (1, 3):
        Cache(key, 3 * LENGTHS, seq_q=seq_q).check()
    many = {"heads": 80, "kv_heads": 40}
    check_in_pairs(lambda **shape: Cache(key, [130, 90, 0, 61], **(many | shape)), FEATURES | OWN)


@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads"), [(1, 8, 8), (1, 5, 1), (1, 16, 2), (2, 48, 16), (1, 64, 64)]
)
@pytest.mark.parametrize("key", ON_GPU)
def test_clusters_share_heads(key: str, batch: int, heads: int, kv_heads: int) -> None:
    """Of 2 to 8 thread blocks, on devices that have them: all steps, lengths that leave some blocks
    without keys, and rows that do not divide among them."""
    for length, seq_q in ((64, 1), (127, 2), (300, 1), (640, 3), (1100, 1), (2048, 1)):
        shape = {"seq_q": seq_q, "heads": heads, "kv_heads": kv_heads, "spare": 0}
        cache = Cache(key, [length] * batch, **shape)
        for options in ({}, {"window_left": 70}, {"s_aux": cache.random(heads), "softcap": 3.0}):
            cache.check(**options)
        want = cache.call()
        for got, wanted in zip(cache.call(), want, strict=True):
            assert torch.equal(got, wanted)
        Cache(key, [length, 1, 0, length // 2][:batch], **shape).check()
        if not cache.info.parameters.get("paged"):
            del cache.options["seqused_k"]
            cache.check()


@pytest.mark.parametrize(
    ("seq_q", "heads", "kv_heads"),
    [(1, 1, 1), (1, 3, 3), (1, 16, 1), (2, 8, 1), (1, 9, 3), (4, 8, 2), (5, 14, 2), (1, 71, 1)],
)
@pytest.mark.parametrize("key", KERNELS)
def test_rows_of_a_key_head(key: str, seq_q: int, heads: int, kv_heads: int) -> None:
    """One query head or many, one query or several: fewer rows than a tile has, and more."""
    Cache(key, [100, 37], seq_q=seq_q, heads=heads, kv_heads=kv_heads).check()
    Cache(key, [100, 37], seq_q=seq_q, heads=heads, kv_heads=kv_heads).check(window_right=-1)


OWN: Features[Cache] = {
    "queries": ({"seq_q": 5}, lambda cache: {}),
    "no mask": ({"seq_q": 3}, lambda cache: {"window_right": -1}),
    "left": ({"seq_q": 2}, lambda cache: {"window_left": 40}),
    "right": ({"seq_q": 7}, lambda cache: {"window_right": 2}),
    "rows": ({"heads": 10, "kv_heads": 1}, lambda cache: {}),
    "invariant": ({}, lambda cache: {"batch_invariant": True}),
    "pages": ({"page_size": 32}, lambda cache: {}),
}


@pytest.mark.parametrize("key", slow_if(lambda key: key.startswith(EMULATED), KERNELS))
def test_features_in_pairs(key: str) -> None:
    check_in_pairs(lambda **shape: Cache(key, [130, 90, 0, 61], **shape), FEATURES | OWN)


@pytest.mark.parametrize("key", KERNELS)
def test_parts_of_long_caches(key: str) -> None:
    """Keys of one head that many share, lengths that differ by far, windows at a far end."""
    Cache(key, [9001], heads=8, kv_heads=1).check()
    cache = Cache(key, [5000, 1, 700], seq_q=2, heads=6, kv_heads=2, pads=[10, 0, 650])
    for invariant in (False, True):
        cache.check(batch_invariant=invariant)
        cache.check(batch_invariant=invariant, window_left=1000, s_aux=cache.random(6))


@pytest.mark.parametrize(
    ("batch", "length", "seq_q", "heads", "kv_heads"),
    [
        (2, 304, 1, 4, 2),
        (3, 1, 3, 6, 2),  # keys that no query sees before the last one
        (1, 1000, 1, 8, 1),  # a head that all share
        (2, 129, 5, 20, 1),  # seven blocks of rows
        (3, 320, 1, 8, 4),  # whole heads for each thread block of three multiprocessors,
        pytest.param(64, 1040, 1, 8, 8, marks=pytest.mark.slow),  # and of 132
        (40, 16, 2, 4, 2),
    ],
)
@pytest.mark.parametrize("key", KERNELS)
def test_all_of_a_cache_without_lengths(
    key: str, batch: int, length: int, seq_q: int, heads: int, kv_heads: int
) -> None:
    """For which a GPU's kernels find what there is to do in another way."""
    if batch == 64 and key.startswith(EMULATED):
        # The emulator runs one thread block after the other.
        pytest.skip("many seconds for what (3, 320, ...) covers on three multiprocessors")
    shape = {"seq_q": seq_q, "heads": heads, "kv_heads": kv_heads, "spare": 0}
    cache = Cache(key, [length] * batch, **shape)
    if cache.info.parameters.get("paged"):  # pages are full then
        cache = Cache(key, [-(-length // 16) * 16] * batch, **shape)
    del cache.options["seqused_k"]
    want = cache.call()
    for options in ({}, {"window_left": 40}, {"s_aux": cache.random(heads), "softcap": 3.0}):
        for invariant in (False, True):
            cache.check(batch_invariant=invariant, **options)
    for _ in range(2):
        for got, wanted in zip(cache.call(), want, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("key", KERNELS)
def test_lengths_out_of_bounds_count_as_the_nearest(key: str) -> None:
    """What lies on the device cannot be refused, but nothing outside the cache is read."""
    cache = Cache(key, [64, 64], spare=0)
    want = cache.call(seqused_k=cache.ints([64, 0]))
    got = cache.call(seqused_k=cache.ints([1000, -5]))
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("key", [key for key in CPU if not key.startswith(EMULATED)])
def test_a_page_that_is_not_there_is_refused(key: str) -> None:
    """If a query sees one of its keys."""
    cache = Cache(key, [64, 40], page_size=16, spare=0)
    table = cache.options["block_table"]
    want, _ = cache.call()
    table[1, 3] = -1
    got, _ = cache.call()
    assert torch.equal(got, want)
    for page in (-1, 9, 2**31 - 1):
        table[1, 2] = page
        with pytest.raises(
            runtime.InvalidArgument, match=f"block_table: got {page}, expected 0 to 8"
        ):
            cache.call()
    table[1, 2], table[0, 0] = 0, 9
    cache.call(window_left=40)


@pytest.mark.parametrize("key", [k for k in KERNELS if "paged" in str(k)])
def test_on_a_gpu_a_page_that_is_not_there_is_the_nearest(key: str) -> None:
    """What lies on the device cannot be refused, but nothing outside the pages is read."""
    cache = Cache(key, [64, 40, 30], page_size=16, spare=0)
    table = cache.options["block_table"]
    cache.k.nan_to_num_(), cache.v.nan_to_num_()
    table[0, 1], table[2, 1] = 0, len(cache.k) - 1
    want, _ = cache.call()
    table[0, 1], table[2, 1] = -7, 2**31 - 1
    got, _ = cache.call()
    assert torch.equal(got, want)


@pytest.mark.gpu
def test_a_batch_invariant_call_takes_the_same_kernel_in_any_batch() -> None:
    for paged in (False, True):
        for width in (64, 128, 256):
            found = set()
            for batch, length in ((1, 64), (8, 1024), (64, 1024), (128, 8192)):
                q = torch.zeros(1, 1, 16, width, dtype=torch.bfloat16, device="cuda")
                k = torch.zeros(1, 1, 8, width, dtype=torch.bfloat16, device="cuda")
                options: dict[str, Any] = {"batch_invariant": True}
                if paged:
                    options["block_table"] = torch.zeros(
                        batch, length // 16, dtype=torch.int32, device="cuda"
                    )
                k = k.expand(length if paged else batch, 16 if paged else length, -1, -1)
                q = q.expand(batch, -1, -1, -1)
                found.add(runtime.explain_call(runtime.decode, q, k, k, **options).key)
            assert len(found) == 1, found


@pytest.mark.parametrize("key", KERNELS)
def test_what_a_window_hides_reaches_nothing(key: str) -> None:
    cache = Cache(key, [200, 150], heads=6, kv_heads=2)
    window = {"window_left": 30, "window_right": 0}
    want, _ = cache.call(**window)
    pages, hidden = cache.options.get("block_table"), 168
    for t in (cache.k, cache.v):
        entry, row = (0, hidden) if pages is None else divmod(hidden, t.shape[1])
        t[entry if pages is None else pages[0, entry], row] = float("nan")
    got, _ = cache.call(**window)
    assert torch.equal(got, want)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", KERNELS)
def test_a_value_reaches_the_queries_that_see_its_key_alone(key: str, value: float) -> None:
    """Of several that a call has. 0 times a value that is not finite is NaN."""
    cache = Cache(key, [200, 150], seq_q=5, heads=6, kv_heads=2, page_size=256)
    pages = cache.options.get("block_table")
    for window in ({}, {"window_left": 3}, {"window_left": 20, "window_right": 1}):
        left, right = window.get("window_left", 200), window.get("window_right", 0)
        want, _ = cache.call(**window)
        for hidden in (199, 197, 180, 190):  # query i is at key 195 + i
            entry = cache.v[0 if pages is None else pages[0, 0]]
            before = entry[hidden, 1, 7].clone()
            entry[hidden, 1, 7] = value
            got, _ = cache.call(**window)
            entry[hidden, 1, 7] = before
            changed = torch.zeros_like(got, dtype=torch.bool)
            for i in range(5):
                changed[0, i, 3:, 7] = 195 + i - left <= hidden <= 195 + i + right
            assert torch.equal(got.isfinite(), ~changed)
            assert torch.equal(got[~changed], want[~changed])


@pytest.mark.parametrize("key", KERNELS)
def test_results_repeat_bit_for_bit(key: str) -> None:
    cache = Cache(key, [4000, 77, 900], heads=8, kv_heads=2)
    first = cache.call()
    for _ in range(5):
        for a, b in zip(cache.call(), first, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("key", KERNELS)
def test_a_batch_invariant_row_depends_on_its_own_cache_alone(key: str) -> None:
    cache = Cache(key, [4000, 77, 900], heads=8, kv_heads=2, spare=4)
    together = cache.call(batch_invariant=True)
    for b in range(3):
        own = slice(b, b + 1)
        single = {name: t[own] for name, t in cache.options.items()}
        alone = Cache(key, [1])
        alone.q, alone.k, alone.v = cache.q[own], cache.k, cache.v
        if "block_table" not in single:
            alone.k, alone.v = cache.k[own], cache.v[own]
        alone.options = single
        for a, b_ in zip(alone.call(batch_invariant=True), together, strict=True):
            assert torch.equal(a, b_[own])


@pytest.mark.parametrize("key", CPU)
def test_any_number_of_threads_gives_the_same_bits(key: str) -> None:
    cache = Cache(key, [3000, 77], heads=4, kv_heads=1)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(cache.call())
    for o, lse in results[1:]:
        assert torch.equal(o, results[0][0])
        assert torch.equal(lse, results[0][1])


@pytest.mark.parametrize("key", [key for key in ON_GPU if "paged" not in key.values[0]])
def test_more_steps_than_the_host_lists_one_by_one(key: str) -> None:
    """2^20 and more, of which two stay together; all caches are one in memory."""
    kernel, batch, device = runtime.kernel(key), 4096, torch.device("cuda")
    parameters = kernel.info.parameters
    d_head, length = parameters["d_head"], 128 * parameters["B_c"] + 5
    dtype = DTYPES[parameters["dtype"]]
    q = torch.randn(batch, 1, 2, d_head, device=device).to(dtype)
    k, v = torch.randn(2, 1, length, 2, d_head, device=device).to(dtype).unbind()
    o = kernel(q, k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1))
    assert not o.isnan().any()
    some = torch.tensor([0, 1, batch // 2, batch - 1], device=device)
    scores = torch.einsum("bqhd,khd->bhqk", q[some].double(), k[0].double()) * d_head**-0.5
    expected = torch.einsum("bhqk,khd->bqhd", scores.softmax(-1), v[0].double())
    torch.testing.assert_close(o[some].double(), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("key", ON_GPU)
def test_a_graph_is_replayed_with_other_lengths(key: str) -> None:
    """Several launches of a graph, beside eager ones on another stream."""
    cache = Cache(key, [2000, 1500, 30], heads=8, kv_heads=2)
    lengths = cache.options["seqused_k"]
    wanted = {}
    for n in ([2000, 1500, 30], [1, 0, 30], [700, 1500, 2]):
        wanted[tuple(n)] = cache.call(seqused_k=cache.ints(n))
    graph, outs = torch.cuda.CUDAGraph(), []
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(3):
            outs.append(cache.call())
    other = torch.cuda.Stream()
    for n, want in 5 * list(wanted.items()):
        lengths.copy_(torch.tensor(n))
        torch.cuda.synchronize()
        graph.replay()
        with torch.cuda.stream(other):
            eager = [cache.call() for _ in range(3)]
        torch.cuda.synchronize()
        for o, lse in outs + eager:
            assert torch.equal(o, want[0])
            assert torch.equal(lse, want[1])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_decode_without_a_key(dtype: torch.dtype) -> None:
    q = torch.randn(2, 3, 4, 72).to(dtype)
    k, v = (torch.randn(2, 50, 2, 72).to(dtype) for _ in "kv")
    slopes = torch.rand(4)
    o, lse = runtime.decode(
        q, k, v, softmax_scale=0.1, causal=False, window_size=(20, 1), alibi_slopes=slopes,
        softcap=3.0, return_lse=True,
    )  # fmt: skip
    want, want_lse = oracle("flash_decode")(
        q, k, v, softmax_scale=0.1, window_left=20, window_right=1, softcap=3.0,
        alibi_slopes=slopes.expand(2, 4),
    )  # fmt: skip
    torch.testing.assert_close(o.double(), want, rtol=torch.finfo(dtype).eps, atol=2.0**-18)
    torch.testing.assert_close(lse.double(), want_lse, rtol=2.0**-20, atol=2.0**-20)
    compiled = torch.compile(runtime.decode, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, causal=True), runtime.decode(q, k, v, causal=True))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window_size": 5}, "window_size: got 5, expected two integers"),
        ({"window_size": (1.5, 0)}, "window_size: got .*, expected two integers"),
        ({"causal": 1}, "causal: got an int, expected a bool"),
        ({"softmax_scale": "1"}, "softmax_scale"),
        ({"k_cache": torch.zeros(2, 9, 2)}, "k_cache"),
        ({"v_cache": [1]}, "v_cache"),
        ({"softcap": -1.0}, "softcap >= 0"),
        ({"window_size": (-2, 0)}, "window_left >= -1"),
        ({"s_aux": torch.zeros(4, dtype=torch.float64)}, "s_aux"),
        ({"seqused_k": torch.zeros(2, dtype=torch.int64)}, "seqused_k"),
        ({"block_table": torch.zeros(2, 3)}, "block_table"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    q, k = torch.randn(2, 1, 4, 64), torch.randn(2, 9, 2, 64)
    with pytest.raises(runtime.InvalidArgument, match=message):
        runtime.decode(**{"q": q, "k_cache": k, "v_cache": k} | wrong)
