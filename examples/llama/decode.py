"""A Llama's prefill and decoding: tokens a second, and how near logits are, by attention.

    python examples/llama/decode.py           # the size of Llama 3 8B; needs a GPU, transformers
    python examples/llama/decode.py --layers 2 --hidden 256 --heads 4 --kv-heads 2 --mlp 256 \\
        --head-dim 64 --vocab 500 --case 2x40 --device cpu

Random weights in transformers' LlamaForCausalLM, bf16. For each case, batch x context:

- prefill, over transformers' dynamic cache;
- "loop": decoding over it, a launch of every kernel a step, as `generate` does by itself;
- "graph": decoding over a static cache, the model's step and the greedy choice of the next token
  captured in a CUDA graph; with --compile also by torch.compile's "reduce-overhead".

"sdpa", "eager" and "kernelmint" are transformers' names. "fa3" and "fa2" are FlashAttention-3
(PyPI's fa3-fwd) and PyTorch's FlashAttention-2: in prefill and loop by transformers' own
flash_attention_forward; over a static cache, where that reads lengths on the host, by one call of
flash_attn_with_kvcache and of aten::_flash_attention_forward. "none" computes no attention: what
the rest of the model takes.

`kernelmint bench`'s driver measures: the variants take turns in random order, and a time is the
median over the turns.
Logits and greedy tokens are beside the first variant's, along its tokens.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import torch
import transformers
from kernelmint.tools.bench.measure import measure
from transformers import AttentionInterface, AttentionMaskInterface, modeling_flash_attention_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import flash_attention_mask

from kernelmint.integrations import transformers as integration

VARIANTS = ("sdpa", "kernelmint", "fa3", "fa2", "none")
Step = Callable[[], torch.Tensor]
_Times = dict[tuple[str, str], dict[str, float]]  # seconds, by kind and case, then by variant


@click.command()
@click.option("--case", "cases", multiple=True, show_default=True, help="batch x context",
              default=["1x1024", "1x8192", "1x32768", "8x8192", "64x2048"])  # fmt: skip
@click.option("--attention", "variants", multiple=True, default=VARIANTS, show_default=True)
@click.option("--accuracy", multiple=True, default=["eager"], show_default=True,
              help="variants of which only the logits are looked at")  # fmt: skip
@click.option("--layers", default=32, show_default=True)
@click.option("--hidden", default=4096, show_default=True)
@click.option("--heads", default=32, show_default=True)
@click.option("--kv-heads", default=8, show_default=True)
@click.option("--head-dim", default=128, show_default=True)
@click.option("--mlp", default=14336, show_default=True)
@click.option("--vocab", default=128256, show_default=True)
@click.option("--tokens", default=32, show_default=True, help="decoded in each turn")
@click.option("--seconds", default=1.0, show_default=True, help="the time for each figure")
@click.option("--prefill-tokens", default=1 << 15, show_default=True,
              help="cases of more tokens than these have no times of prefill")  # fmt: skip
@click.option("--loop/--no-loop", default=True, show_default=True)
@click.option("--compile/--no-compile", "compiled", default=False, show_default=True)
@click.option("--device", default="cuda", show_default=True)
def main(
    cases: tuple[str, ...],
    variants: tuple[str, ...],
    accuracy: tuple[str, ...],
    tokens: int,
    seconds: float,
    prefill_tokens: int,
    loop: bool,
    compiled: bool,
    device: str,
    **shape: int,
) -> None:
    """Prints milliseconds of prefill, of a step of decoding, tokens a second, and differences."""
    begin = time.perf_counter()
    model = _model(device, **shape)
    _register(variants)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f}e9 parameters: {shape}, bf16; "
        f"{name}, PyTorch {torch.__version__}, transformers {transformers.__version__}; "
        f"{tokens} tokens, {seconds} s"
    )
    times: _Times = {}
    with torch.no_grad():
        for case in cases:
            batch, context = map(int, case.split("x"))
            bench = _Case(model, batch, context, tokens, seconds, times)
            print(f"{case}   (at {time.perf_counter() - begin:.0f} s)", flush=True)
            if batch * context <= prefill_tokens:
                bench.prefills(variants)
            if loop:
                bench.loops(variants)
            bench.graphs(variants, accuracy, compiled)
            del bench
            if device == "cuda":
                torch.cuda.empty_cache()
    for kind in ("prefill", "loop", "graph"):
        rows = {case: of_case for (of, case), of_case in times.items() if of == kind}
        names = list(dict.fromkeys(name for of_case in rows.values() for name in of_case))
        print(f"\n| {kind}, ms | {' | '.join(names)} |\n|{' --- |' * (1 + len(names))}")
        for case, of_case in rows.items():
            cells = (f"{1e3 * of_case[name]:.2f}" if name in of_case else "" for name in names)
            print(f"| {case} | {' | '.join(cells)} |")
    print(f"done at {time.perf_counter() - begin:.0f} s")


class _Case:
    """A batch, its prompt in a dynamic cache, and the tokens that are decoded after it."""

    def __init__(
        self, model: Any, batch: int, context: int, tokens: int, seconds: float, times: _Times
    ) -> None:
        self.seconds, self.times = seconds, times
        self.model, self.batch, self.context, self.tokens = model, batch, context, tokens
        self.ids = torch.randint(0, model.config.vocab_size, (batch, context), device=model.device)
        self.first = torch.randint(0, model.config.vocab_size, (batch, 1), device=model.device)
        self.dynamic = transformers.DynamicCache(config=model.config)
        model.set_attn_implementation("kernelmint")
        model(self.ids, past_key_values=self.dynamic, logits_to_keep=1)

    def prefills(self, variants: Sequence[str]) -> None:
        """Measures the whole prompt, and compares the logits of its last token."""

        def run() -> torch.Tensor:
            cache = transformers.DynamicCache(config=self.model.config)
            output = self.model(self.ids, past_key_values=cache, logits_to_keep=1)
            logits: torch.Tensor = output.logits[:, -1]
            return logits

        runs = {v: self._named(v, run) for v in variants}
        times, logits = self._in_turns(runs)
        first = logits[variants[0]]
        for variant, seconds in times.items():
            speed = self.ids.numel() / seconds
            self._row("prefill", variant, seconds, speed, logits[variant][None], first[None])

    def loops(self, variants: Sequence[str]) -> None:
        """Decodes over the dynamic cache, without a graph."""
        steps = max(1, self.tokens // 4)

        def run() -> torch.Tensor:
            back()
            token = self.first
            for _ in range(steps):
                output = self.model(token, past_key_values=self.dynamic)
                token = output.logits[:, -1].argmax(-1, keepdim=True)
            return token

        def back() -> None:
            for layer in self.dynamic.layers:
                layer.keys = layer.keys[:, :, : self.context]
                layer.values = layer.values[:, :, : self.context]

        runs = {v: self._named(v, run) for v in variants}
        times, _ = self._in_turns(runs)
        back()
        for variant, seconds in times.items():
            self._row("loop", variant, seconds / steps, self.batch * steps / seconds)

    def graphs(self, variants: Sequence[str], accuracy: Iterable[str], compiled: bool) -> None:
        """Decodes over a static cache, a step in a CUDA graph."""
        cache = self._static()
        token = self.first.clone()

        def back() -> None:
            token.copy_(self.first)
            for layer in cache.layers:
                layer.cumulative_length.fill_(self.context)

        def step(model: Any = self.model) -> torch.Tensor:
            logits: torch.Tensor = model(token, past_key_values=cache).logits[:, -1]
            token.copy_(logits.argmax(-1, keepdim=True))
            return logits

        steps: dict[str, Step] = {}
        for variant in variants:
            back()
            try:
                steps[variant] = _captured(self._named(variant, step), self.model.device)
            except Exception as error:
                print(f"  graph     {variant}: {_line(error)}")
        if compiled:
            torch.compiler.reset()
            call = torch.compile(self.model, mode="reduce-overhead", fullgraph=True)

            def marked(*arguments: Any, **options: Any) -> Any:
                torch.compiler.cudagraph_mark_step_begin()
                return call(*arguments, **options)

            for variant in ("sdpa", "kernelmint"):
                named = self._named(variant, functools.partial(step, marked))
                steps[f"{variant}, compiled"] = named
        steps |= {variant: self._named(variant, step) for variant in accuracy}

        def all_of(one: Step) -> torch.Tensor:
            back()
            for _ in range(self.tokens):
                one()
            return token.clone()

        timed = {v: functools.partial(all_of, s) for v, s in steps.items() if v not in accuracy}
        times, _ = self._in_turns(timed)
        steps = {variant: one for variant, one in steps.items() if variant in (*times, *accuracy)}
        path: list[torch.Tensor] = []  # the first variant's tokens
        logits_of: dict[str, torch.Tensor] = {}
        for variant, one in steps.items():
            back()
            logits = []
            for number in range(min(self.tokens, 16)):
                if path and number:
                    token.copy_(path[number - 1])
                logits.append(one().clone())
            logits_of[variant] = torch.stack(logits)
            path = path or list(logits_of[variant].argmax(-1, keepdim=True))
        first = next(iter(logits_of.values()))
        for variant in steps:
            seconds = times.get(variant, float("nan")) / self.tokens
            self._row("graph", variant, seconds, self.batch / seconds, logits_of[variant], first)

    def _static(self) -> Any:
        """Returns the prompt in a static cache."""
        length = self.context + self.tokens
        cache = transformers.StaticCache(config=self.model.config, max_cache_len=length)
        for layer, filled in zip(cache.layers, self.dynamic.layers, strict=True):
            layer.lazy_initialization(filled.keys, filled.values)
            layer.keys[:, :, : self.context].copy_(filled.keys)
            layer.values[:, :, : self.context].copy_(filled.values)
        return cache

    def _named(self, variant: str, run: Step) -> Step:
        def named() -> torch.Tensor:
            self.model.set_attn_implementation(variant)
            return run()

        return named

    def _in_turns(self, runs: dict[str, Step]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """Returns median seconds and the result of each; those that fail say so and are left
        out."""
        results: dict[str, torch.Tensor] = {}
        for variant, run in runs.items():
            try:
                results[variant] = run()
            except Exception as error:
                print(f"  {variant}: {_line(error)}")
        measured = measure({v: runs[v] for v in results}, self.model.device, self.seconds)
        return {variant: measured.seconds(variant).median for variant in results}, results

    def _row(
        self,
        kind: str,
        variant: str,
        seconds: float,
        speed: float,
        logits: torch.Tensor | None = None,
        first: torch.Tensor | None = None,
    ) -> None:
        if seconds == seconds:
            case = f"{self.batch}x{self.context}"
            self.times.setdefault((kind, case), {})[variant] = seconds
        line = f"  {kind:<9} {variant:<20}{1e3 * seconds:>10.3f} ms{speed:>12.1f} tokens/s"
        if logits is not None and first is not None:
            same = (logits.argmax(-1) == first.argmax(-1)).sum()
            apart = (logits.float() - first.float()).abs().max()
            line += f"{same:>8} of {logits[..., 0].numel()} tokens{apart:>9.4f} apart"
        print(line, flush=True)


def _captured(step: Step, device: torch.device) -> Step:
    """Captures the step as a CUDA graph; returns it unchanged on the CPU."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # anything built, tuned or allocated once
        step()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return logits

    return replay


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _model(
    device: str, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, mlp: int,
    vocab: int,
) -> Any:  # fmt: skip
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        max_position_embeddings=1 << 17, pad_token_id=None, bos_token_id=None, eos_token_id=None,
        attn_implementation="sdpa",
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def _register(variants: Sequence[str]) -> None:
    """Makes the names known to transformers."""
    integration.activate()
    AttentionInterface.register(
        "none", lambda _, query, *args, **kwargs: (query.transpose(1, 2), None)
    )
    AttentionMaskInterface.register("none", lambda *args, **kwargs: None)
    if "fa3" in variants:
        import fa3_fwd_interface as fa3

        _register_flash(
            "fa3",
            fa3.flash_attn_func,
            fa3.flash_attn_varlen_func,
            functools.partial(_fa3, fa3.flash_attn_with_kvcache),
        )
    if "fa2" in variants:
        _register_flash("fa2", _fa2, _fa2_varlen, _fa2_static)


