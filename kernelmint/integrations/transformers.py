"""Hugging Face transformers on Kernelmint's kernels.

    from kernelmint.integrations import transformers as models

    models.activate()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="kernelmint")

Masks become lengths: of a pattern (causal, sliding window, bidirectional, packed sequences) and a
padding mask, the mask function makes a few numbers for each sequence, which stay on the device.
What is neither is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import runtime

NAME = "kernelmint"


def activate() -> None:
    """Makes attn_implementation="kernelmint" known to transformers, in this process.

    Raises:
        RuntimeError: transformers is not installed, or is older than 5.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise RuntimeError(
            f"transformers cannot be used: {error}; it takes transformers 5 or later: "
            "pip install 'transformers>=5'"
        ) from None
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


@dataclass(frozen=True)
class _Pattern:
    """What queries see: so many keys before and after their own (-1: all), of their sequence."""

    left: int = -1
    right: int = -1
    sequences: torch.Tensor | None = None  # the sequence of each position, [B or 1, S]

    def __and__(self, other: _Pattern) -> _Pattern:
        def least(a: int, b: int) -> int:
            return max(a, b) if -1 in (a, b) else min(a, b)

        sequences = self.sequences if other.sequences is None else other.sequences
        return _Pattern(least(self.left, other.left), least(self.right, other.right), sequences)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str | None = None,
    **_: Any,
) -> torch.Tensor:
    """What `attention` takes in the place of a mask; transformers calls it once for each pattern.

    Args:
        batch_size: B.
        q_length: how many queries each sequence has; the first is at position `q_offset`.
        kv_length: how many keys; the first is at position `kv_offset`.
        q_offset: how many positions are before the queries.
        kv_offset: how many positions a sliding cache has dropped.
        mask_function: what transformers made of the layers' pattern; causal if None.
        attention_mask: what is not padding, bool, [B, positions]; all if None.
        device: where the model is.

    Returns:
        numbers of each sequence, int32, [n, kind, left + 2, B]: its first key, the end of its keys,
        and, if some sequence ends in padding, how many queries it has. n is 0 if nothing is to be
        said of lengths. `kind` is 1, and 1 more if the pattern is causal. For packed sequences the
        numbers are where these begin, and where the last one ends, [1, kind + 2, left + 2, N + 1].
        The second and third extent say the pattern to the host; all along them is the same.

    Raises:
        InvalidArgument: the pattern is none of these, or there are tokens behind padding.
    """
    if device is None:
        device = torch.device("cpu") if attention_mask is None else attention_mask.device
    pattern = _Pattern(right=0) if mask_function is None else _read(mask_function)
    causal = pattern.right == 0
    if not causal and pattern.left != pattern.right:
        raise _unknown(f"a window of {pattern.left} keys before and {pattern.right} after")
    kind = 1 + causal
    places = None if pattern.sequences is None else _places(pattern.sequences, batch_size)
    if places is not None and len(places) > batch_size + 1:  # not one sequence in each row
        kind += 2
        numbers = places[None]
    else:
        # Queries of all that are aligned with their keys are at the end of these.
        end = q_offset + q_length - kv_offset if causal or pattern.left >= 0 else kv_length
        numbers = _lengths(batch_size, q_length, kv_length, kv_offset, end, attention_mask, device)
        if not causal and pattern.left < 0:
            numbers = numbers[:2]
    return numbers[:, None, None].expand(-1, kind, pattern.left + 2, -1)


def _lengths(
    batch_size: int,
    q_length: int,
    kv_length: int,
    kv_offset: int,
    end: int | torch.Tensor,
    attention_mask: torch.Tensor | None,
    device: torch.device | str,
) -> torch.Tensor:
    """The numbers of sequences that are not packed; `end` is behind the last query's own key."""
    if attention_mask is None:
        if isinstance(end, int) and end == kv_length:
            return torch.empty(0, batch_size, dtype=torch.int32, device=device)
        last = torch.as_tensor(end, dtype=torch.int32, device=device).expand(batch_size)
        return torch.stack([torch.zeros_like(last), last])
    there = attention_mask[:, kv_offset : kv_offset + kv_length].to(device=device, dtype=torch.bool)
    slots = torch.arange(there.shape[1], device=device)
    there = there & (slots < end)
    count = there.sum(1)
    first = there.to(torch.int8).argmax(1)
    last = first + count
    whole = (there == ((slots >= first[:, None]) & (slots < last[:, None]))).all()
    ends_in_padding = ((last != end) & (count > 0)).any()
    queries = (last - (end - q_length)).clamp(0, q_length)
    numbers = torch.stack([first, last, queries]).to(torch.int32)
    message = (
        "attention_mask: got tokens behind padding, expected padding at the ends of sequences "
        'alone; pad on the left to generate (padding_side="left"), or use another '
        "attn_implementation"
    )
    if torch.compiler.is_compiling():  # which reads nothing
        torch._assert_async(whole, message)
        return numbers if q_length > 1 else numbers[:2]
    known = torch.stack([whole, ends_in_padding, (first != 0).any(), (last != kv_length).any()])
    is_whole, is_cut, *is_less = known.tolist()
    if not is_whole:
        raise runtime.InvalidArgument(message)
    if not any(is_less):
        return numbers[:0]
    return numbers if is_cut else numbers[:2]


