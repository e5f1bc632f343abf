"""SGLang's attention on the CPU: the class alone, by batches and pools as SGLang makes them.

If SGLang can be imported, its base class, its modes and its pool are taken; else stand-ins for
them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, auto
from itertools import accumulate
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tools.families import oracle

H, HK, D, DV = 4, 2, 64, 32
_BASE = "sglang.srt.layers.attention.base_attn_backend"
_POOL = "sglang.srt.mem_cache.memory_pool"
_CONTEXT = "sglang.srt.runtime_context"
_BATCH = "sglang.srt.model_executor.forward_batch_info"


class _AttentionBackend:
    """How SGLang calls a backend."""

    def init_forward_metadata(self, forward_batch):
        self.init_forward_metadata_out_graph(forward_batch)
        self.init_forward_metadata_in_graph(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False): ...

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **options):
        is_decode = forward_batch.forward_mode.is_decode()
        run = self.forward_decode if is_decode else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **options)


@dataclass
class _KVWriteLoc:
    loc: torch.Tensor
    swa_loc: torch.Tensor | None = None


class _ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()

    def is_decode(self):
        return self is _ForwardMode.DECODE

    def is_idle(self):
        return self is _ForwardMode.IDLE

    def is_target_verify(self):
        return self is _ForwardMode.TARGET_VERIFY

    def is_draft_extend_v2(self):
        return False

    is_dllm_extend = is_draft_extend_v2


_STAND_INS = {
    _BASE: {"AttentionBackend": _AttentionBackend},
    _POOL: {"KVWriteLoc": _KVWriteLoc},
    _BATCH: {"ForwardMode": _ForwardMode},
    _CONTEXT: {},
}


def _is_there() -> bool:
    try:
        for name in _STAND_INS:
            importlib.import_module(name)
    except ImportError:
        return False
    return True


IS_INSTALLED = _is_there()


@pytest.fixture(scope="module")
def ours() -> Iterator[ModuleType]:
    """The module under test."""
    name = "kernelmint.integrations.sglang"
    with pytest.MonkeyPatch.context() as patch:
        if not IS_INSTALLED:
            for module, holds in _STAND_INS.items():
                patch.setitem(sys.modules, module, ModuleType(module))
                vars(sys.modules[module]).update(holds)
        alone = SimpleNamespace(attn_dcp_size=1)
        patch.setattr(sys.modules[_CONTEXT], "get_parallel", lambda: alone, raising=False)
        yield importlib.import_module(name)
    sys.modules.pop(name)


class Pool:
    """A cache of slots, as SGLang's token_to_kv_pool; what no request holds is NaN."""

    def __init__(self, slots: int, dtype: torch.dtype) -> None:
        self.k = torch.full((slots, HK, D), torch.nan, dtype=dtype)
        self.v = torch.full((slots, HK, DV), torch.nan, dtype=dtype)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.k

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.v

    def set_kv_buffer(self, layer: Any, at: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k[at.loc], self.v[at.loc] = k, v


def a_pool(size: int, dtype: torch.dtype, page: int) -> Any:
    if not IS_INSTALLED:
        return Pool(size, dtype)
    made = importlib.import_module(_POOL).MHATokenToKVPool
    return made(
        size - page, page, dtype, HK, D, 4, "cpu", False, v_head_dim=DV, enable_alt_stream=False
    )


class WindowedPool(Pool):
    """The cache of a layer with a window, which has slots of its own."""

    def __init__(self, slots: int, dtype: torch.dtype, page: int) -> None:
        super().__init__(slots, dtype)
        self.to_windowed = torch.arange(slots).view(-1, page).flip(0).flatten()

    def translate_loc_from_full_to_swa(self, slots: torch.Tensor) -> torch.Tensor:
        return self.to_windowed[slots.long()]

    def set_kv_buffer(self, layer: Any, at: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k[at.swa_loc], self.v[at.swa_loc] = k, v


class Batch:
    """Requests (new tokens, all tokens), whose pages lie scattered."""

    def __init__(self, requests: list[tuple[int, int]], page: int, dtype: torch.dtype) -> None:
        self.new, self.lengths = zip(*requests, strict=True)
        self.page, self.dtype = page, dtype
        self.starts = list(accumulate(self.new, initial=0))
        self.key_starts = list(accumulate(self.lengths, initial=0))
        self.q = torch.randn(self.starts[-1], H * D).to(dtype)
        self.k = torch.randn(self.key_starts[-1], HK, D).to(dtype)
        self.v = torch.randn(self.key_starts[-1], HK, DV).to(dtype)
        most = -(-max(self.lengths) // page)
        pages = 1 + torch.randperm(len(requests) * most).view(-1, most, 1)
        self.slots = 1 + int(pages.max())
        slots = (pages * page + torch.arange(page)).flatten(1).int()
        self.rows = torch.arange(1, 1 + len(requests))  # the first one is no request's
        self.req_to_token = torch.cat([torch.zeros_like(slots[:1]), slots])

    def run(self, ours: ModuleType, mode: str, layer: Any, windowed: bool, **options: Any) -> Any:
        modes = sys.modules[_BATCH].ForwardMode
        size = self.slots * self.page
        pool = (WindowedPool if windowed else a_pool)(size, self.dtype, self.page)
        runner = SimpleNamespace(
            use_mla_backend=False, page_size=self.page, token_to_kv_pool=pool,
            req_to_token_pool=SimpleNamespace(req_to_token=self.req_to_token),
        )  # fmt: skip
        where: dict[bool, list[Any]] = {True: [], False: []}  # of new tokens, and of those before
        for i, (new, length) in enumerate(zip(self.new, self.lengths, strict=True)):
            for is_new in where:
                tokens = torch.arange(*((length - new, length) if is_new else (length - new,)))
                slots = self.req_to_token[self.rows[i], tokens].long()
                where[is_new].append((slots, tokens + self.key_starts[i]))
        (out, new_rows), (old, old_rows) = (
            map(torch.cat, zip(*kind, strict=True)) for kind in where.values()
        )
        translated = pool.translate_loc_from_full_to_swa(old) if windowed else None
        at = sys.modules[_POOL].KVWriteLoc(old, translated)
        pool.set_kv_buffer(layer, at, self.k[old_rows], self.v[old_rows])
        batch = SimpleNamespace(
            forward_mode=modes[mode], req_pool_indices=self.rows, out_cache_loc=out,
            seq_lens=torch.tensor(self.lengths), extend_seq_lens=torch.tensor(self.new),
        )  # fmt: skip
        backend = ours.Backend(runner)
        backend.init_forward_metadata(batch)
        return backend.forward(self.q, self.k[new_rows], self.v[new_rows], layer, batch, **options)


def a_layer(**options: Any) -> SimpleNamespace:
    """SGLang's RadixAttention, as far as it is read."""
    of: dict[str, Any] = {
        "layer_id": 3, "tp_q_head_num": H, "qk_head_dim": D, "v_head_dim": DV, "scaling": 0.1,
        "logit_cap": 0.0, "logit_capping_method": "tanh", "sliding_window_size": -1,
        "is_cross_attention": False, "attn_type": SimpleNamespace(value="decoder"),
        "pos_encoding_mode": "NONE", "xai_temperature_len": -1,
    }  # fmt: skip
    return SimpleNamespace(**{**of, **options})


BATCHES = {
    "EXTEND": [(20, 20), (1, 50), (30, 77)],
    "DECODE": [(1, 33), (1, 16), (1, 1)],
}
SINKS = torch.tensor([0.0, 2.0, -1.0, 1.0])
# Of a layer, of a call, and as the oracle says it.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "window": ({"sliding_window_size": 7}, {}, {"window_left": 7}),
    "softcap": ({"logit_cap": 2.0}, {}, {"softcap": 2.0}),
    "sinks": ({}, {"sinks": SINKS}, {"s_aux": SINKS}),
}


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("option", [*OPTIONS, "window of its own"])
@pytest.mark.parametrize("mode", BATCHES)
def test_batches(ours: ModuleType, mode: str, option: str, page: int) -> None:
    batch = Batch(BATCHES[mode], page, torch.bfloat16)
    own = option == "window of its own"
    of_layer, of_call, meant = OPTIONS["window" if own else option]
    found = batch.run(ours, mode, a_layer(**of_layer), own, **of_call)
    assert found.shape == (len(batch.q), H * DV)
    for i, length in enumerate(batch.lengths):
        rows = slice(batch.starts[i], batch.starts[i + 1])
        keys = slice(batch.key_starts[i], batch.key_starts[i] + length)
        want, _ = oracle("flash_prefill")(
            *(batch.q[rows].view(1, -1, H, D), batch.k[None, keys], batch.v[None, keys]),
            **{"softmax_scale": 0.1, "window_right": 0, **meant},
        )
        got = found[rows].view(-1, H, DV).double()
        torch.testing.assert_close(got, want[0], rtol=2.0**-6, atol=2.0**-6)


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "q_rope for attention": ("EXTEND", {}, {"q_rope": SINKS}),
    "across or in both": ("EXTEND", {"is_cross_attention": True}, {}),
    "temperature": ("EXTEND", {"xai_temperature_len": 1024}, {}),
    "a batch of TARGET_VERIFY": ("TARGET_VERIFY", {}, {}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_by_name(ours: ModuleType, what: str) -> None:
    mode, of_layer, of_call = REFUSED[what]
    batch = Batch(BATCHES["EXTEND"], 16, torch.bfloat16)
    with pytest.raises(NotImplementedError, match=what):
        batch.run(ours, mode, a_layer(**of_layer), False, **of_call)
    with pytest.raises(NotImplementedError, match="latent attention"):
        ours.Backend(SimpleNamespace(use_mla_backend=True))


@pytest.mark.skipif(not IS_INSTALLED, reason="SGLang cannot be imported")
def test_sglang_finds_and_takes_it(ours: ModuleType) -> None:
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES

    load_plugins()
    assert ATTENTION_BACKENDS["kernelmint"] is ours.Backend
    assert "kernelmint" in ATTENTION_BACKEND_CHOICES
