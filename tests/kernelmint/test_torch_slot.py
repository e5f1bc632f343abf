"""`kernelmint.integrations.torch`: SDPA's flash backend on our kernels, and PyTorch's own again."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint

import runtime
from kernelmint.integrations import torch as slot
from tests.slow import slow_after

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# of a whole result, relative: forward and backward round once each to the dtype of operands
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2 * 2**-8}


@pytest.fixture(autouse=True)
def _pytorchs_own_afterwards():
    torch.compiler.reset()
    yield
    slot.deactivate()


def inputs(device, heads=4, kv_heads=4, length=70, d_head=64):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    shapes = (2, length, heads, d_head), *2 * ((2, length, kv_heads, d_head),)
    # strided as models have them: heads first, by a transpose
    tensors = [torch.randn(s, device=device, dtype=dtype).transpose(1, 2) for s in shapes]
    return [t.requires_grad_() for t in tensors], torch.randn_like(tensors[0])


def results(function, tensors, gradient):
    o = function(*tensors)
    return [o.detach(), *torch.autograd.grad(o, tensors, gradient)]


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert error < TOLERANCE[ours.dtype]


def exact(function, tensors, gradient):
    """The results in fp64, by PyTorch's plain operators."""
    doubled = [t.detach().double().requires_grad_() for t in tensors]
    with sdpa_kernel(SDPBackend.MATH):
        return results(function, doubled, gradient.double())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_results_and_gradients_are_right_and_ours(device, kv_heads, causal):
    def attention(q, k, v):
        return sdpa(q, k, v, is_causal=causal, enable_gqa=kv_heads != 4)

    tensors, gradient = inputs(device, kv_heads=kv_heads)
    expected = exact(attention, tensors, gradient)
    with slot.active("error"):
        close(results(attention, tensors, gradient), expected)
        assert slot.calls().ours == 1


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_checkpointed_and_under_autocast(device):
    def attention(q, k, v):
        return sdpa(q * 1, k, v, is_causal=True)

    tensors, gradient = inputs(device)
    expected = exact(attention, tensors, gradient)
    ways = (
        torch.compile(attention, fullgraph=True, backend="aot_eager"),
        lambda *a: checkpoint(attention, *a, use_reentrant=False),
    )
    with slot.active("error"):
        for number, way in enumerate(ways):
            close(results(way, tensors, gradient), expected)
            assert slot.calls().ours > number
        with torch.autocast(device, torch.bfloat16):
            assert attention(*tensors).dtype == torch.bfloat16


