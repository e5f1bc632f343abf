"""flash_prefill: every kernel that can run here against the fp64 oracle, on fresh random inputs.

An element's error is at most the rounding of the result and, where a product takes probabilities in
the dtype, theirs, of all that is added up, and that of scores and exponents, which are f32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from tools.families import oracle

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}
INFOS = {info.key: info for info in runtime.kernels("flash_prefill") if info.built}
CPU = [key for key, info in INFOS.items() if not info.is_cuda]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
ON_GPU = [
    pytest.param(key, marks=[pytest.mark.gpu, NO_GPU])
    for key, info in INFOS.items()
    if info.is_cuda
]
KERNELS = [*CPU, *ON_GPU]
# Around the boundaries of tiles of queries, of steps of keys and of pages.
BOUNDARIES = [n + d for n in (0, 16, 64, 128, 256) for d in (-1, 0, 1) if n + d >= 0]

reference: Callable[..., tuple[Tensor, Tensor]] = oracle("flash_prefill")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The oracle's small products wait for a second thread longer than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_kernels_are_there() -> None:
    assert CPU


class Sequences:
    """Random queries, keys and values; what is of no sequence, padding and pages' rest, is NaN."""

    def __init__(
        self,
        key: str,
        queries: list[int],
        keys: list[int] | None = None,
        *,
        heads: int = 2,
        kv_heads: int = 1,
        width: int | None = None,
        value_width: int | None = None,
        pads: list[int] | None = None,
        packed_q: bool = True,
        packed_k: bool = True,
        page_size: int | None = None,
        spare: int = 0,
    ) -> None:
        p = INFOS[key].parameters
        self.key, self.dtype = key, DTYPES[p["dtype"]]
        self.device = torch.device("cuda" if INFOS[key].is_cuda else "cpu")
        self.queries, self.keys = queries, keys or queries
        width = width or p["d_head"]
        value_width = value_width or width
        self.options: dict[str, Any] = {}
        self.q = self.lay("q", queries, packed_q, spare, heads, width)
        packed_k = packed_k and page_size is None
        self.k = self.lay("k", self.keys, packed_k, spare, kv_heads, width)
        self.v = self.lay("k", self.keys, packed_k, spare, kv_heads, value_width)
        if pads is not None:
            pads = [min(pad, n) for pad, n in zip(pads, self.keys, strict=True)]
            self.options["leftpad_k"] = self.ints(pads)
            for b, pad in enumerate(pads):
                first = sum(n + spare for n in self.keys[:b]) if packed_k else 0
                for t in (self.k, self.v):
                    t[0 if packed_k else b, first : first + pad] = float("nan")
        if page_size is not None:
            self.lay_in_pages(page_size)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def lay(
        self, name: str, lengths: list[int], packed: bool, spare: int, heads: int, width: int
    ) -> Tensor:
        """Sequences of these lengths, with `spare` rows of NaN behind each."""
        if packed:
            ends = list(itertools.accumulate([0, *(n + spare for n in lengths)]))
            self.options[f"cu_seqlens_{name}"] = self.ints(ends)
            laid = self.random(1, ends[-1] + spare, heads, width)
            places = [(0, begin, end) for begin, end in itertools.pairwise(ends)]
            laid[0, ends[-1] :] = float("nan")
        else:
            laid = self.random(len(lengths), max(lengths) + spare, heads, width)
            places = [(b, 0, laid.shape[1]) for b in range(len(lengths))]
        for (entry, begin, end), n in zip(places, lengths, strict=True):
            laid[entry, begin + n : end] = float("nan")
        if spare or not packed:
            self.options[f"seqused_{name}"] = self.ints(lengths)
        return laid

    def lay_in_pages(self, size: int) -> None:
        """Pages in any order, one more than needed, whose entries are NaN."""
        batch, capacity = self.k.shape[:2]
        each = -(-capacity // size)
        order = torch.randperm(batch * each + 1, device=self.device)
        self.options["block_table"] = order[: batch * each].view(batch, each).int()
        for name in "kv":
            flat = getattr(self, name)
            pages = flat.new_full((batch * each + 1, size, *flat.shape[2:]), float("nan"))
            padded = flat.new_full((batch, each * size, *flat.shape[2:]), float("nan"))
            padded[:, :capacity] = flat
            pages[order[: batch * each]] = padded.view(batch * each, size, *flat.shape[2:])
            setattr(self, name, pages)

    def call(self, **options: Any) -> tuple[Tensor, Tensor]:
        """The kernel's output and lse, in memory that held NaN before."""
        entries, rows, heads, _ = self.q.shape
        nan = {"fill_value": float("nan"), "device": self.device}
        o = torch.full((entries, rows, heads, self.v.shape[3]), dtype=self.dtype, **nan)
        lse = torch.full((entries, heads, rows), **nan)
        kernel = runtime.kernel(self.key)
        kernel(self.q, self.k, self.v, **self.options | options, return_lse=True, out=(o, lse))
        return o, lse

    def check(self, **options: Any) -> None:
        o, lse = self.call(**options)
        options = self.options | options
        values = torch.cat([self.v, self.v.abs()], 3)
        both, want_lse = reference(self.q, self.k, values, **options)
        want, magnitude = both.chunk(2, 3)
        seen = want_lse.isfinite()
        largest = max(1.0, options.get("softcap", 0.0), *want_lse[seen].abs().tolist())
        eps = torch.finfo(self.dtype).eps
        in_f32 = 2.0**-20 * largest
        error = (o.double() - want).abs()
        # Tensor cores and AMX tiles take probabilities in the dtype; fp16's subnormal ones are
        # rounded to multiples of 2^-24.
        of_probabilities = 0.0 if self.dtype == torch.float32 else eps / 2
        allowed = eps / 2 * want.abs() + (of_probabilities + in_f32) * magnitude + 2.0**-14 * eps
        assert (error <= 1.01 * allowed + 2.0**-20).all(), (error - allowed).max()  # NaN fails
        assert torch.equal(lse.isneginf(), want_lse.isneginf())
        assert not o.transpose(1, 2)[want_lse.isneginf()].count_nonzero()
        assert not seen.any() or (lse - want_lse)[seen].abs().max() <= in_f32


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key", KERNELS)
def test_lengths_around_every_boundary(key: str, causal: bool) -> None:
    """As many queries as keys, fewer, and more, all in one batch; empty ones on either side."""
    right = {"window_right": 0 if causal else -1}
    Sequences(key, BOUNDARIES).check(**right)
    Sequences(key, BOUNDARIES, BOUNDARIES[::-1]).check(**right)


@pytest.mark.parametrize("queries", [1, 3, 5, 40, 100])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (8, 2), (9, 3), (7, 1)])
@pytest.mark.parametrize("key", KERNELS)
def test_heads_that_share_keys(key: str, queries: int, heads: int, kv_heads: int) -> None:
    sequences = Sequences(key, [queries, 130], [150, 70], heads=heads, kv_heads=kv_heads)
    sequences.check(window_right=0)


