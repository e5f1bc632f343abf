"""Strides, alignment, tensors without dimensions, and numbers that tensors hold."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch.library import opcheck

import runtime
from runtime import InvalidArgument

from .conftest import kernel

M, N = 6, 32

pytestmark = pytest.mark.usefixtures("families")


def run(vector=1, least=1):
    return kernel("weighted_sum", "cpu", vector=vector, least=least)


def aligned(*shape, past=0):
    """A tensor whose data begins `past` floats after a multiple of 1024 bytes."""
    size = int(np.prod(shape))
    buffer = torch.full((size + 512,), torch.nan)
    first = (-buffer.data_ptr() // 4) % 256 + past
    return buffer[first : first + size].view(shape).normal_()


def inputs():
    return aligned(M, N), aligned(M, N), aligned(N), torch.randn(())


def expected(x, w, bias, factor, gain=1.0):
    rows = (x.double() * w.double() + bias.double()).sum(1) * factor.double() * gain
    return rows, rows.sum()


def near(got, wanted):
    # Sums of N products of normal numbers, in f32.
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=M * N * 2**-20)


def refused(message, *tensors, vector=1, least=1, **options):
    with pytest.raises(InvalidArgument, match="^" + re.escape(message)):
        run(vector, least)(*tensors, **options)


@pytest.mark.parametrize("call", ["by key", "front", "compiled", "exported", "meta"])
def test_an_output_lies_in_memory_as_an_input_does(call):
    weight = torch.randn(4)
    kernel_of_key = runtime.kernel("row_norm.cpu.f32")
    calls = {
        "by key": kernel_of_key,
        "front": runtime.row_norm,
        "compiled": torch.compile(runtime.row_norm, fullgraph=True, backend="aot_eager"),
    }
    turned = torch.randn(4, 6).t()
    cases = {  # x, and its result's strides
        "contiguous": (torch.randn(6, 4), (4, 1)),
        "transposed": (turned, (1, 6)),
        "with gaps": (torch.randn(6, 4, 2)[:, :, 0], (4, 1)),
        "transposed, with gaps": (torch.randn(4, 12)[:, ::2].t(), (1, 6)),
        "one row for all": (torch.randn(4).expand(6, 4), (4, 1)),
        "one row": (torch.randn(1, 4), (4, 1)),
    }
    for name, (x, strides) in cases.items():
        if call == "exported":
            module = torch.export.export(_Norm(), (x, weight)).module()
            y = module(x, weight)
        elif call == "meta":
            y, *_ = torch.ops.kernelmint.row_norm(
                "row_norm.cpu.f32", x.to("meta"), weight.to("meta")
            )
        else:
            y = calls[call](x, weight)
        assert y.stride() == strides, name
        if call != "meta":
            wanted = kernel_of_key(x.contiguous(), weight)
            assert torch.equal(y, wanted), name
            assert torch.equal(kernel_of_key(x, weight, out=torch.empty(6, 4)[: len(x)]), wanted)


class _Norm(torch.nn.Module):
    def forward(self, x, weight):
        return runtime.row_norm(x, weight)


def test_lazily_negated_views():
    """PyTorch's are the imaginary parts of conjugates."""
    x, w, bias, factor = inputs()
    negative = torch.randn(M, N, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    refused("x: got a lazily negated view", negative, w, bias, factor)
    near(
        run()(negative.resolve_neg(), w, bias, factor),
        expected(negative.resolve_neg(), w, bias, factor),
    )
    rows = torch.empty(M, dtype=torch.complex64).conj().imag
    refused("out (y): got a lazily negated view", x, w, bias, factor, out=(rows, torch.empty(())))


@pytest.mark.parametrize("vector", [1, 16])
def test_a_last_dimension_with_a_stride(vector):
    """Whole vectors are asked of no tensor that has none."""
    x, w, bias, factor = inputs()
    wide = aligned(M, 3 * N, past=1)
    for view in (x, x.t().contiguous().t(), wide[:, 1::3], wide[:, :1].expand(M, N)):
        near(run(vector)(view, w, bias, factor), expected(view, w, bias, factor))
    rows = torch.full((M, 3), torch.nan)
    total = torch.empty((), dtype=torch.float64)
    run(vector)(x, w, bias, factor, out=(rows[:, 1], total))
    near((rows[:, 1], total), expected(x, w, bias, factor))
    assert rows[:, ::2].isnan().all()


def test_a_contiguous_tensor():
    x, _, bias, factor = inputs()
    refused(f"w: got strides [{2 * N}, 1], expected a contiguous tensor; pass w.contiguous()",
            x, aligned(M, 2 * N)[:, :N], bias, factor)  # fmt: skip
    refused("w: got stride 6 in the last dimension, expected 1; pass w.contiguous()",
            x, aligned(N, M).t(), bias, factor)  # fmt: skip
    one = aligned(1, N).as_strided((1, N), (7, 1))  # of extent 1: its stride does not matter
    near(run()(x[:1], one, bias, factor), expected(x[:1], one, bias, factor))
    empty = run()(x[:0], aligned(4, N).t()[:0, :N].as_strided((0, N), (3, 5)), bias, factor)
    assert empty[0].shape == (0,)


def test_alignment_follows_the_parameters():
    x, w, bias, factor = inputs()
    odd = aligned(M, N, past=4)  # 16 bytes past a multiple of 64
    for vector in (1, 4):
        near(run(vector)(x, odd, bias, factor), expected(x, odd, bias, factor))
    refused(
        "w: got data that begins 16 bytes past a multiple of 64, expected 64-byte alignment "
        "(weighted_sum.cpu.l1-v16); pass w.clone()",
        x, odd, bias, factor, vector=16,
    )  # fmt: skip
    narrow = aligned(M, N + 4)[:, :N]
    refused("x: got a stride of 144 bytes in dimension 0, expected a multiple of 64",
            narrow, w, bias, factor, vector=16)  # fmt: skip


def test_a_tensor_has_an_alignment_of_its_own():
    x, w, _, factor = inputs()
    odd = aligned(N, past=1)
    near(run(16)(x, w, odd, factor), expected(x, w, odd, factor))
    refused("bias: got data that begins 4 bytes past a multiple of 32, expected 32-byte alignment",
            x, w, odd, factor, vector=16, least=8)  # fmt: skip


def test_what_is_no_alignment_is_no_configuration():
    assert [info.parameters["vector"] for info in runtime.kernels("weighted_sum")] == [1, 4, 16, 16]


def test_tensors_without_dimensions():
    x, w, bias, factor = inputs()
    rows, total = run()(x, w, bias, factor)
    assert total.shape == ()
    near((rows, total), expected(x, w, bias, factor))
    refused("factor: got shape [1], expected 0 dimensions, []", x, w, bias, factor[None])
    opcheck(torch.ops.kernelmint.weighted_sum.default, (run().info.key, x, w, bias, factor))


@pytest.mark.parametrize(
    "gain",
    [
        torch.tensor(0.5),
        torch.tensor(0.5, dtype=torch.bfloat16),
        np.float32(0.5),
        np.array(0.5),
        torch.nn.Parameter(torch.tensor(0.5)),
    ],
    ids=["f32", "bf16", "numpy", "array", "parameter"],
)
def test_a_scalar_may_be_a_number_that_a_tensor_holds(gain):
    x, w, bias, factor = inputs()
    with torch.no_grad():
        near(run()(x, w, bias, factor, gain=gain), expected(x, w, bias, factor, 0.5))


@pytest.mark.parametrize("turned", [torch.tensor(True), np.bool_(True), np.array(True)])
def test_so_may_a_bool(turned):
    x, w, bias, factor = inputs()
    near(run()(x, w, bias, factor, turned=turned), expected(x, w, bias, factor, -1))


def test_what_holds_no_such_number_is_refused():
    tensors = inputs()
    refused("gain: got a tensor of shape [1], expected a float, or a tensor without dimensions",
            *tensors, gain=torch.ones(1))  # fmt: skip
    refused("gain: got a bool, expected a float", *tensors, gain=torch.tensor(True))
    refused("gain: got array([1., 1.]), expected a value that a float holds", *tensors,
            gain=np.ones(2))  # fmt: skip
    refused("turned: got a ndarray, expected a bool", *tensors, turned=np.ones(2, dtype=bool))
    refused("gain: got a meta tensor", *tensors, gain=torch.ones((), device="meta"))
    refused("gain: requires_grad is set and grad mode is on, but weighted_sum has no gradient",
            *tensors, gain=torch.ones((), requires_grad=True))  # fmt: skip
    refused("turned: got a float, expected a bool", *tensors, turned=torch.tensor(1.0))


@pytest.mark.gpu
def test_a_number_on_a_device_is_refused_and_not_waited_for():
    refused("gain: got a tensor on cuda:0, expected a float, or a tensor on the CPU: a call does "
            "not wait for a device; pass its .item()",
            *inputs(), gain=torch.ones((), device="cuda"))  # fmt: skip