def _register_flash(name: str, flash: Any, varlen: Any, over_static_cache: Any) -> None:
    """Registers transformers' flash attention by these functions; lengths are in the mask's place
    over a static cache, whose length is a tensor."""
    utils: Any = modeling_flash_attention_utils
    process = utils._lazy_define_process_function(varlen)

    def mask(batch_size: int, q_length: int, q_offset: Any = 0, **options: Any) -> Any:
        if not isinstance(q_offset, torch.Tensor):
            return flash_attention_mask(batch_size, q_length, q_offset=q_offset, **options)
        return (q_offset + q_length).to(torch.int32).expand(batch_size).contiguous()

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if mask is not None and mask.dtype == torch.int32:
            return over_static_cache(query, key, value, mask, options["scaling"]), None
        utils._loaded_implementation = name
        utils._flash_fn, utils._flash_varlen_fn = flash, varlen
        utils._pad_fn, utils._unpad_fn = utils._pad_input, utils._unpad_input
        utils._process_flash_kwargs_fn = process
        return flash_attention_forward(module, query, key, value, mask, **options)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def _fa3(kvcache: Any, query: Any, key: Any, value: Any, lengths: Any, scale: float) -> Any:
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    return kvcache(q, k, v, cache_seqlens=lengths, softmax_scale=scale, causal=True)


