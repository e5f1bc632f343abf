"""Sets say what differs: a base, steps on top of each other, products over another set."""

from __future__ import annotations

import pytest

CPU = """\
target: cpu
kernel: cpu.h
parameters:
  tile: {type: int, token: t}
  warps: {type: int, token: w}
  fast: {type: bool}
constraints:
  - {that: warps <= 4, because: there are four}
sets:
"""


def keys(workspace, sets: str, name: str = "default") -> list[str]:
    """The keys of a set of bf16 configurations, without what they share."""
    workspace.write("cpu.yaml", CPU + sets)
    workspace.edit("family.yaml", "values: [bf16, fp16, f32]", "values: [bf16]")
    result = workspace.run("list", "--set", name, "--where", "target == cpu")
    assert result.status == 0, result.stderr
    return [key.removeprefix("demo.cpu.bf16-") for key in result.stdout.split()]


def problems(workspace, sets: str) -> list[str]:
    workspace.write("cpu.yaml", CPU + sets)
    workspace.edit("family.yaml", "values: [bf16, fp16, f32]", "values: [bf16]")
    result = workspace.run("list")
    assert result.status == 2
    return [line.removeprefix("kernel_specs/demo/") for line in result.stderr.splitlines()[:-1]]


BASE = "base: {causal: false, tile: 16, warps: 1, fast: false}"


def test_a_step_stands_on_top_of_the_last(workspace) -> None:
    steps = "steps: [{}, {warps: 2}, {tile: 32, fast: true}, {warps: 4}]"
    assert keys(workspace, f"  default: {{{BASE}, {steps}}}\n") == [
        "t16-w1", "t16-w2", "t32-w2-fast", "t32-w4-fast",
    ]  # fmt: skip


def test_configurations_and_products_stand_on_the_base(workspace) -> None:
    sets = f"""\
  default:
    {BASE}
    configurations:
      - {{tile: 64}}
      - product: {{warps: [1, 2], fast: true}}
      - base: {{warps: 4}}
        configurations: [{{fast: true}}, {{}}]
    product: {{tile: [8, 9]}}
"""
    assert keys(workspace, sets) == [
        "t64-w1", "t16-w1-fast", "t16-w2-fast", "t16-w4-fast", "t16-w4", "t8-w1", "t9-w1",
    ]  # fmt: skip


def test_a_base_may_list_values(workspace) -> None:
    sets = "  default: {base: {tile: [16, 32], warps: 1, causal: false}, steps: [{fast: true}]}\n"
    assert keys(workspace, sets) == ["t16-w1-fast", "t32-w1-fast"]


def test_a_product_over_a_set_is_taken_over_each_of_its_configurations_in_order(workspace) -> None:
    sets = f"""\
  default: {{{BASE}, steps: [{{}}, {{fast: true}}]}}
  more: {{include: [default], configurations: [{{causal: true, tile: 1, warps: 1, fast: true}}]}}
  all:
    over: more
    product: {{tile: [16, 32], warps: [2, 4, 8]}}
    prune: [{{that: tile * warps < 128, because: registers}}]
"""
    tiles = ["t16-w2", "t16-w4", "t32-w2"]
    assert keys(workspace, sets, "all") == [
        *tiles, *(f"{t}-fast" for t in tiles), *(f"causal-{t}-fast" for t in tiles),
    ]  # fmt: skip


def test_a_set_over_a_pruned_product_keeps_its_rules(workspace) -> None:
    sets = f"""\
  default:
    {BASE}
    product: {{warps: [1, 2]}}
    prune: [{{that: tile != 32 or warps == 1, because: registers}}]
  all: {{over: default, product: {{tile: [16, 32]}}}}
"""
    assert keys(workspace, sets, "all") == ["t16-w1", "t16-w2", "t32-w1"]


def test_explain_knows_the_sets_that_hold_a_step(workspace) -> None:
    sets = f"""\
  default: {{{BASE}, steps: [{{}}, {{fast: true}}]}}
  all: {{over: default, product: {{tile: [16, 64]}}}}
"""
    workspace.write("cpu.yaml", CPU + sets)
    workspace.run("regenerate")
    text = workspace.run("explain", "demo.cpu.bf16-t64-w1-fast").stdout
    assert "is in set all, but not in the generated tree" in text
    assert "in set default, all" in workspace.run("explain", "demo.cpu.bf16-t16-w1-fast").stdout


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (
            f"  default: {{{BASE}, steps: [{{}}, {{warp: 2}}]}}\n",
            "cpu.yaml:10:82: unknown parameter 'warp' (did you mean 'warps'?)",
        ),
        (
            "  default: {base: {tile: true}, steps: [{warps: 1, fast: true}]}\n",
            "cpu.yaml:10:26: True is not an int",
        ),
        (
            "  default: {base: {tile: [1, 1]}, steps: [{warps: 1, fast: true}]}\n",
            "cpu.yaml:10:30: 1 is listed twice",
        ),
        ("  default: {steps: [{tile: 1, fast: true}]}\n", "cpu.yaml:10:21: no value for warps"),
        (
            f"  default: {{{BASE}, steps: [{{}}, {{warps: 8}}]}}\n",
            "cpu.yaml:10:81: 'warps <= 4' excludes the configuration on line 10: there are four",
        ),
        (
            f"  default: {{{BASE}, steps: [{{}}, {{}}]}}\n",
            "cpu.yaml:10:81: demo.cpu.bf16-t16-w1 is listed twice: first on line 10",
        ),
        (f"  default: {{{BASE}}}\n", "cpu.yaml:10:3: the set 'default' is empty"),
        (
            "  default: {over: later, product: {tile: [1]}}\n"
            f"  later: {{{BASE}, steps: [{{}}]}}\n",
            "cpu.yaml:10:19: there is no set 'later' above this one",
        ),
        (
            f"  default: {{{BASE}, steps: [{{}}]}}\n"
            "  all: {over: defualt, product: {tile: 1}}\n",
            "cpu.yaml:11:15: there is no set 'defualt' above this one (did you mean 'default'?)",
        ),
        (
            f"  default: {{{BASE}, steps: [{{}}]}}\n"
            "  all: {over: default, base: {tile: 1}, product: {warps: 1}}\n",
            "cpu.yaml:11:24: 'over' takes the values of another set's configurations, not of",
        ),
        (
            f"  default: {{{BASE}, steps: [{{}}], over: default, prune: []}}\n",
            "'over' needs a 'product'",
        ),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(workspace, sets, expected) -> None:
    found = problems(workspace, sets)
    assert any(expected in line for line in found), found


@pytest.mark.parametrize("name", ["include", "configurations", "steps", "product"])
def test_a_parameter_may_not_be_named_as_what_makes_a_set(workspace, name) -> None:
    text = (CPU + "  default: [{warps: 1, fast: true}]\n").replace("tile", name, 1)
    workspace.write("cpu.yaml", text)
    result = workspace.run("list")
    assert f"cpu.yaml:4:3: '{name}' is reserved in sets" in result.stderr


def test_sets_over_sets_end(workspace) -> None:
    values = ", ".join(f"{{tile: {i}}}" for i in range(200))
    sets = [f"  default: {{{BASE}, configurations: [{values}]}}"]
    sets += [f"  s{i}: {{over: default, product: {{warps: [1]}}}}" for i in range(150)]
    assert "the sets hold more than 20,000 configurations" in problems(
        workspace, "\n".join(sets) + "\n"
    )[0]  # fmt: skip
