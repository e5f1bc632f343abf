"""Arguments are checked from the spec: each wrong one is an InvalidArgument that names the
argument, what it got and what was expected."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime import InvalidArgument, TargetUnavailable, manifest
from runtime.operators.arguments import conditions_of

B, N, K = 6, 8, 3


@pytest.fixture
def call(native):
    """Calls probe.cpu.f32-b1 with good arguments, apart from those given."""
    x, y = torch.randn(B, N), torch.randn(B, 2)
    good = {"x": x, "y": y, "idx": torch.zeros(K, dtype=torch.int32)}
    scalars = {"alpha": None, "count": 3, "wide": None, "flag": None, "short": None}

    def run(key="probe.cpu.f32-b1", total=False, out=None, **given):
        inputs = tuple(given.get(name, value) for name, value in good.items())
        values = tuple(given.get(name, value) for name, value in scalars.items())
        kernel = native.kernel(key, {"block": int(key[-1])})
        return kernel.call(inputs, values, (total,), out)

    run.x, run.y = x, y
    return run


def refused(call, message, error=InvalidArgument, **given):
    with pytest.raises(error, match="^" + re.escape(message)):
        call(**given)


def test_a_right_call(call):
    z, total = call(total=True)
    expected = call.x.double() * (0.5 * N) + 3
    torch.testing.assert_close(z.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(total.double(), expected.sum(1), rtol=1e-5, atol=1e-5)


def test_an_optional_output_is_returned_only_when_asked_for(call):
    assert isinstance(call(), torch.Tensor)
    assert [t.shape for t in call(total=True)] == [(B, N), (B,)]


def test_dtype(call):
    refused(
        call,
        "x: got dtype torch.float64, expected torch.float32 (probe.cpu.f32-b1)",
        x=call.x.double(),
    )
    refused(call, "x: got dtype torch.complex64", x=call.x.to(torch.complex64).conj())
    refused(call, "idx: got dtype torch.int64", idx=torch.zeros(K, dtype=torch.int64))
    refused(call, "x: got dtype torch.float8_e4m3fn", x=call.x.to(torch.float8_e4m3fn))


@pytest.mark.parametrize(
    ("key", "dtype"),
    [("bf16", torch.bfloat16), ("fp16", torch.float16), ("bool", torch.bool)],
)
def test_every_dtype_is_told_apart(call, key, dtype):
    key = f"probe.cpu.{key}-b1"
    assert call(key, x=call.x.to(dtype)).dtype == dtype
    for other in {torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int8} - {dtype}:
        refused(call, f"x: got dtype {other}", key=key, x=call.x.to(other))


@pytest.mark.parametrize(
    ("value", "name"), [([1.0], "a list"), (None, "a NoneType"), (np.zeros((B, N)), "a ndarray")]
)
def test_what_is_no_tensor(call, value, name):
    refused(call, f"x: got {name}, expected a torch.Tensor", x=value)


def test_rank_and_shape(call):
    refused(call, "x: got shape [8], expected 2 dimensions, [B, N]", x=call.x[0])
    refused(call, "x: got shape [1, 6, 8], expected 2 dimensions", x=call.x[None])
    refused(call, "x: got shape [1, 1, 1, 1, 1, 1, 1, 6, 8], expected 2", x=call.x[(None,) * 7])
    refused(
        call,
        "y: got shape [5, 2], expected [B, ceil_div(N, 4)] with B = 6 as in x; dimension 0 is 5",
        y=call.y[:5],
    )
    refused(
        call,
        "y: got shape [6, 3], expected [B, ceil_div(N, 4)]: dimension 1 must be 2; here N = 8",
        y=torch.randn(B, 3),
    )


def test_the_last_dimension_is_contiguous_and_any_other_stride_goes(call):
    refused(
        call,
        "x: got stride 6 in the last dimension, expected 1; pass x.contiguous()",
        x=torch.randn(N, B).t(),
    )
    refused(call, "x: got stride 0 in the last dimension", x=torch.randn(B, 1).expand(B, N))
    wide = torch.randn(B, 3, N)
    torch.testing.assert_close(call(x=wide[:, 1]), wide[:, 1] * 4 + 3)
    row = torch.randn(N).expand(B, N)  # an input may repeat
    torch.testing.assert_close(call(x=row), row * 4 + 3)
    one = torch.randn(B, 7)[:, :1]  # of extent 1: its stride does not matter
    torch.testing.assert_close(
        call(x=one.as_strided((B, 1), (8, 5)), y=torch.randn(B, 1)).shape[1], 1
    )


def test_alignment(call):
    refused(
        call,
        "x: got data that begins 4 bytes past a multiple of 16, expected 16-byte alignment "
        "(probe.cpu.f32-b1); pass x.clone()",
        x=torch.randn(B * N + 1)[1:].view(B, N),
    )
    refused(
        call,
        "x: got a stride of 36 bytes in dimension 0, expected a multiple of 16 "
        "(probe.cpu.f32-b1); pass x.contiguous()",
        x=torch.randn(B, N + 1)[:, :N],
    )
    one_row = torch.randn(1, N + 1)[:, :N]  # the stride of an extent of 1 does not matter
    assert call(x=one_row, y=torch.randn(1, 2), idx=torch.zeros(1, dtype=torch.int32)).shape[0] == 1


def test_a_contiguous_tensor_is_always_aligned_enough(call):
    odd = torch.randn(B, 7)  # rows of 28 bytes
    torch.testing.assert_close(call(x=odd), odd * 3.5 + 3)


def test_zero_sizes_give_an_empty_result_without_a_launch(call):
    # `flag` makes the kernel fail, so a launch would show.
    result = call(x=torch.empty(0, N), y=torch.empty(0, 2), flag=True)
    assert result.shape == (0, N)
    z, total = call(x=torch.empty(0, N), y=torch.empty(0, 2), flag=True, total=True)
    assert z.shape == (0, N)
    assert total.shape == (0,)


def test_an_output_with_elements_is_computed_even_from_empty_inputs(call):
    z, total = call(x=torch.empty(B, 0), y=torch.empty(B, 0), total=True)
    assert z.shape == (B, 0)
    assert torch.equal(total, torch.zeros(B))


def test_an_extent_past_32_bits_is_refused_with_the_reason(call):
    refused(
        call,
        "x: got 2147483648 in dimension 0 (B), expected at most 2147483647: kernels count each "
        "extent in 32 bits",
        x=torch.empty(1, N).expand(2**31, N),
    )


def test_more_than_2_31_elements_work(native):
    # The input's rows repeat, and the kernel of bools writes nothing: the memory is never touched.
    kernel = native.kernel("probe.cpu.bool-b1")
    x = torch.zeros(1, 2**12, dtype=torch.bool).expand(2**20, 2**12)
    y = torch.zeros(1, 2**10).expand(2**20, 2**10)
    z = kernel.call(
        (x, y, torch.zeros(2, dtype=torch.int32)), (None, 1, None, None, 0), (False,), None
    )
    assert z.shape == x.shape
    assert z.numel() == 2**32


def test_requires_grad_is_refused_without_a_gradient(call):
    message = (
        "x: requires_grad is set and grad mode is on, but probe has no gradient for it; call it "
        "under torch.no_grad() or pass x.detach()"
    )
    refused(call, message, x=call.x.clone().requires_grad_())
    refused(call, message, x=torch.nn.Parameter(call.x))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not call(x=torch.nn.Parameter(call.x)).requires_grad


def test_fake_and_meta_tensors(call):
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(call.x)
    refused(call, "x: got a FakeTensor, which has no memory; expected a tensor with data", x=fake)
    refused(call, "x: got a meta tensor", x=call.x.to("meta"))


def test_lazy_conjugate_and_negative_views(call):
    """Of negated ones whose last dimension may have a stride, see families/test_layout.py."""
    imaginary = torch.zeros(B, N, dtype=torch.complex64).conj().imag
    refused(call, "x: got stride 2 in the last dimension, expected 1", x=imaginary)
    refused(call, "x: got dtype torch.complex64", x=torch.zeros(B, N, dtype=torch.complex64).conj())


def test_sparse_and_transformed_tensors(call):
    refused(call, "x: got a tensor of layout torch.sparse_coo on cpu", x=call.x.to_sparse())
    with pytest.raises(InvalidArgument, match="expected a dense tensor with data"):
        torch.func.vmap(lambda x: call(x=x))(torch.randn(2, B, N))


def test_subclasses(call):
    class Named(torch.Tensor):
        pass

    class Wrapping(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return NotImplemented

    assert call(x=call.x.as_subclass(Named)).shape == (B, N)
    refused(
        call,
        "x: got a Wrapping, a tensor subclass with a dispatch of its own; expected the plain "
        "torch.Tensor that it wraps",
        x=torch.Tensor._make_wrapper_subclass(Wrapping, (B, N), dtype=torch.float32),
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "count: got None, expected a value: there is no default"),
        (2.0, "count: got a float, expected an int"),
        (True, "count: got a bool, expected an int"),
        ("3", "count: got a str, expected an int"),
        (torch.tensor(3.0), "count: got a float, expected an int"),
        (
            torch.tensor([3]),
            "count: got a tensor of shape [1], expected an int, or a tensor without",
        ),
        (2**31, "count: got 2147483648, expected a value that 32-bit integers hold"),
        (-(2**80), "count: got -1208925819614629174706176, expected a value that 32-bit"),
    ],
)
def test_integer_scalars(call, value, message):
    refused(call, message, count=value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1", "alpha: got a str, expected a float"),
        (True, "alpha: got a bool, expected a float"),
        (1j, "alpha: got a complex, expected a float"),
        (
            torch.ones(2, 1),
            "alpha: got a tensor of shape [2, 1], expected a float, or a tensor wit",
        ),
        (1e300, "alpha: got 1e+300, expected a value that 32-bit floats hold"),
        (10**400, "alpha: got 1"),
    ],
)
def test_floating_scalars(call, value, message):
    refused(call, message, alpha=value)


def test_scalars_that_suit(call):
    for alpha in (2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0), torch.tensor(2)):
        torch.testing.assert_close(call(alpha=alpha), 2 * call.x + 3)
    torch.testing.assert_close(call(count=np.int32(5), alpha=1.0), call.x + 5)
    assert call(alpha=float("nan")).isnan().all()
    assert call(alpha=float("inf")).isinf().all()


def test_boolean_and_wide_scalars(call):
    refused(call, "flag: got an int, expected a bool", flag=1)
    refused(call, "wide: got 9223372036854775808, expected a value that 64-bit", wide=2**63)
    assert call(wide=2**63 - 1, flag=False).shape == (B, N)


def test_converting_a_scalar_may_run_anything_before_memory_is_read(call):
    """A number whose conversion frees an input: the kernel reads what is there then."""
    x = torch.randn(B, N)

    class Resizing:
        def __init__(self, tensor):
            self.tensor = tensor

        def __float__(self):
            self.tensor.resize_(0, N)
            return 2.0

        __index__ = __float__

    message = (
        "y: got shape [6, 2], expected [B, ceil_div(N, 4)] with B = 0 as in x; dimension 0 is 6"
    )
    refused(call, message, x=x, alpha=Resizing(x))

    class Asking(torch.Tensor):
        def __bool__(self):
            raise AssertionError("asked")

    for asked, name in (
        (torch.tensor([1, 2]), "a Tensor"), (1, "an int"), (None, "a NoneType"),
        (Asking(), "an Asking"),
    ):  # fmt: skip
        refused(call, f"return_total: got {name}, expected a bool", total=asked)

    class Growing(list):
        def __len__(self):
            return 7

        def __getitem__(self, index):
            raise AssertionError("asked")

    out = torch.empty(B, N)
    assert call(out=Growing([out])) is out


def test_a_conversion_that_fails_says_why_and_an_interrupt_passes(call):
    class Failing:
        def __init__(self, error):
            self.error = error

        def __float__(self):
            raise self.error

        def __index__(self):
            raise self.error

    broken = Failing(ValueError("no number today"))
    for name in ("alpha", "count"):
        with pytest.raises(InvalidArgument, match=rf"^{name}: .*\(no number today\)"):
            call(**{name: broken})
        with pytest.raises(KeyboardInterrupt):
            call(**{name: Failing(KeyboardInterrupt())})
    refused(call, "alpha: ", alpha=10**5000)  # has no repr: more digits than Python shows
    refused(call, "count: ", count=10**5000)


def test_preconditions_print_their_text_their_reason_and_the_values(call):
    refused(
        call,
        "probe.cpu.f32-b4: requires N % block == 0, because a block is whole; here N = 6, "
        "block = 4",
        key="probe.cpu.f32-b4",
        x=torch.randn(B, 6),
    )
    refused(
        call,
        "probe.cpu.f32-b1: requires B % K == 0, because rows come in groups of K; here B = 6, "
        "K = 4",
        idx=torch.zeros(4, dtype=torch.int32),
    )
    refused(
        call,
        "probe.cpu.f32-b1: requires N <= 4096, because a row fits the scratch memory; here "
        "N = 5000",
        x=torch.randn(B, 5000),
        y=torch.randn(B, 1250),
    )
    refused(
        call,
        "probe.cpu.f32-b1: B % K == 0: division by zero; here B = 6, K = 0",
        idx=torch.zeros(0, dtype=torch.int32),
    )


def test_a_cuda_kernel_without_a_cuda_device(call):
    if torch.cuda.is_available():
        message, error = (
            "x: got a tensor on cpu, expected a CUDA tensor (probe.sm80.f32-b1)",
            ValueError,
        )
    else:
        message, error = "probe.sm80.f32-b1: needs a CUDA device; no CUDA device", TargetUnavailable
    refused(call, message, error, key="probe.sm80.f32-b1")


def test_what_a_kernel_reports_or_throws_is_a_runtime_error(call):
    refused(call, "probe.cpu.f32-b1: the flag asked for a failure", RuntimeError, flag=True)
    refused(call, "probe.cpu.f32-b1: thrown by the kernel", RuntimeError, wide=-7)


def test_a_kernel_may_use_streams_and_exceptions_beside_pytorch(call):
    """Its library has a C++ library of its own, none of whose symbols PyTorch's meets."""
    refused(call, "probe.cpu.f32-b1: 0.667 of 8", RuntimeError, wide=-5)


