"""Gradients that specs declare: what autograd gets of other families' kernels."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import runtime
from tests.slow import slow_after

pytestmark = pytest.mark.usefixtures("families")

STARTS = torch.tensor([0, 2, 2, 5])


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def norm_inputs(dtype=torch.float64):
    return leaf(4, 6, dtype=dtype), leaf(6, dtype=dtype), leaf(6, dtype=dtype)


def row_norm(*arguments, **options):
    return runtime.row_norm(*arguments, **options)


def expected(x, weight, bias=None, *, gain=None, activation="none", one_more=False):
    gain = x.shape[1] ** -0.5 if gain is None else gain
    y = gain * x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * (weight + one_more)
    y = y if bias is None else y + bias
    return y.relu() if activation == "relu" else y


class Recorded(TorchDispatchMode):
    """The calls of the operator of one family."""

    def __init__(self, family):
        super().__init__()
        self.operator = getattr(torch.ops.kernelmint, family).default
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is self.operator:
            self.calls.append((args, kwargs or {}))
        return function(*args, **kwargs or {})


def test_two_families_are_each_others():
    for key, options, rows in (
        ("csr_sum.cpu.f64", {}, 5),
        ("csr_gather.cpu.f64", {"rows": 5}, 3),
    ):
        kernel = runtime.kernel(key)
        for check in (gradcheck, gradgradcheck):
            assert check(lambda src, k=kernel, o=options: k(src, STARTS, **o), leaf(rows, 3))


def test_a_call_has_the_first_gradient_whose_condition_holds():
    squares = runtime.kernel("csr_sum.cpu.f64-squared")
    for check in (gradcheck, gradgradcheck):
        assert check(lambda src: squares(src, STARTS), leaf(5, 3))
    compiled = torch.compile(squares, fullgraph=True, backend="aot_eager")
    src = leaf(5, 3)
    (found,) = torch.autograd.grad(compiled(src, STARTS).sum(), src)
    torch.testing.assert_close(found, 2 * src)
    with pytest.raises(runtime.InvalidArgument, match="csr_sum has no gradient for it"):
        runtime.kernel("csr_sum.cpu.f32-squared")(leaf(5, 3, dtype=torch.float32), STARTS)


@pytest.mark.parametrize("one_more", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("gain", [None, 0.3])
def test_what_decides_and_scales_the_call_does_so_in_its_backward(one_more, activation, gain):
    x, weight, bias = norm_inputs()
    options = {"one_more": one_more, "activation": activation, "gain": gain}
    torch.testing.assert_close(
        row_norm(x, weight, bias, **options), expected(x, weight, bias, **options)
    )
    assert gradcheck(lambda *a: row_norm(*a, **options), (x, weight, bias))
    assert gradcheck(lambda *a: row_norm(*a, **options), (x, weight))
    info = runtime.kernels("row_norm", where=f"dtype == f64 and one_more == {one_more}")[0]
    del options["one_more"]
    assert gradcheck(lambda *a: runtime.kernel(info.key)(*a, **options), (x, weight, bias))


def test_the_gradient_may_take_what_no_kernel_of_the_call_does():
    inputs = norm_inputs()
    compiled = torch.compile(row_norm, fullgraph=True, backend="aot_eager")
    for call in (row_norm, compiled):
        y = call(*inputs, activation="relu", slope=0.5)
        torch.testing.assert_close(y, expected(*inputs, activation="relu"))
        wanted = torch.nn.functional.leaky_relu(expected(*inputs), 0.5)
        torch.testing.assert_close(
            torch.autograd.grad(y.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs)
        )
    with torch.no_grad():
        row_norm(*inputs, slope=-1.0)
    refused = "row_norm: its gradient requires slope >= 0, because what lies below 0 pulls"
    with pytest.raises(runtime.InvalidArgument, match=refused):
        row_norm(*inputs, slope=-1.0)


def test_they_have_the_inputs_dtype():
    """The weight's is summed in f64."""
    inputs = norm_inputs(torch.float32)
    found = torch.autograd.grad(row_norm(*inputs).square().sum(), inputs)
    exact = torch.autograd.grad(expected(*(t.double() for t in inputs)).square().sum(), inputs)
    for ours, wanted in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


def test_only_what_is_asked_for_is_computed_and_only_what_it_takes_is_kept():
    x, weight, bias = norm_inputs()
    y, positive = row_norm(x.detach(), weight, bias.detach(), return_positive=True)
    assert not positive.requires_grad
    with Recorded("row_norm_gradient") as recorded:
        y.sum().backward()
    (((_key, _dy, _x, _y, _weight, _scale, _bias, dweight, *dbias), options),) = recorded.calls
    assert torch.equal(weight.grad, dweight)
    assert dbias in ([], [None])
    assert not options.get("return_dx", False)

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        runtime.kernel("csr_sum.cpu.f64")(leaf(5, 3), STARTS)
    assert [t.dtype for t in kept] == [torch.int64]