@pytest.mark.gpu
def test_in_a_cuda_graph():
    tensors, _ = inputs("cuda")
    q, k, v = (t.detach() for t in tensors)
    with slot.active("error"), torch.no_grad():
        expected = sdpa(q, k, v)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = sdpa(q, k, v)
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_lengths(device):
    """varlen_attn, which PyTorch has on GPUs alone: windows, grouped heads, pages, the sum too."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    takes = inspect.signature(varlen.varlen_attn).parameters  # fewer before PyTorch 2.13
    grouped = {"enable_gqa": True} if "enable_gqa" in takes else {}
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = tensors = [
        torch.randn(100, heads, 64, device=device, dtype=dtype, requires_grad=True)
        for heads in (4, 2, 2)
    ]
    gradient = torch.randn_like(q)
    places = torch.tensor([0, 60, 60, 100], dtype=torch.int32, device=device)

    def attention(q, k, v):
        return varlen.varlen_attn(q, k, v, places, places, 60, 60, window_size=(20, 0), **grouped)

    def plain(q, k, v, begin, end, window=20):
        ahead = torch.arange(end - begin, device=device)
        ahead = ahead[:, None] - ahead
        seen = (ahead >= 0) & (ahead <= window) if window else None
        q, k, v = (t.transpose(0, 1) for t in (q[begin:end], k, v))
        return sdpa(q, k, v, attn_mask=seen, enable_gqa=True).transpose(0, 1)

    def both(q, k, v):
        return torch.cat([plain(q, k[a:b], v[a:b], a, b) for a, b in ((0, 60), (60, 100))])

    with slot.active():
        found = results(attention, tensors, gradient)
        aux = varlen.AuxRequest(lse=True)
        with torch.no_grad():
            _, sums = varlen.varlen_attn(
                *(q, k, v, places, places, 60, 60), return_aux=aux, **grouped
            )
            table = torch.arange(12, dtype=torch.int32, device=device).view(3, 4)
            used = torch.tensor([60, 0, 40], dtype=torch.int32, device=device)
            pages = torch.randn(2, 12, 16, 2, 64, device=device, dtype=dtype)
            if "block_table" in takes:
                paged = varlen.varlen_attn(
                    *(q, *pages, places, None, 60, 64), **grouped,
                    seqused_k=used, block_table=table,
                )  # fmt: skip
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        again = results(compiled, tensors, gradient)
        assert slot.calls() == slot.Calls(3 + ("block_table" in takes), {})
    close(found, exact(both, tensors, gradient))
    assert torch.equal(again[0], found[0])
    close(again, exact(both, tensors, gradient))
    spans = ((0, 60, pages[:, :4]), (60, 100, pages[:, 8:]))
    for begin, end, of in spans if "block_table" in takes else ():
        keys = of.flatten(1, 2)[:, : end - begin].double()
        close([paged[begin:end]], [plain(q.detach().double(), *keys, begin, end, window=None)])
    assert sums.shape == (4, 100)
    assert sums.isfinite().all()
    if device == "cpu":
        with pytest.raises(NotImplementedError):  # PyTorch's own again
            varlen.varlen_attn(q, q, q, places, places, 60, 60)


def test_packed_lengths_that_go_to_pytorchs_on_gpus():
    """What decides, without one: equal lengths are SDPA's own; what no kernel suits is counted."""
    ours = slot._Slot("pytorch")
    pytorchs = SimpleNamespace(call_boxed=lambda keys, *arguments, **options: "PyTorch's")
    ours.originals[slot._VARLEN] = pytorchs
    q = torch.randn(100, 2, 64)
    places = torch.tensor([0, 60, 100], dtype=torch.int32)

    def call(places, dropout=0.0):
        return ours._varlen_on_cuda(
            "keys", q, q, q, places, places, 60, 60, dropout, False, False, scale=None
        )

    assert call(None) == "PyTorch's"
    assert (ours.ours, ours.pytorch) == (0, {})
    assert call(places, dropout=0.5) == "PyTorch's"
    assert list(ours.pytorch) == [
        "dropout_p: got 0.5, expected 0: flash_attn_varlen_func drops out"
    ]
    assert call(places)[0].shape == q.shape
    assert ours.ours == 1


def test_packed_lengths_that_pytorch_gives_cudnn():
    """What decides, without a GPU: PyTorch 2.14's varlen_attn gives cuDNN long ones on Hopper."""
    ours = slot._Slot("pytorch")
    pytorchs = SimpleNamespace(call_boxed=lambda keys, *arguments, **options: "PyTorch's")
    ours.originals[slot._VARLEN_CUDNN] = pytorchs
    q = torch.randn(100, 2, 64)
    places = torch.tensor([0, 60, 100], dtype=torch.int32)

    def call(places, *options, bias=None):
        return ours._varlen_by_cudnn(
            *("keys", q, q, q, bias, places, places, 60, 60, True), *options, scale=0.5
        )

    assert call(None) == "PyTorch's"
    assert call(places, bias=q) == "PyTorch's"
    assert call(places, 0.0, True) == "PyTorch's"  # aligned top-left
    assert (ours.ours, ours.pytorch) == (0, {})
    assert call(places, 0.5) == "PyTorch's"
    assert list(ours.pytorch) == [
        "dropout_p: got 0.5, expected 0: flash_attn_varlen_func drops out"
    ]
    o, lse, *lengths = call(places)[:6]
    assert ours.ours == 1
    o_of_flash, lse_of_flash = ours._varlen(
        *(q, q, q, places, places, 60, 60, 0.0, False, False), scale=0.5
    )[:2]
    assert torch.equal(o, o_of_flash)
    assert torch.equal(lse, lse_of_flash)
    assert lengths == [places, places, 60, 60]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [100, 400])  # PyTorch 2.14 gives cuDNN the long ones
