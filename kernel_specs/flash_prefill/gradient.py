"""The gradients of sequences of any lengths, on the CPU: PyTorch's own operator, for each sequence,
on our output and its log-sum-exp.

That operator takes a mask, which windows and other numbers of queries than keys become, of one
sequence at a time. Until kernels of ours replace it.
"""

from __future__ import annotations

import functools
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
        "softcap": bool(softcap),
        "alibi_slopes": "alibi_slopes" in inputs,
        "block_table": "block_table" in inputs,
        f"a head dimension of v, {v.shape[3]}, that is not q's, {q.shape[3]},": (
            q.shape[3] != v.shape[3]
        ),
        f"a tensor on {q.device}": q.device.type != "cpu",
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
        lengths = [inputs.get(name) for name in _LENGTHS]
        dq, dk, dv, ds = _operator()(
            gradients["o"], inputs["q"], inputs["k"], inputs["v"], outputs["o"], outputs["lse"],
            inputs.get("s_aux"), *lengths, *window, scale,
        )  # fmt: skip
        return {"q": dq, "k": dk, "v": dv, **({"s_aux": ds} if "s_aux" in inputs else {})}

    return backward


@functools.cache
def _operator() -> Any:
    """An operator, so that compiled graphs do not look into it: it reads lengths."""
    name = "kernelmint::flash_prefill_backward_for_cpu"
    schema = (
        "(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? s_aux, "
        + "".join(f"Tensor? {length}, " for length in _LENGTHS)
        + "int window_left, int window_right, float? scale) -> (Tensor, Tensor, Tensor, Tensor)"
    )
    made = torch.library.custom_op(
        name, _backward, mutates_args=(), device_types="cpu", schema=schema
    )
    made.register_fake(
        lambda do, q, k, v, o, lse, s_aux, *rest: tuple(
            torch.empty_like(q if t is None else t) for t in (q, k, v, s_aux)
        )
    )
    return made


def _backward(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    s_aux: torch.Tensor | None,
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
        queries, found = rows[1].stop - rows[1].start, max(0, keys[1].stop - keys[1].start)
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
    if s_aux is None:
        return dq, dk, dv, torch.empty_like(q)
    # A sink's probability is of no value: only the sum of all probabilities' gradients is left.
    share = (s_aux.float()[:, None] - lse).exp()  # [N, H, Tq]; 0 in rows of no sequence
    share = share.masked_fill(lse.isneginf(), 0.0)
    each = (do.float() * o).sum(-1).transpose(1, 2)
    return dq, dk, dv, -(share * each).sum((0, 2)).to(s_aux.dtype)


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
        if seqused is not None:
            end = begin + int(seqused[i])
        if leftpad is not None:
            begin += int(leftpad[i])
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
