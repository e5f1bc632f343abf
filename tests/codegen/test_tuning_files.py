"""<target>.tuned.yaml and <target>.shapes.yaml: checked, located, and handed to the runtime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codegen.spec.load import load

TUNED = """\
tuned:
  - device: Some GPU
    parameters: {dtype: bf16, causal: false}
    range: {M: [1, 512], M * N: [1, 4096]}
    take: demo.sm80.bf16-t64-w2-auto
    milliseconds: 0.25
    sizes: {M: 256, N: 8}
    runner_up: demo.sm80.bf16-t32-w1-split
    runner_up_milliseconds: 0.5
    tie: true
    toolchain: nvcc 13.0.88
    code: 0123abcd
"""

SHAPES = """\
shapes:
  - parameters: {dtype: [bf16, fp16], causal: false}
    sizes: {N: 2 * M}
    points:
      - {sizes: {M: 16}, range: {M: [1, 32]}}
      - {sizes: {M: 64, N: 8}, range: {M: [33, 64], N: [8, 8]}}
cost: {estimate: "ceil_div(M, tile) * tile * sm_count", within: 1.5}
"""


def test_rows_are_carried_into_the_manifest_one_a_line(workspace) -> None:
    assert workspace.run("regenerate").status == 0
    assert "tuned" not in workspace.tree()["manifest.json"].decode()
    workspace.write("sm80.tuned.yaml", TUNED)
    assert workspace.run("check").status == 1
    assert workspace.run("regenerate").status == 0
    text = workspace.tree()["manifest.json"].decode()
    (family,) = json.loads(text)["families"]
    targets = {target["name"]: target for target in family["targets"]}
    assert "tuned" not in targets["cpu"]
    (row,) = targets["sm80"]["tuned"]
    assert row == {
        "device": "Some GPU",
        "parameters": {"dtype": "bf16", "causal": False},
        "range": [
            {"symbols": ["M"], "least": 1, "most": 512},
            {"symbols": ["M", "N"], "least": 1, "most": 4096},
        ],
        "take": "demo.sm80.bf16-t64-w2-auto",
        "configuration": {
            "dtype": "bf16", "causal": False, "tile": 64, "warps": 2, "mode": "auto"
        },
        "milliseconds": 0.25,
        "runner_up": "demo.sm80.bf16-t32-w1-split",
        "runner_up_milliseconds": 0.5,
        "tie": True,
    }  # fmt: skip
    assert sum("Some GPU" in line for line in text.splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("t64-w2-auto", "t64-w3-none", "5:11: 'demo.sm80.bf16-t64-w3-none' is not a valid key: "),
        ("t64-w2", "t64-w64", "5:11: demo.sm80.bf16-t64-w64-auto is excluded by "),
        ("t64-w2-auto", "t64-w2-split", "5:11: no set of kernel_specs/demo/sm80.yaml holds "),
        ("take: demo.sm80", "take: demo.cpu", "expected demo.sm80.…"),
        ("dtype: bf16", "dtype: fp16", "3:25: dtype is bf16 in demo.sm80.bf16-t64-w2-auto, not "),
        ("causal: false", "causl: false", "3:31: the target has no parameter 'causl' (did you"),
        ("range: {M:", "range: {K:", "4:13: 'K' is not a symbol"),
        ("M * N: [", "M + N: [", "4:26: 'M + N' is not a symbol"),
        ("[1, 512]", "[513, 512]", "got [513, 512], expected the least value, then the greatest"),
        ("[1, 512]", "[1]", "4:16: must have at least 2 entries, not 1"),
        ("[1, 512]", "[1, 2, 3]", "4:16: must have at most 2 entries, not 3"),
        ("sizes: {M", "sizes: {K", "7:13: the family has no symbol 'K'"),
        ("0.25", "0", "6:19: "),
        ("device:", "devise:", "unknown key 'devise' (did you mean 'device'?)"),
        ("runner_up: demo", "runner_up: domo", "8:16: 'domo.sm80.bf16-t32-w1-split' is not a key"),
    ],
)
def test_a_wrong_row_is_located(workspace, old, new, message) -> None:
    assert old in TUNED
    workspace.write("sm80.tuned.yaml", TUNED.replace(old, new))
    result = workspace.run("list")
    assert result.status == 2
    assert "sm80.tuned.yaml:" in result.output
    assert message in result.output


def test_rows_of_a_target_that_the_family_lacks_are_an_error(workspace) -> None:
    workspace.write("sm90a.tuned.yaml", TUNED)
    result = workspace.run("list")
    assert result.status == 2
    assert "sm90a.tuned.yaml:1:1: the family has no target 'sm90a'" in result.output


def test_shapes_are_products_of_parameters_and_expressions_of_sizes(workspace) -> None:
    workspace.write("sm80.shapes.yaml", SHAPES)
    (family,) = load([Path("kernel_specs")])
    shapes = next(target for target in family.targets if target.name == "sm80").shapes
    assert shapes is not None
    assert [(dict(s.parameters), dict(s.sizes)) for s in shapes.shapes] == [
        ({"dtype": "bf16", "causal": False}, {"M": 16, "N": 32}),
        ({"dtype": "fp16", "causal": False}, {"M": 16, "N": 32}),
        ({"dtype": "bf16", "causal": False}, {"M": 64, "N": 8}),
        ({"dtype": "fp16", "causal": False}, {"M": 64, "N": 8}),
    ]
    assert [(r.text, r.least, r.most) for r in shapes.shapes[-1].ranges] == [
        ("M", 33, 64), ("N", 8, 8)
    ]  # fmt: skip
    assert shapes.cost is not None
    assert shapes.cost.evaluate({"M": 65, "tile": 64, "sm_count": 2}) == 256


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("N: 2 * M", "N: 2 * K", "3:20: unknown name 'K'"),
        ("N: 2 * M", "N: N + 1", "N depend on each other"),
        ("{M: 16}", "{}", "5:9: no size given for M"),
        ("N: 2 * M", "N: M - 17", "'N' is -1"),
        ("N: 2 * M", "N: M - 16", "'N' is 0, expected at least 1"),
        ("M: [1, 32]", "M: [17, 32]", "M is 16 at this point, not in [17, 32]"),
        ("M: [1, 32]", "M * N: [1, 32]", "M * N is 512 at this point, not in [1, 32]"),
        ("fp16]", "fp8]", "'fp8' is not among the values of dtype"),
        ("M: [1, 32]", "M: [1, 0]", "got [1, 0], expected the least value"),
        ("within: 1.5", "within: 0.5", "7:"),
        ("ceil_div(M, tile)", "ceil_div(M, tyle)", "unknown name 'tyle'"),
        ("causal: false}", "causal: false}\n    scalars: {beta: 1}", "has no scalar 'beta'"),
    ],
)
def test_a_wrong_shape_is_located(workspace, old, new, message) -> None:
    assert old in SHAPES
    workspace.write("sm80.shapes.yaml", SHAPES.replace(old, new, 1))
    result = workspace.run("list")
    assert result.status == 2
    assert "sm80.shapes.yaml:" in result.output
    assert message in result.output


OPTIONAL = """\
tuned:
  - device: Some GPU
    parameters: {dtype: bf16, causal: false}
    when: lengths and dtype == bf16 and alpha > 0
    range: {M: [1, 512], L: [1, 512]}
    take: demo.sm80.bf16-t64-w2-auto
    milliseconds: 0.25
    sizes: {M: 256, N: 8, L: 256}
    toolchain: nvcc 13.0.88
    code: 0123abcd