@pytest.mark.parametrize("d_head", [64, 40])  # a kernel of ours, and PyTorch's own
def test_gradients_are_0_in_the_rows_of_no_packed_sequence(device, length, d_head):
    """Whatever was in memory, and in the gradient of such rows, which a weight's would add up."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    if device == "cpu" and d_head == 40:
        pytest.skip("PyTorch has no varlen_attn on the CPU")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    size = 2 * length + 60
    tensors = torch.randn(3, size, 2, d_head, device=device, dtype=dtype).unbind()
    tensors = [t.clone().requires_grad_() for t in tensors]
    gradient = torch.randn_like(tensors[0])
    q_places, k_places = torch.tensor(
        [[10, 10 + length, 10 + length, 30 + 2 * length], [0, length, length, 2 * length]],
        dtype=torch.int32,
        device=device,
    )
    unused = [torch.ones(size, dtype=torch.bool, device=device) for _ in range(2)]
    for rows, places in zip(unused, (q_places, k_places), strict=True):
        rows[places[0] : places[-1]] = False
    gradient[unused[0]] = torch.nan

    def attention(q, k, v):
        return varlen.varlen_attn(q, k, v, q_places, k_places, length + 20, length)

    with slot.active():
        for _ in range(5):
            junk = torch.full((64, *tensors[0].shape), torch.nan, device=device, dtype=dtype)
            del junk  # its memory is the gradients'
            found = results(attention, tensors, gradient)[1:]
            for each, rows in zip(found, (unused[0], unused[1], unused[1]), strict=True):
                assert each.isfinite().all()
                assert not each[rows].any()


def test_rows_before_the_first_and_after_the_last_sequence_are_cleared():
    gradients = tuple(torch.ones(9, 2, 4) for _ in range(3))
    q_places, k_places = torch.tensor([[1, 5, 7], [0, 2, 8]], dtype=torch.int32)
    slot._only_of_sequences(gradients, q_places, k_places)
    sums = [gradient.sum((1, 2)).tolist() for gradient in gradients]
    assert sums == [[0] + [8] * 6 + [0] * 2, [8] * 8 + [0], [8] * 8 + [0]]
    slot._only_of_sequences(gradients, None, None)  # SDPA's own, of equal lengths


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(0, 1, 8, 128), (0, 3, 127, 64), (2, 0, 16, 64), (0, 2, 9, 40)])
@pytest.mark.parametrize("keys", [None, 5, 300])
@pytest.mark.parametrize("way", ["plain", "causal", "masked"])
def test_no_sequences_and_no_heads(shape, keys, way):
    """PyTorch gives cuDNN what its flash attention does not take, which returns no tensor then."""
    key_shape = (*shape[:2], keys or shape[2], shape[3])
    for dtype in (torch.float16, torch.bfloat16):
        tensors = [
            torch.randn(s, device="cuda", dtype=dtype, requires_grad=True)
            for s in (shape, key_shape, key_shape)
        ]
        mask = torch.ones(shape[2], key_shape[2], device="cuda").bool()
        options = {"attn_mask": mask if way == "masked" else None, "is_causal": way == "causal"}
        with slot.active():
            with torch.no_grad():
                assert sdpa(*tensors, **options).shape == shape
            o = sdpa(*tensors, **options)
            assert o.shape == shape
            gradients = torch.autograd.grad(o, tensors, torch.empty_like(o))
        for gradient, tensor in zip(gradients, tensors, strict=True):
            assert gradient.shape == tensor.shape


def test_an_output_without_elements_that_pytorch_gives_cudnn():
    """What decides, without a GPU."""
    ours = slot._Slot("pytorch")
    pytorchs = SimpleNamespace(call_boxed=lambda keys, *arguments, **options: "PyTorch's")
    ours.originals[slot._CUDNN] = pytorchs
    q, k = torch.randn(0, 4, 8, 64), torch.randn(0, 2, 9, 64)
    o, lse, *_, debug_mask = ours._cudnn_on_cuda("keys", q, k, k[..., :32], None, True, 0.0, True)
    assert (o.shape, o.dtype, lse.shape, debug_mask) == ((0, 4, 8, 32), q.dtype, (0, 4, 8, 1), None)
    q = torch.randn(1, 4, 8, 64)
    assert ours._cudnn_on_cuda("keys", q, q, q, None, True, scale=0.5) == "PyTorch's"


@pytest.mark.gpu
def test_long_packed_lengths():
    """Without a window or grouped heads: PyTorch 2.14 gives them cuDNN on Hopper."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    places = torch.tensor([0, 300, 500], dtype=torch.int32, device="cuda")
    tensors = torch.randn(3, 500, 4, 64, device="cuda", dtype=torch.bfloat16).unbind()
    tensors = [t.clone().requires_grad_() for t in tensors]
    gradient = torch.randn_like(tensors[0])

    def attention(q, k, v):
        return varlen.varlen_attn(q, k, v, places, places, 300, 300)

    def plain(q, k, v):
        parts = [[t[a:b].transpose(0, 1) for t in (q, k, v)] for a, b in ((0, 300), (300, 500))]
        return torch.cat([sdpa(*part).transpose(0, 1) for part in parts])

    with slot.active("error"):
        found = results(attention, tensors, gradient)
        assert slot.calls().ours == 1
    close(found, exact(plain, tensors, gradient))


