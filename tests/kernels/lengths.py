"""What tests of attention over sequences of any lengths share: inputs, and what is right.

Probabilities are rounded to the dtype if tensor cores or AMX tiles multiply them, and so is the
result: an element's error is at most the sum of both roundings of all that is added up, and that of
scores and exponents, which are f32 (CUDA's exponentials are 2 ulp off).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import runtime
from runtime import KernelInfo
from tests.emulated import kernels as emulated
from tools.families import oracle

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}


CAPS = [1e-42, 0.3, 50.0, 1e4, 1e8, 3e38, math.inf]
EMULATED = "emulated "  # before the key of a CUDA kernel that the emulator is to run


def keys_of(family: str, *emulated: str) -> tuple[list[str], list[Any]]:
    """The built kernels of a family: the CPU's, and those that need a GPU, as parameters. Of these
    `emulated`, the first of each pattern, are among the former, too."""
    infos = [info for info in runtime.kernels(family) if info.built]
    of_gpu = [info.key for info in infos if info.is_cuda]
    firsts = [key for p in emulated if (key := next((k for k in of_gpu if fnmatch(k, p)), None))]
    here = [info.key for info in infos if not info.is_cuda] + [EMULATED + key for key in firsts]
    return here, [pytest.param(key, marks=pytest.mark.gpu) for key in of_gpu]


class Inputs:
    """Queries, keys and values for a kernel; what no query may see is NaN."""

    q: Tensor
    k: Tensor
    v: Tensor

    def __init__(self, key: str) -> None:
        is_emulated = key.startswith(EMULATED)
        self.kernel: Callable[..., Any] = (
            emulated.Kernel(key.removeprefix(EMULATED)) if is_emulated else runtime.kernel(key)
        )
        self.info: KernelInfo = self.kernel.info  # type: ignore[attr-defined]  # both have it
        self.dtype = DTYPES[self.info.parameters["dtype"]]
        self.device = torch.device("cuda" if self.info.is_cuda and not is_emulated else "cpu")
        self.options: dict[str, Any] = {}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def lay_in_pages(self, size: int) -> None:
        """Pages in any order, one more than needed, whose entries are NaN."""
        batch, capacity = self.k.shape[:2]
        each = -(-capacity // size)
        order = torch.randperm(batch * each + 1, device=self.device)
        self.options["block_table"] = order[: batch * each].view(batch, each).int()
        for name in "kv":
            flat = getattr(self, name)
            pages = flat.new_full((batch * each + 1, size, *flat.shape[2:]), float("nan"))
            padded = flat.new_full((batch, each * size, *flat.shape[2:]), float("nan"))
            padded[:, :capacity] = flat
            pages[order[: batch * each]] = padded.view(batch * each, size, *flat.shape[2:])
            setattr(self, name, pages)

    def call(self, **options: Any) -> tuple[Tensor, Tensor]:
        """The kernel's output and lse, in memory that held NaN before."""
        entries, rows, heads, _ = self.q.shape
        nan = {"fill_value": float("nan"), "device": self.device}
        o = torch.full((entries, rows, heads, self.v.shape[3]), dtype=self.dtype, **nan)
        lse = torch.full((entries, heads, rows), **nan)
        options = self.options | options
        self.kernel(self.q, self.k, self.v, **options, return_lse=True, out=(o, lse))
        return o, lse

    def check(self, *, rounds_probabilities: bool = True, **options: Any) -> None:
        """Holds the kernel to its family's oracle."""
        o, lse = self.call(**options)
        options.pop("batch_invariant", None)
        options = self.options | options
        values = torch.cat([self.v, self.v.abs()], 3)
        both, want_lse = oracle(self.info.family)(self.q, self.k, values, **options)
        want, magnitude = both.chunk(2, 3)
        seen = want_lse.isfinite()
        largest = max(1.0, *want_lse[seen].abs().tolist())
        eps = torch.finfo(self.dtype).eps
        in_f32 = 2.0**-20 * largest
        error = (o.double() - want).abs()
        of_probabilities = eps / 2 if rounds_probabilities else 0.0
        # fp16's subnormal probabilities are rounded to multiples of 2^-24.
        allowed = eps / 2 * want.abs() + (of_probabilities + in_f32) * magnitude + 2.0**-14 * eps
        assert (error <= 1.01 * allowed + 2.0**-20).all(), (error - allowed).max()  # NaN fails
        assert torch.equal(lse.isneginf(), want_lse.isneginf())
        assert not o.transpose(1, 2)[want_lse.isneginf()].count_nonzero()
        assert not seen.any() or (lse - want_lse)[seen].abs().max() <= in_f32


_Inputs = TypeVar("_Inputs", bound=Inputs)
# What may be asked for, beside another: how inputs are made, and options of the call.
Features = dict[str, tuple[dict[str, Any], Callable[[_Inputs], dict[str, Any]]]]
FEATURES: Features[Inputs] = {
    "padding": ({"pads": [3, 90, 0, 30]}, lambda made: {}),
    "left": ({}, lambda made: {"window_left": 40}),
    "softcap": ({}, lambda made: {"softcap": 5.0}),
    "sinks": ({}, lambda made: {"s_aux": made.random(made.q.shape[2])}),
    "slopes": ({}, lambda made: {"alibi_slopes": 0.1 * torch.rand(
        4, made.q.shape[2], device=made.device)}),
    "narrow": ({"width": 40}, lambda made: {}),
    "narrow values": ({"value_width": 24}, lambda made: {}),
    "scale": ({}, lambda made: {"softmax_scale": -0.5}),
}  # fmt: skip


def check_in_pairs(make: Callable[..., Inputs], features: Features[Any]) -> None:
    """Holds a kernel to the oracle with each two of the features."""
    for pair in itertools.combinations(features, 2):
        shape: dict[str, Any] = {}
        for name in pair:
            shape |= features[name][0]
        made = make(**shape)
        options: dict[str, Any] = {}
        for name in pair:
            options |= features[name][1](made)
        try:
            made.check(**options)
        except AssertionError as error:
            raise AssertionError(f"{pair}: {error}") from error


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The oracle's small products wait for a second thread longer than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
