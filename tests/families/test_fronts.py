"""What generated fronts decide by: extents, dtypes, scalars, flags, and how tensors lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import runtime
from runtime.front import Front

from .conftest import TARGETS, device

pytestmark = pytest.mark.usefixtures("families")

NAMES = ("double", "width", "silu", "channel_last", "vectorised", "mode")
PLAIN, DROPPED, KEPT = range(3)


def x(B=2, D=4, L=8, dtype=torch.float32, past=0):
    """A tensor that begins `past` elements after a multiple of 1024 bytes."""
    buffer = torch.zeros(B * D * L + 1024, dtype=dtype)
    first = -buffer.data_ptr() // buffer.element_size() % (1024 // buffer.element_size()) + past
    return buffer[first : first + B * D * L].view(B, D, L)


def told(*given, w=None, index=None, call=None, **options):
    (tensor,) = given
    w = torch.zeros(tensor.shape[1], 2) if w is None else w
    found = (call or runtime.told)(tensor, w, index, **options)
    which = found[0] if isinstance(found, tuple) else found
    return dict(zip(NAMES, which.tolist(), strict=True))


USUAL = {
    "double": 1, "width": 2, "silu": 0, "channel_last": 0, "vectorised": 1, "mode": PLAIN
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "differs"),
    [
        (lambda: told(x()), {}),
        (lambda: told(x(), w=torch.zeros(4, 3)), {"width": 4}),
        (lambda: told(x(dtype=torch.bfloat16)), {"double": 0}),
        (lambda: told(x(), activation="silu"), {"silu": 1}),  # by rows, as the next ones
        (lambda: told(x(), activation="none"), {}),
        (lambda: told(x(), p=2.0), {"silu": 1, "mode": DROPPED}),
        (lambda: told(x(D=10)), {"silu": 1, "mode": DROPPED}),  # by p's default
        (lambda: told(x(), p=0.5), {"mode": DROPPED}),
        (lambda: told(x(), p=torch.tensor(0.5)), {"mode": DROPPED}),
        (lambda: told(x(), p=np.float32(0.5)), {"mode": DROPPED}),
        (lambda: told(x(), p=0), {}),
        (
            lambda: told(x(), call=lambda *tensors: runtime.told(*tensors, "silu", 0.5)),
            {"silu": 1, "mode": DROPPED},
        ),
        (lambda: told(x(D=8)), {"mode": DROPPED}),  # its default
        (lambda: told(x(D=8), p=0.0), {}),
        (lambda: told(x(), p=0.5, return_rest=True), {"mode": KEPT}),
        (lambda: told(x(D=8, L=4).transpose(1, 2)), {"channel_last": 1}),
        (lambda: told(x(past=1)), {"vectorised": 0}),
        (lambda: told(x(past=4)), {}),
        (lambda: told(x(L=6)), {"vectorised": 0}),  # its rows are 24 bytes apart
        (lambda: told(x(L=6)[:, :1], w=torch.zeros(1, 2)), {}),  # batches are 96
        (lambda: told(x(B=1).expand(2, 4, 8)), {"mode": DROPPED}),
        (lambda: told(x(B=1).expand(1, 4, 8)), {}),
        (lambda: told(x(), index=torch.zeros(8, dtype=torch.int32)), {"vectorised": 0}),
    ],
)
def test_whatever_the_rule_names_decides(call, differs):
    for _ in range(2):  # the first time it is chosen, then looked up
        assert call() == {**USUAL, **differs}


def test_what_decides_is_compared_at_each_call():
    """One call after another, in which one thing changes."""
    one, other = x(), x(past=1)
    for _ in range(2):
        assert told(one)["vectorised"] == 1
        assert told(other)["vectorised"] == 0
        assert told(one, p=0.5)["mode"] == DROPPED
        assert told(one, return_rest=True)["mode"] == KEPT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "selu"}, "activation: got 'selu'"),
        ({"activation": 1}, "activation: got an int, expected a str"),
        ({"p": "a"}, "p: got a str, expected a float"),
        ({"p": torch.zeros(2)}, "p: got a Tensor, expected a float"),
    ],
)
def test_a_wrong_scalar_that_decides_is_refused_by_name(options, message):
    with pytest.raises(runtime.InvalidArgument, match=message):
        told(x(), **options)


def test_a_rule_without_a_value_is_refused():
    front = Front("told", lambda D: {"width": 8 // (D - 4)})
    message = "told: what takes a kernel has no value: division by zero; here D = 4"
    with pytest.raises(runtime.InvalidArgument, match=message):
        front((x(), torch.zeros(4, 2), None), (None, None), (False,), None)


def test_a_rule_decides_a_flag_by_what_the_caller_passes():
    others = {"sums": "f64", "width": 2, "channel_last": False, "vectorised": True, "mode": "plain"}
    front = Front("told", lambda D, silu: {"silu": silu or D >= 6, **others}, flags={"silu": False})
    for _ in range(2):
        for D, passed, silu in ((4, False, 0), (4, True, 1), (6, False, 1), (6, True, 1)):
            given = (x(D=D), torch.zeros(D, 2), None)
            found = front(given, (None, None), (False,), None, (passed,))
            assert found[NAMES.index("silu")] == silu


def test_what_a_target_requires_of_how_tensors_lie_is_checked_at_each_call():
    w = torch.zeros(1, 2)
    message = r"requires not expanded\(w, 0\), because each row has weights of its own; pass w.cont"
    for _ in range(2):
        with pytest.raises(runtime.InvalidArgument, match=message):
            told(x(), w=w.expand(4, 2))
        told(x(D=1), w=w.expand(1, 2))
        told(x(), w=w.expand(4, 2).contiguous())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_graphs_choose_by_how_tensors_lie_when_they_run(dynamic):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *given, **options: runtime.told(*given, **options),
        fullgraph=True, backend="aot_eager", dynamic=dynamic,
    )  # fmt: skip
    assert told(x(), call=compiled) == USUAL
    assert told(x(past=1), call=compiled) == {**USUAL, "vectorised": 0}
    assert told(x(L=6), call=compiled) == {**USUAL, "vectorised": 0}
    given = {"w": torch.zeros(4, 3), "activation": "silu", "p": 0.5}
    differs = {"width": 4, "silu": 1, "mode": DROPPED}
    assert told(x(), call=compiled, **given) == {**USUAL, **differs}
    assert told(x(B=1).expand(2, 4, 8), call=compiled) == {**USUAL, "mode": DROPPED}
    turned = x(D=8, L=4).transpose(1, 2)
    assert told(turned, call=compiled) == {**USUAL, "channel_last": 1}


def test_other_ways_to_record_a_call_do_so_too():
    class Told(torch.nn.Module):
        def forward(self, x, w):
            return runtime.told(x, w)

    exported = torch.export.export(Told(), (x(), torch.zeros(4, 2))).module()
    for past, vectorised in ((0, 1), (1, 0)):
        given = x(past=past)
        found = exported(given, torch.zeros(4, 2))
        assert dict(zip(NAMES, found.tolist(), strict=True))["vectorised"] == vectorised
    mapped = torch.vmap(runtime.told, in_dims=(0, None))(torch.stack([x(), x()]), torch.zeros(4, 2))
    assert mapped[:, 0].tolist() == [1, 1]


@pytest.mark.parametrize("target", TARGETS)
def test_a_parameter_that_a_target_lacks_is_not_asked_of_it(target):
    """The CPU's kernels have no `threads`, by which the front picks those of a GPU."""
    for length, copies in ((9, 1), (101, 2), (9, 1)):
        x = torch.zeros(length, dtype=torch.int32, device=device(target))
        assert runtime.histogram(x, bins=3).tolist() == [length, 0, 0] * copies