def _fa2(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False,
) -> torch.Tensor:  # fmt: skip
    o: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, None, None, q.shape[1], k.shape[1], dropout_p, causal, False),
        scale=softmax_scale,
    )[0]
    return o


def _fa2_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False,
) -> torch.Tensor:  # fmt: skip
    o: torch.Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, causal, False,
        scale=softmax_scale,
    )[0]  # fmt: skip
    return o


def _fa2_static(query: Any, key: Any, value: Any, lengths: Any, scale: float) -> torch.Tensor:
    """Computes attention over the cache, [B, Hk, length, D], as packed rows that begin at multiples
    of Hk * length, without a copy."""
    batch, heads, rows, _ = query.shape
    _, kv_heads, length, dim = key.shape
    total = ((batch - 1) * kv_heads + 1) * length
    k, v = (t.as_strided((total, kv_heads, dim), (dim, length * dim, 1)) for t in (key, value))
    q = query.transpose(1, 2).reshape(batch * rows, heads, dim)
    counts = torch.arange(batch + 1, dtype=torch.int32, device=query.device)
    o: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, counts * rows, counts * (kv_heads * length), rows, length, 0.0, True, False),
        scale=scale, seqused_k=lengths,
    )[0]  # fmt: skip
    return o.view(batch, rows, heads, dim)


if __name__ == "__main__":
    main()
