"""tools.bench: intervals, clocks and goals, the progression's table, contenders that take part."""

from __future__ import annotations

import collections
import csv
import io
import itertools
import json
import random
import re
import sys
import time
import types

import pytest
import torch
from click.testing import CliRunner
from kernelmint.tools.bench import clocks, hooks, measure, print_times, results
from kernelmint.tools.bench.__main__ import main
from kernelmint.tools.bench.clocks import Spread
from kernelmint.tools.bench.intervals import Interval
from kernelmint.tools.bench.measure import Measured
from rich.console import Console

from kernel_specs.attention.flash_forward.tools import progression_table
from kernel_specs.attention.tools import contenders
from kernel_specs.attention.tools.problems import Attention, Decoding, Packed

PROBLEM = Attention("bf16", 128, False, 16, 1024, 16, 16)
LONG = Attention("bf16", 128, False, 16, 2048, 16, 16)


def row(contender, problem, share):
    seconds = problem.operations / (share * 300e12)
    return results.Row(contender, problem, Interval(seconds, seconds, seconds), 3, {})


def test_the_progression_is_shares_of_the_reference() -> None:
    rows = [row("PyTorch flash", p, 1.0) for p in (PROBLEM, LONG)]
    rows += [row("PyTorch cuDNN", p, 1.8) for p in (PROBLEM, LONG)]
    rows += [row("key.1", PROBLEM, 0.5), row("key.1", LONG, 0.45), row("key.3", PROBLEM, 1.06)]
    steps = {"key.1": "(BF16, 128): async", "key.2": "unbuilt", "key.3": "(BF16, 128): all"}
    console = Console(width=120, record=True)
    console.print(progression_table(rows, steps, "TFLOP/s"))
    text = console.export_text()
    assert "% of PyTorch flash" in " ".join(text.split())
    assert "unbuilt" not in text
    lines = [line.split() for line in text.splitlines()]
    cells = [[cell for cell in line if cell not in "│┃"] for line in lines]
    assert ["1", "(BF16,", "128):", "async", "150.0", "50.0%", "135.0", "45.0%"] in cells
    assert ["3", "(BF16,", "128):", "all", "318.0", "106.0%", "refused"] in cells


def test_in_each_round_all_take_their_turns_in_an_order_of_its_own() -> None:
    """Who follows whom changes from round to round, as does who begins."""
    names, order, taken = ("a", "b", "c", "d"), random.Random(1), []
    for _ in range(600):
        found = measure.one_round(names, lambda name: taken.append(name) or float(ord(name)), order)
        assert found == {name: ord(name) for name in names}
    beginners = collections.Counter(taken[::4])
    followers = collections.Counter(
        pair for i in range(0, len(taken), 4) for pair in itertools.pairwise(taken[i : i + 4])
    )
    assert set(beginners) == set(names)
    assert min(beginners.values()) > 100  # of 150 expected
    assert len(followers) == 12
    assert min(followers.values()) > 110  # likewise


def test_what_is_installed_takes_part_with_its_version(monkeypatch) -> None:
    theirs = contenders.FORWARD["FlashAttention-4"]
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert theirs.absent(cpu) == "runs on cuda, not on cpu"
    assert theirs.absent(gpu) == "not installed: pip install flash-attn-4"
    monkeypatch.setattr(hooks.importlib.util, "find_spec", lambda name: name)
    assert theirs.absent(gpu) is None
    assert theirs.version() == "flash_attn.cute, of no distribution"
    monkeypatch.setattr(hooks.metadata, "version", {"flash-attn-4": "4.0.0b36"}.__getitem__)
    assert theirs.version() == "flash-attn-4 4.0.0b36"
    assert contenders.FORWARD["PyTorch flash"].absent(cpu) is None