# What may be asked for, beside another: arguments of Sequences, and of the call.
FEATURES: dict[str, tuple[dict[str, Any], Callable[[Sequences], dict[str, Any]]]] = {
    "batched queries": ({"packed_q": False}, lambda s: {}),
    "batched keys": ({"packed_k": False}, lambda s: {}),
    "pages": ({"page_size": 16}, lambda s: {}),
    "spare": ({"spare": 5}, lambda s: {}),
    "padding": ({"pads": [3, 90, 0, 30]}, lambda s: {}),
    "causal": ({}, lambda s: {"window_right": 0}),
    "left": ({}, lambda s: {"window_left": 40}),
    "right": ({}, lambda s: {"window_right": 20}),
    "softcap": ({}, lambda s: {"softcap": 5.0}),
    "sinks": ({}, lambda s: {"s_aux": s.random(s.q.shape[2])}),
    "slopes": ({}, lambda s: {"alibi_slopes": 0.1 * torch.rand(
        4, s.q.shape[2], device=s.device)}),
    "narrow": ({"width": 40}, lambda s: {}),
    "narrow values": ({"value_width": 24}, lambda s: {}),
    "heads": ({"heads": 6, "kv_heads": 2}, lambda s: {}),
    "scale": ({}, lambda s: {"softmax_scale": -0.5}),
}  # fmt: skip


@pytest.mark.parametrize("key", KERNELS)
def test_features_in_pairs(key: str) -> None:
    for pair in itertools.combinations(FEATURES, 2):
        shape: dict[str, Any] = {}
        for name in pair:
            shape |= FEATURES[name][0]
        sequences = Sequences(key, [130, 90, 0, 61], [130, 150, 20, 40], **shape)
        options: dict[str, Any] = {}
        for name in pair:
            options |= FEATURES[name][1](sequences)
        try:
            sequences.check(**options)
        except AssertionError as error:
            raise AssertionError(f"{pair}: {error}") from error


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", KERNELS)
def test_what_a_hidden_key_holds_reaches_nothing(key: str, poison: float) -> None:
    sequences = Sequences(key, [200])
    window = {"window_left": 30, "window_right": 5}
    want, _ = sequences.call(**window)
    for tensor in (sequences.k, sequences.v):
        tensor[:, 100] = poison
    got, _ = sequences.call(**window)
    rows = torch.arange(200, device=sequences.device)
    sees = (rows >= 95) & (rows <= 130)
    assert torch.equal(got[:, ~sees], want[:, ~sees])
    assert not got[:, sees].isfinite().any()


@pytest.mark.parametrize("key", KERNELS)
def test_lengths_out_of_bounds_count_as_the_nearest(key: str) -> None:
    """What lies on the device cannot be refused, but nothing outside the tensors is touched."""
    sequences = Sequences(key, [64, 64])
    ints = sequences.ints
    want = sequences.call(seqused_k=ints([64, 0]), seqused_q=ints([0, 64]))
    got = sequences.call(
        seqused_k=ints([1000, -5]), seqused_q=ints([-7, 99]), cu_seqlens_q=ints([-3, 64, 900])
    )
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("key", KERNELS)
def test_a_sequence_has_the_same_bits_in_any_batch(key: str) -> None:
    """And in any layout, and on any number of threads."""
    batch = Sequences(key, [70, 3, 200], [90, 150, 200], heads=6, kv_heads=2, page_size=16)
    together, _ = batch.call(window_right=0, window_left=50)
    begin = 0
    for b, n in enumerate(batch.queries):
        alone = Sequences(key, [n], [batch.keys[b]], heads=6, kv_heads=2, packed_q=False)
        alone.q = batch.q[:, begin : begin + n]
        pages = batch.options["block_table"][b]
        alone.k, alone.v = (
            t[pages].flatten(0, 1)[None, : batch.keys[b]] for t in (batch.k, batch.v)
        )
        torch.set_num_threads(1 + b)
        got, _ = alone.call(window_right=0, window_left=50)
        assert torch.equal(got, together[:, begin : begin + n])
        begin += n
