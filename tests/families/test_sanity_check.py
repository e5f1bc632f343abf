"""`kernelmint sanity-check` and `bench` of families that are not Kernelmint's own."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

import runtime
from codegen import scaffold
from tools import sanity_check
from tools.bench import __main__ as bench


def run(command, *arguments):
    return CliRunner().invoke(command.main, arguments)


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize("family", ["residual_rms_norm", "histogram", "add_scaled"])
def test_a_family_is_held_to_its_reference(family) -> None:
    """Families that change inputs in place, and one whose integers its tools.py lists."""
    keys = [info.key for info in runtime.kernels(family) if info.available]
    done = run(sanity_check, family)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines() if "mismatched" in line]
    assert [line[0] for line in lines] == keys
    assert all(re.fullmatch(r"0/[1-9]\d*", line[1]) for line in lines)


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize("family", ["residual_rms_norm", "histogram"])
def test_a_wrong_kernel_of_it_fails(family, monkeypatch) -> None:
    """What is written, in an output or in place, is wrong at one element."""
    kernel = runtime.kernel

    def wrong(key):
        def call(**arguments):
            kernel(key)(**arguments)
            written = arguments.get("out", arguments.get("residual"))
            written.flatten()[-1] += 1

        return call

    monkeypatch.setattr(runtime, "kernel", wrong)
    done = run(sanity_check, family)
    assert done.exit_code == 1
    assert re.search(r"  [1-9]\d*/\d+ mismatched .* FAILED$", done.output, re.M)
    assert f"  {'counts' if family == 'histogram' else 'residual'}: worst: " in done.output


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inclusive_sum"], "family 'inclusive_sum' names no reference in its family.yaml"),
        (["residual_rms_norm", "--range"], "write `counting_inputs(sizes, parameters)` in "),
        (["laplacin"], "'laplacin' is neither a family"),
        (["histogram", "--kernel", "cast"], "'cast'"),
    ],
)
def test_what_cannot_be_checked_is_said(arguments, said) -> None:
    done = run(sanity_check, *arguments)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.replace("│", " ").split())


@pytest.mark.usefixtures("families")
def test_a_family_without_a_benchmark_is_measured_by_the_memory_that_it_moves() -> None:
    done = run(
        bench, "residual_rms_norm", "--target", "cpu", "--case", "M=3,N=64", "--seconds", "0"
    )
    assert done.exit_code == 0, done.output
    assert "GB/s" in done.output
    for info in runtime.kernels("residual_rms_norm", "cpu"):
        assert info.key in done.output


def test_a_project_of_ones_own_is_checked_without_an_install(tmp_path) -> None:
    """As `kernelmint init` made it; its kernels are built, and a fault in its header is found."""
    scaffold.create_project("my_kernels", tmp_path / "project", "checked_add")
    folder = tmp_path / "project/kernel_specs/checked_add"
    done = run(sanity_check, str(folder), "--where", "target == 'cpu' and dtype == f32")
    assert done.exit_code == 0, done.output
    assert "checked_add.cpu.f32-n8192  0/" in done.output
    header = folder / "cpu.h"
    header.write_text(header.read_text().replace("splat(args_.alpha)", "splat(2 * args_.alpha)"))
    done = run(sanity_check, str(folder), "--kernel", "checked_add.cpu.f32-n8192")
    assert done.exit_code == 1, done.output
    assert "FAILED" in done.output
