"""Gradients of sequences of any lengths, against the fp64 oracle's.

The relative error of a whole gradient is held to 2 roundings of the dtype that operands and results
have, as flash_forward's is. On a machine without a GPU, what is made of PyTorch's operator for GPUs
is held to the same, by a stand-in for that operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import runtime
from runtime import packs

from ..reference import prefill

ROUNDINGS = {torch.float32: 2e-6, torch.bfloat16: 2 * 2**-8, torch.float16: 2 * 2**-11}
KERNEL = "flash_prefill.cpu.f32-d64-r64-c128"
PLACES = torch.tensor([0, 60, 60, 61, 100], dtype=torch.int32)
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small wait for a second thread longer than they take
    yield
    torch.set_num_threads(threads)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def inputs(dtype=torch.float32, rows=(100,), keys=(100,), d_head=40, kv_heads=2, device="cpu"):
    shapes = ((*rows, 4, d_head), *2 * ((*keys, kv_heads, d_head),), (4,))
    made = (torch.randn(shape).to(device, dtype) for shape in shapes)
    return [tensor.requires_grad_() for tensor in made]


def check(function: Any, leaves: list[torch.Tensor], **options: Any) -> None:
    """That `function` of q, k, v and s_aux has the gradients of the oracle with these options; that
    of the output is NaN in the rows in which q is, which are of no sequence."""
    o = function(*leaves)
    do = torch.randn_like(o)
    unused = leaves[0].detach().isnan().any(-1)
    found = torch.autograd.grad(o, leaves, do.masked_fill(unused[..., None], torch.nan))
    assert not found[0][unused].any()
    q, k, v, *sinks = exact = [t.detach().double().requires_grad_() for t in leaves]
    if sinks:
        options["s_aux"] = sinks[0]
    if q.dim() == 3:
        q, k, v = q[None], k[None], v[None]
    expected = prefill(q, k, v, **options)[0].view(o.shape)
    wanted = torch.autograd.grad(expected, exact, do.double())
    for name, ours, true in zip(("q", "k", "v", "s_aux"), found, wanted, strict=False):
        assert (ours.shape, ours.dtype) == (true.shape, leaves[0].dtype)
        error = ((ours - true).norm() / true.norm().clamp_min(1e-30)).item()
        assert error < ROUNDINGS[ours.dtype], (name, error)


WINDOWS = [(-1, -1), (-1, 0), (9, 0), (5, 20)]


def packed(window, options):
    def call(q, k, v, s_aux=None):
        there = {
            name: value.to(q.device) if isinstance(value, torch.Tensor) else value
            for name, value in options.items()
        }
        return runtime.flash_attn_varlen_func(
            q, k, v, there.pop("cu_seqlens_q", PLACES.to(q.device)), there.pop("cu_seqlens_k"),
            60, 60, softmax_scale=0.2, window_size=window, s_aux=s_aux, **there,
        )  # fmt: skip

    named = {"window_left": window[0], "window_right": window[1], "softmax_scale": 0.2}
    return call, {"cu_seqlens_q": PLACES, **options, **named}


USED = {"seqused_q": ints(50, 0, 1, 20), "seqused_k": ints(33, 10, 0, 30)}
OTHER_KEYS = {"cu_seqlens_k": ints(0, 33, 43, 43, 100)}
LENGTHS = [
    {"cu_seqlens_k": PLACES},
    {**OTHER_KEYS, "leftpad_k": ints(3, 0, 0, 50)},
    {**OTHER_KEYS, **USED},
    {"cu_seqlens_q": ints(5, 60, 60, 61, 90), "cu_seqlens_k": ints(3, 33, 43, 43, 95)},
]


def packed_inputs(lengths, dtype=torch.float32, device="cpu"):
    """Of these lengths; what is used of no sequence is NaN."""
    leaves = inputs(dtype, device=device)
    with torch.no_grad():
        if "seqused_q" in lengths:
            for part in (slice(50, 60), slice(81, 100)):
                leaves[0][part] = torch.nan
            for tensor in leaves[1:3]:
                tensor[73:] = torch.nan
        if "cu_seqlens_q" in lengths:
            for tensor, name in zip(leaves, ("cu_seqlens_q", *2 * ("cu_seqlens_k",)), strict=False):
                tensor[: lengths[name][0]] = tensor[lengths[name][-1] :] = torch.nan
    return leaves


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_packed_sequences(window, dtype, device):
    """Empty ones, of other numbers of queries than keys (so of rows that see none), parts used."""
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("no kernel takes f32 on GPUs")
    for lengths in LENGTHS:
        call, options = packed(window, lengths)
        check(call, packed_inputs(lengths, dtype, device), **options)


def check_padded_batch(causal, rows=30, dtype=torch.float32, device="cpu", call=None):
    leftpad, used = (ints(*each).to(device) for each in ((0, 7), (25, 30)))
    leaves = inputs(dtype, rows=(2, rows), keys=(2, 30), device=device)
    with torch.no_grad():
        for padded in leaves[1:3]:
            padded[0, 25:] = padded[1, :7] = torch.nan
    options = {"leftpad_k": leftpad, "seqused_k": used, "window_right": 0 if causal else -1}

    def public(q, k, v, s_aux):
        return runtime.flash_attn_func(
            q, k, v, causal=causal, s_aux=s_aux, leftpad_k=leftpad, seqused_k=used
        )

    check(public if call is None else call(options), leaves, **options)


def test_lengths_beyond_the_rows_that_there_are_count_these():
    """As the forward takes them."""

    def of(used, pads):
        leaves = [t.detach().requires_grad_() for t in made]
        o = runtime.flash_attn_func(
            *leaves[:3], window_size=(9, 5), seqused_q=used, seqused_k=used, leftpad_k=pads
        )
        return torch.autograd.grad(o, leaves[:3], do)

    made = inputs(rows=(4, 30), keys=(4, 30))
    do = torch.randn(4, 30, 4, 40)
    found = of(ints(900, -4, 30, 20), ints(-5, 3, 31, 900))
    expected = of(ints(30, 0, 30, 20), ints(0, 0, 30, 20))
    for ours, true in zip(found, expected, strict=True):
        assert torch.equal(ours, true)


def test_second_derivatives_are_refused_by_name():
    q, k, v, _ = inputs(rows=(2, 30), keys=(2, 30))
    o = runtime.flash_attn_func(q, k, v, window_size=(3, 3))
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        dq.sum().backward()


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("causal", [False, True])
def test_batches_of_a_padded_length_and_of_few_queries(causal, device):
    """(Few queries are flash_decode's if nothing asks for gradients.)"""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for rows in (30, 2):
        check_padded_batch(causal, rows, dtype, device)


def flash_attention_2s(
    do, q, k, v, o, lse, cu_q, cu_k, max_q, max_k, dropout, causal, rng_state, unused, *,
    scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    """What PyTorch's operator for GPUs computes, one sequence after the other, in fp64.

    As its source says: [H, total] log-sum-exps, masks aligned bottom-right, sequences that follow
    one another, of at most max_q and max_k rows; others' gradients are not written.
    """
    assert (cu_q.dtype, cu_k.dtype) == (torch.int32, torch.int32)
    assert lse.shape == (q.shape[1], q.shape[0])
    assert lse.is_contiguous()
    assert (dropout, causal) == (0.0, False)
    group = q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    found = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    for rows, keys in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        rows, keys = slice(*rows), slice(*keys)
        queries, count = rows.stop - rows.start, keys.stop - keys.start
        if queries > max_q or count > max_k:
            continue
        do_, q_, o_ = (t[rows].transpose(0, 1).double() for t in (do, q, o))
        k_, v_ = (t[keys].repeat_interleave(group, 1).transpose(0, 1).double() for t in (k, v))
        ahead = torch.arange(count) - torch.arange(queries)[:, None] - (count - queries)
        hidden = (ahead < -window_size_left) & (window_size_left >= 0)
        hidden |= (ahead > window_size_right) & (window_size_right >= 0)
        scores = (scale * q_ @ k_.mT).masked_fill(hidden, -torch.inf)
        p = (scores - lse[:, rows, None]).exp()
        ds = scale * p * (do_ @ v_.mT - (do_ * o_).sum(-1, keepdim=True))
        grouped = (t.unflatten(0, (-1, group)).sum(1) for t in (ds.mT @ q_, p.mT @ do_))
        for whole, at, part in zip(found, (rows, keys, keys), (ds @ k_, *grouped), strict=True):
            whole[at] = part.transpose(0, 1)
    return tuple(found)


def gradient_module() -> Any:
    return packs.specs_module(packs.of("flash_prefill"), "kernel_specs.attention.gradients")


class AsOnGpus(torch.autograd.Function):
    """A call of a kernel of the CPU, whose gradients are made as those of a call on a GPU."""

    @staticmethod
    def forward(ctx, options, *tensors):
        kernel = runtime.kernel(KERNEL)
        *tensors, s_aux = tensors
        inputs = dict(zip("qkv", tensors, strict=True))
        o, lse = kernel(*tensors, s_aux=s_aux, **options, return_lse=True)
        lengths = {name: each for name, each in options.items() if isinstance(each, torch.Tensor)}
        ctx.inputs = inputs | lengths | ({} if s_aux is None else {"s_aux": s_aux})
        ctx.outputs = {"o": o, "lse": lse}
        names = ("softmax_scale", "softcap", "window_left", "window_right")
        ctx.scalars = (
            {"softcap": 0.0}
            | dict.fromkeys(names[2:], -1)
            | {"softmax_scale": None, "deterministic": False}
        )
        ctx.scalars |= {name: options[name] for name in names if name in options}
        return o

    @staticmethod
    def backward(ctx, do):
        make = gradient_module().prefill_gradient({}, ctx.inputs, ctx.scalars)
        gradients = make(ctx.inputs, ctx.outputs, {"o": do})
        return None, *(gradients.get(name) for name in ("q", "k", "v", "s_aux"))


def as_on_gpus(options):
    def call(q, k, v, s_aux=None):
        packed = q.dim() == 3
        q, k, v = (t[None] if packed else t for t in (q, k, v))
        o = AsOnGpus.apply(options, q, k, v, s_aux)
        return o[0] if packed else o

    return call


@pytest.fixture
def operator_of_gpus() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_backward", flash_attention_2s, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_what_gpus_are_asked_for(operator_of_gpus, window):
    for lengths in LENGTHS:
        _, options = packed(window, lengths)
        leaves = packed_inputs(lengths)
        for tensors in (leaves, leaves[:3]):
            check(as_on_gpus(options), tensors, **options)
    check_padded_batch(causal=window == (-1, 0), call=as_on_gpus)
    leaves = inputs(keys=(0,))[:3]
    none = {"cu_seqlens_q": ints(0, 100), "cu_seqlens_k": torch.zeros(2, dtype=torch.int32)}
    o = as_on_gpus(none)(*leaves)
    assert not any(t.any() for t in torch.autograd.grad(o.sum(), leaves))


def test_gpus_operator_takes_what_it_is_given():
    """PyTorch's schema and its shapes, without a GPU."""
    with torch.device("meta"):
        q, o, do = (torch.empty(1, 100, 4, 40, dtype=torch.bfloat16) for _ in range(3))
        k, v = (torch.empty(1, 90, 2, 40, dtype=torch.bfloat16) for _ in range(2))
        lse, places = torch.empty(1, 4, 100), torch.empty(5, dtype=torch.int32)
        used = torch.empty(4, dtype=torch.int32)
        lengths = (places, places, used, used, used)
        found = gradient_module().packed_backward(do, q, k, v, o, lse, *lengths, 9, 0, None)
    for gradient, tensor in zip(found, (q, k, v), strict=True):
        assert (gradient.shape, gradient.dtype) == (tensor.shape, tensor.dtype)


def test_compiled_and_checkpointed():
    torch.compiler.reset()
    call, options = packed((9, 0), {"cu_seqlens_k": PLACES})
    check(lambda *t: checkpoint(call, *t, use_reentrant=False), inputs(), **options)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    check(compiled, inputs(), **options)


def refuses_second_derivatives(of: int, error: type[Exception], message: str) -> None:
    """Of the gradient of q, k, v or s_aux, by each of these."""
    call, _ = packed((-1, 0), {"cu_seqlens_k": PLACES})
    leaves = inputs()
    for leaf in leaves:
        o = call(*leaves)
        (gradient,) = torch.autograd.grad(o.square().sum(), leaves[of], create_graph=True)
        penalty = o.sum() + gradient.square().sum()
        with pytest.raises(error, match=message):
            torch.autograd.grad(penalty, leaf, retain_graph=True)
        with pytest.raises(error, match=message):
            penalty.backward(inputs=[leaf])


@pytest.mark.parametrize("of", range(4))
def test_second_derivatives_are_refused_whichever_input_they_are_asked_for(of):
    refuses_second_derivatives(of, RuntimeError, "cannot be differentiated again")


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
def test_the_cpus_have_those_of_capped_and_biased_scores_and_of_wider_values(dtype):
    slopes = torch.tensor([0.25, 0.0, 0.5, 0.03])
    for lengths, window in zip(LENGTHS, WINDOWS, strict=True):
        for extra in ({"softcap": 2.0}, {"alibi_slopes": slopes}, {}):
            call, options = packed(window, {**lengths, **extra})
            if "alibi_slopes" in options:
                options["alibi_slopes"] = slopes.expand(4, -1)
            leaves = packed_inputs(lengths, dtype)
            if not extra:
                leaves[2] = torch.cat([leaves[2], leaves[2]], -1).detach().requires_grad_()
            check(call, leaves, **options)


@pytest.mark.parametrize("way", ["packed", "batch", "wide", "checkpoint", "graph"])
def test_slopes_have_a_gradient_if_it_is_asked_for(way):
    """Slopes are of a head, or of a head of a sequence; scores have passed the softcap."""
    torch.compiler.reset()
    batch: dict[str, Any] = {"rows": (2, 100), "keys": (2, 100)}
    leaves = inputs() if way == "packed" else inputs(**batch, d_head=160 if way == "wide" else 40)
    count = 4 if way == "packed" else 2
    for shape in ((4,), (count, 4)):
        slopes = (torch.rand(shape) / 8).requires_grad_()

        def call(q, k, v, of):
            if way == "packed":
                return packed((9, 0), {"cu_seqlens_k": PLACES, "alibi_slopes": of})[0](q, k, v)
            return runtime.flash_attn_func(q, k, v, causal=True, softcap=2.0, alibi_slopes=of)

        ways = {
            "checkpoint": lambda *tensors, call=call: checkpoint(
                call, *tensors, use_reentrant=False
            ),
            "graph": torch.compile(call, fullgraph=True, backend="aot_eager"),
        }
        o = ways.get(way, call)(*leaves[:3], slopes)
        do = torch.randn_like(o)
        found = torch.autograd.grad(o, (*leaves[:3], slopes), do)
        exact = [t.detach().double().requires_grad_() for t in (*leaves[:3], slopes)]
        options = {"window_right": 0, "softcap": 2.0}
        if way == "packed":
            options = packed((9, 0), {"cu_seqlens_k": PLACES})[1]
        of_all = exact[3].expand(count, 4)
        listed = [t[None] if t.dim() == 3 else t for t in exact[:3]]
        expected = prefill(*listed, alibi_slopes=of_all, **options)[0].view(o.shape)
        for ours, true in zip(
            found, torch.autograd.grad(expected, exact, do.double()), strict=True
        ):
            assert ours.shape == true.shape
            assert (ours - true).norm() < 1e-5 * true.norm()


def test_calls_that_do_not_ask_for_slopes_gradients_take_the_kernels_without():
    """And the same bits. Pages and dropout have none: they are refused by name."""

    def gradients(slopes):
        o = runtime.flash_attn_func(*leaves, alibi_slopes=slopes)
        name = o.grad_fn.call.backward.plan.other.name
        return name, *torch.autograd.grad(o.sum(), leaves)

    leaves = inputs(rows=(2, 30), keys=(2, 30))[:3]
    slopes = torch.rand(4).requires_grad_()
    assert gradients(slopes)[0] == "flash_slopes_backward"
    assert gradients(slopes.detach())[0] == "flash_prefill_backward"
    one = [t.detach() for t in leaves]
    one[0] = one[0][:, :1]  # few queries: kernels that decode have no gradient
    o = runtime.flash_attn_func(*one, alibi_slopes=slopes)
    assert torch.autograd.grad(o.sum(), slopes)[0].any()
    with pytest.raises(runtime.InvalidArgument, match=r"^alibi_slopes: requires_grad is set"):
        runtime.flash_attn_func(*leaves, 0.5, alibi_slopes=slopes)


@pytest.mark.gpu
def test_slopes_have_a_gradient_on_gpus():
    """In bf16, not deterministic: other calls are refused by name, as no such kernel is built."""
    leaves = inputs(torch.bfloat16, rows=(2, 300), keys=(2, 300), device="cuda")[:3]
    slopes = (torch.rand(2, 4, device="cuda") / 8).requires_grad_()
    o = runtime.flash_attn_func(*leaves, causal=True, alibi_slopes=slopes)
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, (*leaves, slopes), do)
    exact = [t.detach().double().requires_grad_() for t in (*leaves, slopes)]
    expected = prefill(*exact[:3], alibi_slopes=exact[3], window_right=0)[0]
    for ours, true in zip(found, torch.autograd.grad(expected, exact, do.double()), strict=True):
        assert ours.shape == true.shape
        assert (ours - true).norm() < 2e-2 * true.norm()
    halves = inputs(torch.float16, rows=(2, 30), keys=(2, 30), device="cuda")[:3]
    for refused, options in ((halves, {}), (leaves, {"deterministic": True})):
        with pytest.raises(runtime.InvalidArgument, match=r"^alibi_slopes: requires_grad is set"):
            runtime.flash_attn_func(*refused, alibi_slopes=slopes, **options)


def test_the_cpus_repeat_bit_for_bit():
    call, _ = packed((9, 0), {"cu_seqlens_k": PLACES, "deterministic": True})
    leaves = inputs()
    do = torch.randn(100, 4, 40)
    first, again = (torch.autograd.grad(call(*leaves), leaves, do) for _ in range(2))
    assert all(map(torch.equal, first, again))


def test_pages_have_no_gradients_which_is_said_when_the_call_is_made():
    q, k, v, _ = inputs()
    k, v = (t.detach()[None] for t in (k, v))
    table = torch.zeros(4, 1, dtype=torch.int32)
    with pytest.raises(runtime.InvalidArgument, match=r"with pages \(block_table.* has a backward"):
        runtime.flash_attn_varlen_func(q, k, v, PLACES, PLACES, 60, 60, block_table=table)


@pytest.mark.parametrize(
    ("reason", "softcap", "others"),
    [
        ("softcap", 2.0, {}),
        ("alibi_slopes", 0.0, {"alibi_slopes": torch.rand(1, 4)}),
        ("a head dimension of v, 16, that is not q's, 40,", 0.0, {}),
    ],
)
def test_what_has_no_gradient_on_gpus_is_refused_by_name(reason, softcap, others):
    q, k, v, _ = inputs(rows=(1, 30), keys=(1, 30))
    made = {"q": q, "k": k, "v": v[..., :16] if "head" in reason else v, **others}
    with pytest.raises(runtime.InvalidArgument, match=f"with {reason} neither .* has a backward"):
        gradient_module().prefill_gradient({}, made, {"softcap": softcap})
