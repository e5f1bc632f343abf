"""The implementations that can be compared, behind one face."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

import runtime

from .. import semantics
from ..block_sparse import reference as block_sparse
from ..hstu_bsa import reference as hstu_bsa
from .cases import Inputs

Attention: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Hstu: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]

NAMES = ("torch", "triton", "sm80", "cpu")


class UnavailableError(RuntimeError):
    """An implementation cannot run here; the message says why."""


@dataclass(frozen=True)
class Implementation:
    """`attention` as reference.block_sparse_attention, `hstu` as hstu_attention_with_bsa, which by
    itself is the reference's with this attention inside."""

    name: str
    title: str
    attention: Attention
    hstu: Hstu | None = None

    def run_hstu(
        self, inputs: Inputs, mode: semantics.Mode
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns attn_output [sum N, H L], padded_q and padded_k [B, n, H, A]."""
        case = inputs.case
        hstu = self.hstu or partial(hstu_bsa.hstu_attention_with_bsa, attention=self.attention)
        return hstu(
            *inputs.jagged, block_count=case.block_count, block_size=case.block_size, mode=mode
        )


def implementation_of(name: str, device: str, dot: str | None = None) -> Implementation:
    """Returns the implementation of that name; UnavailableError if it cannot run on `device`.

    dot: the precision of its matrix products, None for its most exact one.
    """
    if name == "torch":
        return Implementation(name, "PyTorch", block_sparse.block_sparse_attention)
    if name == "triton":
        return _triton(device, dot)
    if name in ("sm80", "cpu"):
        return _generated(name, device, dot)
    raise UnavailableError(
        f"there is no implementation {name!r}: expected one of {', '.join(NAMES)}"
    )


def _triton(device: str, dot: str | None) -> Implementation:
    if device == "cpu":
        # read when Triton is first imported
        os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        kernels = importlib.import_module("..block_sparse.triton_kernels", __package__)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise UnavailableError("Triton is not installed: pip install triton") from None
    if (device == "cpu") != kernels.INTERPRETED:
        raise UnavailableError(
            "Triton was imported for another device: set TRITON_INTERPRET=1 for the CPU, "
            "and not for a GPU"
        )
    precision = dot or ("ieee" if device == "cpu" else "tf32x3")
    attention = partial(kernels.block_sparse_attention, dot=precision)
    return Implementation("triton", "Triton", attention)


def _generated(target: str, device: str, dot: str | None) -> Implementation:
    if (target == "cpu") != (device == "cpu"):
        raise UnavailableError(f"the generated target {target} does not run on device {device}")

    def asked(front: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return front(*arguments, **options, target=target, dot=dot)
            except (runtime.KernelNotFound, runtime.TargetUnavailable) as error:
                raise UnavailableError(str(error.args[0])) from None

        return call

    return Implementation(
        target,
        f"Generated ({target})",
        asked(runtime.block_sparse_attention),
        asked(runtime.hstu_attention_with_bsa),
    )
