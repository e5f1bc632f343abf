"""Refusals in the words of the group's functions.

A kernel refuses a wrong call by its own names, and by rules on them: `check_call` then finds what
is wrong by the caller's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime import tensors
from runtime.errors import InvalidArgument, shown, unexpected

Named = Mapping[str, torch.Tensor | None]


def check_call(
    q: torch.Tensor,
    keys_and_values: Mapping[str, torch.Tensor],
    sequences: Any,
    *,
    entries: Any = None,
    of_sequences: Named,
    s_aux: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    softmax_scale: object,
    flags: Mapping[str, object],
) -> None:
    """Raises InvalidArgument for the first argument that does not suit the arguments before it.

    Args:
        q: queries, [..., H, D].
        keys_and_values: keys, [..., Hk, D], and values, [..., Hk, Dv], by their names.
        sequences: the number of sequences.
        entries: the first extent of keys and values; None: any.
        of_sequences: int32 tensors, [sequences] or, for tables of pages, [sequences, pages].
        s_aux: [H], of q's dtype.
        alibi_slopes: [H] or [sequences, H], float32.
        softmax_scale: a number, or None.
        flags: bools.
    """
    dtype = None if tensors.is_autocast() else q.dtype  # autocast casts all of them
    heads, width = tensors.extents("q", q, q.dim())[-2:]
    (k_name, k), (v_name, v) = keys_and_values.items()
    rank = k.dim() if isinstance(k, torch.Tensor) else 4
    tensors.expect(k_name, k, (entries, *[None] * (rank - 2), width), dtype, q.device)
    shape = tensors.extents(k_name, k, rank)
    tensors.expect(v_name, v, (*shape[:-1], None), dtype, q.device)
    tensors.check_heads("q", heads, k_name, shape[-2])
    tensors.check_width("q", width)
    tensors.check_width(v_name, tensors.extents(v_name, v, rank)[-1])
    for name, numbers in of_sequences.items():
        if numbers is not None:
            expected = (sequences, None) if "table" in name else (sequences,)
            tensors.expect(name, numbers, expected, torch.int32, q.device)
    if s_aux is not None:
        tensors.expect("s_aux", s_aux, (heads,), dtype, q.device)
    if alibi_slopes is not None:
        is_one = isinstance(alibi_slopes, torch.Tensor) and alibi_slopes.dim() == 1
        expected = (heads,) if is_one else (sequences, heads)
        tensors.expect("alibi_slopes", alibi_slopes, expected, torch.float32, q.device)
    if isinstance(softmax_scale, bool):
        raise unexpected("softmax_scale", softmax_scale, "a float")
    tensors.number("softmax_scale", softmax_scale, "float", (), False)
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise unexpected(name, flag, "a bool")


def check_numbers(softcap: object, **integers: object) -> None:
    """Raises InvalidArgument for numbers that kernels would take for others: None for the default,
    a bool for 0 or 1; and for what is no integer, if it is not None."""
    if softcap is None or isinstance(softcap, bool):
        raise unexpected("softcap", softcap, "a float")
    for name, number in integers.items():
        if isinstance(number, bool) or not (number is None or hasattr(number, "__index__")):
            raise unexpected(name, number, "an int")


def window_of(causal: bool, window_size: tuple[int | None, int | None]) -> tuple[int, int]:
    """Returns how many keys a query sees before and after its own. FlashAttention-4 says None where
    others say -1. Raises InvalidArgument for anything else."""
    if causal is not True and causal is not False:
        raise unexpected("causal", causal, "a bool")
    if isinstance(window_size, (tuple, list)) and len(window_size) == 2:
        left, right = window_size
        left, right = -1 if left is None else left, -1 if right is None else right
        is_plain = type(left) is type(right) is int
        if is_plain or (tensors.is_integer(left) and tensors.is_integer(right)):
            return left, 0 if causal else right
    raise InvalidArgument(
        f"window_size: got {shown(window_size)}, expected two integers: the keys before and after "
        "a query's own that it sees, or -1 for all"
    )