@pytest.mark.parametrize("gradient", ["expanded", "sliced", "transposed", "of two"])
def test_however_the_outputs_gradient_is_laid_out(gradient):
    x, weight, _ = norm_inputs()
    turned = x.detach().t().contiguous().t().requires_grad_()

    def loss(y):
        if gradient == "expanded":
            return y.sum()
        if gradient == "sliced":
            return (torch.cat([y, y], 1)[:, 3:9] * torch.arange(6)).sum()
        return (y.t() * torch.arange(4)).sum() if gradient == "transposed" else (y + y * y).sum()

    found = torch.autograd.grad(loss(row_norm(turned, weight)), (turned, weight))
    wanted = torch.autograd.grad(loss(expected(x, weight)), (x, weight))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    slow_after(2, [("aot_eager", False), ("aot_eager", True), ("inductor", None)]),
)
def test_compiled_joint_graphs_have_them(backend, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x, weight, bias: row_norm(x * 2, weight, bias, activation="relu"),
        fullgraph=True, backend=backend, dynamic=dynamic,
    )  # fmt: skip
    for rows in (4, 7):
        _, weight, bias = norm_inputs()
        x = leaf(rows, 6)
        found = torch.autograd.grad(compiled(x, weight, bias).sum(), (x, weight, bias))
        wanted = expected(x * 2, weight, bias, activation="relu").sum()
        torch.testing.assert_close(found, torch.autograd.grad(wanted, (x, weight, bias)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_and_autocast_have_them(reentrant):
    inputs = norm_inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(row_norm, *inputs, use_reentrant=reentrant)
        found = torch.autograd.grad(y.sum(), inputs) if not reentrant else None
        if reentrant:
            y.sum().backward()
            found = [t.grad for t in inputs]
    wanted = torch.autograd.grad(expected(*inputs).sum(), inputs)
    torch.testing.assert_close(list(found), list(wanted), rtol=1e-5, atol=1e-5)


def test_the_operators_have_them():
    inputs = norm_inputs()
    opcheck(torch.ops.kernelmint.row_norm.default, ("row_norm.cpu.f64", *inputs), {"slope": 0.5})
    gather = torch.ops.kernelmint.csr_gather.default
    opcheck(gather, ("csr_gather.cpu.f64", leaf(3, 2), STARTS), {"rows": 5})
    exported = torch.export.export(_Norm(), inputs).module()
    torch.testing.assert_close(exported(*inputs), expected(*inputs))
    stacked = torch.stack([inputs[0].detach(), 2 * inputs[0].detach()])
    mapped = torch.vmap(lambda x: row_norm(x, *(t.detach() for t in inputs[1:])))(stacked)
    torch.testing.assert_close(mapped[1], expected(stacked[1], *inputs[1:]))


class _Norm(torch.nn.Module):
    def forward(self, x, weight, bias):
        return row_norm(x, weight, bias)


def test_many_gradients_at_once():
    inputs = norm_inputs()
    many = torch.randn(3, 4, 6, dtype=torch.float64)
    for call in (row_norm, expected):
        y = call(*inputs, activation="relu")
        found = torch.autograd.grad(y, inputs, many, is_grads_batched=True, retain_graph=True)
        one = torch.autograd.grad(y, inputs, many[1])
        torch.testing.assert_close([t[1] for t in found], list(one))
    squares = runtime.kernel("csr_sum.cpu.f64-squared")
    src = leaf(5, 3)
    for derivative in (torch.autograd.functional.jacobian, torch.autograd.functional.hessian):
        found, wanted = (
            derivative(lambda src: squares(src, STARTS).square().sum(), src, vectorize=at_once)
            for at_once in (True, False)
        )
        torch.testing.assert_close(found, wanted)


def test_second_derivatives_are_refused_by_name_if_there_are_none():
    x, weight, _ = norm_inputs()
    (dx,) = torch.autograd.grad(row_norm(x, weight).sum(), x, create_graph=True)
    torch.testing.assert_close(dx, torch.autograd.grad(expected(x, weight).sum(), x)[0])
    dx.mul_(2)  # they are tensors as others

    def penalty():
        y = row_norm(x, weight)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y.sum() + dx.square().sum()

    refused = pytest.raises(
        RuntimeError, match="row_norm: its gradients are row_norm_gradient's, which has none"
    )
    for asked in ([x], [weight], [x, weight]):
        with refused:
            torch.autograd.grad(penalty(), asked)
        with refused:
            penalty().backward(inputs=asked)
    for ask in (dx.sum().backward, lambda: penalty().backward()):
        with refused:
            ask()
    with refused:
        gradgradcheck(row_norm, (x, weight))


def test_no_kernel_fills_zeros_for_outputs_that_have_none():
    x, weight, _ = norm_inputs()
    y = row_norm(x, weight.detach(), return_scale=True)[0]
    dy = torch.ones_like(y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.autograd.grad(y, x, dy)
    called = {event.key for event in profile.key_averages()}
    assert "_DifferentiableBackward" in called
    assert not called & {"aten::zeros", "aten::zero_", "aten::fill_"}
