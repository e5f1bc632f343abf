"""Problems: attention of equal sequences, its gradients, packed sequences, and decoding."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from kernelmint.tools.bench import Inputs, Problem, Results
from torch import Tensor

import runtime
from runtime import KernelInfo
from runtime.operators import DTYPES

_GPU_HIDDEN = 2048  # heads times their dimension, as in FlashAttention's own benchmarks
_CPU_HEADS = 8
_MOST_BYTES = 70e9  # a cache's


def _normal(device: torch.device, dtype: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    options: Any = {"generator": generator, "device": device, "dtype": DTYPES[dtype]}
    return [torch.randn(shape, **options) for shape in shapes]


@dataclass(frozen=True)
class Attention(Problem):
    """Self-attention of one size: q, k and v of [batch, seq_len, heads, d_head]."""

    axis: ClassVar[str] = "sequence length"
    products: ClassVar[int] = 2

    dtype: str
    d_head: int
    causal: bool
    batch: int
    seq_len: int
    heads: int
    kv_heads: int

    @property
    def group(self) -> str:
        """Returns all but the size."""
        heads = f"{self.heads} heads" + (
            f" over {self.kv_heads}" if self.kv_heads != self.heads else ""
        )
        mask = "causal" if self.causal else "not causal"
        return f"{self.dtype}, d {self.d_head}, {heads}, {mask}"

    @property
    def size(self) -> str:
        """Returns batch and length."""
        return f"{self.batch}x{self.seq_len}"

    @property
    def extent(self) -> float:
        """Returns the sequences' length."""
        return self.seq_len

    @property
    def operations(self) -> float:
        """Counts the multiplications and additions of the products; half under the mask."""
        scores = self.batch * self.heads * self.seq_len**2
        return 2.0 * self.products * scores * self.d_head / (2 if self.causal else 1)

    def suits(self, info: KernelInfo) -> bool:
        """Says whether a kernel computes this, and keeps no trace."""
        return super().suits(info) and not info.parameters.get("trace")

    def inputs(self, device: torch.device) -> Inputs:
        """Returns q, k and v, normally distributed, contiguous."""
        shapes = ((self.batch, self.seq_len, n, self.d_head) for n in self._heads)
        return dict(zip("qkv", _normal(device, self.dtype, *shapes), strict=True))

    @property
    def _heads(self) -> tuple[int, ...]:
        return self.heads, self.kv_heads, self.kv_heads

    def part(self, inputs: Inputs) -> tuple[Inputs, Callable[[Results], Results]]:
        """Returns the last query head of the last sequence: the scores of all in fp64 would not fit
        in memory."""
        return (
            {name: tensor[-1:, :, -1:] for name, tensor in inputs.items()},
            lambda results: [results[0][-1:, :, -1:]],
        )


@dataclass(frozen=True)
class Gradients(Attention):
    """The gradients of q, k and v, given the output, its gradient and its log-sum-exps."""

    products: ClassVar[int] = 5

    def inputs(self, device: torch.device) -> Inputs:
        """Returns dout, q, k, v, o and lse."""
        shapes = ((self.batch, self.seq_len, n, self.d_head) for n in (self.heads, *self._heads))
        dout, q, k, v = _normal(device, self.dtype, *shapes)
        o, lse = runtime.attention(q, k, v, causal=self.causal, return_lse=True)
        return {"dout": dout, "q": q, "k": k, "v": v, "o": o, "lse": lse}

    def part(self, inputs: Inputs) -> tuple[Inputs, Callable[[Results], Results]]:
        """Returns the last key head of the last sequence, and the query heads that share it."""
        group = self.heads // self.kv_heads
        counts = {"k": 1, "v": 1}
        smaller = {n: t[-1:, :, -counts.get(n, group) :] for n, t in inputs.items() if n != "lse"}
        smaller["lse"] = inputs["lse"][-1:, -group:]
        return smaller, lambda results: [
            result[-1:, :, -heads:] for result, heads in zip(results, (group, 1, 1), strict=False)
        ]

    def expected(self, inputs: Inputs, reference: Callable[..., Any]) -> Results:
        """Returns dq, dk and dv of some query heads of one key head, one query head at a time."""
        results = []
        for head in range(inputs["q"].shape[2]):
            own = slice(head, head + 1)
            of_head = {name: inputs[name][:, :, own] for name in ("dout", "q", "o")}
            of_head |= {"k": inputs["k"], "v": inputs["v"], "lse": inputs["lse"][:, own]}
            scale = self.d_head**-0.5
            results.append(reference(**of_head, scale=scale, causal=self.causal))
        dq, dk, dv = zip(*results, strict=True)
        return [torch.cat(dq, 2), sum(dk), sum(dv)]


