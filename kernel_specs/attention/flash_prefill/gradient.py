"""The gradients of sequences of any lengths, by PyTorch's own operators, on our output and its
log-sum-exp, until kernels of ours replace them.

On the CPU its operator takes one sequence at a time, and a mask, which windows and other numbers of
queries than keys become. On GPUs it is FlashAttention-2's, which takes packed sequences.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from runtime.errors import InvalidArgument

Tensors = Mapping[str, torch.Tensor]
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k")


def prefill_gradient(
    parameters: Mapping[str, Any], inputs: Tensors, scalars: Mapping[str, Any]
) -> Callable[[Tensors, Tensors, Tensors], Tensors]:
    """The backward of one call: a function of inputs, outputs and the outputs' gradients.

    It returns those of q, k and v, and of s_aux if there is one, in their shapes and dtypes.

    Raises:
        InvalidArgument: PyTorch has no operator for these arguments.
    """
    q, v = inputs["q"], inputs["v"]
    softcap = scalars["softcap"]
    reasons = {
        "softcap": 0 < softcap < math.inf,
        "alibi_slopes": "alibi_slopes" in inputs,
        "block_table": "block_table" in inputs,
        f"a head dimension of v, {v.shape[3]}, that is not q's, {q.shape[3]},": (
            q.shape[3] != v.shape[3]
        ),
        f"a tensor on {q.device}": q.is_cuda and not _is_there(),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise InvalidArgument(
                f"q: requires_grad is set and grad mode is on, but with {reason} PyTorch "
                f"{torch.__version__} has no backward of attention that would do; call it under "
                "torch.no_grad()"
            )
    window = [-1 if scalars[name] is None else scalars[name] for name in
              ("window_left", "window_right")]  # fmt: skip
    scale = scalars["softmax_scale"]

    def backward(inputs: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        do, o, lse = gradients["o"], outputs["o"], outputs["lse"]
        run: Any = packed_backward if do.is_cuda else _operator()
        each = run(
            do, *(inputs[name] for name in "qkv"), o, lse,
            *(inputs.get(name) for name in _LENGTHS), *window, scale,
        )  # fmt: skip
        found = dict(zip("qkv", each, strict=True))
        if "s_aux" in inputs:
            q = inputs["q"]
            bounds = _bounds(q, inputs.get("cu_seqlens_q"), inputs.get("seqused_q"), None)
            found["s_aux"] = _of_sinks(inputs["s_aux"], do, o, lse, _unused(bounds, q))
        return found

    return backward


@functools.cache
def _is_there() -> bool:
    """Whether PyTorch's operator is known to take [H, total] log-sum-exps: its varlen_attn, of 2.10
    and later, gives it such."""
    return importlib.util.find_spec("torch.nn.attention.varlen") is not None


def _of_sinks(
    s_aux: torch.Tensor, do: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, unused: torch.Tensor
) -> torch.Tensor:
    """A sink's probability is of no value: only the sum of all probabilities' gradients is left."""
    share = (s_aux.float()[:, None] - lse).exp()  # [N, H, Tq]
    each = share * (do.float() * o).sum(-1).transpose(1, 2)
    return -each.masked_fill(unused[:, None], 0.0).sum((0, 2)).to(s_aux.dtype)


def packed_backward(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    seqused_q: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    leftpad_k: torch.Tensor | None,
    window_left: int,
    window_right: int,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """dq, dk and dv by aten::_flash_attention_backward, which reads no length on the host.

    It takes sequences that follow one another, so what is used of none is a sequence, too, before
    each and behind the last; whatever is there, its gradients are overwritten. Where a row sees no
    key, the log-sum-exp is inf: its probabilities are 0, but where a key is NaN.
    """
    if not q.numel() or not k.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    bounds_q = _bounds(q, cu_seqlens_q, seqused_q, None)
    bounds_k = _bounds(k, cu_seqlens_k, seqused_k, leftpad_k)
    sums = lse.transpose(0, 1).flatten(1)  # [H, total]
    unused = torch.empty(0, dtype=torch.uint64, device=q.device)  # dropout's
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        *(t.flatten(0, 1) for t in (do, q, k, v, o)),
        sums.masked_fill(sums.isneginf(), float("inf")),
        *(bounds_q, bounds_k, q.shape[1], k.shape[1], 0.0, False, unused, unused),
        scale=scale, window_size_left=window_left, window_size_right=window_right,
    )  # fmt: skip
    dq, dk, dv = (each.view(t.shape) for each, t in zip((dq, dk, dv), (q, k, v), strict=True))
    dq.masked_fill_(lse.isneginf().transpose(1, 2).unsqueeze(3), 0)
    for gradient, bounds in ((dq, bounds_q), (dk, bounds_k), (dv, bounds_k)):
        gradient.masked_fill_(_unused(bounds, gradient)[:, :, None, None], 0)
    return dq, dk, dv


def _bounds(
    rows: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    seqused: torch.Tensor | None,
    leftpad: torch.Tensor | None,
) -> torch.Tensor:
    """Where the parts of a list of rows begin, and where the last one ends, int32, two for each
    sequence and two more: one that is not used, one that is, and so on."""
    total = rows.shape[0] * rows.shape[1]
    places = cu_seqlens
    if places is None:
        places = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device) * rows.shape[1]
    begins, ends = places[:-1], places[1:]
    if seqused is not None:
        ends = begins + seqused.clamp(min=0).minimum(ends - begins)
    if leftpad is not None:
        begins = begins + leftpad.clamp(min=0).minimum(ends - begins)
    bounds = torch.stack((begins, ends), 1).flatten().clamp(0, total)
    return torch.nn.functional.pad(torch.nn.functional.pad(bounds, (1, 0)), (0, 1), value=total)


def _unused(bounds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Marks the rows of no sequence, bool, [N, T]."""
    places = torch.arange(rows.shape[0] * rows.shape[1], dtype=torch.int32, device=rows.device)
    part = torch.bucketize(places, bounds[1:], right=True)
    return (part % 2 == 0).view(rows.shape[:2])


