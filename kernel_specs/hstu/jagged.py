"""Inputs of HSTU's functions: padded tensors, or sequences one after another."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from .semantics import shown

Gates: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
GateModel: TypeAlias = Callable[[torch.Tensor], Gates]


class Padded(NamedTuple):
    """The tensors of block_sparse_attention: q, k [B, T, H, A], v, u [B, T, H, L] and the gate
    [B, T, H]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    u: torch.Tensor
    g_cmp: torch.Tensor

    def check(self, *dtypes: torch.dtype) -> None:
        """Raises ValueError if shapes, dtypes or devices do not fit."""
        q, k, v, u, _ = self
        for name, tensor in self._asdict().items():
            rank = 3 if name == "g_cmp" else 4
            if tensor.dim() != rank:
                expected = "[B, T, H]" if rank == 3 else "[B, T, H, head size]"
                raise ValueError(f"{name}: got shape {list(tensor.shape)}, expected {expected}")
            if tensor.dtype not in dtypes:
                allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
                actual = str(tensor.dtype).removeprefix("torch.")
                raise ValueError(f"{name} is {actual}: expected {allowed}")
            if tensor.dtype != q.dtype or tensor.device != q.device:
                raise ValueError(
                    f"{name} is {tensor.dtype} on {tensor.device}, q is {q.dtype} on {q.device}: "
                    "all tensors must agree"
                )
            if tensor.shape[:3] != q.shape[:3]:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}: its first three extents must be q's "
                    f"[B, T, H] = {list(q.shape[:3])}"
                )
        for name, tensor, other, like in (("k", k, "q", q), ("u", u, "v", v)):
            if tensor.shape != like.shape:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}, {other} has {list(like.shape)}: they "
                    "must be equal"
                )
        if q.shape[3] < 1 or v.shape[3] < 1 or q.shape[0] < 1:
            raise ValueError(
                f"q has shape {list(q.shape)} and v has {list(v.shape)}: no extent may be 0"
            )


class Jagged(NamedTuple):
    """The arguments of hstu_attention_with_bsa in their order, and how their rows are read.

    q, k: [N, H * A]; v, u: [N, H * L]; x_offsets: [B + 1] (int32 or int64), sequence b being the
    rows x_offsets[b] to x_offsets[b + 1]; invalid_attn_mask: [..., n, n], of which only the extent
    n, the padded length, counts; gate_model: q [..., A] -> three gates [...].
    """

    num_heads: int
    attention_dim: int
    linear_dim: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    u: torch.Tensor
    x_offsets: torch.Tensor
    invalid_attn_mask: torch.Tensor
    gate_model: GateModel

    @property
    def n(self) -> int:
        """Returns the padded length."""
        mask = self.invalid_attn_mask
        return mask.shape[-1] if mask.dim() else 0

    def check(self) -> None:
        """Raises ValueError, with the reason, if the arguments do not fit; reads no memory."""
        q, x_offsets = self.q, self.x_offsets
        for name in ("num_heads", "attention_dim", "linear_dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {shown(value)}: expected a positive integer")
        for name, tensor, size in (
            ("q", q, self.attention_dim),
            ("k", self.k, self.attention_dim),
            ("v", self.v, self.linear_dim),
            ("u", self.u, self.linear_dim),
        ):
            width = self.num_heads * size
            if tensor.dim() != 2 or tensor.shape != (q.shape[0], width):
                rows = q.shape[0] if q.dim() else "sum N"
                raise ValueError(
                    f"{name}: got shape {list(tensor.shape)}, expected [{rows}, {width}], "
                    f"{self.num_heads} heads of {size}"
                )
            if tensor.dtype not in (torch.float32, torch.float64) or tensor.dtype != q.dtype:
                raise ValueError(
                    f"{name} is {tensor.dtype}: expected float32 (float64 for the oracle), as q"
                )
            if tensor.device != q.device:
                raise ValueError(f"{name} is on {tensor.device}, q on {q.device}: all must agree")
        if x_offsets.dim() != 1 or x_offsets.shape[0] < 2:
            raise ValueError(
                f"x_offsets: got shape {list(x_offsets.shape)}, expected [B + 1], B >= 1"
            )
        if x_offsets.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"x_offsets is {x_offsets.dtype}: expected int32 or int64")
        if self.n < 1:
            raise ValueError("invalid_attn_mask's last extent, the padded length n, is 0")
        if q.shape[0] == 0:
            raise ValueError("all sequences are empty: there is nothing to attend to")

    def longest(self) -> int:
        """Returns the longest sequence's length. Raises ValueError if x_offsets is wrong.

        Copies x_offsets to the host, so on a GPU it waits for what computes them.
        """
        try:
            offsets: list[int] = self.x_offsets.tolist()
        except RuntimeError as error:  # a subclass without values, or a transform's
            raise ValueError(f"x_offsets: {error}") from None
        if offsets[0] != 0 or offsets[-1] != self.q.shape[0]:
            raise ValueError(
                f"x_offsets runs from {offsets[0]} to {offsets[-1]}: expected 0 to the number of "
                f"rows, {self.q.shape[0]}"
            )
        for b, (start, stop) in enumerate(itertools.pairwise(offsets)):
            if stop < start:
                raise ValueError(f"x_offsets falls from {start} to {stop} at sequence {b}")
            if stop - start > self.n:
                raise ValueError(
                    f"sequence {b} has length {stop - start}, past n = {self.n}, "
                    "the last extent of invalid_attn_mask"
                )
        return max(stop - start for start, stop in itertools.pairwise(offsets))

    def assert_lengths(self, max_length: int) -> None:
        """Has the device stop with an error if x_offsets is wrong; the host does not wait."""
        offsets = self.x_offsets
        lengths = offsets.diff()
        right = ((lengths >= 0) & (lengths <= max_length)).all()
        right = right & (offsets[0] == 0) & (offsets[-1] == self.q.shape[0])
        torch._assert_async(
            right, "x_offsets: the sequences go from the first row to the last, none longer than "
            "max_length"
        )  # fmt: skip

    def by_heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns q, k [N, H, A] and v, u [N, H, L], views."""
        return (
            self.q.view(-1, self.num_heads, self.attention_dim),
            self.k.view(-1, self.num_heads, self.attention_dim),
            self.v.view(-1, self.num_heads, self.linear_dim),
            self.u.view(-1, self.num_heads, self.linear_dim),
        )

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """Pads x [N, ...] to [B, n, ...], zeros after each sequence."""
        positions = torch.arange(self.n, device=x.device)
        offsets = self.x_offsets.to(x.device)
        rows = offsets[:-1, None] + positions
        padded = x[rows.clamp(0, x.shape[0] - 1)]
        behind = rows >= offsets[1:, None]
        return padded.masked_fill(behind.view(*behind.shape, *[1] * (x.dim() - 1)), 0)

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """Inverts `pad`: [B, n, ...] to [N, ...]."""
        rows = torch.arange(self.q.shape[0], device=x.device)
        offsets = self.x_offsets.to(x.device)
        sequences = torch.bucketize(rows, offsets[1:], right=True).clamp(max=x.shape[0] - 1)
        return x[sequences, (rows - offsets[sequences]).clamp(0, self.n - 1)]