def equal_sequences(
    kind: type[Attention],
    sizes: Mapping[str, Sequence[str]],
    kernels: Sequence[KernelInfo],
    device: torch.device,
    *,
    size: Sequence[str] = (),
    heads: Sequence[int] = (),
    kv_heads: Sequence[int] = (0,),
    dtype: Sequence[str] = (),
    d_head: Sequence[int] = (),
    causal: Sequence[bool] = (),
) -> list[Attention]:
    """Returns Attention or Gradients of what kernels compute.

    Args:
        kind: which of the two.
        sizes: batch x length, such as 16x1024, by the device's type; if `size` names none.
        kernels: those that are measured.
        device: where.
        size: batch x length.
        heads: by default 2048 / d_head, on a CPU 8.
        kv_heads: as many as heads if 0.
        dtype, d_head, causal: only these; all that kernels have if empty.
    """
    compiled = dict.fromkeys(
        (info.parameters["dtype"], info.parameters["d_head"], info.parameters["causal"])
        for info in kernels
    )
    only = (dtype, d_head, causal)
    problems = []
    for values in compiled:
        if any(some and value not in some for value, some in zip(values, only, strict=True)):
            continue
        usual = max(1, _GPU_HIDDEN // values[1]) if device.type == "cuda" else _CPU_HEADS
        shapes = itertools.product(heads or (usual,), kv_heads, size or sizes[device.type])
        for count, kv_count, each in shapes:
            if count % (kv_count or count):
                raise ValueError(f"--case kv_heads={kv_count} does not divide {count} heads")
            extents = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(each))
            if extents is None:
                raise ValueError(f"--case size={each}: expected batch x length, such as 16x1024")
            batch, length = map(int, extents.groups())
            problems.append(kind(*values, batch, length, count, kv_count or count))
    return problems


