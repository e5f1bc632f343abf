"""A Llama's training step and prefill on SDPA, with and without Kernelmint in its place.

    python examples/llama/bench.py           # needs a GPU and transformers
    python examples/llama/bench.py --layers 2 --heads 4 --kv-heads 4 --size 1x256 --device cpu
    python examples/llama/bench.py --beside flash_attention_3   # another of transformers' names

A model of random weights in transformers' LlamaForCausalLM, bf16, `attn_implementation="sdpa"`.
The variants run in turns, in an order of their own in each round; a time is the median of them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import click
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelmint.integrations import torch as slot


@click.command()
@click.option("--size", "sizes", multiple=True, default=["8x2048", "2x8192", "1x16384"],
              show_default=True, help="batch x tokens")  # fmt: skip
@click.option("--layers", default=12, show_default=True)
@click.option("--heads", default=16, show_default=True, help="query heads, of 128 each")
@click.option("--kv-heads", default=16, show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--device", default="cuda", show_default=True)
@click.option("--beside", multiple=True, help="also a model with this attn_implementation")
def main(
    sizes: tuple[str, ...],
    layers: int,
    heads: int,
    kv_heads: int,
    rounds: int,
    device: str,
    beside: tuple[str, ...],
) -> None:
    """Prints milliseconds of a training step and of prefill, the loss, and how many calls were
    Kernelmint's; nan for a step that an implementation has no backward pass for."""
    model = _model(layers, heads, kv_heads).to(device, torch.bfloat16)
    variants: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "SDPA as it is": contextlib.nullcontext,
        "SDPA, flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        "kernelmint": lambda: slot.active("error"),
        **{name: functools.partial(_implementation, model, name) for name in beside},
    }
    without_backward = set()
    ids = torch.randint(0, model.config.vocab_size, (1, 128), device=device)
    for name in beside:
        with variants[name]():
            try:
                _step(model, ids)
            except (RuntimeError, NotImplementedError) as error:  # it is for inference
                print(f"{name} has no backward pass: {error}")
                without_backward.add(name)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{layers} layers, {heads} heads over {kv_heads}, bf16; {name}, PyTorch {torch.__version__}"
    )
    for size in sizes:
        batch, tokens = map(int, size.split("x"))
        ids = torch.randint(0, model.config.vocab_size, (batch, tokens), device=device)
        steps: dict[str, list[float]] = {name: [] for name in variants}
        prefills: dict[str, list[float]] = {name: [] for name in variants}
        losses, ours = {}, {}
        for round_ in range(rounds + 1):  # the first warms up
            for variant in random.sample(list(variants), len(variants)):
                with variants[variant]():
                    step, losses[variant] = (
                        (math.nan, math.nan)
                        if variant in without_backward
                        else _timed(lambda ids=ids: _step(model, ids))
                    )
                    prefill, _ = _timed(lambda ids=ids: _prefill(model, ids))
                    ours[variant] = slot.calls().ours if slot.is_active() else 0
                if round_:
                    steps[variant].append(step)
                    prefills[variant].append(prefill)
        print(f"{size}\n  {'':<18}{'step':>9}{'prefill':>9}{'loss':>9}{'calls':>7}")
        for variant in variants:
            print(
                f"  {variant:<18}{statistics.median(steps[variant]):>6.1f} ms"
                f"{statistics.median(prefills[variant]):>6.1f} ms"
                f"{losses[variant]:>9.4f}{ours[variant]:>7}"
            )


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


def _timed(call: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Returns milliseconds, and the value, whose reading waits for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    value = float(call())
    return 1e3 * (time.perf_counter() - begin), value


if __name__ == "__main__":
    main()
