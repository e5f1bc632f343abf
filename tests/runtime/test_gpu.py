"""On a CUDA device: the caller's stream and device, graphs, no synchronising."""

import threading

import pytest
import torch

import runtime
from runtime import InvalidArgument, TargetUnavailable, devices, manifest, packs

pytestmark = pytest.mark.gpu

NONE_REQUESTED = tuple(
    False for argument in manifest.family("flash_forward").outputs if argument.optional
)
WHERE = "dtype == 'bf16' and d_head == 64 and not causal"


@pytest.fixture
def kernel():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    available = [i for i in runtime.kernels("flash_forward", "sm80", WHERE) if i.available]
    assert available, "this build has no sm80 kernels for this device"
    return runtime.kernel(available[0].key)


def qkv(device="cuda", length=200):
    return torch.randn(3, 2, length, 4, 64, device=device).bfloat16().unbind()


def expected(q, k, v):
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    return (((q @ k.mT) * 64**-0.5).softmax(-1) @ v).transpose(1, 2)


def check(o, q, k, v):
    assert not o.isnan().any()
    assert (o.double() - expected(q, k, v)).abs().max() < 2e-2


def sleep():
    """Keeps the current stream busy for some tenths of a second."""
    torch.cuda._sleep(500_000_000)


def test_the_kernel_runs_on_the_callers_stream(kernel):
    q, k, v = qkv()
    late = torch.full_like(q, float("nan"))
    kernel(late, k, v)  # loads the kernel's module, which synchronises
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        sleep()
        late.copy_(q)
        o = kernel(late, k, v)  # on any other stream it would still read NaN
    torch.cuda.synchronize()
    check(o, q, k, v)


def test_a_call_does_not_synchronise(kernel):
    q, k, v = qkv()
    out = torch.empty_like(q)
    kernel(q, k, v, return_lse=True)
    torch.cuda.synchronize()
    sleep()
    kernel(q, k, v, out=out)
    kernel(q, k, v, return_lse=True)
    done = torch.cuda.Event()
    done.record()
    assert not done.query()
    torch.cuda.synchronize()
    check(out, q, k, v)


