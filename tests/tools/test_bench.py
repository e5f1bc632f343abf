"""tools.bench: the progression's table, and FlashAttention-3's place."""

from __future__ import annotations

import sys
import time
import types

import pytest
import torch
from rich.console import Console

from tools.bench import contenders, measure, results
from tools.bench.problems import Problem

PROBLEM = Problem("bf16", 128, False, 16, 1024, 16, 16)
LONG = Problem("bf16", 128, False, 16, 2048, 16, 16)


def row(contender, problem, share):
    seconds = problem.operations / (share * 300e12)
    return results.Row(contender, problem, seconds, 3)


def test_the_progression_is_shares_of_the_reference() -> None:
    rows = [row("PyTorch flash", p, 1.0) for p in (PROBLEM, LONG)]
    rows += [row("PyTorch cuDNN", p, 1.8) for p in (PROBLEM, LONG)]
    rows += [row("key.1", PROBLEM, 0.5), row("key.1", LONG, 0.45), row("key.3", PROBLEM, 1.06)]
    steps = {"key.1": "(BF16, 128): async", "key.2": "unbuilt", "key.3": "(BF16, 128): all"}
    console = Console(width=120, record=True)
    console.print(results.progression_table(rows, steps, "TFLOP/s"))
    text = console.export_text()
    assert "% of PyTorch flash" in " ".join(text.split())
    assert "unbuilt" not in text
    lines = [line.split() for line in text.splitlines()]
    cells = [[cell for cell in line if cell not in "│┃"] for line in lines]
    assert ["1", "(BF16,", "128):", "async", "150.0", "50.0%", "135.0", "45.0%"] in cells
    assert ["3", "(BF16,", "128):", "all", "318.0", "106.0%", "refused"] in cells


class OnGpu:
    """A tensor as far as contenders look at it."""

    is_cuda = True


def test_flash_attention_3_takes_part_where_it_is_installed(monkeypatch) -> None:
    q = torch.randn(1, 8, 2, 128)
    assert contenders.flash_attention_3_call(PROBLEM, q, q, q) is None  # on a CPU
    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda name: None)
    assert contenders.flash_attention_3_call(PROBLEM, OnGpu(), OnGpu(), OnGpu()) is None

    called = {}

    def fwd(q, k, v, **options):
        called.update(options)
        return ["o", "lse"]

    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda name: name == "fa3_fwd")
    monkeypatch.setitem(sys.modules, "fa3_fwd", types.ModuleType("fa3_fwd"))
    monkeypatch.setitem(sys.modules, "fa3_fwd._C", types.ModuleType("fa3_fwd._C"))
    monkeypatch.setattr(torch.ops, "fa3_fwd", types.SimpleNamespace(fwd=fwd), raising=False)
    call = contenders.flash_attention_3_call(PROBLEM, OnGpu(), OnGpu(), OnGpu())
    assert call is not None
    assert call() == "o"
    assert called == {"softmax_scale": 128**-0.5, "is_causal": False, "num_splits": 1}


@pytest.mark.gpu
def test_a_short_call_is_timed_without_the_hosts_part() -> None:
    x = torch.zeros(1, device="cuda")

    def call():
        time.sleep(5e-5)  # with what a sleep takes beyond, as long as a slow framework's call
        x.add_(1)

    taken, _ = measure.medians({"": call}, x.device, 1e-3)[""]
    assert taken < 5e-5
