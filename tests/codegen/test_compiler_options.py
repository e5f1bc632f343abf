"""Parameters that stand for compiler options, and predictions of what ptxas will say."""

from __future__ import annotations

import json

import pytest

AXES = """\
  fast: {type: bool, option: fast_math}
  regs: {type: int, token: r, values: [64, 128], option: maxrregcount}
"""
PREDICT = "predict: {registers: tile + 2 * warps}\n"


@pytest.mark.parametrize(
    ("file", "text", "place", "message"),
    [
        ("sm80.yaml", "{type: bool, option: fastmath}", "4:27", "(did you mean 'fast_math'?); a"),
        ("sm80.yaml", "{type: int, option: fast_math}", "4:26", "fast_math is of type bool"),
        ("sm80.yaml", "{type: int, values: [2, 4], option: optimize}", "4:42", "from 0 to 3"),
        ("sm80.yaml", "{type: int, option: maxrregcount}", "4:26", "from 16 to 255"),
        ("sm80.yaml", "{type: dtype, option: -O2}", "4:28", "a dtype is no option"),
        ("sm80.yaml", '{type: bool, option: "-O{}"}', "4:28", "of type bool has no {}"),
        ("sm80.yaml", "{type: int, option: -O2}", "4:26", "of type int has one {}"),
        ("sm80.yaml", "{type: bool, option: -lm}", "4:27", "libraries go in `libraries`"),
        ("family.yaml", "{type: bool, option: -O2}", "9:27", "'-O2' is one compiler's"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_located(workspace, file, text, place, message) -> None:
    workspace.edit(file, "parameters:\n", f"parameters:\n  x: {text}\n")
    result = workspace.run("regenerate")
    assert result.status == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if message in line]
    assert line.startswith(f"kernel_specs/demo/{file}:{place}: "), line


def test_the_cpu_has_no_registers_to_limit(workspace) -> None:
    limit = "parameters:\n  x: {type: int, values: [64], option: maxrregcount}\n"
    workspace.edit("family.yaml", "parameters:\n", limit)
    result = workspace.run("regenerate")
    assert "cpu.yaml:1:9: the compiler of cpu has no maxrregcount, as 'x' is" in result.stderr


def test_kernels_of_different_options_share_no_file(workspace) -> None:
    workspace.edit("sm80.yaml", "  mode: {type", f"{AXES}  mode: {{type")
    assert workspace.run("regenerate").status == 0
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    (target,) = (t for t in manifest["families"][0]["targets"] if t["name"] == "sm80")
    flags_of = {}
    for kernel in target["kernels"]:
        flags_of.setdefault(kernel["file"], set()).add(tuple(kernel["flags"]))
    assert all(len(flags) == 1 for flags in flags_of.values())
    limit = "--maxrregcount=64", "-Xptxas=--override-directive-values"
    assert {limit, ("--use_fast_math", *limit)} < set().union(*flags_of.values())
    assert "demo.sm80.bf16-t32-w1-fast-r64-auto" in {k["key"] for k in target["kernels"]}
    cmake = (workspace.out / "files.cmake").read_text()
    assert "set(KERNELMINT_OPTIONS_demo_sm80 r64 r128 fast_r64 fast_r128)" in cmake


def test_a_rule_may_name_a_prediction_and_is_counted(workspace) -> None:
    """In place of compiling what cannot fit."""
    workspace.edit("sm80.yaml", "derived:\n", f"{PREDICT}derived:\n")
    rule = "  - {that: registers <= 128, because: as much as it would spill}\n"
    before = len(workspace.run("list").output.splitlines())
    workspace.edit("sm80.yaml", "constraints:\n", f"constraints:\n{rule}")
    listed = workspace.run("list").output.splitlines()
    excluded = json.loads(workspace.run("list", "--excluded", "--json").stdout)
    (of,) = (entry for entry in excluded if entry["target"] == "sm80")
    (counted,) = (rule for rule in of["rules"] if "registers" in rule["that"])
    assert counted["alone"] == before - len(listed) > 0
    where = "target == 'sm80' and registers > 66"
    entries = json.loads(workspace.run("list", "--where", where, "--json").stdout)
    assert {entry["predicted"]["registers"] for entry in entries} == {68, 72, 80}
    assert all("registers" not in entry["derived"] for entry in entries)
    heading, *lines = workspace.run("list", "--where", where, "--predicted").stdout.splitlines()
    assert heading.split() == ["kernel", "registers"]
    shown = [(e["key"], str(e["predicted"]["registers"])) for e in entries]
    assert [tuple(line.split()) for line in lines] == shown


def test_code_has_no_predictions(workspace) -> None:
    """So a better prediction compiles nothing again."""
    assert workspace.run("regenerate").status == 0
    before = (workspace.out / "demo/sm80_0.cu").read_text().splitlines()
    workspace.edit("sm80.yaml", "derived:\n", f"{PREDICT}derived:\n")
    assert workspace.run("regenerate").status == 0
    assert (workspace.out / "demo/sm80_0.cu").read_text().splitlines() == before
    workspace.edit(
        "sm80.yaml", 'grid: ["ceil_div(M, tile)", N]', 'grid: ["ceil_div(M, registers)", N]'
    )
    assert "unknown name 'registers'" in workspace.run("regenerate").stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{registers: tile / 2}", "registers is an integer: divide by //"),
        ("{register: 2}", "unknown key 'register' (did you mean 'registers'?)"),
        ("{registers: M}", "unknown name 'M'"),
    ],
)
def test_a_wrong_prediction_is_located(workspace, text, message) -> None:
    workspace.edit("sm80.yaml", "derived:\n", f"predict: {text}\nderived:\n")
    result = workspace.run("regenerate")
    assert result.status == 2
    assert message in result.stderr
