"""A call of a kernel: it comes to the extension without a frame of Python's, and means there what
its signature says."""

import inspect
import sys

import pytest
import torch

import runtime
from runtime import manifest, packs

Q, K, V = torch.randn(3, 1, 9, 2, 64).unbind()
OUT, LSE = torch.empty_like(Q), torch.empty(1, 2, 9)
PLAIN = (
    ((Q, K, V), {}),
    ((Q, K, V), {"out": OUT}),
    ((Q, K), {"v": V, "scale": 0.5}),
    ((), {"v": V, "return_lse": True, "k": K, "q": Q, "out": (OUT, LSE), "scale": None}),
)


def kernels():
    """Two of one class and two dtypes."""
    where = "d_head == 64 and not causal and not trace and dtype == '{}'"
    return [
        runtime.kernel(runtime.kernels("flash_forward", "cpu", where.format(dtype))[0].key)
        for dtype in ("f32", "bf16")
    ]


def frames(call):
    """The names of Python's functions that run meanwhile."""
    names = []
    sys.setprofile(lambda frame, event, _: event == "call" and names.append(frame.f_code.co_name))
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize(("arguments", "options"), PLAIN)
def test_a_plain_call_runs_no_function_of_pythons(arguments, options):
    kernel, _ = kernels()
    result = kernel(*arguments, **options)
    face = packs.face(packs.owner("flash_forward"), "flash_forward")
    expected = face.__call__(kernel, *arguments, **options)  # Python's function, as it is generated
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert "__call__" not in frames(lambda: kernel(*arguments, **options))


def test_a_name_need_not_be_the_same_object():
    kernel, _ = kernels()
    name = "".join(["o", "u", "t"])
    assert kernel(Q, K, V, **{name: OUT}) is OUT


def test_a_call_that_something_records_is_pythons():
    kernel, _ = kernels()
    with torch.overrides.BaseTorchFunctionMode():
        assert "__call__" in frames(lambda: kernel(Q, K, V))
    assert "__call__" not in frames(lambda: kernel(Q, K, V))


def test_a_method_that_is_called_with_another_kernel_calls_that():
    kernel, other = kernels()
    q, k, v = (tensor.bfloat16() for tensor in (Q, K, V))
    assert torch.equal(type(kernel).__call__(other, q, k, v), other(q, k, v))
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute '_run'"):
        type(kernel).__call__(None, Q, K, V)
    with pytest.raises(TypeError, match="missing 4 required positional arguments: 'self'"):
        type(kernel).__call__()


def test_a_call_leaves_no_reference_behind():
    kernel, _ = kernels()
    wrong = torch.empty(3)
    before = [sys.getrefcount(x) for x in (Q, K, V, OUT, wrong, kernel, kernel._native)]
    for _ in range(100):
        kernel(Q, K, V, out=OUT)
        with pytest.raises(runtime.InvalidArgument, match=r"^out \(o\): got shape \[3\]"):
            kernel(Q, K, V, out=wrong)
        with pytest.raises(runtime.InvalidArgument, match=r"^return_lse: got an int"):
            kernel(Q, K, V, return_lse=1)
    assert [sys.getrefcount(x) for x in (Q, K, V, OUT, wrong, kernel, kernel._native)] == before


@pytest.mark.parametrize("name", runtime.families())
def test_a_face_takes_inputs_scalars_wishes_and_out_in_the_order_of_the_spec(name):
    family = manifest.family(name)
    _, *parameters = inspect.signature(packs.face(packs.owner(name), name).__call__).parameters
    assert parameters == [
        *(tensor.name for tensor in family.inputs),
        *(scalar.name for scalar in family.scalars),
        *(f"return_{tensor.name}" for tensor in family.outputs if tensor.optional),
        *(["out"] if family.outputs else []),
    ]
