"""The families as PyTorch operators: torch.compile(fullgraph=True), opcheck."""

import pytest
import torch
from torch.library import opcheck

import runtime
from codegen.core import expressions
from runtime.operators.arguments import extent as value_of

INFO = runtime.kernels("flash_forward", "cpu", "dtype == 'f32' and d_head == 64 and not causal")[0]


def qkv(length=19):
    return torch.randn(3, 2, length, 4, 64).unbind()


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def test_attention_compiles_without_a_graph_break():
    def model(q, k, v):
        o, lse = runtime.attention(q * 2, k, v, causal=True, return_lse=True)
        return torch.relu(o), lse

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (19, 33, 40):  # the second shape makes extents symbolic
        q, k, v = qkv(length)
        for result, expected in zip(compiled(q, k, v), model(q, k, v), strict=True):
            assert torch.equal(result, expected)


def test_one_compiled_function_takes_several_head_dimensions():
    """The second makes the dimension dynamic."""
    compiled = torch.compile(
        lambda q: runtime.attention(q, q, q), fullgraph=True, backend="aot_eager"
    )
    for d_head in (64, 128, 64):
        q = torch.randn(1, 20, 2, d_head)
        assert torch.equal(compiled(q), runtime.attention(q, q, q))


def test_one_graph_takes_several_kernels_that_nothing_called_before(run_python, tmp_path):
    script = """
import torch, runtime
keys = [i.key for i in runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64")]
def model(q):
    for key in keys[:2]:
        q = runtime.kernel(key)(q, q, q)
    return runtime.attention(q, q, q) + runtime.attention(q, q, q, causal=True)
q = torch.randn(1, 5, 2, 64)
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(q)
assert torch.equal(compiled, model(q))
"""
    run_python(script, tmp_path)


@pytest.mark.slow
def test_the_default_backend_compiles_it(tmp_path, monkeypatch):
    # A cache of its own: the common one may hold the graph of an operator with other outputs.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled = torch.compile(lambda q, k, v: runtime.attention(q, k, v) + 1, fullgraph=True)
    q, k, v = qkv()
    assert torch.equal(compiled(q, k, v), runtime.attention(q, k, v) + 1)


def test_bhsd_compiles():
    def model(q, k, v):
        return runtime.attention(q, k, v, layout="bhsd").contiguous()

    q, k, v = (t.transpose(1, 2) for t in qkv())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), model(q, k, v))


def test_a_kernel_and_its_out_compile():
    kernel = runtime.kernel(INFO.key)

    def model(q, k, v, o, lse):
        kernel(q, k, v, scale=0.5, return_lse=True, out=(o, lse))
        return o + 1, lse * 2

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    q, k, v = qkv()
    outs = [(torch.full_like(q, float("nan")), torch.empty(2, 4, 19)) for _ in range(2)]
    for result, expected in zip(compiled(q, k, v, *outs[0]), model(q, k, v, *outs[1]), strict=True):
        assert torch.equal(result, expected)
    assert torch.equal(outs[0][0], outs[1][0])


@pytest.mark.parametrize("requires_grad", [False, True])
def test_extents_that_do_not_suit_each_other_are_refused_by_name(requires_grad):
    compiled = torch.compile(runtime.attention, fullgraph=True, backend="aot_eager", dynamic=False)
    q, k, v = (tensor.requires_grad_(requires_grad) for tensor in qkv())
    with pytest.raises(Exception, match=r"v: got shape .* expected \[B, Sk, Hk, D\] with Sk = "):
        compiled(q, k, v[:, 1:])


def test_timed_is_refused_by_name():
    kernel = runtime.kernel(INFO.key)
    compiled = torch.compile(lambda q: kernel.timed(q, q, q), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"timed\(\) waits for the kernel"):
        compiled(qkv()[0])


@pytest.mark.parametrize("options", [{}, {"scale": 0.5, "return_lse": True}])
def test_opcheck(options):
    opcheck(torch.ops.kernelmint.flash_forward.default, (INFO.key, *qkv()), options)


def test_opcheck_of_the_operator_that_writes_in_place():
    q, k, v = qkv()
    for options in ({}, {"lse": torch.empty(2, 4, 19)}):
        opcheck(
            torch.ops.kernelmint.flash_forward_out.default,
            (INFO.key, q, k, v),
            {"o": torch.empty_like(q), **options},
        )


def test_the_operator_computes_what_the_kernel_does():
    q, k, v = qkv()
    o, lse = torch.ops.kernelmint.flash_forward(INFO.key, q, k, v, return_lse=True)
    expected = runtime.kernel(INFO.key)(q, k, v, return_lse=True)
    assert torch.equal(o, expected[0])
    assert torch.equal(lse, expected[1])
    assert torch.ops.kernelmint.flash_forward(INFO.key, q, k, v)[1].numel() == 0


def test_an_extent_without_a_value_is_refused_by_the_fake_as_by_the_call():
    names = {"N": expressions.INT, "M": expressions.INT}
    extent = expressions.parse("N // M", names, "int")
    with pytest.raises(
        runtime.InvalidArgument, match="N // M: division by zero; here M = 0, N = 3"
    ):
        value_of(extent, {"N": 3, "M": 0}, INFO)
