"""vLLM's attention on Kernelmint's kernels.

    vllm serve MODEL --attention-backend CUSTOM

vLLM calls `register` in each of its processes, since Kernelmint names it as an entry point
(`vllm.general_plugins`). These are the interfaces of vLLM 0.33.
"""

# ruff: noqa: D102 - most methods are vLLM's
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

import runtime


def register() -> None:
    """Makes vLLM use `Backend` for CUSTOM."""
    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.Backend")


class Backend(AttentionBackend):  # type: ignore[misc]  # vLLM's types are not read
    """A description of these kernels for vLLM, which refuses by name the calls that the description
    leaves out."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "bfloat16", "float16"]
    forward_includes_kv_cache_update = False
    supports_kv_cache_update_bypass = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Attention]:
        return Attention

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= 256

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= 8)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # `Builder` goes by those of the CPU


@dataclass(frozen=True)
class _Part:
    """Neighbouring requests of a batch that one call computes."""

    tokens: slice
    query_start_loc: torch.Tensor | None  # None: each has one query
    seq_lens: torch.Tensor
    block_table: torch.Tensor


@dataclass
class Metadata:
    """A batch, as all layers of a group see it.

    Attributes:
        parts: requests of one query, which flash_decode takes, and the others.
        causal: a query sees no key after its own.
    """

    parts: list[_Part]
    causal: bool


class Builder(AttentionMetadataBuilder):  # type: ignore[misc]  # as Backend
    """A builder of `Metadata`; requests of one query come first in vLLM's batches, since the
    builder asks for it."""

    reorder_batch_threshold = 1
    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Metadata:
        batch = common_attn_metadata
        if not isinstance(batch.causal, bool):
            raise NotImplementedError(
                "causal: got a tensor, expected one bool: no kernel of Kernelmint takes one for "
                "each request"
            )
        starts = batch.query_start_loc_cpu
        one_query = (starts.diff() == 1).int().cumprod(0)
        count, end = int(one_query.sum()), batch.num_actual_tokens
        parts = []
        if count:
            parts.append(self._part(batch, slice(0, count), slice(0, count), None))
        if count < batch.num_reqs and count < end:
            others = slice(count, batch.num_reqs)
            begins = batch.query_start_loc[count : batch.num_reqs + 1]
            parts.append(
                self._part(batch, others, slice(count, end), begins - count if count else begins)
            )
        return Metadata(parts, batch.causal)

    @staticmethod
    def _part(
        batch: Any, requests: slice, tokens: slice, query_start_loc: torch.Tensor | None
    ) -> _Part:
        return _Part(
            tokens=tokens,
            query_start_loc=query_start_loc,
            seq_lens=batch.seq_lens[requests],
            block_table=batch.block_table_tensor[requests],
        )


class Attention(AttentionImpl):  # type: ignore[misc]  # as Backend
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks  # vLLM fills them later
        self.alibi_slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        self.left = -1 if sliding_window is None else sliding_window - 1
        self.softcap = logits_soft_cap or 0.0

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Metadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes attention of a batch over the cache, which holds its keys and values already.

        Args:
            layer: not used.
            query: [tokens, H, D], perhaps with rows of padding at the end.
            key, value: not used.
            kv_cache: [pages, Hk, page size, D + Dv], however these lie in memory.
            attn_metadata: the batch; None while vLLM measures how much memory it has.
            output: the memory of the result, [tokens, H, Dv].

        Returns:
            `output`.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("output_scale: no kernel of Kernelmint quantizes its output")
        if attn_metadata is None:
            return output.fill_(0)
        k_cache, v_cache = self._caches(kv_cache)
        causal = attn_metadata.causal
        for part in attn_metadata.parts:
            q, out = query[part.tokens], output[part.tokens]
            options: dict[str, Any] = {
                "softmax_scale": self.scale, "causal": causal, "softcap": self.softcap,
                "window_size": (self.left, 0 if causal else self.left),
                "alibi_slopes": self.alibi_slopes, "block_table": part.block_table,
                "seqused_k": part.seq_lens,
                "s_aux": None if self.sinks is None else self.sinks.to(query.dtype),
            }  # fmt: skip
            if part.query_start_loc is None:
                runtime.decode(q[:, None], k_cache, v_cache, out=out[:, None], **options)
            else:
                runtime.flash_attn_varlen_func(
                    q, k_cache, v_cache, part.query_start_loc, None, out=out, **options
                )
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes new keys and values into the cache.

        Args:
            layer: the layer, whose scales are 1.
            key: [tokens, Hk, D], perhaps with rows of padding at the end.
            value: [tokens, Hk, Dv].
            kv_cache: the cache, in the layout of `forward`.
            slot_mapping: the slots of the tokens, int64; -1 for padding.
        """
        k_cache, v_cache = self._caches(kv_cache)
        if kv_cache.is_cuda:
            from vllm._custom_ops import reshape_and_cache_flash

            reshape_and_cache_flash(
                *(key, value, k_cache, v_cache, slot_mapping, self.kv_cache_dtype),
                *(layer._k_scale, layer._v_scale),
            )
            return
        tokens = (slot_mapping >= 0).nonzero()[:, 0]
        slots = slot_mapping[tokens]
        page, at = slots // k_cache.shape[1], slots % k_cache.shape[1]
        k_cache[page, at] = key[tokens]
        v_cache[page, at] = value[tokens]

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and values, [pages, page size, Hk, D] and [pages, page size, Hk, Dv]."""
        pages = kv_cache.transpose(1, 2)
        return pages[..., : self.head_size], pages[..., self.head_size :]
