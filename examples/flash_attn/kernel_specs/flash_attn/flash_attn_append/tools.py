"""Hooks of the tools for flash_attn_append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..cases import cases

__all__ = ["CASES"]

# An empty cache and one that is full afterwards; padding and entries in any order; pages, of which
# new keys begin one and cross into another; a single query, as in decoding.
_VARIANTS: tuple[Mapping[str, Any], ...] = (
    {"sizes": {"Sn": 5}, "values": {"cache_seqlens": [0, 125]}},
    {
        "sizes": {"Sn": 70, "Sr": 130, "Bk": 3},
        "values": {"cache_seqlens": [60, 33], "leftpad_k": [7, 32], "cache_batch_idx": [2, 0]},
        "options": {"rotary_interleaved": False, "softmax_scale": 0.2},
    },
    {
        "sizes": {"Sn": 9, "Sk": 256, "Sr": 512, "Bk": 5, "pages": 2},
        "values": {"cache_seqlens": [250, 256], "block_table": [[4, 1], [0, 2]]},
        "options": {"rotary_interleaved": True},
    },
    {
        "sizes": {"Sq": 1, "Sn": 1, "Sr": 130},
        "values": {"cache_seqlens": [0, 100]},
        "options": {"rotary_interleaved": False},
    },
)


def _cases() -> Iterator[dict[str, Any]]:
    for is_split, splits in ((False, 1), (True, 3)):
        for case in cases(split=is_split):
            parameters = {n: v for n, v in case["parameters"].items() if n != "even_mn"}
            if case["parameters"]["even_mn"]:  # appending is not even
                continue
            for variant in _VARIANTS:
                sizes = {**case["sizes"], "Sr": 0, **variant["sizes"]}
                sizes["R"] = sizes["D"] // 16 * 8 if sizes["Sr"] else 0
                options = {**case["options"], "num_splits": splits, **variant.get("options", {})}
                values = variant["values"]
                yield {
                    "sizes": sizes, "parameters": parameters, "options": options, "values": values,
                }  # fmt: skip


CASES = tuple(_cases())
