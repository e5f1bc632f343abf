"""runtime.attention against the formula in fp64."""

import itertools
import re

import pytest
import torch

import runtime
from runtime import InvalidArgument, KernelNotFound

# One rounding of the output to its dtype, whose values reach about 3, and fp32 arithmetic within.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def oracle(q, k, v, causal, scale=None):
    """softmax(scale q k^T) v and its log-sum-exp, [B, S, H, D] in fp64; rows without keys are 0."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        shift = k.shape[2] - q.shape[2]
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(shift)
        scores = scores.masked_fill(~seen, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0)
    return (weights @ v).transpose(1, 2), lse


def tensors(dtype, sq=37, sk=53, h=4, hk=2, d=64, b=2):
    return (torch.randn(b, s, heads, d).to(dtype) for s, heads in ((sq, h), (sk, hk), (sk, hk)))


def check(result, expected, dtype):
    assert not result.isnan().any()
    assert (result.double() - expected).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_it_computes_attention(dtype, causal, layout):
    q, k, v = tensors(dtype)
    expected, expected_lse = oracle(q, k, v, causal)
    if layout == "bhsd":
        q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
        expected = expected.transpose(1, 2)
    o, lse = runtime.attention(q, k, v, causal=causal, layout=layout, return_lse=True)
    assert o.dtype == dtype
    assert o.shape == q.shape
    check(o, expected, dtype)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=TOLERANCE[dtype])
    assert lse.dtype == torch.float32
    assert torch.equal(runtime.attention(q, k, v, causal=causal, layout=layout), o)


@pytest.mark.parametrize(("sq", "sk"), [*itertools.product([1, 7, 130], [1, 64, 200])])
def test_causal_is_aligned_bottom_right(sq, sk):
    q, k, v = tensors(torch.float32, sq, sk)
    expected, _ = oracle(q, k, v, causal=True)
    check(runtime.attention(q, k, v, causal=True), expected, torch.float32)


def test_scale():
    q, k, v = tensors(torch.float32)
    check(runtime.attention(q, k, v, scale=0.3), oracle(q, k, v, False, 0.3)[0], torch.float32)
    assert runtime.attention(q, k, v, scale=float("nan")).isnan().all()


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_out(layout):
    q, k, v = tensors(torch.float32)
    if layout == "bhsd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    expected, expected_lse = runtime.attention(q, k, v, layout=layout, return_lse=True)
    o = torch.full(q.shape, float("nan"))
    lse = torch.full_like(expected_lse, float("nan"))
    assert runtime.attention(q, k, v, layout=layout, out=o) is o
    assert torch.equal(o, expected)
    o.fill_(float("nan"))
    result = runtime.attention(q, k, v, layout=layout, return_lse=True, out=(o, lse))
    assert result[0] is o
    assert result[1] is lse
    assert torch.equal(o, expected)
    assert torch.equal(lse, expected_lse)


def test_empty_tensors():
    q, k, v = tensors(torch.float32, b=0)
    assert runtime.attention(q, k, v).shape == q.shape
    q, k, v = tensors(torch.float32, sq=0)
    assert runtime.attention(q, k, v).shape == q.shape
    q, k, v = tensors(torch.float32, sk=0)
    o, lse = runtime.attention(q, k, v, return_lse=True)
    assert torch.equal(o, torch.zeros_like(q))
    assert (lse == float("-inf")).all()


def test_it_picks_the_first_available_kernel_of_the_manifests_order():
    q, k, v = tensors(torch.float32)
    fitting = runtime.kernels(
        "flash_forward", "cpu", "dtype == 'f32' and d_head == 64 and not causal"
    )
    assert torch.equal(runtime.attention(q, k, v), runtime.kernel(fitting[0].key)(q, k, v))


def test_when_no_kernel_fits_each_candidate_says_why():
    q, k, v = tensors(torch.float32, d=96)
    with pytest.raises(KernelNotFound) as caught:
        runtime.attention(q, k, v)
    message = str(caught.value)
    assert message.startswith("no flash_forward kernel for dtype f32, d_head 96, causal False on ")
    assert re.search(
        r"\n  flash_forward\.cpu\.f32-d128\S*( and \d+ more)?: d_head is 128, not 96\n", message
    )
    assert "runs on a CUDA device" in message
    assert "kernelmint regenerate && pip install ." in message
    with pytest.raises(KernelNotFound, match="dtype is f32, not f64"):
        runtime.attention(*tensors(torch.float64))
    narrow = torch.randn(3, 1, 37, 2, 40).unbind()
    with pytest.raises(KernelNotFound, match="flash_attn_func takes all multiples of 8 up to 256"):
        runtime.attention(*narrow)
    assert runtime.flash_attn_func(*narrow).shape == narrow[0].shape


def test_wrong_arguments():
    q, k, v = tensors(torch.float32)
    with pytest.raises(InvalidArgument, match=r"^layout: got 'sbhd', expected 'bshd' or 'bhsd'"):
        runtime.attention(q, k, v, layout="sbhd")
    with pytest.raises(InvalidArgument, match=r"^q: got shape \[37, 4, 64\], expected"):
        runtime.attention(q[0], k, v)
    for layout in ("bshd", "bhsd"):
        with pytest.raises(InvalidArgument, match=r"^return_lse: got a Tensor, expected a bool"):
            runtime.attention(q, q, q, layout=layout, return_lse=q)
    with pytest.raises(InvalidArgument, match=r"^q: got a list"):
        runtime.attention([1], k, v, layout="bhsd")
    with pytest.raises(InvalidArgument, match=r"^k: got dtype torch.float64"):
        runtime.attention(q, k.double(), v)
    with pytest.raises(InvalidArgument, match=r"^v: got shape .* with Sk = 53 as in k"):
        runtime.attention(q, k, v[:, 1:])
    for dropout_p in (0.0, 0.5):
        with pytest.raises(InvalidArgument, match=r"^k: got shape \[1, 53, 2, 64\], expected \["):
            runtime.attention(q, k[:1], v[:1], dropout_p=dropout_p)
        with pytest.raises(InvalidArgument, match=r"^v: got shape \[2, 53, 2, 32\], expected \["):
            runtime.attention(q, k, v[..., :32], dropout_p=dropout_p)
        with pytest.raises(InvalidArgument, match=r"^scale: got a str, expected a float"):
            runtime.attention(q, k, v, dropout_p=dropout_p, scale="x")
    of_three_heads = [torch.randn(2, 53, 3, 64) for _ in range(2)]
    with pytest.raises(InvalidArgument, match=r"^k: got 3 heads, expected a number that divides 4"):
        runtime.attention(q, *of_three_heads)
    in_bhsd = [t.transpose(1, 2) for t in (q, *of_three_heads)]
    with pytest.raises(InvalidArgument, match=r"^k: got 3 heads, expected a number that divides 4"):
        runtime.attention(*in_bhsd, layout="bhsd")