"""

GIVEN = """\
shapes:
  - parameters: {dtype: bf16, causal: false}
    sizes: {M: 16, N: 4}
    points: [{range: {M: [1, 32]}}]
  - parameters: {dtype: bf16, causal: false}
    given: [lengths]
    when: lengths and alpha == 0.5
    sizes: {M: 16, N: 4, L: M}
    points: [{range: {L: [1, 32]}}]
"""


@pytest.fixture
def with_lengths(workspace):
    """The family with an optional input, which has a symbol of its own."""
    lengths = "  lengths: {tensor: [L], dtype: i32, alignment: 4, optional: true}\n"
    workspace.edit("family.yaml", "  y: {output", lengths + "  y: {output")
    return workspace


def test_a_rows_condition_is_carried_into_the_manifest(with_lengths) -> None:
    with_lengths.write("sm80.tuned.yaml", OPTIONAL)
    assert with_lengths.run("regenerate").status == 0
    (family,) = json.loads(with_lengths.tree()["manifest.json"])["families"]
    (row,) = next(target for target in family["targets"] if target["name"] == "sm80")["tuned"]
    assert row["when"] == "lengths and dtype == bf16 and alpha > 0"


def test_a_shape_names_what_is_given_and_sizes_of_that_alone(with_lengths) -> None:
    with_lengths.write("sm80.shapes.yaml", GIVEN)
    (family,) = load([Path("kernel_specs")])
    shapes = next(target for target in family.targets if target.name == "sm80").shapes
    assert shapes is not None
    without, given = shapes.shapes
    assert (without.given, without.when, dict(without.sizes)) == ((), None, {"M": 16, "N": 4})
    assert (given.given, given.when) == (("lengths",), "lengths and alpha == 0.5")
    assert dict(given.sizes) == {"M": 16, "N": 4, "L": 16}


@pytest.mark.parametrize(
    ("file", "text", "old", "new", "message"),
    [
        ("tuned", OPTIONAL, "when: lengths", "when: length", "4:11: unknown name 'length'"),
        ("tuned", OPTIONAL, "dtype == bf16", "causl", "4:23: unknown name 'causl'"),
        ("tuned", OPTIONAL, "dtype == bf16", "tile == 64", "4:23: unknown name 'tile'"),
        ("tuned", OPTIONAL, "and alpha > 0", "or M", "sm80.tuned.yaml:4:"),
        ("tuned", OPTIONAL, "lengths and ", "", "5:26: 'L' is known only if lengths is passed"),
        ("shapes", GIVEN, "given: [lengths]", "given: [length]", "no optional input 'length'"),
        ("shapes", GIVEN, "given: [lengths]", "given: [x]", "no optional input 'x'"),
        ("shapes", GIVEN, "given: [lengths]", "given: []", "does not hold at this point"),
        ("shapes", GIVEN, "alpha == 0.5", "alpha == 1", "does not hold at this point"),
        ("shapes", GIVEN, "alpha == 0.5", "1 // (N - 4) == 1", "has no value at this point: div"),
        ("shapes", GIVEN, ", L: M", "", "no size given for L"),
        ("shapes", GIVEN, "lengths and ", "", "9:23: 'L' is known only if lengths is passed"),
    ],
)
def test_a_wrong_condition_is_located(with_lengths, file, text, old, new, message) -> None:
    assert old in text
    with_lengths.write(f"sm80.{file}.yaml", text.replace(old, new))
    result = with_lengths.run("list")
    assert result.status == 2
    assert f"sm80.{file}.yaml:" in result.output
    assert message in result.output
