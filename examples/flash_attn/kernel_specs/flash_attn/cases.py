"""The calls that tools check flash-attn's kernels with, by what kernels are compiled for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def options_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scalars of a call that kernels with these parameters take."""
    windows = {"window_left": 40, "window_right": 10} if parameters["local"] else {}
    return {
        "softcap": 20.0 if parameters["capped"] else 0.0,
        **({"window_right": 0} if parameters["causal"] else windows),
    }


def cases(**flags: Any) -> Iterator[dict[str, Any]]:
    """Returns a batch for all kernels that take the same call; `flags` are further parameters of
    theirs."""
    masks = ((False, False), (True, False), (False, True))
    for head_dim, (causal, local) in itertools.product((32, 64, 96, 128, 192, 256), masks):
        for capped, alibi, even_k, even_mn in itertools.product((False, True), repeat=4):
            parameters = {
                "head_dim": head_dim, "causal": causal, "local": local, "capped": capped,
                "alibi": alibi, "even_k": even_k, "even_mn": even_mn, **flags,
            }  # fmt: skip
            sizes = {
                "B": 2, "Bk": 2, "H": 4, "Hk": 2, "D": head_dim if even_k else head_dim - 8,
                "Sq": 128 if even_mn else 70, "Sk": 256 if even_mn else 130, "A": 2,
                "Cq": 0, "Ck": 0, "pages": 0,
            }  # fmt: skip
            yield {"sizes": sizes, "parameters": parameters, "options": options_of(parameters)}


def inputs(
    sizes: Mapping[str, int], parameters: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """Makes q, k and v, and slopes for kernels that take them."""
    rows = {"q": ("B", "Sq", "H", "D"), "k": ("Bk", "Sk", "Hk", "D"), "v": ("Bk", "Sk", "Hk", "D")}
    tensors = {
        name: torch.randn(
            [sizes[dim] for dim in dims], generator=generator, device=generator.device
        ).to(DTYPES[parameters["dtype"]])
        for name, dims in rows.items()
    }
    if parameters["alibi"]:
        slopes = torch.rand(sizes["A"], sizes["H"], generator=generator, device=generator.device)
        tensors["alibi_slopes"] = slopes
    return tensors