def _places(sequences: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Where packed sequences begin, all rows one after the other, and where the last one ends."""
    rows = sequences.expand(batch_size, -1)
    begins = torch.ones_like(rows, dtype=torch.bool)
    begins[:, 1:] = rows[:, 1:] != rows[:, :-1]
    places = begins.flatten().nonzero()[:, 0]
    return torch.nn.functional.pad(places, (0, 1), value=rows.numel()).to(torch.int32)


def _read(function: Callable[..., Any]) -> _Pattern:
    """What a mask function of transformers.masking_utils lets queries see."""
    from transformers import masking_utils

    if function is masking_utils.causal_mask_function:
        return _Pattern(right=0)
    if function is masking_utils.bidirectional_mask_function:
        return _Pattern()
    made_by = getattr(function, "__qualname__", str(function)).partition(".<locals>")[0]
    if getattr(function, "__module__", None) == masking_utils.__name__:
        held = inspect.getclosurevars(function).nonlocals
        if made_by == "and_masks":
            first, *others = map(_read, held["mask_functions"])
            for other in others:
                first &= other
            return first
        if made_by == "sliding_window_overlay":
            return _Pattern(left=held["sliding_window"] - 1)
        if made_by == "sliding_window_bidirectional_overlay":
            return _Pattern(held["sliding_window"], held["sliding_window"])
        if made_by == "packed_sequence_mask_function":
            return _Pattern(sequences=held["packed_sequence_mask"])
        if made_by == "remap_positions_for_packed_sequence":
            return _read(held["mask_function"])
    raise _unknown(made_by)


def _unknown(what: str) -> runtime.InvalidArgument:
    return runtime.InvalidArgument(
        f"mask: got {what}, expected causal, a sliding window, padding or packed sequences: no "
        'kernel takes another mask; use attn_implementation="sdpa"'
    )


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a layer of transformers' models.

    Args:
        module: the layer; without a mask, its `is_causal` counts.
        query: [B, H, Sq, D].
        key: [B, Hk, Sk, D].
        value: [B, Hk, Sk, Dv].
        attention_mask: what `mask` made, which says what queries see; None: no mask was made.
        dropout: 0; no kernel drops out.
        scaling: the factor on q k^T; D ** -0.5 if None.
        sliding_window: how many keys a query sees, its own the last, if no mask was made.
        softcap: scores become softcap * tanh(score / softcap).
        is_causal: counts in the place of the module's.
        s_aux: sinks, [H].
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: packed sequences, as
            `kernelmint.flash_attn_varlen_func` takes them.

    Returns:
        the output, [B, Sq, H, Dv], and None in the place of the weights.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong, or asks for what no kernel does.
    """
    for name in ("position_bias", "cache"):
        if others.get(name) is not None:
            raise runtime.InvalidArgument(f"{name}: got a value, expected None: no kernel takes it")
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    left = -1 if sliding_window is None else sliding_window - causal
    numbers, packed = None, False
    if attention_mask is not None:
        if attention_mask.dtype != torch.int32 or attention_mask.dim() != 4:
            raise _unknown(f"a tensor of {attention_mask.dtype}, {list(attention_mask.shape)},")
        n, kind, window, _ = attention_mask.shape
        causal, packed, left = kind % 2 == 0, kind > 2, window - 2
        numbers = attention_mask[:, 0, 0] if n else None
    options: dict[str, Any] = {
        "dropout_p": dropout,
        "softmax_scale": scaling,
        "causal": causal,
        "window_size": (left, 0 if causal else left),
        "softcap": softcap or 0.0,
        "s_aux": None if s_aux is None else s_aux.to(query.dtype),
    }
    if cu_seq_lens_q is None and not packed:
        if numbers is not None:
            options |= dict(zip(("leftpad_k", "seqused_k", "seqused_q"), numbers, strict=False))
        return runtime.flash_attn_func(q, k, v, **options), None
    if cu_seq_lens_q is None:
        assert numbers is not None
        cu_seq_lens_q = cu_seq_lens_k = numbers[0]
    elif numbers is not None and not packed:
        raise runtime.InvalidArgument(
            "cu_seq_lens_q: got packed sequences and padding, expected one of them"
        )
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    o = runtime.flash_attn_varlen_func(
        q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, **options
    )
    return o.reshape(*query.shape[:1], query.shape[2], *o.shape[1:]), None
