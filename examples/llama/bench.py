"""A Llama's training step and prefill on SDPA, with and without Kernelmint in its place.

    python examples/llama/bench.py           # needs a GPU and transformers
    python examples/llama/bench.py --layers 2 --heads 4 --kv-heads 4 --size 1x256 --device cpu
    python examples/llama/bench.py --beside flash_attention_3   # another of transformers' names
    python examples/llama/bench.py --beside cute --train 50   # and losses of 50 steps

A model of random weights in transformers' LlamaForCausalLM, bf16, `attn_implementation="sdpa"`.
`kernelmint bench`'s driver measures: the variants take turns in random order, and a time is the
median over the turns.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import click
import torch
from kernelmint.tools.bench.measure import measure
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelmint.integrations import torch as slot


@click.command()
@click.option("--size", "sizes", multiple=True, default=["8x2048", "2x8192", "1x16384"],
              show_default=True, help="batch x tokens")  # fmt: skip
@click.option("--layers", default=12, show_default=True)
@click.option("--heads", default=16, show_default=True, help="query heads, of 128 each")
@click.option("--kv-heads", default=16, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="the time for each figure")
@click.option("--device", default="cuda", show_default=True)
@click.option("--beside", multiple=True, help="also a model with this attn_implementation")
@click.option("--train", default=0, help="steps that each trains from the same weights on 2x2048")
def main(
    sizes: tuple[str, ...],
    layers: int,
    heads: int,
    kv_heads: int,
    seconds: float,
    device: str,
    beside: tuple[str, ...],
    train: int,
) -> None:
    """Prints milliseconds of a training step and of prefill, the loss, and how many calls were
    Kernelmint's; an implementation without a backward pass has no step."""
    model = _model(layers, heads, kv_heads).to(device, torch.bfloat16)
    variants: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "SDPA as it is": contextlib.nullcontext,
        "SDPA, flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        "kernelmint": lambda: slot.active("error"),
        **{name: functools.partial(_implementation, model, name) for name in beside},
    }
    if "cute" in beside:
        _register_flash_attention_4()
    trained = list(variants)
    ids = torch.randint(0, model.config.vocab_size, (1, 128), device=device)
    for name in beside:
        with variants[name]():
            try:
                _step(model, ids)
            except (RuntimeError, NotImplementedError) as error:  # it is for inference
                print(f"{name} has no backward pass: {error}")
                trained.remove(name)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{layers} layers, {heads} heads over {kv_heads}, bf16; {name}, PyTorch {torch.__version__}"
    )
    for size in sizes:
        batch, tokens = map(int, size.split("x"))
        ids = torch.randint(0, model.config.vocab_size, (batch, tokens), device=device)
        print(size)
        _print_times(model, ids, variants, trained, seconds)
    if train:
        _print_losses(model, {name: variants[name] for name in trained}, train)


def _print_times(
    model: Any,
    ids: torch.Tensor,
    variants: Mapping[str, Callable[[], AbstractContextManager[Any]]],
    trained: Collection[str],
    seconds: float,
) -> None:
    results: dict[str, torch.Tensor] = {}
    calls: dict[str, int] = {}

    def times_of(call: Callable[..., torch.Tensor], names: Collection[str]) -> dict[str, float]:
        def run(name: str) -> None:
            with variants[name]():
                results[name] = call(model, ids)
                calls[name] = slot.calls().ours if slot.is_active() else 0

        runs = {name: functools.partial(run, name) for name in names}
        measured = measure(runs, ids.device, seconds)
        return {name: 1e3 * measured.seconds(name).median for name in names}

    steps = times_of(_step, trained)
    losses = {name: float(loss) for name, loss in results.items()}
    print(f"  {'':<18}{'step':>9}{'prefill':>9}{'loss':>9}{'calls':>7}")
    for name, prefill in times_of(_prefill, variants).items():
        step, loss = steps.get(name, float("nan")), losses.get(name, float("nan"))
        print(f"  {name:<18}{step:>6.1f} ms{prefill:>6.1f} ms{loss:>9.4f}{calls[name]:>7}")


def _print_losses(
    model: Any, variants: Mapping[str, Callable[[], AbstractContextManager[Any]]], steps: int
) -> None:
    """Prints the first and the last loss of each, and the greatest difference to the first's."""
    device = next(model.parameters()).device
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    of_first: list[float] = []
    for name, variant in variants.items():
        model.load_state_dict(weights)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(0)
        losses = []
        for _ in range(steps):
            ids = torch.randint(0, 1000, (2, 2048), generator=generator).to(device)
            with variant():
                losses.append(float(_step(model, ids)))
            optimizer.step()
        of_first = of_first or losses
        most = max(abs(a - b) for a, b in zip(losses, of_first, strict=True))
        print(f"  {name:<18}loss {losses[0]:.4f} to {losses[-1]:.4f}, {most:.4f} apart at most")
    model.load_state_dict(weights)


def _register_flash_attention_4() -> None:
    """Makes PyPI's flash-attn-4 an implementation of transformers', of causal attention."""
    from flash_attn.cute import flash_attn_func
    from transformers import AttentionInterface

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: Any, scaling: float | None = None, **_: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        q, k, v = (t.transpose(1, 2) for t in (query, key, value))
        o = flash_attn_func(q, k, v, softmax_scale=scaling, causal=True)
        return (o[0] if isinstance(o, tuple) else o), None

    AttentionInterface.register("cute", attend)


@contextlib.contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def _model(layers: int, heads: int, kv_heads: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000,
            hidden_size=128 * heads,
            intermediate_size=5632,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=1 << 17,
            attn_implementation="sdpa",
        )
    )


def _step(model: Any, ids: torch.Tensor) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    loss: torch.Tensor = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.detach()


def _prefill(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(ids, use_cache=False, logits_to_keep=1).logits
    return logits.sum()


if __name__ == "__main__":
    main()