@pytest.mark.parametrize("device", DEVICES)
def test_what_no_kernel_suits_goes_to_pytorch_and_is_counted(device):
    tensors, gradient = inputs(device)
    few, gradient = [t[..., :40] for t in tensors], gradient[..., :40]
    expected = exact(sdpa, few, gradient)
    with slot.active():
        close(results(sdpa, few, gradient), expected)
        ((reason, count),) = slot.calls().pytorch.items()
        assert (slot.calls().ours, count) == (0, 1)
        assert "d_head 40" in reason


def test_a_kernel_that_cannot_be_built_suits_no_call(monkeypatch, tmp_path):
    """Such a call goes to PyTorch and is counted, or is refused, with the reason."""
    monkeypatch.setenv("KERNELMINT_BUILD", "missing")
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/c++")
    tensors, gradient = inputs("cpu", d_head=160)
    expected = exact(sdpa, tensors, gradient)
    with slot.active():
        for _ in range(2):
            close(results(sdpa, tensors, gradient), expected)
        ((reason, count),) = slot.calls().pytorch.items()
        assert (slot.calls().ours, count) == (0, 2)
        assert "/nowhere/c++ --version: No such file" in reason
    with slot.active("error"), pytest.raises(runtime.InvalidArgument, match="/nowhere/c"):
        sdpa(*tensors)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda q, k, v: sdpa(q[..., :40], k[..., :40], v[..., :40]), "d_head 40"),
        (lambda q, k, v: sdpa(q, k[:, :, :30], v[:, :, :30], is_causal=True), "aligned top-left"),
        (lambda q, k, v: sdpa(q, k, v, attn_mask=torch.ones(70, 70).bool()), "a mask is given"),
        (lambda q, k, v: sdpa(q, k, v, dropout_p=0.5), "dropout is on"),
        (lambda q, k, v: sdpa(q, k, v[..., :32]), "PyTorch chose SDPBackend.MATH"),
    ],
)
def test_or_is_refused_by_name(call, reason):
    tensors, _ = inputs("cpu")
    with slot.active("error"):
        for grad_mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
            with grad_mode, pytest.raises(runtime.InvalidArgument, match=reason):
                call(*tensors)
        assert slot.calls() == slot.Calls(0, {})


