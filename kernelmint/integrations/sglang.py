"""SGLang's attention on Kernelmint's kernels.

    sglang serve --model-path MODEL --attention-backend kernelmint --page-size 16

SGLang calls `register` in each of its processes, since Kernelmint names it as an entry point
(`sglang.srt.plugins`). These are the interfaces of SGLang 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.runtime_context import get_parallel

import runtime

NAME = "kernelmint"


def register() -> None:
    """Makes --attention-backend kernelmint known to SGLang."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.server_args import add_attention_backend_choices

    register_attention_backend(NAME)(Backend)
    add_attention_backend_choices([NAME])


@dataclass(frozen=True)
class _Metadata:
    """A batch, as all layers see it; `_windowed` is for layers whose cache holds a window."""

    query_starts: torch.Tensor | None  # None: each request has one query
    lengths: torch.Tensor
    pages: torch.Tensor
    pages_windowed: torch.Tensor | None
    out_windowed: torch.Tensor | None


class Backend(AttentionBackend):  # type: ignore[misc]  # SGLang's types are not read
    """Attention of SGLang's layers.

    Args:
        model_runner: SGLang's, whose pools hold the caches.

    Raises:
        NotImplementedError: the model has latent attention (MLA), or caches are spread over GPUs.
    """

    needs_cpu_seq_lens = False

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        if model_runner.use_mla_backend:
            raise _refused("a model of latent attention (MLA)", "one of queries, keys and values")
        if get_parallel().attn_dcp_size > 1:
            raise _refused("caches spread over GPUs (--dcp-size)", "whole ones")
        self._page_size = model_runner.page_size
        self._requests = model_runner.req_to_token_pool
        self._caches = model_runner.token_to_kv_pool
        self.forward_metadata: _Metadata | None = None

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocates nothing for graphs: they compute the data of a batch themselves."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Returns the length of requests that fill a graph up."""
        return 1

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Reads a batch without leaving the device."""
        batch, mode = forward_batch, forward_batch.forward_mode
        if mode.is_idle():
            return
        if mode.is_target_verify() or mode.is_draft_extend_v2() or mode.is_dllm_extend():
            raise _refused(f"a batch of {mode.name}", "EXTEND, MIXED or DECODE")
        starts = None
        if not mode.is_decode():
            starts = torch.nn.functional.pad(batch.extend_seq_lens.cumsum(0), (1, 0)).int()
        firsts = self._requests.req_to_token[batch.req_pool_indices, :: self._page_size]
        to_windowed = getattr(self._caches, "translate_loc_from_full_to_swa", None)
        self.forward_metadata = _Metadata(
            query_starts=starts,
            lengths=batch.seq_lens.int(),
            pages=self._pages(firsts),
            pages_windowed=to_windowed and self._pages(to_windowed(firsts)),
            out_windowed=to_windowed and to_windowed(batch.out_cache_loc),
        )

    def _pages(self, firsts: torch.Tensor) -> torch.Tensor:
        """Returns the pages of each request by their first slots; pages that were given up are the
        first page, which no query sees."""
        return torch.clamp(firsts // self._page_size, min=0).int()

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Computes attention of new tokens, which goes into the cache first.

        Args:
            q: [tokens, H * D].
            k: [tokens, Hk, D].
            v: [tokens, Hk, Dv].
            layer: SGLang's RadixAttention.
            forward_batch: the batch.
            save_kv_cache: true: k and v are written into the cache.
            sinks: [H].
            options: None each.

        Returns:
            [tokens, H * Dv].

        Raises:
            NotImplementedError: no kernel computes the layer, or an option.
        """
        unknown = [name for name, value in options.items() if value is not None]
        if unknown:
            raise _refused(f"{unknown[0]} for attention", "sinks or nothing")
        if layer.is_cross_attention or layer.attn_type.value != "decoder":
            raise _refused("attention across or in both directions", "a decoder's own")
        own = (layer.pos_encoding_mode != "NONE", layer.logit_capping_method != "tanh")
        if any(own) or layer.xai_temperature_len > 0:
            raise _refused("positions, a cap or a temperature of the layer's own", "none, or tanh")
        batch = self.forward_metadata
        assert batch is not None
        windowed = layer.sliding_window_size is not None and layer.sliding_window_size >= 0
        if save_kv_cache and k is not None:
            at = KVWriteLoc(forward_batch.out_cache_loc, batch.out_windowed)
            self._caches.set_kv_buffer(layer, at, k, v)
        caches = (
            self._caches.get_key_buffer(layer.layer_id),
            self._caches.get_value_buffer(layer.layer_id),
        )
        k_pages, v_pages = (cache.unflatten(0, (-1, self._page_size)) for cache in caches)
        pages = batch.pages
        if windowed and batch.pages_windowed is not None:
            pages = batch.pages_windowed
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        shared: dict[str, Any] = {
            "softmax_scale": layer.scaling, "causal": True, "softcap": layer.logit_cap,
            "window_size": (layer.sliding_window_size if windowed else -1, 0),
            "block_table": pages, "seqused_k": batch.lengths,
            "s_aux": None if sinks is None else sinks.to(q.dtype),
        }  # fmt: skip
        if batch.query_starts is None:
            o = runtime.decode(q[:, None], k_pages, v_pages, **shared)
        else:
            o = runtime.flash_attn_varlen_func(
                q, k_pages, v_pages, batch.query_starts, None, **shared
            )
        return torch.flatten(o, 1)

    forward_decode = forward_extend  # the batch says which it is


def _refused(what: str, instead: str) -> NotImplementedError:
    return NotImplementedError(
        f"attention-backend kernelmint: got {what}, expected {instead}; use another backend"
    )
