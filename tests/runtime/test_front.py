"""Calls without a key: what was chosen before is found by all that decides, and only by it."""

import copy
import functools
import inspect
import io
import multiprocessing
import pickle
import pydoc
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import kernelmint
import runtime
from runtime import manifest, open_choice, packs
from runtime.front import Front

attention = runtime.attention


@pytest.fixture
def counted(monkeypatch):
    """The calls for which a kernel is chosen; nothing is known when it begins."""
    calls = []
    take = open_choice.take

    def counting(*arguments, **options):
        calls.append(arguments)
        return take(*arguments, **options)

    packs.changed()
    monkeypatch.setattr(open_choice, "take", counting)
    return calls


def qkv(length=9, d_head=64, dtype=torch.float32, batch=1, heads=2):
    return torch.randn(3, batch, length, heads, d_head).to(dtype).unbind()


def test_a_call_is_chosen_for_once_and_whatever_decides_makes_it_another(counted):
    attention(*qkv())
    first = len(counted)
    for _ in range(3):
        attention(*qkv())
    assert len(counted) == first
    for other in (
        {"d_head": 128},
        {"length": 10},
        {"batch": 2},
        {"heads": 4},
        {"dtype": torch.bfloat16},
    ):
        before = len(counted)
        attention(*qkv(**other))
        assert len(counted) > before, other
    before = len(counted)
    attention(*qkv(), causal=True)
    assert len(counted) > before


def test_a_call_that_is_chosen_for_is_chosen_for_once(counted):
    """By what it says; then its kernel is called, without another look."""
    for length in range(5, 9):
        before = len(counted)
        attention(*qkv(length=length))
        assert len(counted) == before + 1


def test_other_families_are_chosen_for_once_too(counted):
    q, v, gate = torch.randn(1, 9, 2, 16), torch.randn(1, 9, 2, 32), torch.randn(1, 9, 2)
    for call in (
        lambda: runtime.decode(*qkv()),
        lambda: runtime.block_sparse_attention(q, q, v, v, gate, block_size=16),
    ):
        call()
        first = len(counted)
        assert first > 0
        for _ in range(3):
            call()
        assert len(counted) == first
    runtime.block_sparse_attention(q, q, v, v, gate, block_size=16, target="cpu")
    assert len(counted) > first


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_call_that_was_seen_before_gives_what_the_kernel_gives(layout):
    def laid(tensor):
        return tensor.transpose(1, 2) if layout == "bhsd" else tensor

    for seed in range(3):  # the first is chosen for, the others are looked up
        torch.manual_seed(seed)
        q, k, v = qkv(length=12)
        key = runtime.explain_choice(q, k, v, causal=True).key
        expected, expected_lse = runtime.kernel(key)(q, k, v, return_lse=True)
        given = [laid(t) for t in (q, k, v)]
        o, lse = attention(*given, causal=True, layout=layout, return_lse=True)
        assert torch.equal(laid(o), expected)
        assert torch.equal(lse, expected_lse)
        assert laid(o).is_contiguous()  # its memory is [B, S, H, D] in both layouts
        out = (laid(torch.empty_like(expected)), torch.empty_like(lse))
        result = attention(*given, causal=True, layout=layout, return_lse=True, out=out)
        assert result[0] is out[0]
        assert result[1] is out[1]
        assert torch.equal(laid(out[0]), expected)
        only = laid(torch.empty_like(expected))
        assert attention(*given, causal=True, layout=layout, out=only) is only
        assert torch.equal(laid(only), expected)


