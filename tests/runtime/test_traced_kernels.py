"""The trace of a kernel: what `trace()` returns, and that nothing else knows of it."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import runtime

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}
TRACED = {
    info.key: runtime.kernel(info.key) for info in runtime.build("flash_forward", set_name="traced")
}
every_traced_kernel = pytest.mark.parametrize("kernel", TRACED.values(), ids=TRACED)
UNTRACED = runtime.kernels("flash_forward", "cpu", where="not trace and dtype == f32")[0]


def inputs(kernel, seq_len_q=150, seq_len_k=290):
    p, device = kernel.info.parameters, "cuda" if kernel.info.is_cuda else "cpu"
    shapes = [(2, seq_len_q, 4, p["d_head"]), *[(2, seq_len_k, 2, p["d_head"])] * 2]
    generator = torch.Generator().manual_seed(1)
    tensors = (torch.randn(shape, generator=generator) for shape in shapes)
    return tuple(tensor.to(device, DTYPES[p["dtype"]]) for tensor in tensors)


def bits(tensor):
    return tensor.contiguous().view(torch.int32)


@every_traced_kernel
def test_the_trace_has_the_shapes_that_the_spec_declares(kernel):
    p = kernel.info.parameters
    B_r, B_c, d = p["B_r"], p["B_c"], p["d_head"]
    _, trace = kernel.trace(*inputs(kernel))
    grid = (2, 4, math.ceil(150 / B_r), math.ceil(290 / B_c))
    assert {name: tuple(tensor.shape[4:]) for name, tensor in trace.items()} == {
        "Q": (B_r, d),
        "K": (B_c, d),
        "S_pre_scaling": (B_r, B_c),
        "M": (B_r,),
        "L": (B_r,),
        "P": (B_r, B_c),
        "V": (B_c, d),
        "O_scale": (B_r,),
        "O": (B_r, d),
    }
    for tensor in trace.values():
        assert tensor.shape[:4] == grid
        assert tensor.dtype == torch.float32


@every_traced_kernel
@pytest.mark.parametrize("seq_len_q", [3, 290])
def test_scores_past_the_last_key_are_0(kernel, seq_len_q):
    """Though a call before left 290 keys where the kernel keeps those of a block."""
    kernel.trace(*inputs(kernel, 290, 290))
    _, trace = kernel.trace(*inputs(kernel, seq_len_q, 150))
    past = trace["S_pre_scaling"][:, :, :, -1, :, 150 % kernel.info.parameters["B_c"] :]
    assert bool(((past == 0) | past.isnan()).all())


@every_traced_kernel
def test_two_identical_traced_calls_give_identical_tensors(kernel):
    """Whatever the memory held before; what no step writes is NaN: blocks that no row sees."""
    q, k, v = inputs(kernel, 290, 150)
    _, first = kernel.trace(q, k, v)
    rubbish = [torch.full_like(tensor, 7.0) for tensor in first.values()]
    del rubbish
    _, second = kernel.trace(q, k, v)
    for name in first:
        assert torch.equal(bits(first[name]), bits(second[name])), name
    p = kernel.info.parameters
    last_row = torch.arange(p["B_r"], 290 + p["B_r"], p["B_r"]).clamp(max=290) - 1
    last_key = last_row + 150 - 290 if p["causal"] else torch.full_like(last_row, 149)
    is_met = torch.arange(0, 150, p["B_c"]) <= last_key[:, None]
    assert bool(is_met.all()) is not p["causal"]
    for name, tensor in first.items():
        is_nan = tensor.cpu().isnan().flatten(4)
        assert torch.equal(is_nan.any(-1), is_nan.all(-1)), name
        assert torch.equal(is_nan.all(-1), ~is_met.expand(2, 4, -1, -1)), name


@every_traced_kernel
def test_the_result_is_that_of_an_ordinary_call(kernel):
    q, k, v = inputs(kernel)
    o, lse = kernel(q, k, v, scale=0.3, return_lse=True)
    (traced_o, traced_lse), _ = kernel.trace(q, k, v, scale=0.3, return_lse=True)
    assert torch.equal(traced_o, o)
    assert torch.equal(traced_lse, lse)
    out = torch.empty_like(o)
    assert kernel.trace(q, k, v, scale=0.3, out=out)[0] is out
    assert torch.equal(out, o)


@every_traced_kernel
def test_arguments_are_checked_as_at_any_call(kernel):
    q, k, v = inputs(kernel)
    with pytest.raises(runtime.InvalidArgument, match=r"k: got dtype torch\.float64, expected"):
        kernel.trace(q, k.double(), v)


@every_traced_kernel
def test_nothing_to_compute_traces_nothing(kernel):
    q, k, v = inputs(kernel)
    o, trace = kernel.trace(q[:0], k[:0], v[:0])
    assert o.shape[0] == 0
    assert all(tensor.shape[0] == 0 for tensor in trace.values())
    _, trace = kernel.trace(q, k[:, :0], v[:, :0])
    assert all(tensor.numel() == 0 for tensor in trace.values())


def test_an_ordinary_call_and_the_operator_know_nothing_of_the_trace():
    q = torch.randn(1, 33, 2, UNTRACED.parameters["d_head"])
    for key in (UNTRACED.key, next(k for k in TRACED if ".cpu.f32-d64-" in k)):
        signature = inspect.signature(type(runtime.kernel(key)).__call__)
        assert not [name for name in signature.parameters if "trace" in name or "step" in name]
        assert len(torch.ops.kernelmint.flash_forward(key, q, q, q)) == 2
        with pytest.raises(TypeError, match="return_steps"):
            runtime.kernel(key)(q, q, q, return_steps=True)
    schema = str(torch.ops.kernelmint.flash_forward_out.default._schema)
    assert "step" not in schema
    assert "trace" not in schema


def test_a_kernel_without_tracing_says_which_have_it():
    q = torch.randn(1, 33, 2, UNTRACED.parameters["d_head"])
    with pytest.raises(runtime.InvalidArgument) as caught:
        runtime.kernel(UNTRACED.key).trace(q, q, q)
    assert str(caught.value) == (
        f"{UNTRACED.key}: got a kernel without tracing, expected one of "
        "runtime.kernels('flash_forward', where='trace')"
    )


def test_a_family_without_a_trace_says_so():
    kernel = runtime.kernel(runtime.kernels("block_sparse", "cpu")[0].key)
    with pytest.raises(runtime.InvalidArgument, match="kernels of block_sparse write no trace"):
        kernel.trace()


def test_a_trace_is_not_recorded_or_transformed():
    kernel = next(kernel for key, kernel in TRACED.items() if ".cpu.f32-d64-" in key)
    q, k, v = inputs(kernel)
    refused = pytest.raises(runtime.InvalidArgument, match="a trace cannot be recorded")
    with refused:
        make_fx(lambda *t: kernel.trace(*t)[0])(q, k, v)
    with refused, FakeTensorMode():
        kernel.trace(q, k, v)
    with pytest.raises(runtime.InvalidArgument):
        torch.func.vmap(lambda q: kernel.trace(q, k, v)[0])(torch.stack([q, q]))
