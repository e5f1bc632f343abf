"""A Llama's training step and prefill on SDPA, with and without Kernelmint in its place.

    python examples/llama/bench.py           # needs a GPU and transformers
    python examples/llama/bench.py --layers 2 --heads 4 --kv-heads 4 --size 1x256 --device cpu
    python examples/llama/bench.py --beside flash_attention_3   # another of transformers' names

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
def main(
    sizes: tuple[str, ...],
    layers: int,
    heads: int,
    kv_heads: int,
    seconds: float,
    device: str,
    beside: tuple[str, ...],
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
