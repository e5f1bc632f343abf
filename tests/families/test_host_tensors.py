"""A tensor that the launch reads on the host, whatever the target."""

from __future__ import annotations

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

import runtime
from runtime import InvalidArgument

from .conftest import TARGETS, device, kernel

LENGTHS = [3, 0, 40, 7]

pytestmark = pytest.mark.usefixtures("families")


def inputs(target):
    return torch.tensor(LENGTHS), torch.randn(sum(LENGTHS), device=device(target))


def near(got, x):
    wanted = torch.stack([part.sum() for part in x.double().split(LENGTHS)])
    # Sums of up to 40 normal numbers, in f32.
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=40 * 2**-21)


@pytest.mark.parametrize("target", TARGETS)
def test_its_values_decide_the_launch(target):
    lengths, x = inputs(target)
    y = kernel("segment_sums", target)(lengths, x)
    assert y.device == x.device
    near(y, x)


@pytest.mark.parametrize("target", TARGETS)
def test_it_compiles_and_opcheck_passes(target):
    run, (lengths, x) = kernel("segment_sums", target), inputs(target)
    torch.compiler.reset()
    compiled = torch.compile(lambda a, b: run(a, b) * 2, fullgraph=True, backend="aot_eager")
    near(compiled(lengths, x) / 2, x)
    opcheck(torch.ops.kernelmint.segment_sums.default, (run.info.key, lengths, x))


def test_a_graph_knows_the_results_device():
    (info,) = runtime.kernels("segment_sums", "sm80")
    if not info.built:
        pytest.skip(f"{info.key}: {info.reason}")
    with FakeTensorMode():  # of a GPU too, if there is none
        lengths = torch.empty(4, dtype=torch.int64)
        x = torch.empty(50, device="cuda")
        y = torch.ops.kernelmint.segment_sums(info.key, lengths, x)
    assert (y.device.type, y.shape, y.dtype) == ("cuda", (4,), torch.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_the_launch_says_which_value_is_wrong(target):
    lengths, x = inputs(target)
    lengths[3] += 1
    message = "lengths[3]: got 8, expected 7: the segments are all of x"
    with pytest.raises(InvalidArgument, match="^" + re.escape(message)):
        kernel("segment_sums", target)(lengths, x)


@pytest.mark.gpu
def test_one_on_a_device_is_refused():
    lengths, x = inputs("sm80")
    message = "lengths: got a tensor on cuda:0, expected one on the CPU, where the launch reads it"
    with pytest.raises(InvalidArgument, match="^" + re.escape(message)):
        kernel("segment_sums", "sm80")(lengths.cuda(), x)
    with pytest.raises(InvalidArgument, match=r"^x: got a tensor on cpu"):
        kernel("segment_sums", "sm80")(lengths, x.cpu())
