"""Arguments that are changed in place, and families without outputs: PyTorch sees the change."""

from __future__ import annotations

import re

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from runtime import InvalidArgument
from tools.families import oracle

from .conftest import TARGETS, device, kernel

FAMILY = "residual_rms_norm"
# x and the sum are rounded once each; the norm of the rounded sum has a few roundings of f32 more.
ROUNDOFF = {"f32": 2**-22, "bf16": 2**-8}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

pytestmark = pytest.mark.usefixtures("families")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def arguments(target="cpu", dtype="f32", rows=5, columns=77):
    options = {"device": device(target), "dtype": torch.float32}
    x = torch.randn(rows, columns, **options).to(DTYPES[dtype])
    residual = torch.randn(rows, columns, **options).to(DTYPES[dtype])
    return x, residual, torch.randn(columns, **options).to(DTYPES[dtype])


def expected(*tensors):
    return oracle(FAMILY)(*tensors)


def assert_near(got, wanted, dtype):
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=ROUNDOFF[dtype], atol=4 * ROUNDOFF[dtype])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("target", TARGETS)
def test_both_tensors_are_changed_and_none_is_returned(target, dtype):
    x, residual, weight = arguments(target, dtype)
    wanted = expected(x, residual, weight, 0.5)
    assert kernel(FAMILY, target, dtype=dtype)(x, residual, weight, eps=0.5) is None
    assert_near((x, residual), wanted, dtype)


def test_a_strided_view_is_changed_and_nothing_beside_it():
    x, residual, weight = arguments()
    wanted = expected(x, residual, weight)
    wide = torch.full((5, 3, 80), 7.0)
    wide[:, 1, :77] = residual
    kernel(FAMILY, "cpu", dtype="f32")(x, wide[:, 1, :77], weight)
    assert_near((x, wide[:, 1, :77]), wanted, "f32")
    wide[:, 1, :77] = 7
    assert (wide == 7).all()


def test_without_rows_nothing_runs():
    x, residual, weight = arguments(rows=0)
    assert kernel(FAMILY, "cpu", dtype="f32")(x, residual, weight) is None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_compiled_call_is_kept_though_nothing_uses_its_result(
    target, backend, tmp_path, monkeypatch
):
    # A cache of its own: the common one may hold the graph of another operator of this name.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    run = kernel(FAMILY, target, dtype="f32")

    @torch.compile(fullgraph=True, backend=backend)
    def layer(x, residual, weight):
        run(x, residual, weight)

    for rows in (5, 9):  # the second shape makes extents symbolic
        x, residual, weight = arguments(target, rows=rows)
        wanted = expected(x, residual, weight)
        assert layer(x, residual, weight) is None
        assert_near((x, residual), wanted, "f32")


def test_a_compiled_graph_reads_what_was_written_before_and_after():
    run = kernel(FAMILY, "cpu", dtype="f32")

    def layer(x, residual, weight):
        before = x * 1
        y = x.clone()
        run(y, residual, weight)
        return before, y + residual

    x, residual, weight = arguments()
    wanted, total = expected(x, residual, weight)
    before, result = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, residual, weight)
    assert torch.equal(before, x)
    assert_near((result, residual), (wanted + total, total), "f32")


def test_the_operators_schema_says_what_is_written():
    operator = torch.ops.kernelmint.residual_rms_norm
    assert str(operator.default._schema) == (
        "kernelmint::residual_rms_norm(str key, Tensor(a!) x, Tensor(b!) residual, Tensor weight, "
        "*, float? eps=None) -> ()"
    )
    assert not hasattr(torch.ops.kernelmint, "residual_rms_norm_out")


@pytest.mark.parametrize("target", TARGETS)
def test_opcheck(target):
    opcheck(
        torch.ops.kernelmint.residual_rms_norm.default,
        (kernel(FAMILY, target, dtype="f32").info.key, *arguments(target)),
        {"eps": 0.1},
    )