@dataclass(frozen=True)
class Packed(Problem):
    """Sequences that attend to themselves, packed into q, k and v of [1, tokens, heads, d_head]."""

    axis: ClassVar[str] = "keys"

    dtype: str
    d_head: int
    heads: int
    kv_heads: int
    causal: bool
    window: int  # keys before a query's own that it sees; -1: all
    lengths: tuple[int, ...]  # keys of each sequence
    softcap: float = 0  # 0: none

    @property
    def group(self) -> str:
        """Returns all but the lengths."""
        parts = [self.dtype, f"d {self.d_head}", f"{self.heads} heads over {self.kv_heads}"]
        parts += ["packed", *["causal"] * self.causal]
        parts += [f"window {self.window}"] * (self.window >= 0)
        parts += [f"softcap {self.softcap:g}"] * (self.softcap > 0)
        return ", ".join(parts)

    @property
    def size(self) -> str:
        """Returns how many sequences there are, and their lengths."""
        least, most = min(self.lengths), max(self.lengths)
        return f"{len(self.lengths)}x{most if least == most else f'{least}-{most}'}"

    @property
    def extent(self) -> float:
        """Counts the keys of all sequences."""
        return sum(self.lengths)

    @property
    def pairs(self) -> int:
        """Counts the pairs of a query and a key that see each other, in one head."""
        return sum(map(self._pairs, self.lengths))

    def _pairs(self, length: int) -> int:
        after = 0 if self.causal else length
        return sum(
            min(length, i + 1 + after) - (max(0, i - self.window) if self.window >= 0 else 0)
            for i in range(length)
        )

    @property
    def operations(self) -> float:
        """Counts the multiplications and additions of both products."""
        return 4.0 * self.pairs * self.heads * self.d_head

    @property
    def equal(self) -> bool:
        """Says whether all sequences have one length, so that they are batches of one shape."""
        return len(set(self.lengths)) == 1

    def inputs(self, device: torch.device) -> Inputs:
        """Returns what a kernel of flash_prefill takes, normally distributed."""
        shapes = (
            (1, sum(self.lengths), n, self.d_head) for n in (self.heads, *2 * [self.kv_heads])
        )
        q, k, v = _normal(device, self.dtype, *shapes)
        ends = torch.tensor([0, *self.lengths], device=device).cumsum(0).to(torch.int32)
        return {
            "q": q, "k": k, "v": v, "cu_seqlens_q": ends, "cu_seqlens_k": ends,
            "window_left": self.window, "window_right": 0 if self.causal else -1,
            "softcap": self.softcap,
        }  # fmt: skip

    def part(self, inputs: Inputs) -> tuple[Inputs, Callable[[Results], Results]]:
        """Returns the last head of the longest sequence."""
        longest = self.lengths.index(max(self.lengths))
        begin, end = inputs["cu_seqlens_q"][longest : longest + 2].tolist()
        smaller = dict(inputs)
        smaller |= {name: inputs[name][:, begin:end, -1:] for name in "qkv"}
        smaller |= {
            n: inputs[n].new_tensor([0, end - begin]) for n in ("cu_seqlens_q", "cu_seqlens_k")
        }
        shape = (1, sum(self.lengths), self.heads, self.d_head)
        return smaller, lambda results: [results[0].reshape(shape)[:, begin:end, -1:]]


@dataclass(frozen=True)
class PackedGradients(Packed):
    """The gradients of q, k and v of packed sequences."""

    @property
    def operations(self) -> float:
        """Counts the multiplications and additions of the five products."""
        return 10.0 * self.pairs * self.heads * self.d_head

    def inputs(self, device: torch.device) -> Inputs:
        """Returns what a kernel of flash_prefill_backward takes."""
        inputs = super().inputs(device)
        q, k, v = (inputs.pop(name) for name in "qkv")
        o, lse, _ = runtime.flash_attn_varlen_func(
            q[0], k[0], v[0], inputs["cu_seqlens_q"], inputs["cu_seqlens_k"],
            window_size=(self.window, 0 if self.causal else -1), softcap=self.softcap,
            return_attn_probs=True,
        )  # fmt: skip
        (dout,) = _normal(device, self.dtype, q.shape)
        return {"dout": dout, "q": q, "k": k, "v": v, "o": o[None], "lse": lse[None], **inputs}

    def part(self, inputs: Inputs) -> tuple[Inputs, Callable[[Results], Results]]:
        """Returns the last key head of the longest sequence, and the query heads that share it."""
        group, longest = self.heads // self.kv_heads, self.lengths.index(max(self.lengths))
        begin, end = inputs["cu_seqlens_q"][longest : longest + 2].tolist()
        smaller = dict(inputs)
        for name, heads in {"dout": group, "q": group, "o": group, "k": 1, "v": 1}.items():
            smaller[name] = inputs[name][:, begin:end, -heads:]
        smaller["lse"] = inputs["lse"][:, -group:, begin:end]
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            smaller[name] = inputs[name].new_tensor([0, end - begin])
        return smaller, lambda results: [
            result.reshape(1, sum(self.lengths), -1, self.d_head)[:, begin:end, -heads:]
            for result, heads in zip(results, (group, 1, 1), strict=False)
        ]

    def expected(self, inputs: Inputs, reference: Callable[..., Any]) -> Results:
        """Returns dq, dk and dv."""
        return list(reference(**inputs)[:3])