@functools.cache
def _operator() -> Any:
    """An operator, so that compiled graphs do not look into it: it reads lengths."""
    name = "kernelmint::flash_prefill_backward_for_cpu"
    schema = (
        "(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
        + "".join(f"Tensor? {length}, " for length in _LENGTHS)
        + "int window_left, int window_right, float? scale) -> (Tensor, Tensor, Tensor)"
    )
    made = torch.library.custom_op(
        name, _backward, mutates_args=(), device_types="cpu", schema=schema
    )
    made.register_fake(lambda do, q, k, v, *rest: tuple(torch.empty_like(t) for t in (q, k, v)))
    made.register_autograd(_refuse_again)
    return made


def _refuse_again(ctx: object, *gradients: torch.Tensor) -> None:
    raise InvalidArgument("flash_prefill: its gradients cannot be differentiated again")


def _backward(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    seqused_q: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    leftpad_k: torch.Tensor | None,
    window_left: int,
    window_right: int,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    count = q.shape[0] if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    of_queries = _spans(count, q.shape[1], cu_seqlens_q, seqused_q, None)
    of_keys = _spans(count, k.shape[1], cu_seqlens_k, seqused_k, leftpad_k)
    for rows, keys in zip(of_queries, of_keys, strict=True):
        queries, found = (max(0, each[1].stop - each[1].start) for each in (rows, keys))
        if 0 in (queries, found):
            continue
        mask = _mask(queries, found, window_left, window_right, q.dtype)
        # A row that sees no key has no sum; its probabilities are 0 by the mask.
        sums = lse[rows[0], :, rows[1]].nan_to_num(neginf=0.0)
        parts = _attention_backward(
            *(do[rows], q[rows], k[keys], v[keys], o[rows]), sums.contiguous(), mask, scale
        )
        for whole, at, part in zip((dq, dk, dv), (rows, keys, keys), parts, strict=True):
            whole[at] = part
    return dq, dk, dv


def _spans(
    count: int,
    size: int,
    cu_seqlens: torch.Tensor | None,
    seqused: torch.Tensor | None,
    leftpad: torch.Tensor | None,
) -> Iterator[tuple[int, slice]]:
    """Where each sequence's rows are that are used: the batch entry, and which of its rows."""
    places = None if cu_seqlens is None else cu_seqlens.tolist()
    for i in range(count):
        begin, end = (0, size) if places is None else (places[i], places[i + 1])
        begin, end = max(0, begin), min(end, size)  # as kernels do: nothing else is there to read
        if seqused is not None:
            end = min(end, begin + max(0, int(seqused[i])))
        if leftpad is not None:
            begin = min(end, begin + max(0, int(leftpad[i])))
        yield (i if places is None else 0), slice(begin, end)


def _mask(
    queries: int, keys: int, left: int, right: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """0 for the keys that a query sees, and -inf, [queries, keys]; None if it sees all."""
    ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    hidden = torch.zeros(queries, keys, dtype=torch.bool)
    if left >= 0:
        hidden |= ahead < -left
    if right >= 0:
        hidden |= ahead > right
    if not hidden.any():
        return None
    return torch.zeros(queries, keys, dtype=dtype).masked_fill(hidden, float("-inf"))


def _attention_backward(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
) -> Iterator[torch.Tensor]:
    """dq, dk and dv of one sequence: tensors [S, heads, D], sums [H, S]."""
    group = q.shape[1] // k.shape[1]
    if group > 1:  # this operator takes as many heads of keys as of queries
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    heads_first = (t.transpose(0, 1)[None] for t in (do, q, k, v, o))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *heads_first, lse[None], 0.0, False, attn_mask=mask, scale=scale
    )
    dq, dk, dv = (t[0].transpose(0, 1) for t in found)
    yield dq
    for gradient in (dk, dv):
        yield gradient.unflatten(1, (-1, group)).sum(2)