def record(monkeypatch):
    """Puts functions in place of FlashAttention-3's and -4's, and keeps their arguments."""
    calls = []

    def called(*arguments, **options):
        calls.append(options)
        return ["o", "lse"]

    fa3 = types.SimpleNamespace(fwd=called)
    monkeypatch.setattr(torch.ops, "fa3_fwd", fa3, raising=False)
    for name in ("fa3_fwd", "fa3_fwd._C", "flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    interface = types.ModuleType("flash_attn.cute.interface")
    interface.flash_attn_func = lambda q, k, v, causal=False: called(causal=causal)
    interface.flash_attn_varlen_func = lambda q, k, v, seqused_k=None, cu_seqlens_q=None: called(
        seqused_k=seqused_k, cu_seqlens_q=cu_seqlens_q
    )
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return calls


def test_flash_attention_3_and_4_are_called_as_their_versions_want(monkeypatch) -> None:
    """FlashAttention-4's functions get those arguments that they have."""
    calls = record(monkeypatch)
    small = Attention("bf16", 64, True, 1, 8, 2, 2)
    inputs = small.inputs(torch.device("cpu"))
    contenders.FORWARD["FlashAttention-3"].make(small, inputs)()
    assert {"softmax_scale": 0.125, "is_causal": True, "num_splits": 1}.items() <= calls[-1].items()
    contenders.FORWARD["FlashAttention-4"].make(small, inputs)()
    assert calls[-1] == {"causal": True}

    packed = Packed("bf16", 64, 2, 1, True, -1, (3, 5))
    inputs = packed.inputs(torch.device("cpu"))
    contenders.PACKED["FlashAttention-3"].make(packed, inputs)()
    assert (calls[-1]["max_seqlen_q"], calls[-1]["window_size_right"]) == (5, 0)
    contenders.PACKED["FlashAttention-4"].make(packed, inputs)()
    assert calls[-1]["cu_seqlens_q"].tolist() == [0, 3, 8]
    windowed = Packed("bf16", 64, 2, 1, True, 2, (3, 5))
    why = contenders.PACKED["FlashAttention-3"].make(windowed, inputs)
    assert why == "its wheels are built without windows and fp16"

    decoding = Decoding("bf16", 64, 2, 1, False, -1, (3, 5))
    inputs = decoding.inputs(torch.device("cpu"))
    contenders.DECODING["FlashAttention-3"].make(decoding, inputs)()
    assert calls[-1]["seqused_k"].tolist() == [3, 5]
    contenders.DECODING["FlashAttention-4"].make(decoding, inputs)()
    assert calls[-1]["seqused_k"].tolist() == [3, 5]


def test_a_result_is_right_but_for_rounding() -> None:
    right = torch.randn(64, 64, dtype=torch.float64)
    assert hooks.difference([right.bfloat16(), right], [right]) is None  # more is not looked at
    assert "the error's norm is 0.05" in hooks.difference([1.05 * right.float()], [right])
    assert "shape [64, 32] against [64, 64]" in hooks.difference([right[:, :32]], [right])
    holed = right.clone()
    holed[3, 5] = float("nan")
    assert "got 1 NaN, expected 0" in hooks.difference([holed], [right])
    assert hooks.difference([holed.float()], [holed]) is None
    assert "no tensor" in hooks.difference([], [right])
    assert hooks.difference([right[:0]], [right[:0]]) is None
    assert hooks.difference([torch.tensor([4])], [torch.tensor([3.0])])  # integers are exact


@pytest.mark.gpu
def test_a_short_call_is_timed_without_the_hosts_part() -> None:
    x = torch.zeros(1, device="cuda")

    def call():
        time.sleep(5e-5)  # with what a sleep takes beyond, as long as a slow framework's call
        x.add_(1)

    assert measure.measure({"": call}, x.device, 1e-3).seconds("").median < 5e-5


def disturbed(truth, count=200):
    """Rounds in which what disturbs one disturbs all, by up to the factor 3."""
    random_ = random.Random(0)
    return Measured(
        tuple(truth),
        tuple(
            {
                name: seconds * common * random_.uniform(0.99, 1.01)
                for name, seconds in truth.items()
            }
            for common in (random_.uniform(1, 3) for _ in range(count))
        ),
        {"sm MHz": Spread(1500, 1755, 1980), "milliwatts": Spread(400e3, 690e3, 701e3)},
    )


def text_of(table):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return " ".join(console.export_text().split())


def test_a_ratio_is_that_of_the_turns_beside_each_other() -> None:
    rows = results.rows_of(
        PROBLEM, disturbed({"slow": 4e-3, "peer": 2e-3, "key": 1e-3}), {"key": "key"}
    )
    slow, peer, ours = rows
    assert [row.peer for row in rows] == ["peer"] * 3
    assert peer.ratio is None
    assert 1.99 < ours.ratio.low < 2 < ours.ratio.high < 2.01
    assert ours.ratio.low < ours.ratio.median < ours.ratio.high
    assert ours.seconds.high > 1.1 * ours.seconds.low
    assert 0.497 < slow.ratio.low < 0.5 < slow.ratio.high < 0.503


def test_the_table_has_intervals_and_clocks() -> None:
    rows = results.rows_of(PROBLEM, disturbed({"peer": 2e-3, "key": 1e-3}), {"key": "key"})
    text = text_of(results.table(rows, "TFLOP/s"))
    ours = rows[1]
    rate = ours.rate.scaled(1e-12)
    assert rate.low < rate.median < rate.high
    shown = f"{rate.median:.0f} ±{rate.reach:.0f} (2.00 [{ours.ratio.low:.2f}, "
    assert shown in text
    assert "1755 (1500)" in text
    assert "690 (701)" in text


def test_goals_are_reached_or_missed_by_the_fastest_of_ours() -> None:
    truth = {"peer": 2e-3, "a.b.fast": 1e-3, "a.b.slow": 3e-3}
    ours = {name: name for name in truth if name != "peer"}
    rows = [
        *results.rows_of(PROBLEM, disturbed(truth), ours),
        *results.rows_of(LONG, disturbed(truth), ours),
        *results.rows_of(Attention("bf16", 64, True, 1, 1, 2, 2), disturbed({"a.b.fast": 1}), ours),
    ]
    table = results.goals_table(rows, lambda problem: {1024: 1.99, 2048: 2.1}[problem.seq_len])
    text = text_of(table)
    assert "reached in 1 of 2 cells, in 1 by the whole interval" in text
    assert f"{2.1 - rows[4].ratio.median:.3f} short" in text
    assert "fast" in text
    assert "slow" not in text
    table = results.goals_table(rows, lambda problem: rows[1].ratio.median)
    assert "in 0 by the whole interval" in text_of(table)


def test_a_watch_reads_the_clocks_at_least_once(monkeypatch) -> None:
    readings = iter([{"sm MHz": 1}, *({"sm MHz": value} for value in (1500, 1980, 1600))])
    monkeypatch.setattr(clocks, "read", lambda device: next(readings, {}))
    monkeypatch.setattr(clocks, "_PERIOD", 60)
    with clocks.Watch(torch.device("cpu")) as watch:
        pass
    assert watch.spreads() == {"sm MHz": Spread(1500, 1500, 1500)}

    readings = iter([{"sm MHz": 1}, *({"sm MHz": value} for value in (1500, 1980, 1600))])
    monkeypatch.setattr(clocks, "_PERIOD", 1e-3)
    with clocks.Watch(torch.device("cpu")) as watch:
        while len(watch._readings) < 4:
            time.sleep(1e-3)
    assert watch.spreads() == {"sm MHz": Spread(1500, 1600, 1980)}


def test_where_no_clock_can_be_read_there_is_none(monkeypatch) -> None:
    monkeypatch.setattr(clocks, "read", lambda device: {})
    with clocks.Watch(torch.device("cpu")) as watch:
        time.sleep(1e-3)
    assert watch.spreads() == {}


@pytest.mark.gpu
def test_a_gpus_clock_and_power_are_measured() -> None:
    x = torch.zeros(2**28, device="cuda")
    found = measure.measure({"": lambda: x.add_(1)}, x.device, 0.1).clocks
    assert 100 < found["sm MHz"].least <= found["sm MHz"].median < 5000
    assert 10e3 < found["milliwatts"].median <= found["milliwatts"].greatest < 2000e3


def test_a_script_prints_times_of_calls_and_whether_they_agree(capsys) -> None:
    x = torch.arange(1.0, 9.0)

    def cells(other):
        return [("8 values", {"here": lambda: 2 * x, "there": other})]

    device = torch.device("cpu")
    assert print_times("twice", cells(lambda: x + x), device, seconds=0)
    assert re.search(
        r"twice: ms .*│ here +│ .* \(.*│ there +│ .* \(1.00\) │", text := out(capsys)
    ), text
    assert not print_times("twice", cells(lambda: x * x), device, seconds=0, host=True)
    text = out(capsys)
    assert "twice: us " in text
    assert re.search(
        r"│ there +│ WRONG │.* there: WRONG: result 0: worst: i0=7: 64 against 16", text
    )


def out(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


CASE = "dtype=f32,d_head=64,causal=false"
SMALL = ["flash_forward", "--target", "cpu", "--case"]


def test_attention_is_measured_beside_the_others_and_held_to_a_goal(tmp_path) -> None:
    options = [*SMALL, f"{CASE},size=1x64,size=2x32,heads=2", "--seconds", "0"]
    options += ["--contender", "kernelmint", "--contender", "PyTorch flash"]
    options += ["--goal", "1e-9 if seq_len == 64 and d_head == 64 else 1e9"]
    files = {name: tmp_path / f"figures.{name}" for name in ("csv", "json", "plot.svg")}
    for name, file in files.items():
        options += [f"--{name.partition('.')[0]}", str(file)]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "the goal is reached in 1 of 2 cells" in done.output
    ours = [r for r in json.loads(files["json"].read_text())["results"] if r["kernel"]]
    assert [(r["contender"], r["batch"], r["goal"]) for r in ours] == [
        ("kernelmint", 1, 1e-9),
        ("kernelmint", 2, 1e9),
    ]
    for r in ours:
        assert r["kernel"].startswith("flash_forward.cpu.f32-d64-")
        assert r["interval_ms"][0] <= r["median_ms"] <= r["interval_ms"][1]
        assert r["ratio_interval"][0] <= r["ratio"] <= r["ratio_interval"][1]
        assert r["turns"] >= 3
    lines = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert [(line["contender"], line["seq_len"]) for line in lines] == [
        ("PyTorch flash", "64"),
        ("kernelmint", "64"),
        ("PyTorch flash", "32"),
        ("kernelmint", "32"),
    ]
    assert float(lines[1]["ratio"]) == ours[0]["ratio"]
    assert "<svg" in files["plot.svg"].read_text()


@pytest.mark.parametrize(
    "family", ["flash_prefill", "flash_decode", "flash_backward", "flash_prefill_backward"]
)
def test_attentions_other_families_are_right_in_their_cells(family) -> None:
    """Every kernel and front agrees with the oracle on the part of a cell that is compared."""
    shapes = {
        "flash_backward": ["--case", "dtype=f32,d_head=64,size=1x70,heads=4,kv_heads=2"],
        "flash_prefill_backward": [
            "--case",
            "dtype=f32,d_head=64,softcap=2.5",
            "--case",
            "4x64-1024",
        ],
    }
    options = shapes.get(family, ["--case", "packed 4x|1x1024", "--contender", "kernelmint"])
    done = CliRunner().invoke(main, [family, "--target", "cpu", "--seconds", "0", *options])
    assert done.exit_code == 0, done.output
    assert "WRONG" not in done.output
    assert "over" in done.output


def test_a_contender_that_was_asked_for_and_takes_no_part_says_why() -> None:
    options = [*SMALL, f"{CASE},size=1x32,size=2x32", "--seconds", "0"]
    options += ["--contender", "PyTorch math", "--contender", "FlashAttention-3"]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "FlashAttention-3: runs on cuda, not on cpu\n" in done.output
    assert "PyTorch math: " not in done.output
    assert "kernelmint" not in done.output


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("flash_forward", "dtype=bf16,d_head=128,causal=true,size=2x1000"),
        ("flash_backward", "dtype=bf16,d_head=128,causal=true,size=2x1000"),
        ("flash_prefill", "d_head=128"),
        ("flash_decode", "8x8192"),
    ],
)
def test_contenders_on_a_gpu_are_right(family, case) -> None:
    """PyTorch's, and FlashAttention-3 and -4 if they are installed; what refuses says so."""
    done = CliRunner().invoke(main, [family, "--case", case, "--seconds", "0"])
    assert done.exit_code == 0, done.output
    assert "WRONG" not in done.output
    assert re.search(r"PyTorch flash +│ +\d", done.output), done.output


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--goal", "B_r"], "unknown name 'B_r'"),
        (["--goal", "1 +"], "not an expression"),
        (["--contender", "PyTorch Flash"], "did you mean 'PyTorch flash'?), expected some of: "),
        (["--case", "kv_heads=3"], "kv_heads=3 does not divide 8 heads"),
        (["--case", "size=16"], "size=16: expected batch x length, such as 16x1024"),
        (["--case", "length=16"], "got length, expected some of causal, d_head, dtype, heads"),
        (["--case", "d_head=65"], "no cell has these values, or no kernel suits it"),
        (["--goal", "dtype"], "must be a single number"),
        (["--goal", "1 / (seq_len - 1024)"], "f32, d 64, 8 heads, not causal, 1x1024: division by"),
        (["--json", "/nowhere/figures.json"], "/nowhere is not a folder that can be written"),
        (["--plot", "figures.xyz"], "ends in '.xyz', expected one of"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, error, monkeypatch) -> None:
    """Before anything is measured."""
    monkeypatch.delattr(measure, "timer")
    cases = [] if "--case" in options else ["--case", CASE]
    done = CliRunner().invoke(main, [*SMALL[:3], *cases, *options])
    assert done.exit_code == 2
    assert error in " ".join(done.output.replace("│", " ").split())