@dataclass(frozen=True)
class Decoding(Packed):
    """One query a sequence, [batch, 1, heads, d_head], over caches of [batch, keys, kv_heads,
    d_head], which the function fills and whose kernels only it calls."""

    unit: ClassVar[str] = "B/s"
    by_key: ClassVar[bool] = False

    @property
    def group(self) -> str:
        """Returns all but the lengths."""
        heads = f"{self.heads} heads over {self.kv_heads}"
        return f"{self.dtype}, d {self.d_head}, {heads}, one query over a cache"

    @property
    def operations(self) -> float:
        """Counts the bytes of keys and values."""
        element = DTYPES[self.dtype].itemsize
        return 2.0 * element * sum(self.lengths) * self.kv_heads * self.d_head

    def inputs(self, device: torch.device) -> Inputs:
        """Returns what the reference of flash_decode takes, normally distributed."""
        batch, keys = len(self.lengths), max(self.lengths)
        cache = (batch, keys, self.kv_heads, self.d_head)
        q, k, v = _normal(device, self.dtype, (batch, 1, self.heads, self.d_head), cache, cache)
        used = torch.tensor(self.lengths, device=device, dtype=torch.int32)
        return {"q": q, "k_cache": k, "v_cache": v, "seqused_k": None if self.equal else used}

    def part(self, inputs: Inputs) -> tuple[Inputs, Callable[[Results], Results]]:
        """Returns the last query head of the last sequence."""
        smaller = {n: inputs[n][-1:, :, -1:] for n in ("q", "k_cache", "v_cache")}
        smaller["seqused_k"] = None if self.equal else inputs["seqused_k"][-1:]
        shape = (len(self.lengths), 1, self.heads, self.d_head)
        return smaller, lambda results: [results[0].reshape(shape)[-1:, :, -1:]]


def mixed(count: int = 16, least: int = 128, most: int = 8192) -> tuple[int, ...]:
    """Returns lengths in a geometric row, in random order."""
    row = [round(least * (most / least) ** (i / (count - 1))) for i in range(count)]
    return tuple(row[(7 * i) % count] for i in range(count))


def packed(
    kind: type[Packed], kernels: Sequence[KernelInfo], device: torch.device, *,
    d_head: Sequence[int] = (128,), dtype: Sequence[str] = ("bf16",),
    window: Sequence[int] = (1023,), softcap: Sequence[float] = (0,),
) -> list[Packed]:  # fmt: skip
    """Returns Packed or PackedGradients: sequences of mixed lengths, and windows, by default of
    1,024, in 16k; on a CPU fewer and shorter ones; by default without a softcap."""
    on_gpu = device.type == "cuda"
    whole = mixed() if on_gpu else mixed(4, 64, 1024)
    windows = ((16384,), (16384,) * 4) if on_gpu else ((4096,),)
    problems = []
    for columns, name, cap in itertools.product(d_head, dtype, softcap):
        heads = _GPU_HIDDEN // columns if on_gpu else 4
        shapes = [(name, columns, heads, heads), (name, columns, heads, heads // 4)]
        masks = itertools.product(shapes, (False, True))
        problems += [kind(*shape, causal, -1, whole, cap) for shape, causal in masks]
        problems += [
            kind(*shape, True, keys, lengths, cap)
            for shape, keys, lengths in itertools.product(shapes, window, windows)
        ]
    return problems


def decoding(
    kernels: Sequence[KernelInfo], device: torch.device, *,
    d_head: Sequence[int] = (128,), dtype: Sequence[str] = ("bf16",),
) -> list[Decoding]:  # fmt: skip
    """Returns one query a head over caches of equal and of mixed lengths; on a GPU up to 128k keys,
    as far as a cache has at most 70 GB."""
    batches, thousands, longest = (
        ((1, 8, 64), (1, 4, 8, 16, 64, 128), 32768)
        if device.type == "cuda"
        else ((1, 4), (1, 4, 16), 4096)
    )
    lengths = [(keys << 10,) * batch for batch in batches for keys in thousands]
    lengths += [mixed(batch, longest // 128, longest) for batch in batches[1:]]
    shapes = ((32, 8), (64, 8), (32, 32))
    problems = [
        Decoding(name, columns, *heads, False, -1, cached)
        for columns, name, heads, cached in itertools.product(d_head, dtype, shapes, lengths)
    ]
    return [problem for problem in problems if problem.operations <= _MOST_BYTES]