def test_a_workspace_that_cannot_be_is_refused_with_its_text(call):
    scratch = "the workspace scratch [2 * N // (0 if wide == -9 else 1)] f32: room for a row"
    refused(call, f"probe.cpu.f32-b1: {scratch} would have an extent of -1; here N = ", wide=-8)
    refused(call, f"probe.cpu.f32-b1: {scratch}: division by zero; here N = ", wide=-9)


def test_a_default_that_cannot_be_is_refused_with_its_expression(call):
    def refused_default(message, b=B, n=N, k=K):
        x, y = torch.randn(b, n), torch.randn(b, -(-n // 4))
        refused(call, message, x=x, y=y, idx=torch.zeros(k, dtype=torch.int32))

    alpha = "0.5 * N / (K != 6) * (1e200 if K == 4 else 1e308 * N if K == 5 else 1)"
    here = "; here N = 8, K = "
    refused_default(
        f"alpha: its default, {alpha}, is more than 32-bit floats hold{here}4", b=4, k=4
    )
    refused_default(f"alpha: its default, {alpha}, is not a finite number{here}5", b=5, k=5)
    refused_default(
        f"alpha: its default, {alpha}, cannot be computed: division by zero{here}6", k=6
    )
    refused_default(
        "wide: its default, 2 ** 60 * (8 if B == 96 else 0) + N, cannot be computed: an integer "
        "exceeds 64 bits; here B = 96, N = 8",
        b=96,
    )
    refused_default(
        "short: its default, N * 2 ** 20, is more than 32-bit integers hold; here N = 4096", n=4096
    )


def test_a_launch_grid_that_cannot_be_is_refused_with_the_extents(call):
    message = "probe.cpu.f32-b1: the launch: an integer exceeds 64 bits; here B = 6, N = 8, K"
    refused(call, message, RuntimeError, wide=-6)


def test_a_call_leaves_no_reference_behind(call):
    import sys

    before = sys.getrefcount(call.x), sys.getrefcount(call.y)
    out = torch.empty(B, N)
    for _ in range(100):
        call()
        call(out=out)
        with pytest.raises(InvalidArgument):
            call(x=call.x.double())
    assert (sys.getrefcount(call.x), sys.getrefcount(call.y)) == before
    assert sys.getrefcount(out) == 2


class TestOut:
    def test_it_is_written_and_returned(self, call):
        out = torch.full((B, N), float("nan"))
        assert call(out=out) is out
        torch.testing.assert_close(out, call())
        total = torch.full((B,), float("nan"))
        result = call(total=True, out=(out, total))
        assert result[0] is out
        assert result[1] is total
        torch.testing.assert_close(total, out.sum(1))

    def test_count(self, call):
        out = torch.empty(B, N)
        refused(call, "out: got 2 tensors, expected 1: z", out=(out, out))
        refused(call, "out: got 1 tensor, expected 2: z, total", total=True, out=out)
        refused(call, "out: got 0 tensors, expected 1: z", out=())
        assert call(out=(out,)) is out

    def test_type_shape_dtype_strides_alignment(self, call):
        refused(call, "out (z): got an int, expected a torch.Tensor", out=3)
        refused(call, "out (z): got shape [8, 6], expected [6, 8] = [B, N]", out=torch.empty(N, B))
        refused(call, "out (z): got shape [6], expected [6, 8]", out=torch.empty(B))
        wide = torch.empty(B, N, dtype=torch.float64)
        refused(call, "out (z): got dtype torch.float64", out=wide)
        refused(call, "out (z): got stride 6 in the last dimension", out=torch.empty(N, B).t())
        refused(
            call, "out (z): got data that begins 4 bytes", out=torch.empty(B * N + 1)[1:].view(B, N)
        )
        refused(call, "out (z): got a meta tensor", out=torch.empty(B, N, device="meta"))

    def test_requires_grad(self, call):
        refused(call, "out (z): requires_grad is set", out=torch.empty(B, N, requires_grad=True))

    def test_strided_memory(self, call):
        wide = torch.full((B, 3, N), float("nan"))
        call(out=wide[:, 1])
        torch.testing.assert_close(wide[:, 1], call())
        assert wide[:, [0, 2]].isnan().all()

    def test_overlap_with_an_input_is_refused(self, call):
        message = (
            "out (z): shares memory with x (or cannot be shown not to), expected memory of its own"
        )
        refused(call, message, out=call.x)
        flat = torch.randn(2 * B * N)
        x = flat[: B * N].view(B, N)
        refused(call, message, x=x, out=flat[N : N + B * N].view(B, N))
        y = torch.randn(2 * B * N)
        z = y[: B * N].view(B, N)
        refused(call, "out (z): shares memory with y", y=y[: 2 * B].view(B, 2), out=z)

    def test_adjacent_and_interleaved_memory_is_apart(self, call):
        flat = torch.randn(2 * B * N)
        first, second = flat[: B * N].view(B, N), flat[B * N :].view(B, N)
        for x, out in (
            (first, second),
            (second, first),
            torch.randn(B, 2, N).unbind(1),
            torch.randn(B, 2 * N).split(N, 1),
            reversed(torch.randn(B, 2 * N).split(N, 1)),
        ):
            expected = x.clone() * 4 + 3
            torch.testing.assert_close(call(x=x, out=out), expected)
        buffer = torch.randn(B, 2 * N)
        refused(call, "out (z): shares memory with x", x=buffer[:, :N], out=buffer[:, 4 : N + 4])

    @settings(
        max_examples=3 * settings.default.max_examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        offsets=st.tuples(st.integers(0, 40), st.integers(0, 40)),
        strides=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        rows=st.integers(1, 6),
        width=st.integers(1, 8),
    )
    def test_whatever_shares_an_element_is_refused(self, probe, offsets, strides, rows, width):
        buffer = torch.zeros(512)
        shape = (rows, 4 * width)

        def view(i):
            return buffer.as_strided(shape, (4 * strides[i], 1), 4 * offsets[i])

        x, out = view(0), view(1)
        places = torch.arange(512)
        taken = [
            places.as_strided(shape, v.stride(), v.storage_offset()).flatten() for v in (x, out)
        ]
        shared = bool(torch.isin(*taken).any()) or len(taken[1].unique()) < out.numel()
        extents = [(t.min(), t.max()) for t in taken]
        apart = extents[0][1] < extents[1][0] or extents[1][1] < extents[0][0]
        inputs = (x, torch.zeros(rows, width), torch.zeros(1, dtype=torch.int32))
        try:
            probe.kernel("probe.cpu.f32-b1").call(inputs, (1.0, 1, None, None, None), (False,), out)
        except InvalidArgument:
            assert shared or not apart
        else:
            assert not shared
            assert torch.equal(out, torch.ones(shape))

    def test_overlap_with_another_output_is_refused(self, call):
        out = torch.empty(B, N)
        refused(
            call,
            "out (total): shares memory with z",
            total=True,
            out=(out, out.view(-1)[8 : 8 + B]),
        )

    def test_overlap_within_itself_is_refused(self, call):
        refused(
            call,
            "out (z): several of its elements share memory (strides [0, 1]), expected a tensor "
            "whose elements are apart",
            out=torch.empty(1, N).expand(B, N),
        )
        refused(
            call,
            "out (z): several of its elements",
            out=torch.empty(100).as_strided((B, N), (4, 1)),
        )

    def test_autograd_learns_of_the_write(self, call):
        out = torch.empty(B, N)
        before = out._version
        call(out=out)
        assert out._version == before + 1
        with torch.inference_mode():
            call(out=torch.empty(B, N))  # an inference tensor keeps no version

    def test_an_inference_tensor_is_refused_where_copy_refuses_it(self, call):
        with torch.inference_mode():
            out = torch.zeros(B, N)
        refused(call, "out (z): got an inference tensor, which may be written within", out=out)
        assert not out.any()


def test_a_pack_with_some_targets_takes_the_conditions_of_all():
    family = manifest.family("flash_forward")
    part = replace(family, targets=tuple(t for t in family.targets if t.name == "cpu"))
    conditions = conditions_of(part)
    assert len(conditions) == len(family.gradients)
    assert any("sm90a" in condition.text for condition in conditions)
