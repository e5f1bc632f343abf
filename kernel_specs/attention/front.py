"""Attention by the kernel that suits the arguments, or by a named kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from runtime import choice, finding, gradients, tensors
from runtime.errors import InvalidArgument, KernelNotFound, shown, unexpected

from . import checks, families
from .families import run_attention
from .gradients import operator_name

_BSHD, _BHSD = "bshd", "bhsd"
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # looked up once: calls are short


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bshd",
    return_lse: bool = False,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    deterministic: bool | None = None,
    dropout_p: float = 0.0,
    **others: Any,
) -> Any:
    """Computes attention, softmax(scale * q k^T) v, with a kernel that suits the arguments.

    Few queries without gradients go to flash_decode: up to 16 of the heads that share keys, up to 4
    on the CPU. Calls with dropout go to flash_dropout, all other calls to flash_forward. A tuned
    row (<target>.tuned.yaml) for the device of `q`, its dtype, its head dimension and `causal` that
    covers the sizes names the kernel. If no row does, the call takes the first kernel that is
    available there and has these parameters: targets of the highest compute capability first, then
    as their specs list the kernels. The choice is kept for the process;
    `runtime.explain_choice` says what was considered.

    Args:
        q: queries, [B, Sq, H, D], or [B, H, Sq, D] if layout is "bhsd".
        k: keys, [B, Sk, Hk, D] or [B, Hk, Sk, D]; Hk divides H (grouped heads).
        v: values, like k.
        causal: query i sees keys up to i + Sk - Sq: aligned bottom-right, as FlashAttention does.
        scale: the factor on q k^T; D ** -0.5 if None.
        layout: "bshd" or "bhsd"; the latter is read through strides, nothing is copied.
        return_lse: also return the log-sum-exp of each row of scores: natural log, float32,
            [B, H, Sq] in both layouts.
        out: where to write: a tensor like q, or (o, lse) with return_lse.
        deterministic: the gradients are the same, bit for bit, each time; None: as
            torch.use_deterministic_algorithms says. Results of the forward always repeat.
        dropout_p: how probably a probability is dropped, in steps of 2^-16; the others are divided
            by 1 - dropout_p, and the log-sum-exp is that of all. The caller says whether a model
            trains. On a GPU head dimensions are at most 128.

    Returns:
        the output, like q in shape and dtype; or (output, lse).

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
        TypeError: an argument is unknown; the message says what to pass instead.
    """
    if others:
        raise TypeError(_unknown(next(iter(others))))
    if layout is not _BSHD and layout is not _BHSD:  # Python keeps one object of equal literals
        _check(layout)
    if tensors.is_autocast():
        q, k, v = tensors.autocast(q, k, v)
    call = families.call_attention if _is_dynamo_compiling() else run_attention
    try:
        if dropout_p != 0:
            return _drop_out(
                (q, k, v), dropout_p, (scale, deterministic), return_lse, out, causal, layout
            )
        return call(
            (q, k, v), (scale, deterministic), (return_lse,), out, (causal,), layout == _BHSD
        )
    except InvalidArgument as error:
        at = 2 if layout == "bshd" else 1  # the heads' dimension
        heads, kv_heads = tensors.extents("q", q, 4)[at], tensors.extents("k", k, 4)[at]
        tensors.check_heads("q", heads, "k", kv_heads)
        of_scale = str(error).removeprefix("softmax_")  # flash_dropout names it so
        raise error if of_scale == str(error) else InvalidArgument(of_scale) from None
    except KernelNotFound as error:
        if (d_head := tensors.extents("q", q, 4)[3]) > 256 or d_head % 8:
            raise
        other = "of head dimensions kernelmint.flash_attn_func takes all multiples of 8 up to 256"
        raise KernelNotFound(f"{error}\n{other}") from None


def _drop_out(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    dropout_p: float,
    scalars: tuple[float | None, bool | None],
    return_lse: bool,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None,
    causal: bool,
    layout: str,
) -> Any:
    """Makes a call of `attention` by flash_dropout."""
    for name, tensor in zip("qkv", inputs, strict=True):
        tensors.check(name, tensor, 4)
    families.check_dropout(dropout_p)
    if causal is not True and causal is not False:
        raise unexpected("causal", causal, "a bool")
    scale, deterministic = scalars
    q, k, v = inputs
    tensors.expect("k", k, (q.shape[0], None, None, q.shape[3]), q.dtype, q.device)
    tensors.expect("v", v, tuple(k.shape), q.dtype, q.device)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    window = -1, 0 if causal else -1
    return families.drop_out(
        (*inputs, *(None,) * 8), dropout_p, (scale, 0.0, *window, deterministic), (return_lse,),
        out, layout == _BHSD,
    )  # fmt: skip


# Arguments of other functions of attention, and the advice for each.
_INSTEAD = {
    "mask": "no kernel takes a mask; pass causal=True for the causal one",
    "attn_mask": "no kernel takes a mask; pass causal=True for the causal one",
    "is_causal": "pass causal=, which aligns bottom-right; kernelmint.sdpa aligns top-left",
    "softmax_scale": "pass scale=",
    "window_size": "kernelmint.flash_attn_func has one",
    "enable_gqa": "nothing is needed: heads share keys if k has fewer",
}


def _unknown(name: str) -> str:
    takes = "causal, scale, layout, return_lse, out, deterministic and dropout_p"
    how = _INSTEAD.get(name, f"it takes {takes}")
    return f"attention: unknown argument {name}: {how}"


def explain_choice(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    layout: str = "bshd",
) -> choice.Explanation:
    """Returns what `attention` considers for these arguments, in its order: whether flash_decode
    takes the call, rows that were tuned, then kernels, each with why it is taken or not; last, what
    gives their gradients. `str()` of the explanation is for people.

    Args: as `attention`'s.

    Raises:
        InvalidArgument: an argument is wrong.
    """
    _check(layout)
    swapped = layout == "bhsd"
    explained = families.forward_front.explain((q, k, v), (causal,), swapped)
    decodes, why = families.decoding_of(q, k, v, swapped)
    decoding = choice.Considered(families.DECODE, why)
    inputs = (q, k, v, None, None, None, None, None)
    if swapped:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    family = explained.key and gradients.family_of(finding.kernel(explained.key).info)
    if family:
        verdict = f"{family}'s kernels"
    else:
        try:
            verdict = f"PyTorch's aten::{operator_name(q, k, v, causal)}"
        except InvalidArgument as error:
            verdict = f"none: {error}"
    if decodes:
        scalars = (None, 0.0, -1, 0 if causal else -1, False)
        explained = families.decode_front.explain(inputs, (), swapped, scalars=scalars)
        verdict = f"a call that asks for them goes to flash_forward: {verdict}"
    gives = choice.Considered("gradients", verdict)
    return dataclasses.replace(explained, considered=(decoding, *explained.considered, gives))


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    batch_invariant: bool = False,
    return_lse: bool = False,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
) -> Any:
    """Computes attention of the newest queries over a cache of keys and values, which may lie in
    pages.

    Query i of Sq is at key `seqused_k - Sq + i` of its cache: masks and distances are aligned
    bottom-right, as FlashAttention's. Lengths stay on the device: nothing waits for them, and a
    call may be captured in a CUDA graph and replayed with others. Best for few queries: up to 16
    of all heads that share keys are computed at once.

    Args:
        q: queries, [B, Sq, H, D], bf16 or fp16, on the CPU also f32; D is a multiple of 8, at most
            256 on a GPU. torch.autocast casts it, the caches and s_aux.
        k_cache: keys, [B, Sk, Hk, D], or pages, [pages, page size, Hk, D]; Hk divides H.
        v_cache: values, like k_cache; their head dimension may be another, Dv.
        seqused_k: how many keys of each cache there are, int32, [B]; all if None.
        block_table: the pages of each batch entry, in order, int32, [B, most pages of one].
        leftpad_k: how many of the keys, at the front, are padding, int32, [B].
        softmax_scale: the factor on q k^T; D ** -0.5 if None.
        causal: a query sees no key after its own.
        window_size: how many keys before and after its own a query sees; -1: all.
        softcap: scores become softcap * tanh(score / softcap); 0: as they are.
        s_aux: a learned logit for each head, a score without a value, [H], of q's dtype.
        alibi_slopes: what a score loses for each key of distance, f32, [H] or [B, H].
        batch_invariant: a row's result is the same, bit for bit, whatever else is in the batch; it
            takes longer. (On the CPU it always is.)
        return_lse: also return the log-sum-exp of each row of scores, the sink among them: natural
            log, float32, [B, H, Sq].
        out: where to write: a tensor [B, Sq, H, Dv], or (o, lse) with return_lse.

    Returns:
        the output, [B, Sq, H, Dv], of q's dtype; or (output, lse). Results repeat bit for bit.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
    """
    if tensors.is_autocast():
        q, k_cache, v_cache, s_aux = tensors.autocast(q, k_cache, v_cache, s_aux)
    left, right = checks.window_of(causal, window_size)
    if isinstance(alibi_slopes, torch.Tensor) and alibi_slopes.dim() == 1:
        tensors.check("q", q, 4)
        alibi_slopes = alibi_slopes.expand(q.shape[0], -1)
    if softcap is None:
        raise unexpected("softcap", softcap, "a float")
    try:
        call = families.call_decode_alone if batch_invariant is True else families.call_decode
        return call(
            (q, k_cache, v_cache, block_table, seqused_k, leftpad_k, s_aux, alibi_slopes),
            (softmax_scale, softcap, left, right, batch_invariant), (return_lse,), out,
        )  # fmt: skip
    except InvalidArgument:  # by a rule on the kernel's symbols, perhaps
        _, _, heads, width = tensors.extents("q", q, 4)
        tensors.check_heads("q", heads, "k_cache", tensors.extents("k_cache", k_cache, 4)[2])
        tensors.check_width("q", width)
        tensors.check_width("v_cache", tensors.extents("v_cache", v_cache, 4)[3])
        raise


def _check(layout: object) -> None:
    if not isinstance(layout, str) or layout not in (_BSHD, _BHSD):
        raise InvalidArgument(f"layout: got {shown(layout)}, expected 'bshd' or 'bhsd'")


def forward(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """Calls one attention kernel.

    Args:
        kernel: a key or a configuration, as `runtime.kernel` takes it.
        q: queries, [B, Sq, H, D].
        k: keys, [B, Sk, Hk, D].
        v: values, [B, Sk, Hk, D].
        o: where to write the output, [B, Sq, H, D]; allocated if None.
        options: the kernel's other arguments (`scale`, `return_lse`).

    Returns:
        what the kernel returns: the output, or output and log-sum-exp.
    """
    _refuse_out(options)
    return finding.kernel(kernel)(q, k, v, out=o, **options)


def forward_timed(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> tuple[Any, float]:
    """Calls one attention kernel as `forward` does, and waits; returns (result, milliseconds),
    timed as `Kernel.timed` does."""
    _refuse_out(options)
    return finding.kernel(kernel).timed(q, k, v, out=o, **options)


def _refuse_out(options: Mapping[str, Any]) -> None:
    if "out" in options:
        raise TypeError("unknown argument out: these functions take the output's memory as o")
