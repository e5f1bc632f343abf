"""Calls of torch.ops.kernelmint's operators that do not pass through PyTorch's dispatcher: which
ones, and that the others do."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime import _native, finding
from runtime.operators import direct as direct_calls
from runtime.operators.definition import Callbacks, Definition

KEY = next(
    i.key
    for i in runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64")
    if i.available
)

pytestmark = pytest.mark.skipif(
    not direct_calls._reads_keys(), reason="this PyTorch does not show a thread's dispatch keys"
)


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


@pytest.fixture
def qkv():
    return torch.randn(3, 1, 5, 2, 64).unbind()


def made(operator):
    """A DirectCall of an operator, and the calls of it that PyTorch's function gets, which returns
    "through"."""
    through = []

    def pytorch(*arguments, **options):
        through.append((arguments, options))
        return "through"

    family = operator.removesuffix("_out")
    own = Definition(family, Callbacks(finding.resolved, *[pytest.fail] * 3))
    described = functools.partial(own._described, operator, operator != family)
    call = _native.OperatorCall(described, finding.resolved, None, pytest.fail)
    return _native.DirectCall(call, direct_calls._is_thread_plain, pytorch), through, pytorch


@pytest.fixture(params=["flash_forward", "flash_forward_out"])
def direct(request):
    found, through, pytorch = made(request.param)
    in_place = request.param.endswith("_out")
    runtime.kernel(KEY)

    def run(q, k, v, **options):
        if in_place and "o" not in options:
            options["o"] = torch.empty_like(q)
        return found(KEY, q, k, v, **options)

    run.through, run.function, run.pytorch, run.in_place = through, found, pytorch, in_place
    return run


@pytest.mark.parametrize(
    "mode",
    [contextlib.nullcontext, torch.no_grad, torch.inference_mode, torch.enable_grad],
)
def test_plain_calls_are_not_dispatched(direct, qkv, mode) -> None:
    expected = runtime.kernel(KEY)(*qkv, scale=0.3)
    with mode():
        out = torch.empty_like(qkv[0])
        result = direct(*qkv, scale=0.3, **({"o": out} if direct.in_place else {}))
    torch.testing.assert_close(out if direct.in_place else result[0], expected, rtol=0, atol=0)
    assert direct.through == []


def _profiled():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


@pytest.mark.parametrize(
    "mode",
    [
        DispatchMode,
        FunctionMode,
        FakeTensorMode,
        _profiled,
        functools.partial(torch.autocast, "cpu"),
        forward_ad.dual_level,
        functools.partial(torch._C._IncludeDispatchKeyGuard, torch._C.DispatchKey.Functionalize),
    ],
)
def test_calls_that_somebody_has_to_see_are_dispatched(direct, qkv, mode) -> None:
    out = {"o": torch.empty_like(qkv[0])} if direct.in_place else {}
    with mode():
        assert direct(*qkv, **out) == "through"
    direct(*qkv, **out)
    assert len(direct.through) == 1


def test_calls_in_transforms_are_dispatched(direct, qkv) -> None:
    seen = []

    def call(t):
        seen.append(direct(*qkv, **({"o": qkv[0]} if direct.in_place else {})))  # none is wrapped
        return t

    torch.func.vmap(call)(torch.ones(2))
    torch.func.functionalize(call)(torch.ones(2))
    torch.jit.trace(call, (torch.ones(2),), check_trace=False)
    assert seen == ["through"] * 3


def test_calls_of_tensors_that_are_not_plain_are_dispatched(direct, qkv) -> None:
    q, k, v = qkv
    for other in (
        q.as_subclass(Subclass),
        q.clone().requires_grad_(),
        torch.complex(q, q).conj().imag,  # lazily negated
        q.to("meta"),
        q.to_sparse(),
        torch._to_functional_tensor(q[:, :0]),  # without elements: it has no memory either way
        q[..., :32],
        3,
    ):
        out = {"o": torch.empty_like(k)} if direct.in_place else {}
        assert direct(other, k, v, **out) == "through"
    if direct.in_place:
        assert direct(q, k, v, o=q.as_subclass(Subclass)) == "through"


def test_what_the_schema_refuses_is_dispatched(direct, qkv) -> None:
    q, k, v = qkv
    for options in ({"other": 1}, {"scale": True}, {"scale": [1]}, {"return_lse": 1}):
        out = {"o": torch.empty_like(q)} if direct.in_place else {}
        assert direct(q, k, v, **out, **options) == "through"
    arguments = [(), (KEY,), (KEY, q, k), (KEY, *qkv, None), (b"", *qkv), ("no.key", *qkv)]
    for given in arguments:
        assert direct.function(*given) == "through"
    assert direct.through[-1] == (("no.key", *qkv), {})


@pytest.mark.skipif(not hasattr(torch.Tensor, "has_names"), reason="it has no named tensors")
@pytest.mark.filterwarnings("ignore:Named tensors")
def test_calls_of_named_tensors_are_dispatched(direct, qkv) -> None:
    q, k, v = qkv
    assert direct(q.refine_names("b", "s", "h", "d"), k, v) == "through"


def test_a_kernel_that_refuses_a_value_runs_once() -> None:
    """It may have written into its inputs."""
    found, through, _ = made("hstu_bsa")
    info = runtime.kernels("hstu_bsa", "cpu")[0]
    runtime.kernel(info.key)
    dims = info.parameters["attention_dim"], info.parameters["linear_dim"]
    tensors = [torch.zeros(8, 2, dim) for dim in dims for _ in "qk"]  # q and k, v and u
    with pytest.raises(runtime.InvalidArgument, match=r"x_offsets\[1\]: got 7, expected 8"):
        found(info.key, *tensors, torch.zeros(8, 2), torch.tensor([0, 7]))
    assert through == []


def test_the_error_of_a_name_that_compares_otherwise_is_raised(qkv) -> None:
    class Name(str):
        def __hash__(self):
            return hash(str(self))

        def __eq__(self, other):
            raise ZeroDivisionError("compared")

    runtime.kernel(KEY)
    packet = torch.ops.kernelmint.flash_forward
    packet(KEY, *qkv)
    with pytest.raises(ZeroDivisionError, match="compared"):
        packet(KEY, *qkv, **{Name("scale"): 0.5})


def test_it_is_known_as_pytorchs_function(direct) -> None:
    assert hash(direct.function) == hash(direct.pytorch)


def test_operators_are_called_directly_after_their_first_call(qkv) -> None:
    runtime.kernel(KEY)
    packet = torch.ops.kernelmint.flash_forward
    hashes = hash(packet), hash(packet.default)
    expected = packet(KEY, *qkv)
    for function in (packet, packet.default):
        assert isinstance(function._op, _native.DirectCall)
        for result, other in zip(function(KEY, *qkv), expected, strict=True):
            torch.testing.assert_close(result, other, rtol=0, atol=0)
    assert (hash(packet), hash(packet.default)) == hashes


def test_what_shows_or_copies_an_operator_finds_what_it_did_before(qkv) -> None:
    runtime.kernel(KEY)
    packet = torch.ops.kernelmint.flash_forward
    packet(KEY, *qkv)
    assert inspect.signature(packet) == inspect.signature(torch.ops.aten.add)
    for function in (packet, packet.default):
        direct = function._op
        assert direct.through.__name__ == direct.__name__
        assert copy.copy(direct) is direct
        assert copy.deepcopy([direct])[0] is direct
        assert weakref.ref(direct)() is direct


def test_torchscript_knows_an_operator_that_is_called_directly(qkv) -> None:
    runtime.kernel(KEY)
    expected = torch.ops.kernelmint.flash_forward(KEY, *qkv)[0]

    def call(key: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.kernelmint.flash_forward(key, q, k, v)[0]

    torch.testing.assert_close(torch.jit.script(call)(KEY, *qkv), expected, rtol=0, atol=0)


def test_errors_are_those_of_the_dispatcher(qkv) -> None:
    q, k, v = qkv
    packet = torch.ops.kernelmint.flash_forward
    packet(KEY, q, k, v)
    with pytest.raises(runtime.InvalidArgument, match="v: got shape"):
        packet(KEY, q, k, v[..., :32])
    with pytest.raises(RuntimeError, match="missing value for argument 'v'"):
        packet(KEY, q, k)


def test_a_pytorch_that_makes_no_keys_of_numbers_dispatches_all_calls(run_python, tmp_path) -> None:
    """PyTorch 2.5 to 2.7 only make numbers of keys."""
    script = f"""
import torch
del torch._C.DispatchKeySet.from_raw_repr
import runtime
q, k, v = torch.randn(3, 1, 5, 2, 64, requires_grad=True).unbind()
out = torch.ops.kernelmint.flash_forward({KEY!r}, q, k, v)[0]
out.sum().backward()
assert torch.equal(out, runtime.kernel({KEY!r})(q, k, v))
"""
    run_python(script, tmp_path)
