"""Results: a dtype that the caller chooses, a value that elements have before the kernel runs, and
an extent that only the kernel finds."""

from __future__ import annotations

import pytest
import torch

import runtime
from runtime.front import to_extents

from .conftest import TARGETS, device, kernel

pytestmark = pytest.mark.usefixtures("families")


def compiled(function, dynamic=None):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)


@pytest.mark.parametrize("target", TARGETS)
def test_a_front_takes_the_dtype_of_a_result(target):
    x = torch.rand(9, device=device(target))
    for _ in range(2):  # the first time it is chosen, then looked up
        for dtype in (torch.float64, torch.float8_e5m2, torch.float64):
            assert torch.equal(
                runtime.cast(x, result=dtype).view(torch.uint8), x.to(dtype).view(torch.uint8)
            )
    assert runtime.cast(x.double()).dtype == torch.float32  # the default
    assert runtime.cast(x, result="f64").dtype == torch.float64  # as specs name it
    double = compiled(lambda x: runtime.cast(x, result=torch.float64))(x)
    assert torch.equal(double, x.double())
    with pytest.raises(runtime.InvalidArgument, match=r"^result: got an int, expected a t"):
        runtime.cast(x, result=1)
    with pytest.raises(runtime.KernelNotFound, match="no cast kernel for source f32, result i16"):
        runtime.cast(x, result=torch.int16)


@pytest.mark.parametrize("target", TARGETS)
def test_a_gradient_has_the_dtype_that_its_input_has(target):
    x = torch.rand(9, device=device(target), requires_grad=True)
    weight = torch.rand(9, device=device(target), dtype=torch.float64)
    for call in (runtime.cast, compiled(runtime.cast)):
        (gradient,) = torch.autograd.grad((call(x, result=torch.float64) * weight).sum(), x)
        assert torch.equal(gradient, weight.float())


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_rule_names_flags_and_powers_of_two(dynamic):
    call = runtime.above if dynamic is None else compiled(runtime.above, dynamic)
    for N, dtype, chunk in ((9, "f32", 4), (40, "f32", 16), (20, "f32", 16), (40, "f64", 4)):
        x = torch.randn(N)
        chosen = runtime.explain_call(runtime.above, x, dtype=dtype).key
        assert chosen == f"above.cpu.f32-{dtype}-c{chunk}"
        for most in (None, 3):
            values, count = call(x, most=most, dtype=dtype)
            expected = x[x > 0].to(values.dtype)[:most]
            assert torch.equal(values[:count], expected)
            assert len(values) == ({9: 16, 40: 64, 20: 32}[N] if most is None else 4)
            assert (values[count:] == torch.inf).all()


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_and_workspaces_are_filled_before_each_call(target):
    """(The kernel refuses workspaces that are not.)"""
    x = torch.tensor([1.0, -1.0, 2.0], device=device(target))
    out = x.new_zeros(4), x.new_zeros(4, dtype=torch.int64), x.new_zeros((), dtype=torch.int32)
    select = kernel("above", target, dtype="f32", chunk=4)
    for call in (select, compiled(select)):
        for written in (None, out):
            for _ in range(2):
                values, indices, count = call(x, return_indices=True, out=written)
                assert values.tolist() == [1, 2, torch.inf, torch.inf]
                assert indices.tolist() == [0, 2, -1, -1]
                assert count == 2
    values, count = select(x[:0], most=1)
    assert (values.tolist(), count) == ([torch.inf], 0)


@pytest.mark.parametrize("target", TARGETS)
def test_a_front_cuts_outputs_to_the_extents_that_the_kernel_found(target):
    for length in (7, 40):
        x = torch.randn(length, device=device(target))
        expected, places = x[x > 0], (x > 0).nonzero()[:, 0]
        values, indices, count = runtime.above(x, return_indices=True, sliced=True)
        assert torch.equal(values, expected)
        assert torch.equal(indices, places)
        assert count == len(expected)
        values, count = runtime.above(x, most=2, sliced=True)
        assert torch.equal(values, expected[:2])


def test_compiled_graphs_have_sizes_without_values():
    def model(x):
        values, indices, _ = runtime.above(x * 2, return_indices=True, sliced=True)
        return values.sum() + values.shape[0], x[indices]

    call = compiled(model)
    with torch._dynamo.config.patch(capture_scalar_outputs=True, error_on_recompile=True):
        for x in (torch.randn(8), torch.randn(8), -torch.rand(8)):  # none is positive
            for result, expected in zip(call(x), model(x), strict=True):
                assert torch.equal(result, expected)


def test_an_extent_beyond_its_bound_is_refused():
    message = "above: values holds 2, but count is 3: raise the bound"
    with pytest.raises(runtime.InvalidArgument, match=message):
        to_extents("above", (torch.zeros(2), torch.tensor(3)), (False,))


@pytest.mark.gpu
def test_cuda_graphs_fill_again():
    x = torch.tensor([1.0, -1.0, 2.0], device="cuda")
    select = kernel("above", "sm80", dtype="f32", chunk=4)
    select(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, count = select(x)
    for first in (1.0, -1.0):
        x[0] = first
        graph.replay()
        expected = [1.0, 2.0] if first > 0 else [2.0]
        assert values.tolist() == expected + [torch.inf] * (4 - len(expected))
        assert count == len(expected)
