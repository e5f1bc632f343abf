"""What records or transforms what PyTorch does sees the operator, and what it makes computes the
same from other inputs: make_fx, torch.jit.trace, torch.func, modes, torch.export."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from kernel_specs.hstu.hstu_bsa.reference import GateMLP

INFO = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and not causal")[0]


def qkv(length=19):
    return torch.randn(3, 2, length, 4, 64).unbind()


def bhsd(length=19):
    return tuple(t.transpose(1, 2).contiguous() for t in qkv(length))


def gated(length=70):
    info = runtime.kernels("block_sparse", "cpu")[0].parameters
    shapes = [info["attention_dim"]] * 2 + [info["linear_dim"]] * 2
    return *(torch.randn(2, length, 4, size) for size in shapes), torch.rand(2, length, 4)


def block_sparse(*tensors):
    info = runtime.kernels("block_sparse", "cpu")[0].parameters
    options = {name: info[name] for name in ("block_count", "block_size", "mode")}
    return runtime.block_sparse_attention(*tensors, **options)


def written(q, k, v):
    o, lse = torch.zeros_like(q), q.new_zeros(q.shape[0], q.shape[2], q.shape[1])
    runtime.kernel(INFO.key)(q, k, v, return_lse=True, out=(o, lse))
    return o + 1, lse


CALLS = {
    "attention": (lambda *t: runtime.attention(*t, causal=True) * 2, qkv),
    "attention with lse": (lambda *t: runtime.attention(*t, return_lse=True), qkv),
    "attention bhsd": (lambda *t: runtime.attention(*t, layout="bhsd").relu(), bhsd),
    "a kernel": (lambda *t: runtime.kernel(INFO.key)(*t, scale=0.5), qkv),
    "a kernel's out": (written, qkv),
    "forward": (lambda *t: runtime.forward(INFO.key, *t), qkv),
    "block_sparse_attention": (block_sparse, gated),
}
every_call = pytest.mark.parametrize(("call", "inputs"), CALLS.values(), ids=CALLS)


def same(actual, expected):
    if isinstance(expected, torch.Tensor):
        return torch.equal(actual, expected)
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def operators(graph):
    return [str(node.target) for node in graph.nodes if str(node.target).startswith("kernelmint.")]


@every_call
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_the_operator(call, inputs, mode, pre_dispatch):
    module = make_fx(call, tracing_mode=mode, pre_dispatch=pre_dispatch)(*inputs())
    assert len(operators(module.graph)) == 1
    for tensors in (inputs(), inputs(35) if mode == "symbolic" else inputs()):
        assert same(module(*tensors), call(*tensors))


@every_call
def test_a_trace_of_torchscript_computes_the_same(call, inputs):
    traced = torch.jit.trace(call, inputs())
    assert "kernelmint::" in str(traced.graph)
    for tensors in (inputs(), inputs(35)):
        assert same(traced(*tensors), call(*tensors))


@every_call
def test_export_without_dynamo_records_the_operator(call, inputs):
    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return call(*tensors)

    program = torch.export.export(Model(), inputs(), strict=False)
    assert len(operators(program.graph)) == 1
    tensors = inputs()
    assert same(program.module()(*tensors), call(*tensors))


@every_call
def test_a_dispatch_mode_sees_one_call_and_fake_tensors_run_nothing(call, inputs):
    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    tensors = inputs()
    expected = call(*tensors)
    with Log() as log:
        assert same(call(*tensors), expected)
    assert sum(name.startswith("kernelmint.") for name in log.seen) == 1
    with FakeTensorMode() as mode:
        fake = call(*(mode.from_tensor(t) for t in tensors))
    results = ((r,) if isinstance(r, torch.Tensor) else r for r in (fake, expected))
    for result, real in zip(*results, strict=True):
        assert isinstance(result, FakeTensor)
        assert (result.shape, result.dtype) == (real.shape, real.dtype)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_and_functionalize():
    q, k, v = qkv()
    many = torch.randn(3, *q.shape)
    mapped = torch.func.vmap(lambda q: runtime.attention(q, k, v))(many)
    assert torch.equal(mapped, torch.stack([runtime.attention(q, k, v) for q in many]))
    assert torch.equal(
        torch.func.functionalize(runtime.attention)(q, k, v), runtime.attention(q, k, v)
    )


def test_derivatives_that_there_are_not_are_refused_with_the_reason():
    q, k, v = qkv()

    def loss(q):
        return runtime.attention(q, k, v).sum()

    with pytest.raises(runtime.InvalidArgument, match=r"torch.func cannot differentiate it"):
        torch.func.grad(loss)(q)
    with pytest.raises(runtime.InvalidArgument, match="q: has a tangent of forward-mode"):
        torch.func.jvp(loss, (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(runtime.attention(q, k, v), runtime.attention(q, k, v))
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(runtime.InvalidArgument, match="q: has a tangent of forward-mode"):
            runtime.attention(dual, k, v)


def test_what_depends_on_offsets_is_not_traced():
    info = runtime.kernels("hstu_bsa", "cpu")[0].parameters
    a, b = info["attention_dim"], info["linear_dim"]
    gates = GateMLP(a)
    offsets, mask = torch.tensor([0, 40, 70]), torch.zeros(64, 64, dtype=torch.bool)

    def call(q, v, offsets):
        return runtime.hstu_attention_with_bsa(
            2, a, b, q, q, v, v, offsets, mask, gates,
            block_count=info["block_count"], block_size=info["block_size"], mode=info["mode"],
        )  # fmt: skip

    q, v = torch.randn(70, 2 * a), torch.randn(70, 2 * b)
    with torch.no_grad():
        assert call(q, v, offsets)[0].shape == v.shape
        with pytest.raises(runtime.InvalidArgument, match="depends on the values of x_offsets"):
            torch.jit.trace(call, (q, v, offsets))
        with pytest.raises(RuntimeError, match=r"data-dependent|tracing tensor"):
            make_fx(call)(q, v, offsets)
