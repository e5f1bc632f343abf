"""Launches: 3-D blocks, clusters, dependent and cooperative launches, objects that outlive them."""

from __future__ import annotations

import shutil

import pytest
import torch

import runtime

from .conftest import kernel

pytestmark = pytest.mark.usefixtures("families")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(
    "family", ["cluster_sum", "dependent_steps", "grid_sums", "laplacian", "lookup"]
)
def test_they_compile(family):
    infos = runtime.kernels(family)
    assert infos
    assert all(info.built and info.registers > 0 for info in infos)


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_the_blocks_of_a_cluster_share_their_memory(blocks):
    x = torch.randn(300, 5000, device="cuda")
    out = torch.full((300,), float("nan"), device="cuda")
    kernel("cluster_sum", "sm90a", blocks=blocks)(x, out=out)
    # Sums of 5000 numbers of size 1 in f32.
    torch.testing.assert_close(out.double(), x.double().sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
def test_a_launch_that_cuda_does_not_take_names_its_key():
    run = kernel("cluster_sum", "sm90a", blocks=2)
    with pytest.raises(
        RuntimeError,
        match=rf"^{run.info.key}: got a launch grid of 2 x 65536 x 1, expected .*; here M = 65536",
    ):
        run(torch.ones(65536, 1, device="cuda"))
    y = run(torch.ones(65535, 1, device="cuda"))  # nothing is left of the error
    assert torch.equal(y, torch.ones_like(y))


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [False, True])
def test_dependent_steps_follow_each_other(overlap):
    run = kernel("dependent_steps", "sm90a")
    x = torch.randint(0, 100, (1 << 20,), device="cuda").float()
    y = x
    for _ in range(50):
        y = run(y, overlap=overlap)
    assert torch.equal(y, x.roll(-50) + 50)


@pytest.mark.gpu
def test_dependent_steps_in_a_graph():
    run = kernel("dependent_steps", "sm90a")
    x = torch.randint(0, 100, (1 << 16,), device="cuda").float()
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(run(run(x)))
    for _ in range(3):
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, x.roll(-3) + 3)


def rounds_of_sums(x, rounds):
    """Computes the results of grid_sums with whole numbers."""
    y = x.cpu().long()
    for _ in range(rounds):
        y = (y + y.sum()) % 2**32
    return torch.where(y < 2**31, y, y - 2**32).int()


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["sm80", "sm90a"])
@pytest.mark.parametrize("count", [1, 1000, 3_000_001])
def test_all_blocks_of_a_cooperative_launch_wait_for_each_other(target, count):
    run = kernel("grid_sums", target)
    x = torch.randint(-100, 100, (count,), device="cuda", dtype=torch.int32)
    for rounds in (1, 50):
        assert torch.equal(run(x, rounds=rounds).cpu(), rounds_of_sums(x, rounds))


@pytest.mark.gpu
def test_a_cooperative_launch_in_a_graph():
    run = kernel("grid_sums", "sm80")
    x = torch.randint(-100, 100, (100_000,), device="cuda", dtype=torch.int32)
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(run(x, rounds=3), rounds=4)
    for _ in range(3):
        y.zero_()
        graph.replay()
        assert torch.equal(y.cpu(), rounds_of_sums(x, 7))


@pytest.mark.gpu
def test_a_cooperative_launch_of_more_blocks_than_the_device_holds_is_refused():
    run = kernel("grid_sums", "sm80")
    x = torch.ones(1000, device="cuda", dtype=torch.int32)
    multiprocessors = runtime.sm_count(x.device)
    with pytest.raises(
        RuntimeError,
        match=rf"^{run.info.key}: got a cooperative launch of {33 * multiprocessors} x 1 x 1 "
        r"blocks, expected at most the \d+ that this device holds at once",
    ):
        run(x, blocks=33 * multiprocessors)
    assert torch.equal(run(x, blocks=multiprocessors), x + 1000)  # nothing is left of the error


def looked_up(x, first):
    return x.flip(0) + first + torch.arange(len(x), device=x.device) % 4


@pytest.mark.gpu
def test_texture_objects_and_host_memory_live_until_the_work_has_ended():
    run = kernel("lookup", "sm80")
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [torch.randint(0, 100, (n,), device="cuda").float() for n in (1, 1000, 1 << 22)]
    torch.cuda.synchronize()
    results = []
    for first in range(100):
        for x in inputs:
            with torch.cuda.stream(streams[first % 2]):
                results.append((run(x, first=first), x, first))
    torch.cuda.synchronize()
    for y, x, first in results:
        assert torch.equal(y, looked_up(x, first))


@pytest.mark.gpu
def test_texture_objects_and_host_memory_live_as_long_as_a_graph():
    run = kernel("lookup", "sm80")
    x = torch.randint(0, 100, (100_000,), device="cuda").float()
    for _ in range(3):  # the last graph's objects are released by the next one's calls
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = run(run(x, first=1), first=2)
        for first in range(20):
            run(x, first=first)
            y.zero_()
            graph.replay()
            assert torch.equal(y, looked_up(looked_up(x, 1), 2))
        del graph, y


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 2, 33), (17, 30, 70)])
def test_blocks_have_three_axes(depth, shape):
    x = torch.randn(shape, device="cuda")
    out = torch.full_like(x, float("nan"))
    kernel("laplacian", "sm80", depth=depth)(x, out=out)
    padded = torch.nn.functional.pad(x.double(), (1,) * 6)
    expected = -6 * x.double()
    for axis in range(3):
        for start in (0, 2):
            part = padded
            for other in range(3):
                part = part.narrow(other, start if other == axis else 1, shape[other])
            expected += part
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