def test_functionalisation_says_which_inputs_change():
    run = kernel(FAMILY, "cpu", dtype="f32")

    class Layer(torch.nn.Module):
        def forward(self, x, residual, weight):
            run(x, residual, weight)
            return x + 1

    x, residual, weight = arguments()
    wanted, total = expected(x, residual, weight)
    program = torch.export.export(Layer(), (x, residual, weight)).run_decompositions({})
    assert {*program.graph_signature.user_inputs_to_mutate.values()} == {"x", "residual"}
    result = program.module()(x, residual, weight)
    assert_near((result - 1, x, residual), (wanted, wanted, total), "f32")


def test_make_fx_records_the_call():
    run = kernel(FAMILY, "cpu", dtype="f32")
    x, residual, weight = arguments()
    wanted = expected(x, residual, weight)
    graph = make_fx(lambda *tensors: run(*tensors))(*(t.clone() for t in (x, residual, weight)))
    graph(x, residual, weight)
    assert_near((x, residual), wanted, "f32")


@pytest.mark.parametrize("way", ["kernel", "operator"])
def test_autograds_version_counter_moves(way):
    run = kernel(FAMILY, "cpu", dtype="f32")
    call = run if way == "kernel" else (
        lambda *a: torch.ops.kernelmint.residual_rms_norm(run.info.key, *a)
    )  # fmt: skip
    x, residual, weight = arguments()
    versions = x._version, residual._version, weight._version
    factor = torch.ones(77, requires_grad=True)
    loss = (x * factor).sum()  # keeps x for the backward
    call(x, residual, weight)
    assert x._version == versions[0] + 1
    assert residual._version == versions[1] + 1
    assert weight._version == versions[2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("way", ["kernel", "operator"])
def test_a_tensor_that_requires_grad_is_refused_as_in_place_operations_refuse_a_leaf(way):
    run = kernel(FAMILY, "cpu", dtype="f32")
    call = run if way == "kernel" else (
        lambda *a: torch.ops.kernelmint.residual_rms_norm(run.info.key, *a)
    )  # fmt: skip
    x, residual, weight = arguments()
    leaf = residual.clone().requires_grad_()
    for tensor in (leaf, leaf * 1):
        with pytest.raises(InvalidArgument, match=r"^residual: requires_grad is set and grad mode"):
            call(x, tensor, weight)
    wanted = expected(x, residual, weight)
    with torch.no_grad():
        call(x, leaf, weight)
    assert_near((x, leaf.detach()), wanted, "f32")
    assert leaf._version == 1


def refused(message, *tensors):
    copies = [t.clone() for t in tensors]
    with pytest.raises(InvalidArgument, match="^" + re.escape(message)):
        kernel(FAMILY, "cpu", dtype="f32")(*tensors)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(tensor, copy)


def test_what_is_changed_shares_no_memory():
    x, residual, weight = arguments()
    refused("x: shares memory with residual (or cannot be shown not to)", x, x, weight)
    refused("x: shares memory with weight", x, residual, x[3])
    refused("residual: shares memory with weight", x, residual, residual[0])
    refused(
        "residual: several of its elements share memory (strides [0, 1]), expected a tensor whose "
        "elements are apart; pass a clone",
        x, weight.clone().expand(5, 77), weight,
    )  # fmt: skip
    buffer = torch.randn(6 * 77)
    overlapping = buffer.as_strided((5, 77), (76, 1))
    refused("x: several of its elements share memory", overlapping, residual, weight)


def test_interleaved_slices_of_one_buffer_may_be_changed_together():
    x, residual, weight = arguments()
    wanted = expected(x, residual, weight)
    both = torch.stack([x, residual], 1)
    kernel(FAMILY, "cpu", dtype="f32")(both[:, 0], both[:, 1], weight)
    assert_near((both[:, 0], both[:, 1]), wanted, "f32")


@pytest.mark.gpu
def test_a_cuda_graph_replays_the_change():
    run = kernel(FAMILY, "sm80", dtype="f32")
    x, residual, weight = arguments("sm80")
    start = x.clone(), residual.clone()
    wanted = expected(x, residual, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, residual, weight)
    x.copy_(start[0]), residual.copy_(start[1])
    graph.replay()
    assert_near((x, residual), wanted, "f32")
