"""flash_prefill: every kernel that can run here against the fp64 oracle, on fresh random inputs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from tests.kernels.lengths import (
    CAPS,
    EMULATED,
    FEATURES,
    Features,
    Inputs,
    check_in_pairs,
    keys_of,
    one_thread,  # noqa: F401 - a fixture
)
from tests.slow import slow_after, slow_if

pytestmark = pytest.mark.usefixtures("one_thread")
CPU, ON_GPU = keys_of("flash_prefill", "*.sm90a.*-d64-*", "*.sm90a.*-qr-*")
KERNELS = [*CPU, *ON_GPU]
# Around the boundaries of tiles of queries, of steps of keys and of pages.
BOUNDARIES = [n + d for n in (0, 16, 64, 128, 256) for d in (-1, 0, 1) if n + d >= 0]


def test_kernels_are_there() -> None:
    assert CPU


class Sequences(Inputs):
    """Sequences one behind another, in batches or in pages; padding and pages' rest are NaN."""

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
        super().__init__(key)
        self.queries, self.keys = queries, keys or queries
        width = width or self.info.parameters["d_head"]
        value_width = value_width or width
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

    def check(self, **options: Any) -> None:
        super().check(rounds_probabilities=self.dtype != torch.float32, **options)


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


OWN: Features[Sequences] = {
    "batched queries": ({"packed_q": False}, lambda s: {}),
    "batched keys": ({"packed_k": False}, lambda s: {}),
    "pages": ({"page_size": 16}, lambda s: {}),
    "spare": ({"spare": 5}, lambda s: {}),
    "causal": ({}, lambda s: {"window_right": 0}),
    "right": ({}, lambda s: {"window_right": 20}),
    "heads": ({"heads": 6, "kv_heads": 2}, lambda s: {}),
}


@pytest.mark.parametrize("key", slow_if(lambda key: key.startswith(EMULATED), KERNELS))
def test_features_in_pairs(key: str) -> None:
    lengths = [130, 90, 0, 61], [130, 150, 20, 40]
    check_in_pairs(lambda **shape: Sequences(key, *lengths, **shape), FEATURES | OWN)


@pytest.mark.parametrize("softcap", CAPS)
@pytest.mark.parametrize("key", KERNELS)
def test_a_cap_costs_no_precision(key: str, softcap: float) -> None:
    """However far it is above the scores, or below; an infinite one is none. NaN stays NaN."""
    sequences = Sequences(key, [130, 70])
    sequences.check(softcap=softcap, window_right=0)
    sequences.q[:, 5] = float("nan")
    o, _ = sequences.call(softcap=softcap)
    assert torch.equal(o.isnan().any(-1).any(-1).nonzero(), torch.tensor([[0, 5]]).to(o.device))


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
    # sm90a makes rows anew that share a block with the key, of probabilities that are not rounded.
    allowed = 2.0**-6 if ".sm90a." in key else 0.0
    torch.testing.assert_close(got[:, ~sees], want[:, ~sees], rtol=0, atol=allowed)
    assert not got[:, sees].isfinite().any()


@pytest.mark.gpu
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ON_GPU)
def test_hidden_values_in_many_tiles_of_a_thread_block(key: str, poison: float) -> None:
    """Of a warpgroup some warps make rows anew, others do not, tile after tile."""
    lengths = [1, 64, 130, 190, 200, 250] * 30
    sequences = Sequences(key, lengths)
    window = {"window_left": 30, "window_right": 5}
    want, _ = sequences.call(**window)
    rows = torch.arange(sum(lengths), device=sequences.device)
    of = torch.repeat_interleave(torch.tensor(lengths, device=sequences.device))
    sees = torch.zeros_like(rows, dtype=torch.bool)
    for key_row in (rows[of == i][n // 2] for i, n in enumerate(lengths)):
        for tensor in (sequences.k, sequences.v):
            tensor[:, key_row] = poison
        near = (rows >= key_row - 5) & (rows <= key_row + 30)
        sees |= near & (of == of[key_row])
    allowed = 2.0**-6 if ".sm90a." in key else 0.0
    for _ in range(20):
        got, _ = sequences.call(**window)
        torch.testing.assert_close(got[:, ~sees], want[:, ~sees], rtol=0, atol=allowed)
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


@pytest.mark.parametrize("count", slow_after(2, [1, 2, 32, 40]))
@pytest.mark.parametrize("key", KERNELS)
def test_rows_before_the_first_sequence_are_as_those_behind_the_last(key: str, count: int) -> None:
    """Of no sequence: 0 and -inf, whatever sinks say, and as many as tiles hold, or more."""
    sequences = Sequences(key, [5] * count, heads=6, kv_heads=2)
    for before, behind in ((1, 0), (200, 3)):
        made = Sequences(key, [before, *sequences.queries, behind], heads=6)
        sequences.q = made.q
        sequences.options["cu_seqlens_q"] = made.options["cu_seqlens_q"][1:-1]
        for options in ({}, {"s_aux": made.random(6), "seqused_q": made.ints([3] * count)}):
            sequences.check(window_right=0, **options)


@pytest.mark.parametrize("key", [key for key in CPU if not key.startswith(EMULATED)])
def test_a_page_that_is_not_there_is_refused(key: str) -> None:
    """If a query sees one of its keys."""
    sequences = Sequences(key, [40, 9], [64, 40], page_size=16)
    table = sequences.options["block_table"]
    want, _ = sequences.call(window_right=0)
    table[1, 3] = -1
    got, _ = sequences.call(window_right=0)
    assert torch.equal(got, want)
    for page in (-1, 9, 2**31 - 1):
        table[1, 2] = page
        message = f"block_table: got {page}, expected 0 to 8: there are no more pages"
        with pytest.raises(runtime.InvalidArgument, match=message):
            sequences.call(window_right=0)
    table[1, 2], table[1, 0] = 0, 9  # keys from 31 - 15 on are seen
    sequences.call(window_left=15, window_right=0)


@pytest.mark.parametrize("key", [key for key in KERNELS if key not in CPU or EMULATED in str(key)])
def test_on_a_gpu_a_page_that_is_not_there_reaches_its_own_sequence_alone(key: str) -> None:
    """What lies on the device cannot be refused, but nothing outside the pages is read."""
    sequences = Sequences(key, [40, 9, 70], [64, 40, 90], page_size=16)
    sequences.k.nan_to_num_(), sequences.v.nan_to_num_()
    want, _ = sequences.call()
    table = sequences.options["block_table"]
    table[1, :2] = sequences.ints([-1, 2**31 - 1])
    got, _ = sequences.call()
    assert got.isfinite().all()
    assert torch.equal(got[:, :40], want[:, :40])
    assert torch.equal(got[:, 49:], want[:, 49:])


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
