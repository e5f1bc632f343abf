"""What a build wrote beside its logs and its libraries."""

import os

import pytest
from click.testing import CliRunner

from codegen.core.ptxas_rows import Row, csv_text, read_csv
from tests.ptx_report.project import KEYS, symbol
from tools.ptx_report.__main__ import main

STACKS = {KEYS[0]: 104, KEYS[1]: 0}


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def library(monkeypatch, tmp_path):
    """A library of two kernels, one with a stack, and what cuobjdump prints of it."""
    tool = tmp_path / "bin/cuobjdump"
    tool.parent.mkdir()
    lines = [
        f" Function {symbol(key)}:\n  REG:128 STACK:{stack} SHARED:0 LOCAL:0 CONSTANT[0]:376\n"
        for key, stack in STACKS.items()
    ]
    tool.write_text(f"#!/bin/sh\ncat <<'END'\narch = sm_80\n{''.join(lines)}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    path = tmp_path / "pack/flash_forward.so"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF....")
    return path


def write_table(library, registers=128):
    """The table of a pack beside its library: the kernel with a stack spills half of it."""
    rows = [
        Row(
            symbol(key), arch="sm_80", used_registers=registers, stack_frame=stack,
            spill_stores=stack // 2, spill_loads=stack // 2, toolchain="nvcc 13.0.88", code="1",
        )
        for key, stack in STACKS.items()
    ]  # fmt: skip
    (library.parent / "pack.json").write_text("{}")
    (library.parent / "ptxas.csv").write_text(csv_text(rows))


def rows_of(path):
    out = path.with_name("rows.csv")
    assert run(path, "--csv", out).exit_code == 0
    return {row.key: row for row in read_csv(out)}


def test_a_binary_does_not_say_whether_its_kernels_spill(library):
    assert [row.spilled for row in rows_of(library).values()] == [None, None]
    output = run(library).output
    assert output.splitlines()[-1] == "2 kernels, 2 whose spills are unknown (1 with a stack)"
    first, second = (line.split() for line in output.splitlines()[1:3])
    assert (first[0], first[2:7]) == (KEYS[0], ["object", "128", "?", "?", "104"])
    assert (second[0], second[2:7]) == (KEYS[1], ["object", "128", "?", "?", "0"])


def test_a_packs_library_has_the_spills_of_the_packs_table(library):
    write_table(library)
    rows = rows_of(library)
    assert {key: row.spill_stores for key, row in rows.items()} == {KEYS[0]: 52, KEYS[1]: 0}
    assert {row.toolchain for row in rows.values()} == {"nvcc 13.0.88"}
    assert run(library).output.splitlines()[-1] == "2 kernels, 1 with spills"


def test_a_table_of_another_build_says_nothing_of_a_library(library):
    write_table(library, registers=96)
    assert [row.spilled for row in rows_of(library).values()] == [None, None]