def test_what_the_pack_lacks_is_refused_or_built_and_recorded(tmp_path, monkeypatch):
    """Its set has weights of f32 alone; the spec allows more."""
    key = "told.cpu.f32-bf16-f32-w2-vec-plain"
    w = torch.zeros(4, 2, dtype=torch.bfloat16)
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELMINT_RECORD", str(tmp_path / "used.yaml"))
    monkeypatch.delenv("KERNELMINT_BUILD", raising=False)
    with pytest.raises(runtime.KernelNotFound) as refused:
        told(x(), w=w)
    said = str(refused.value).splitlines()
    assert "wdtype is f32, not bf16" in said[0]
    assert len(said) < 12
    assert f"runtime.kernel('{key}', build=True) builds one now" in said[-1]

    monkeypatch.setenv("KERNELMINT_BUILD", "missing")
    with monkeypatch.context() as without_compiler:
        without_compiler.setenv("PATH", "")
        without_compiler.delenv("CXX", raising=False)
        with pytest.raises(runtime.BuildError, match=f"^{key}: no pack holds it") as refused:
            told(x(), w=w)
        assert f"`kernelmint build told --key {key}` builds it" in str(refused.value)
    for _ in range(2):
        assert told(x(), w=w) == {**USUAL, "double": 0}
    assert f"- {key}\n" in (tmp_path / "used.yaml").read_text()