def test_an_empty_batch_in_the_other_layout_has_its_shape():
    for _ in range(2):
        q = torch.randn(0, 2, 9, 64)
        assert attention(q, q, q, layout="bhsd").shape == q.shape


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_call_like_one_that_was_right_is_still_checked(layout):
    q, k, v = qkv()
    for _ in range(2):
        attention(q, k, v, layout=layout)
    for wrong, message in (
        ((q, k, v.double()), "v: got dtype torch.float64"),
        ((q, k, v[..., :32]), "v: got shape"),
        ((q, k[0], v), "k: got shape"),
        ((q, k, v.to("meta")), "v: got a"),
        ((q, None, v), "k: got a NoneType"),
    ):
        with pytest.raises(runtime.InvalidArgument, match=message):
            attention(*wrong, layout=layout)
    with pytest.raises(runtime.InvalidArgument, match=r"out \(o\): got shape|out \(o\): got dtype"):
        attention(q, k, v, layout=layout, out=torch.empty(1))
    with pytest.raises(runtime.InvalidArgument, match="causal: got an int"):
        attention(q, k, v, layout=layout, causal=1)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_gradient_is_given_however_often_it_was_called_before(layout):
    q, k, v = qkv()
    with torch.no_grad():
        for _ in range(2):
            attention(q, k, v, layout=layout)
    parameter = torch.nn.Parameter(q.clone())
    attention(parameter, k, v, layout=layout).sum().backward()
    assert parameter.grad is not None
    given = [t.detach().transpose(1, 2) if layout == "bshd" else t.detach() for t in (q, k, v)]
    given[0].requires_grad_()
    F.scaled_dot_product_attention(*given).sum().backward()
    expected = given[0].grad.transpose(1, 2) if layout == "bshd" else given[0].grad
    torch.testing.assert_close(parameter.grad, expected, atol=1e-5, rtol=1e-4)


@pytest.fixture
def one_sequence():
    """flash_forward for q [Sq, H, D] and the like: a layout that leaves out the batch."""
    dims = {**dict.fromkeys(("q", "k", "v", "o"), (1, 2, 3)), "lse": (1, 2)}
    front = Front("flash_forward", lambda D: {"d_head": D}, flags={"causal": False}, permuted=dims)

    def call(q, k, v, out=None):
        return front((q, k, v), (None, None), (True,), out, (True,), True)

    return call


def test_a_layout_may_leave_out_dimensions(one_sequence):
    q, k, v = (tensor.transpose(1, 2) for tensor in qkv(heads=9))
    expected = [part[0] for part in attention(q, k, v, causal=True, return_lse=True)]
    q, k, v = (tensor[0] for tensor in (q, k, v))
    for _ in range(2):  # the second call finds its kernel in the extension
        for got, want in zip(one_sequence(q, k, v), expected, strict=True):
            assert got.shape == want.shape
            assert torch.equal(got, want)
    out = tuple(torch.full_like(part, torch.nan) for part in expected)
    assert one_sequence(q, k, v, out)[0] is out[0]
    assert torch.equal(out[0], expected[0])
    assert torch.equal(out[1], expected[1])
    compiled = torch.compile(one_sequence, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v)[0], expected[0])


def test_a_layout_that_leaves_out_dimensions_has_gradients(one_sequence):
    q, k, v = (tensor[0].requires_grad_() for tensor in qkv())
    gradients = []
    for call in (one_sequence, lambda *a: attention(*(x[None] for x in a), causal=True)):
        found = call(q, k, v)
        result = found[0] if isinstance(found, tuple) else found
        gradients.append(torch.autograd.grad(result.square().sum(), (q, k, v)))
    for got, want in zip(*gradients, strict=True):
        assert torch.equal(got, want)


def test_what_does_not_suit_a_layout_that_leaves_out_dimensions_is_refused(one_sequence):
    q, k, v = (tensor[0] for tensor in qkv())
    good = one_sequence(q, k, v)
    with pytest.raises(runtime.InvalidArgument, match=r"q: got shape .* 3 dimensions"):
        one_sequence(q[None], k, v)
    with pytest.raises(runtime.InvalidArgument, match=r"out \(o\): got shape .* 3 dimensions"):
        one_sequence(q, k, v, (good[0][None].clone(), good[1].clone()))
    batches = Front(
        "flash_forward",
        lambda D: {"d_head": D},
        flags={"causal": False},
        permuted={"o": (1, 2, 3)},
    )
    for _ in range(2):
        with pytest.raises(runtime.InvalidArgument, match=r"2 in dimension 0, which .* leaves out"):
            batches(qkv(batch=2), (None, None), (False,), None, (False,), True)


