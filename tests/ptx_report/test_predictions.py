"""`ptx-report --by predicted`: what specs predict of kernels, beside what ptxas printed."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from codegen.core.ptxas_rows import Row, csv_text
from tests.ptx_report.project import KEYS, Project, record, symbol
from tools.ptx_report.__main__ import main


@pytest.fixture
def project(tmp_path):
    """Kernels of 100 and of 101 registers, the latter with 4 KiB of shared memory."""
    made = Project(tmp_path, {}).clean()
    text = record(symbol(KEYS[1]), registers=101)
    made.log(1, text.replace("1 barriers,", "1 barriers, 4096 bytes smem,"))
    return made


def predict(project, *predictions) -> None:
    manifest = json.loads(project.manifest.read_text())
    kernels = manifest["families"][0]["targets"][1]["kernels"]
    for kernel, prediction in zip(kernels, predictions, strict=True):
        kernel["predicted"] = prediction
    project.manifest.write_text(json.dumps(manifest))


def run(project, *options):
    arguments = [project.logs, "--manifest", project.manifest, "--by", "predicted", *options]
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_predictions_stand_beside_what_ptxas_printed_the_worst_first(project) -> None:
    predict(project, {"registers": 104, "shared_bytes": 0}, {"registers": 89, "shared_bytes": 4096})
    result = run(project)
    assert result.exit_code == 0, result.output
    heading, first, second, *summaries = result.output.splitlines()
    figures = ["registers", "predicted", "error", "shared_bytes", "predicted", "error"]
    assert heading.split() == ["kernel", "arch", *figures]
    assert first.split() == [KEYS[1], "sm_80", "101", "89", "-12", "4,096", "4,096", "0"]
    assert second.split() == [KEYS[0], "sm_80", "100", "104", "+4", "0", "0", "0"]
    assert summaries == [
        "registers: 8.0 off on average, 12 at most; "
        "exact in 0 of 2 rows, too high in 1, too low in 1",
        "shared_bytes: 0.0 off on average, 0 at most; "
        "exact in 2 of 2 rows, too high in 0, too low in 0",
    ]


def test_the_lines_are_written_as_csv(project) -> None:
    predict(project, {"registers": 104}, None)
    (line,) = csv.DictReader(io.StringIO(run(project, "--csv", "-").stdout))
    names = ("registers.predicted", "registers.printed", "registers.error")
    assert [line[name] for name in names] == ["104", "100", "4"]


def rows_of(project, registers):
    """A CSV of kernels with these registers by their d_head; the manifest has them."""
    manifest = json.loads(project.manifest.read_text())
    target = manifest["families"][0]["targets"][1]
    (kernel, _), target["kernels"] = target["kernels"], []
    rows = []
    for d_head, used in registers.items():
        key = f"flash_forward.sm80.d{d_head}"
        parameters = {"d_head": d_head, "half": d_head // 2}
        target["kernels"].append({**kernel, "key": key, "parameters": parameters})
        rows.append(
            Row(
                key,
                kind="kernel",
                arch="sm_80",
                used_registers=used,
                spill_stores=8 * (used == 255),
            )
        )
    project.manifest.write_text(json.dumps(manifest))
    path = project.root / "rows.csv"
    path.write_text(csv_text(rows))
    return path


def test_a_fit_is_a_prediction_of_the_rows_that_spill_nothing(project) -> None:
    rows = rows_of(project, {16: 26, 32: 42, 64: 74, 128: 138, 512: 255})
    arguments = [str(rows), "--manifest", str(project.manifest), "--fit"]
    first, second = CliRunner().invoke(main, [*arguments, "d_head"]).output.splitlines()
    assert first == "registers: (1000 + 100 * (d_head)) // 100"
    assert second.startswith("4 rows without spills: 0.0 off on average, 0 at most; ")
    for terms, problem in (
        (["d_head", "--fit", "half"], "4 kernels of ours without spills; 2 terms need 6"),
        (["2 * half - d_head"], "the terms are not independent in these kernels"),
        (["d_hed"], "unknown name 'd_hed' (did you mean 'd_head'?)"),
    ):
        result = CliRunner().invoke(main, [*arguments, *terms])
        assert result.exit_code == 2
        assert problem in result.output


def test_without_predictions_it_says_so(project) -> None:
    result = run(project)
    assert result.exit_code == 2
    assert "no row's spec has `predict:`" in result.output