@pytest.mark.parametrize("with_out", [False, True])
def test_a_call_can_be_captured_and_replayed(kernel, with_out):
    q, k, v = qkv()
    out = torch.empty_like(q) if with_out else None
    kernel(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = kernel(q, k, v, return_lse=True, out=None)
        o = kernel(q, k, v, out=out)
    for _ in range(3):
        for tensor, fresh in zip((q, k, v), qkv(), strict=True):
            tensor.copy_(fresh)
        o.fill_(float("nan"))
        lse.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check(o, q, k, v)
        assert not lse.isnan().any()


def test_tensors_must_share_a_device_of_the_right_kind(kernel):
    q, k, v = qkv()
    with pytest.raises(
        InvalidArgument, match=r"^k: got a tensor on cpu, expected the device of q, cuda:0$"
    ):
        kernel(q, k.cpu(), v)
    with pytest.raises(InvalidArgument, match=r"^q: got a tensor on cpu, expected a CUDA tensor"):
        kernel(q.cpu(), k.cpu(), v.cpu())
    with pytest.raises(
        InvalidArgument, match=r"^out \(o\): got a tensor on cpu, expected the device of q, cuda:0"
    ):
        kernel(q, k, v, out=torch.empty_like(q, device="cpu"))
    cpu = runtime.kernel(runtime.kernels("flash_forward", "cpu", WHERE)[0].key)
    with pytest.raises(InvalidArgument, match=r"^q: got a tensor on cuda:0, expected a CPU tensor"):
        cpu(q, k, v)


def test_a_device_that_is_too_old_is_a_target_unavailable(kernel, monkeypatch):
    reason = "needs compute capability 8.0 or later, this device is 7.5 (Tesla T4)"
    monkeypatch.setattr(devices, "why_unavailable", lambda *_: reason)
    pack = packs.all_packs()[0]
    native = packs.library(pack, "flash_forward").kernel(kernel.info.key)
    with pytest.raises(TargetUnavailable, match=r"7\.5") as caught:
        native.call(qkv(), (None, None), NONE_REQUESTED, None)
    assert str(caught.value) == f"{kernel.info.key}: {reason}"
    monkeypatch.undo()
    check(native.call(qkv_ := qkv(), (None, None), NONE_REQUESTED, None), *qkv_)


def test_another_device_than_the_current_one(kernel):
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            for device in ("cuda:1", "cuda:0", "cuda:1"):
                q, k, v = qkv(device)
                check(kernel(q, k, v), q, k, v)
                check(kernel.timed(q, k, v)[0], q, k, v)
                assert torch.cuda.current_device() == current
                assert torch.empty(1, device="cuda").device.index == current
    with pytest.raises(
        InvalidArgument, match=r"^v: got a tensor on cuda:0, expected the device of q, cuda:1"
    ):
        kernel(q, k, v.to("cuda:0"))


def test_several_python_threads_with_streams_of_their_own(kernel):
    failed = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                q, k, v = qkv()
                try:
                    check(kernel(q, k, v), q, k, v)
                except Exception as error:
                    failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_tensors_read_by_attributes(kernel):
    native = runtime._native
    native.use_exchange_api(False)
    try:
        q, k, v = qkv()
        late = torch.full_like(q, float("nan"))
        with torch.cuda.stream(torch.cuda.Stream()):
            sleep()
            late.copy_(q)
            o = kernel(late, k, v)
        torch.cuda.synchronize()
        check(o, q, k, v)
    finally:
        native.use_exchange_api(True)


def test_timed_measures_the_kernel(kernel):
    q, k, v = qkv(length=4096)
    kernel(q, k, v)
    short = min(kernel.timed(*qkv(length=128))[1] for _ in range(5))
    result, milliseconds = kernel.timed(q, k, v)
    check(result, q, k, v)
    assert short < milliseconds < 1000


def test_attention_picks_a_kernel_and_compiles(kernel):
    q, k, v = qkv()
    check(runtime.attention(q, k, v), q, k, v)
    compiled = torch.compile(
        lambda q, k, v: runtime.attention(q, k, v) * 2, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(q, k, v), runtime.attention(q, k, v) * 2)


def test_more_than_2_31_elements(kernel):
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of device memory")
    q = torch.randn(9, 2**20, 4, 64, device="cuda", dtype=torch.bfloat16)
    assert q.numel() > 2**31
    k, v = torch.randn(2, 9, 64, 4, 64, device="cuda", dtype=torch.bfloat16).unbind()
    o = kernel(q, k, v)
    for rows in (slice(0, 100), slice(2**20 - 100, 2**20)):
        check(o[8:, rows], q[8:, rows], k[8:], v[8:])


CALLS = {
    "attention": lambda q, k, v: runtime.attention(q, k, v),
    "causal": lambda q, k, v: runtime.attention(q, k, v, causal=True),
    "bhsd": lambda *qkv: runtime.attention(*(t.transpose(1, 2) for t in qkv), layout="bhsd"),
    "sdpa": lambda *qkv: runtime.sdpa(*(t.transpose(1, 2) for t in qkv)),
    "func": lambda q, k, v: runtime.flash_attn_func(q, k, v, window_size=(50, 0)),
    "varlen": lambda *qkv: runtime.flash_attn_varlen_func(
        *(t[0] for t in qkv), *2 * (torch.tensor([0, 90, 200], dtype=torch.int32).cuda(),)
    ),
    "cache": lambda q, k, v: runtime.flash_attn_with_kvcache(q, k, v, cache_seqlens=150),
    "decode": lambda q, k, v: runtime.decode(q[:, :2], k, v),
    "compiled": lambda q, k, v: torch.compile(runtime.attention, fullgraph=True)(q, k, v),
}


@pytest.mark.parametrize("expanded", ["q", "k", "v", "qkv"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_expanded_along_the_sequence_counts_as_its_copy(call, expanded):
    tensors = [
        t[:, :1].expand(-1, 200, -1, -1) if name in expanded else t
        for name, t in zip("qkv", qkv()[:3], strict=True)
    ]
    copies = [t.contiguous() for t in tensors]
    for _ in range(2):
        for given in (tensors, copies):
            found, wanted = CALLS[call](*given), CALLS[call](*copies)
            torch.testing.assert_close(found, wanted, rtol=0, atol=2e-2)


def test_what_no_other_target_serves_is_refused_and_left_to_pytorch():
    """Only Hopper's kernels have this head dimension, and they take no such tensor."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("kernels of sm90a need compute capability 9.0")
    from kernelmint.integrations import torch as slot

    q, k, v = torch.randn(3, 2, 4, 200, 96, device="cuda").bfloat16().unbind()
    expanded = k[:, :, :1].expand(-1, -1, 200, -1)
    with pytest.raises(InvalidArgument, match=r"requires not expanded\(k, 1\)"):
        runtime.attention(q, expanded, v, layout="bhsd")
    sdpa = torch.nn.functional.scaled_dot_product_attention
    wanted = sdpa(q, expanded, v)
    with slot.active():
        torch.testing.assert_close(sdpa(q, expanded, v), wanted, rtol=0, atol=2e-2)
        sdpa(q, k, v)
        found = slot.calls()
    assert found.ours == 1
    assert sum(found.pytorch.values()) == 1