def test_dropout_on_the_cpu_is_counted_and_is_pytorchs():
    tensors, gradient = inputs("cpu")

    def attention(q, k, v):
        torch.manual_seed(0)
        return sdpa(q, k, v, dropout_p=0.5)

    expected = results(attention, tensors, gradient)
    with slot.active():
        for ours, theirs in zip(results(attention, tensors, gradient), expected, strict=True):
            assert torch.equal(ours, theirs)
        assert slot.calls() == slot.Calls(0, {"dropout is on": 1})
        exact(sdpa, tensors, gradient)  # whoever asks for PyTorch's plain operators has them
        assert slot.calls() == slot.Calls(0, {"dropout is on": 1})


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_dropout_within_vmap_is_as_without_it(randomness):
    tensors = torch.randn(3, 3, 2, 4, 20, 64)

    @functools.partial(torch.func.vmap, randomness=randomness)
    def attention(q, k, v):
        return sdpa(q, k, v, dropout_p=0.5)

    def seeded():
        torch.manual_seed(0)
        return attention(*tensors)

    expected = seeded()
    with slot.active():
        assert torch.equal(seeded(), expected)
        assert slot.calls() == slot.Calls(0, {"dropout is on": 1})
        with sdpa_kernel(SDPBackend.MATH):  # whoever asks for it has it
            seeded()
        attention(*tensors.to("meta"))
        assert slot.calls() == slot.Calls(0, {"dropout is on": 1})
    with slot.active("error"), pytest.raises(runtime.InvalidArgument, match="dropout is on"):
        seeded()
    assert torch.equal(seeded(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_deactivating_restores_pytorchs(device):
    tensors, gradient = inputs(device)

    def order():
        return torch._C._get_sdp_priority_order()

    before = results(sdpa, tensors, gradient)
    order_before = order()
    changes = slot.activate()
    assert slot.is_active()
    assert ("CUDA" in str(changes)) == torch.cuda.is_available()
    assert "aten::_scaled_dot_product_flash_attention_for_cpu (CPU)" in changes.operators
    slot.deactivate()
    slot.deactivate()
    assert not slot.is_active()
    assert order() == order_before
    for ours, theirs in zip(results(sdpa, tensors, gradient), before, strict=True):
        assert torch.equal(ours, theirs)
    assert slot.calls().ours == 0


def test_a_with_statement_restores_what_was_active_before_it():
    """An outer activation holds again, with its options and its counts."""
    tensors, _ = inputs("cpu")
    refused = tensors[0][..., :40]
    slot.activate("error")
    sdpa(*tensors)
    with slot.active("pytorch"):
        sdpa(refused, refused, refused)
        with pytest.raises(ZeroDivisionError), slot.active("error"):
            raise ZeroDivisionError
        sdpa(refused, refused, refused)
        assert (slot.calls().ours, *slot.calls().pytorch.values()) == (0, 2)
    assert slot.is_active()
    sdpa(*tensors)
    assert slot.calls() == slot.Calls(2, {})
    with pytest.raises(runtime.InvalidArgument, match="d_head 40"):
        sdpa(refused, refused, refused)


def test_a_with_statement_restores_the_flash_attention_of_others():
    removed = []
    theirs = SimpleNamespace(remove=lambda: removed.append(True))
    attention = torch.nn.attention
    attention.register_flash_attention_impl("theirs", register_fn=lambda: theirs)
    attention.activate_flash_attention_impl("theirs")
    try:
        with slot.active():
            assert removed == [True]
        assert attention.current_flash_attention_impl() == "theirs"
    finally:
        attention.restore_flash_attention_impl()


def test_with_statements_that_end_out_of_order():
    """The last begun that has not ended holds, and none stays active."""
    first, second = slot.active("error"), slot.active("pytorch")
    tensors, _ = inputs("cpu")
    refused = tensors[0][..., :40]
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert slot.is_active()
    sdpa(refused, refused, refused)
    second.__exit__(None, None, None)
    assert not slot.is_active()
    sdpa(*tensors)
    assert slot.calls().ours == 0


def test_another_attention_takes_the_place_of_ours_after_it():
    """Its kernel is registered after ours, which stay, and is removed again."""
    slot.activate()
    slot.deactivate()
    tensors, _ = inputs("cpu")
    expected = sdpa(*tensors)
    library = torch.library.Library("aten", "IMPL")
    library.impl(slot._CPU, lambda q, *_, **__: (torch.zeros_like(q), q[..., 0]), "CPU")
    theirs = SimpleNamespace(remove=library._destroy)
    attention = torch.nn.attention
    attention.register_flash_attention_impl("theirs", register_fn=lambda: theirs)
    attention.activate_flash_attention_impl("theirs")
    with torch.no_grad():
        assert not sdpa(*tensors).any()
    with slot.active("error"):
        sdpa(*tensors)
        assert slot.calls().ours == 1
        attention.restore_flash_attention_impl()
        assert torch.equal(sdpa(*tensors), expected)
        attention.activate_flash_attention_impl("kernelmint")
        sdpa(*tensors)
        assert slot.calls().ours == 2
    attention.restore_flash_attention_impl()
    assert torch.equal(sdpa(*tensors), expected)


THREADS = """
import sys, threading, torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from kernelmint.integrations import torch as slot

q = torch.randn(2, 4, 16, 64)
expected, failures, together = sdpa(q, q, q), [], threading.Barrier(8)

def call():
    torch.testing.assert_close(sdpa(q, q, q), expected, rtol=1e-4, atol=1e-4)

def call_within():
    with slot.active("error"):
        call()
        assert slot.is_active()

def work(each):
    try:
        together.wait()
        for _ in range(300):
            each()
    except BaseException as failure:
        failures.append(failure)

each = call if sys.argv[1] == "activate" else call_within
threads = [threading.Thread(target=work, args=(each,)) for _ in range(8)]
[thread.start() for thread in threads]
while sys.argv[1] == "activate" and any(thread.is_alive() for thread in threads):
    slot.activate()
    slot.deactivate()
[thread.join() for thread in threads]
assert not failures, failures
assert not slot.is_active()
"""


@pytest.mark.parametrize("way", slow_after(1, ["activate", "with"]))
def test_threads_call_while_it_is_activated_and_deactivated(way):
    done = subprocess.run(
        [sys.executable, "-c", THREADS, way], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ended_by", ["exit", "deactivate"])
def test_an_activation_is_its_threads_own(ended_by):
    """What one thread begins within its with statement, another's end leaves as it is."""
    begun, ended = threading.Event(), threading.Event()

    def work():
        with slot.active("error"):
            begun.set()
            ended.wait()

    thread = threading.Thread(target=work)
    with slot.active("pytorch"):
        thread.start()
        begun.wait()
        if ended_by == "deactivate":
            slot.deactivate()
    assert slot.is_active()
    ended.set()
    thread.join()
    assert not slot.is_active()


@pytest.mark.gpu
def test_it_comes_before_cudnn():
    tensors, _ = inputs("cuda")
    with slot.active("error") as changes:
        sdpa(*tensors)
        assert slot.calls().ours == 1
        assert changes.order is not None
        assert changes.order[0] == "FLASH_ATTENTION"


def test_wrong_words_and_an_old_pytorch(monkeypatch):
    with pytest.raises(ValueError, match="otherwise: got 'maybe', expected 'pytorch' or 'error'"):
        slot.activate("maybe")
    monkeypatch.delattr(torch.nn.attention, "restore_flash_attention_impl")
    with pytest.raises(RuntimeError, match=r"it takes PyTorch 2\.11 or later"):
        slot.activate()
    assert not slot.is_active()


def test_nothing_is_printed():
    script = "from kernelmint.integrations import torch as slot; slot.activate(); slot.deactivate()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
