"""Lists of tensors and of numbers: each tensor is checked by its name, and PyTorch sees which ones
change."""

from __future__ import annotations

import re

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.nn import Parameter

import runtime
from runtime import InvalidArgument
from tools.families import oracle

from .conftest import TARGETS, device, kernel

FAMILY = "add_scaled"
FACTORS = (2.0, 0.5)  # exact in f32
SHAPES = [(3,), (2, 5), (), (0, 4), (33, 100)]

pytestmark = pytest.mark.usefixtures("families")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def lists(shapes=SHAPES, target="cpu"):
    """Returns y and x, integers whose sums are exact."""
    y, x = ([torch.randint(-9, 9, s).float().to(device(target)) for s in shapes] for _ in "yx")
    return y, x


def expected(y, x):
    return [tensor.float() for tensor in oracle(FAMILY)(y, x, FACTORS)]


def all_equal(got, wanted):
    return all(map(torch.equal, got, wanted))


def grouped(rows=(2, 3, 0)):
    """Returns the tensors of grouped_product."""
    a = [torch.randn(m, 8) for m in rows]
    b, c = [torch.randn(4, 5) for _ in rows], [torch.zeros(m, 5) for m in rows]
    return a, b, c, torch.arange(1.0, len(rows) + 1), [torch.tensor(i) for i in (1, 2, 3)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_tensors_at_each_place_are_added(target, dtype):
    y, x = lists([*SHAPES, *[(7, i) for i in range(300)], (70000,)], target)
    if dtype == "bf16":
        y, x = ([t.bfloat16() for t in tensors] for tensors in (y, x))
    wanted = [t.to(y[0].dtype) for t in oracle(FAMILY)(y, x, FACTORS)]
    assert kernel(FAMILY, target, dtype=dtype)(y, tuple(x), factors=FACTORS) is None
    assert all_equal(y, wanted)
    assert [t._version for t in y] == [1] * len(y)
    assert [t._version for t in x] == [0] * len(x)


@pytest.mark.parametrize("target", TARGETS)
def test_a_front_takes_lists(target):
    y, x = lists(target=target)
    wanted = expected(y, x)
    assert runtime.add_scaled(y, x, FACTORS) is None
    assert all_equal(y, wanted)


def test_an_empty_list_is_a_call_without_work():
    assert kernel(FAMILY, "cpu", dtype="f32")([], []) is None
    assert runtime.add_scaled([], ()) is None
    sums = kernel("grouped_product", "cpu")(*grouped(()), copies=(1, 2))
    assert sums.shape == (0,)


def test_numbers_of_a_list_have_a_default_and_names_in_expressions():
    y, x = lists([(3,)])
    wanted = [y[0] + x[0]]
    kernel(FAMILY, "cpu", dtype="f32")(y, x)
    assert all_equal(y, wanted)
    sums = kernel("grouped_product", "cpu")(*grouped(), copies=[7, 2])
    assert sums.shape == (6,)


def test_extents_are_of_each_place():
    a, b, c, scale, counts = grouped()
    sums = kernel("grouped_product", "cpu")(a, b, c, scale, counts, copies=(0, 1))
    pairs = [x.view(-1, 4, 2).sum(2) for x in a]
    wanted = [s * (x @ y) for s, x, y in zip(scale, pairs, b, strict=True)]
    torch.testing.assert_close(c, wanted)
    torch.testing.assert_close(sums, torch.stack([w.sum() + 6 for w in wanted]))


def test_a_flat_list_takes_any_order_of_dimensions_that_its_lists_share():
    y, x = lists([(2, 3, 4, 5)])
    y, x = ([t.to(memory_format=torch.channels_last) for t in tensors] for tensors in (y, x))
    wanted = expected(y, x)
    kernel(FAMILY, "cpu", dtype="f32")(y, x, factors=FACTORS)
    assert all_equal(y, wanted)
    with pytest.raises(InvalidArgument, match=r"^x\[0\]: .* expected the order of y\[0\], "):
        kernel(FAMILY, "cpu", dtype="f32")(y, [x[0].contiguous()])
    with pytest.raises(InvalidArgument, match=r"^x\[0\]: .* expected elements without gaps"):
        kernel(FAMILY, "cpu", dtype="f32")([torch.zeros(3)], [torch.zeros(6)[::2]])


# What is wrong with y, x or factors, and the message.
WRONG = {
    "x: got 4 tensors, expected 5 = L as in y": lambda y, x: (y, x[:4]),
    "x: got a Tensor, expected a list or a tuple of tensors": lambda y, x: (y, x[0]),
    "y: got a NoneType, expected a list or a tuple of tensors": lambda y, x: (None, x),
    "x[3]: got an int, expected a torch.Tensor": lambda y, x: (y, [*x[:3], 3, x[4]]),
    "x[1]: got dtype torch.float64, expected torch.float32": lambda y, x: (
        y,
        [x[0], x[1].double(), *x[2:]],
    ),
    "x[4]: got 3200 elements, expected N = 3300 as in y[4]": lambda y, x: (y, [*x[:4], x[4][1:]]),
    "y[1]: shares memory with x[4]": lambda y, x: ([y[0], x[4].view(-1)[:10], *y[2:]], x),
    "y[1]: shares memory with y[0]": lambda y, x: ([y[0], y[0]], [x[0], x[0]]),
    "y[0]: got a meta tensor": lambda y, x: ([t.to("meta") for t in y], x),
    "y[4]: requires_grad is set and grad mode is on, but add_scaled has no gradient": lambda y, x: (
        [*y[:4], Parameter(y[4])],
        x,
    ),
    "factors: got 1 number, expected 2": lambda y, x: (y, x, (1,)),
    "factors: got a float, expected a list or a tuple of 2 numbers": lambda y, x: (y, x, 1.0),
    "factors[1]: got a str, expected a float": lambda y, x: (y, x, (1, "2")),
    "requires factors[0] != 0, because x would not count; here factors = [0, 1]": lambda y, x: (
        y,
        x,
        (0, 1),
    ),
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.parametrize("by_key", [True, False])
def test_messages_name_the_element(message, by_key):
    y, x, *factors = WRONG[message](*lists())
    run = kernel(FAMILY, "cpu", dtype="f32") if by_key else runtime.add_scaled
    before = [t.clone() for t in y or () if not t.is_meta]
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        run(y, x, factors=factors[0] if factors else FACTORS)
    assert all_equal(before, [t for t in y or () if not t.is_meta])


def test_messages_name_the_element_of_extents_and_alignment():
    run = kernel("grouped_product", "cpu")
    for place, replace, message in (
        (
            0,
            lambda a: a[:, :6],
            "a[1]: got shape [3, 6], expected [M, 2 * K]: dimension 1 must be 8",
        ),
        (0, lambda a: a[:2], "c[1]: got shape [3, 5], expected [M, N] with M = 2 as in a[1]"),
        (0, lambda a: a[0], "a[1]: got shape [8], expected 2 dimensions, [M, 2 * K]"),
        (1, lambda b: torch.zeros(21)[1:].view(4, 5), "b[1]: got data that begins 4 bytes past"),
        (2, lambda c: c.t().contiguous().t(), "c[1]: got stride 3 in the last dimension"),
    ):
        arguments = grouped()
        arguments[place][1] = replace(arguments[place][1])
        with pytest.raises(InvalidArgument, match=re.escape(message)):
            run(*arguments, copies=(0, 1))
    a, b, c, scale, counts = grouped()
    with pytest.raises(InvalidArgument, match=r"^counts: got 2 tensors, expected 3$"):
        run(a, b, c, scale, counts[:2], copies=(0, 1))
    with pytest.raises(InvalidArgument, match=r"^a: got 3 tensors, expected 2 = G as in scale$"):
        run(a, b, c, scale[:2], counts, copies=(0, 1))
    with pytest.raises(InvalidArgument, match=r"^out \(sums\): shares memory with c\[0\]"):
        run(a, b, c, scale, counts, copies=(0, 1), out=c[0].view(-1)[:3])


def test_a_parameter_changes_without_grad_mode():
    y, x = lists()
    wanted = expected(y, x)
    parameters = [Parameter(t) for t in y]
    with torch.no_grad():
        kernel(FAMILY, "cpu", dtype="f32")(parameters, x, factors=FACTORS)
    assert all_equal(parameters, wanted)


def test_the_operators_schema_says_which_lists_are_written():
    assert str(torch.ops.kernelmint.add_scaled.default._schema) == (
        "kernelmint::add_scaled(str key, Tensor(a!)[] y, Tensor[] x, *, float[]? factors=None) "
        "-> ()"
    )
    assert "SymInt[] copies" in str(torch.ops.kernelmint.grouped_product.default._schema)


def test_opcheck():
    key = kernel(FAMILY, "cpu", dtype="f32").info.key
    opcheck(torch.ops.kernelmint.add_scaled.default, (key, *lists()), {"factors": [1.0, 2.0]})
    key = kernel("grouped_product", "cpu").info.key
    opcheck(torch.ops.kernelmint.grouped_product.default, (key, *grouped()), {"copies": [1, 2]})


@pytest.mark.parametrize("by_key", [True, False])
def test_a_compiled_call_changes_its_lists(by_key, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    run = kernel(FAMILY, "cpu", dtype="f32") if by_key else runtime.add_scaled

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(y, x, second):
        run(y, x, factors=(2.0, second))
        return [t + 1 for t in y]

    for shapes in (SHAPES, [(4,), (3, 5), (), (1, 4), (32, 100)], [(2, 2)]):
        y, x = lists(shapes)
        wanted = expected(y, x)
        results = step(y, x, 0.5)
        assert all_equal(y, wanted)
        assert all_equal(results, [t + 1 for t in wanted])
    assert step([], [], 0.5) == []


def test_a_compiled_call_has_the_extents_of_a_list_of_numbers():
    run = kernel("grouped_product", "cpu")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def sums(a, b, c, scale, counts, copies):
        return run(a, b, c, scale, counts, copies=(0, copies))

    for copies in (2, 3, 4):
        assert sums(*grouped(), copies).shape == (3 * copies,)


def test_modes_see_the_call():
    run = kernel(FAMILY, "cpu", dtype="f32")
    y, x = lists()
    wanted = expected(y, x)
    graph = make_fx(lambda y, x: run(y, x, factors=FACTORS))([t.clone() for t in y], x)
    graph(y, x)
    assert all_equal(y, wanted)
    with FakeTensorMode():
        y, x = lists()
        assert run(y, x) is None
        with pytest.raises(InvalidArgument, match=r"^x\[1\]: got dtype torch.float64"):
            run(y, [x[0], x[1].double(), *x[2:]])
    with pytest.raises(InvalidArgument, match=r"^y: vmap takes no list of tensors$"):
        torch.func.vmap(lambda y, x: run([y], [x]))(torch.ones(2, 3), torch.ones(2, 3))
