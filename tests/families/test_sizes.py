"""Sizes that a call decides: by scalars, by the device, by a library that the launch asks."""

from __future__ import annotations

import re

import pytest
import torch
from torch.library import opcheck

from runtime import InvalidArgument, handle

from .conftest import TARGETS, device, kernel

pytestmark = pytest.mark.usefixtures("families")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


class Cache:
    """A paged cache with the sequences' pages strewn over it, and queries; page 0 is unused."""

    def __init__(self, target, lengths, dtype=torch.float32, page_size=16, heads=4, kv_heads=2):
        pages_of_one = max(-(-max(lengths) // page_size), 1)
        count = len(lengths) * pages_of_one
        shape = (count + 1, page_size, kv_heads, 64)
        options = {"device": device(target), "dtype": dtype}
        self.q = torch.randn(len(lengths), heads, 64, **options)
        self.k, self.v = torch.randn(shape, **options), torch.randn(shape, **options)
        table = torch.randperm(count).reshape(len(lengths), pages_of_one) + 1
        self.k[0] = self.v[0] = float("nan")
        self.page_table = table.to(device(target), torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device(target))

    @property
    def arguments(self):
        return self.q, self.k, self.v, self.page_table, self.lengths

    def expected(self, splits):
        """o and the log-sum-exp of each split, in fp64."""
        batch, heads, size = self.q.shape
        o = torch.zeros(batch, heads, size, dtype=torch.double)
        lse = torch.full((batch, heads, splits), -torch.inf, dtype=torch.double)
        for b, length in enumerate(self.lengths.tolist()):
            pages = self.page_table[b].long()
            k, v = (t[pages].flatten(0, 1)[:length].double().cpu() for t in (self.k, self.v))
            group = heads // k.shape[1]
            k, v = (t.repeat_interleave(group, 1) for t in (k, v))
            scores = torch.einsum("hd,khd->hk", self.q[b].double().cpu(), k) * size**-0.5
            o[b] = torch.einsum("hk,khd->hd", scores.softmax(1), v)
            for split, part in enumerate(scores.split(max(-(-length // splits), 1), 1)):
                lse[b, :, split] = part.logsumexp(1)
        return o, lse


def decode(target, dtype="f32"):
    return kernel("paged_decode", target, dtype=dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("splits", [1, 3, 16, 1000])
def test_decode_with_so_many_splits_as_the_call_says(target, splits):
    cache = Cache(target, [0, 1, 37, 200])
    out = torch.full_like(cache.q, float("nan"))
    lse = torch.full((4, 4, splits), float("nan"), device=device(target))
    decode(target)(*cache.arguments, splits=splits, return_partial_lse=True, out=(out, lse))
    o, expected_lse = cache.expected(splits)
    # Products of 64 numbers and sums of 200 in f32; the GPU's exp and log are good to 2^-21.
    torch.testing.assert_close(out.double().cpu(), o, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double().cpu(), expected_lse, rtol=1e-4, atol=1e-4)
    assert torch.equal(decode(target)(*cache.arguments, splits=splits), out)


@pytest.mark.gpu
def test_decode_of_16_bit_numbers():
    cache = Cache("sm80", [4000, 17], torch.bfloat16)
    out = decode("sm80", "bf16")(*cache.arguments, splits=8)
    torch.testing.assert_close(out.double().cpu(), cache.expected(8)[0], rtol=2**-7, atol=2**-9)


def test_splits_that_are_left_out_follow_from_the_shapes():
    cache = Cache("cpu", [700, 3], page_size=16)
    _, lse = decode("cpu")(*cache.arguments, return_partial_lse=True)
    assert lse.shape == (2, 4, 3)  # 44 pages of 16 keys
    torch.testing.assert_close(lse.double(), cache.expected(3)[1], rtol=1e-4, atol=1e-4)


def test_requirements_see_scalars():
    cache = Cache("cpu", [5])
    key = re.escape(decode("cpu").info.key)
    for splits in (0, 1025):
        with pytest.raises(
            InvalidArgument,
            match=rf"^{key}: requires splits >= 1 and splits <= 1024, because a split has keys of "
            rf"its own; here splits = {splits}$",
        ):
            decode("cpu")(*cache.arguments, splits=splits)
    with pytest.raises(InvalidArgument, match=r"requires scale > 0, .*; here scale = -0\.5$"):
        decode("cpu")(*cache.arguments, scale=-0.5)


def test_the_shape_of_an_output_that_is_passed_follows_the_scalar():
    cache = Cache("cpu", [5])
    out = (torch.empty_like(cache.q), torch.empty(1, 4, 3))
    with pytest.raises(InvalidArgument, match=r"expected \[1, 4, 2\] = \[B, H, splits\]$"):
        decode("cpu")(*cache.arguments, splits=2, return_partial_lse=True, out=out)


@pytest.mark.parametrize("target", TARGETS)
def test_compiled_extents_follow_scalars_without_a_graph_for_each(target):
    """The scalar is a number of the graph: from the second value on, one graph serves all."""
    cache, run = Cache(target, [37, 200]), decode(target)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend, dynamic=True)
    def lse(splits):
        return run(*cache.arguments, splits=splits, return_partial_lse=True)[1] + 1

    for splits in (2, 3, 7, 11):
        got = lse(splits)
        assert got.shape == (2, 4, splits)
        expected = cache.expected(splits)[1] + 1
        torch.testing.assert_close(got.double().cpu(), expected, rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_extents_from_a_default(backend):
    cache, run = Cache("cpu", [700]), decode("cpu")
    compiled = torch.compile(
        lambda *arguments: run(*arguments, return_partial_lse=True), fullgraph=True, backend=backend
    )
    o, lse = compiled(*cache.arguments)
    assert lse.shape == (1, 4, 3)
    torch.testing.assert_close(o.double(), cache.expected(3)[0], rtol=1e-4, atol=1e-5)


def test_the_operators_agree_with_their_fake_kernels():
    cache = Cache("cpu", [37, 200])
    key = decode("cpu").info.key
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for options in ({}, {"splits": 5, "return_partial_lse": True}):
        opcheck(
            torch.ops.kernelmint.paged_decode.default, (key, *cache.arguments), options,
            test_utils=tests,
        )  # fmt: skip
    x = torch.randint(0, 9, (100,), dtype=torch.int32)
    for parameters in ({"twice": False}, {"twice": True}):
        key = kernel("histogram", "cpu", **parameters).info.key
        opcheck(torch.ops.kernelmint.histogram.default, (key, x), {"bins": 9}, test_utils=tests)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("twice", [False, True])
def test_workspaces_are_zeroed_and_know_the_device(target, twice):
    """Each call: what was there before is other calls' counts."""
    run = kernel("histogram", target, twice=twice)
    for bins in (1, 1000, 7, 1000, 20_000):
        x = torch.randint(-3, bins + 3, (30_000,), dtype=torch.int32, device=device(target))
        out = torch.full((bins * (2 if twice else 1),), -7, dtype=torch.int32, device=x.device)
        expected = torch.bincount(x[(x >= 0) & (x < bins)].cpu(), minlength=bins)
        for got in (run(x, bins=bins), run(x, bins=bins, out=out)):
            assert torch.equal(got.cpu().long(), expected.repeat(2 if twice else 1))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_device_of_a_cpu_call_is_its_threads(threads):
    run, before = kernel("histogram", "cpu", twice=False), torch.get_num_threads()
    x = torch.randint(0, 50, (30_000,), dtype=torch.int32)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(run(x, bins=50).long(), torch.bincount(x, minlength=50))
    finally:
        torch.set_num_threads(before)


def test_a_requirement_says_what_the_device_and_derived_values_are():
    run, before = kernel("histogram", "cpu", twice=True), torch.get_num_threads()
    torch.set_num_threads(513)
    try:
        with pytest.raises(InvalidArgument, match=r"; here sm_count = 513, copies = 2$"):
            run(torch.zeros(5, dtype=torch.int32), bins=9)
    finally:
        torch.set_num_threads(before)


@pytest.mark.gpu
def test_shared_memory_grows_with_a_scalar_up_to_the_devices():
    """The opt-in follows the largest that was asked for; more than there is, is refused."""
    run = kernel("histogram", "sm80", twice=False)
    most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    x = torch.randint(0, 5000, (30_000,), dtype=torch.int32, device="cuda")
    expected = torch.bincount(x.cpu(), minlength=5000)
    for bins in (13_000, 20_000, 12_500, most // 4 - 8):  # 8: is_last is shared memory, too
        assert torch.equal(run(x, bins=bins)[:5000].cpu().long(), expected)
    with pytest.raises(InvalidArgument, match=rf"here bins = .*, max_shared_memory = {most}$"):
        run(x, bins=most // 4 + 1)


def whole_numbers(length, where):
    """f32 whose sums are exact in any order."""
    return torch.randint(-9, 10, (length,), device=where).float()


@pytest.mark.parametrize("target", TARGETS)
def test_a_librarys_workspace_comes_from_the_launch(target):
    run = kernel("inclusive_sum", target)
    for length in (1, 4096, 100_003):
        x = whole_numbers(length, device(target))
        out = torch.full_like(x, float("nan"))
        run(x, out=out)
        assert torch.equal(out.double(), x.double().cumsum(0))
        assert torch.equal(run(x, spare=12345), out)


def test_memory_that_is_not_there_is_an_error_of_the_call():
    run, x = kernel("inclusive_sum", "cpu"), whole_numbers(1000, "cpu")
    with pytest.raises(
        RuntimeError, match=r"^inclusive_sum\.cpu\.default: there is no memory left for \d+ bytes"
    ):
        run(x, spare=2**62)
    with pytest.raises(RuntimeError, match=r"^inclusive_sum\.cpu\.default: got a request for \d+"):
        run(x, spare=2**63 - 1)
    assert torch.equal(run(x).double(), x.double().cumsum(0))


def test_a_launchs_memory_is_given_back():
    def mapped():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * 4096

    run, x = kernel("inclusive_sum", "cpu"), torch.randn(1000)
    run(x, spare=2**30)
    before = mapped()
    for _ in range(32):
        run(x, spare=2**30)
    assert mapped() - before < 2**32


@pytest.mark.gpu
def test_a_launchs_memory_is_pytorchs():
    run, x = kernel("inclusive_sum", "sm80"), whole_numbers(100_003, "cuda")
    expected = run(x)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(x, spare=2**28)
    assert torch.cuda.max_memory_allocated() - before >= 2**28
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(torch.OutOfMemoryError):
        run(x, spare=2**50)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        y = run(x, spare=2**20)
    for _ in range(3):
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, expected)


def test_the_signature_says_what_a_scalar_is():
    assert issubclass(type(decode("cpu")), handle.Kernel)
    assert "splits: i32, default min(max(ceil_div(" in type(decode("cpu")).__doc__