@pytest.mark.parametrize(
    "change", [lambda some: (), lambda some: some[:-1], lambda some: some * 40]
)
@pytest.mark.parametrize("place", [0, 1, 2, 4], ids=["inputs", "scalars", "requested", "flags"])
@pytest.mark.parametrize("family", ["flash_decode", "flash_forward"])
def test_too_few_and_too_many_arguments_are_refused(family, place, change):
    spec = manifest.family(family)
    front = Front(family, flags={"target": None})
    inputs = (*qkv(), *[None] * (len(spec.inputs) - 3))
    right = [inputs, (None,) * len(spec.scalars), (False,), None, ("cpu",)]
    wrong = [*right]
    wrong[place] = change(right[place])
    if wrong[place] == right[place]:
        return
    for _ in range(2):
        with pytest.raises(runtime.InvalidArgument, match=rf"{family}: takes \d+ inputs, .*, got"):
            front(*wrong)


def test_what_was_found_is_forgotten_when_packs_change(counted):
    attention(*qkv())
    before = len(counted)
    packs.changed()
    attention(*qkv())
    assert len(counted) > before


def test_tensors_are_read_without_pytorchs_table_of_functions_too():
    q, k, v = (t.transpose(1, 2) for t in qkv(length=12))
    expected = attention(q, k, v, layout="bhsd")
    runtime._native.use_exchange_api(False)
    try:
        for _ in range(2):
            assert torch.equal(attention(q, k, v, layout="bhsd"), expected)
    finally:
        runtime._native.use_exchange_api(True)


def test_texts_and_numbers_that_decide_are_told_apart(counted):
    """A flag is compared by kind and value: True is not 1, and a text is itself."""
    front = Front("flash_forward", lambda D: {"d_head": D}, flags={"causal": False})
    q, k, v = qkv()
    call = (q, k, v), (None, None), (False,), None
    for _ in range(2):
        front(*call, (False,))
    for wrong in (0, 0.0, "False", None):
        with pytest.raises(runtime.InvalidArgument, match="causal: got a"):
            front(*call, (wrong,))


FRONTS = sorted({front.function for _, front in packs.fronts()})


@pytest.mark.parametrize("name", FRONTS)
def test_public_functions_are_pickled_by_their_name(name):
    """As kernelmint's, which every process can import; what was pickled is the same again."""
    function = getattr(kernelmint, name)
    assert (function.__module__, function.__qualname__) == ("kernelmint", name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    saved = io.BytesIO()
    torch.save(functools.partial(function, 1), saved)
    saved.seek(0)
    assert torch.load(saved, weights_only=False).func is function
    assert f"function {name} in module kernelmint" in pydoc.render_doc(function)
    assert f"def {name}(" in inspect.getsource(function)


class Layer(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, q):
        return self.attend(q, q, q)


def ones(layer):
    return layer(torch.ones(1, 5, 2, 64)).sum().item()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_modules_that_hold_public_functions_go_to_other_processes(method):
    held = kernelmint.attention, kernelmint.flash_attn_func
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as others:
        for function in (*held, functools.partial(kernelmint.attention, causal=True)):
            assert others.submit(ones, Layer(function)).result(timeout=300) == 5 * 2 * 64


def by_head_dimension(D):
    return {"d_head": D}


def test_a_front_is_pickled_by_what_it_is_made_of():
    front = Front("flash_forward", by_head_dimension, flags={"causal": False})
    again = pickle.loads(pickle.dumps(front))
    q, k, v = qkv()
    assert torch.equal(
        *(f((q, k, v), (None, None), (False,), None, (True,)) for f in (front, again))
    )
