"""`kernelmint compare`: green if all agree, red if not, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from kernel_specs.hstu.tools.cases import CASES
from kernel_specs.hstu.tools.compare import main
from kernel_specs.hstu.tools.judge import row_class


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["--device", "cpu", *arguments])


def test_the_output_has_the_form_that_was_described() -> None:
    result = invoke("--implementations", "torch,torch", "--cases", "small", "--mode", "fixed")
    assert result.exit_code == 0, result.output
    for line in (
        "Testing block_sparse_attn, mode fixed, configuration small",
        "Using device: cpu",
        "Running the PyTorch implementation...",
        "  - o_torch shape: torch.Size([1, 64, 4, 32])",
        "  - block_indices_torch shape: torch.Size([1, 4, 64, 4])",
        "✓ output o: match",
        "  - max_diff=0.000000e+00, mean_diff=0.000000e+00, std_diff=0.000000e+00",
        "✓ block_indices: match",
        "✓ padded_q (bit for bit): match",
        "✓ 2 of 2 pairs agree",
    ):
        assert line in result.output


@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton compiles for the GPU in this process, not for the CPU"
)
def test_triton_agrees_with_pytorch_in_both_modes(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "found.json"
    result = invoke("--cases", "small,tail_small", "--json", str(path))
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert {(x["function"], x["mode"]) for x in report["results"]} == {
        (function, mode)
        for function in ("block_sparse_attn", "hstu_attention_with_bsa")
        for mode in ("fixed", "literal")
    }
    assert all(x["passed"] for x in report["results"])
    for x in report["results"]:
        for side in ("torch", "triton"):
            # fp32 sums of some hundred products, normalised: a few parts in 10^7
            assert x["budgets"][side]["rms_ratio"] < 2e-6
    assert report["seed"] == 42


@pytest.mark.slow
def test_generated_kernels_agree_with_pytorch_where_positions_share_lists() -> None:
    """In `basic` the scores of a row that uses another's list would order two blocks otherwise."""
    result = invoke("--implementations", "torch,cpu", "--mode", "interleaved")
    assert result.exit_code == 0, result.output
    assert "✓ 8 of 8 pairs agree" in result.output


def test_rows_are_told_apart() -> None:
    case = CASES["tail"]
    assert row_class(3, case) == "before the first complete block"
    assert row_class(64, case) == row_class(95, case) == "at a block's edge"
    assert row_class(70, case) == "inside a block"
    assert row_class(249, case) == "in the incomplete last block"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--implementations", "torch"], "name at least two"),
        (
            ["--implementations", "torch,jax"],
            "'jax': expected one of torch, triton, sm80, cpu",
        ),
        (["--cases", "huge"], "unknown 'huge': expected seed, all, basic"),
        (["--implementations", "torch,sm80"], "sm80 does not run on device cpu"),
    ],
)
def test_bad_requests_are_answered_in_a_sentence(arguments: list[str], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output
