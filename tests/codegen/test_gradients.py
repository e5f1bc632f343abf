"""`gradient:` of a family.yaml that names another family: what is wrong is said with its place."""

from __future__ import annotations

import json

import pytest

FAMILY = """\
family: demo
summary: A family to test with.
arguments:
  x:     {tensor: [M, N], dtype: dtype, strided: true}
  index: {tensor: [M], dtype: i64}
  bias:  {tensor: [N], dtype: dtype, optional: true}
  half:  {tensor: [M], dtype: bf16, optional: true}
  sizes: {tensor: [M], dtype: f32, optional: true, device: host}
  y:     {output: [M, "ceil_div(N, 2)"], dtype: dtype}
  rows:  {output: [M], dtype: f32, optional: true}
  most:  {output: [M], dtype: i64}
  alpha: {scalar: f32, default: "N ** -0.5"}
  parts: {scalar: i32, default: sm_count}
  mode:  {scalar: enum, values: [sum, mean, max], default: sum}
  exact: {scalar: bool, default: false, gradient: true}
parameters:
  dtype:  {type: dtype, values: [bf16, f32]}
  causal: {type: bool}
gradient:
  family: demo_gradient
  passes: {dy: gradient of y, length: N}
  returns: {x: dx, bias: dbias}
"""

OTHER = """\
family: demo_gradient
summary: Its gradient.
arguments:
  dy:     {tensor: [M, K], dtype: dtype}
  x:      {tensor: [M, N], dtype: dtype, contiguous: true}
  rows:   {tensor: [M], dtype: f32}
  most:   {tensor: [M], dtype: i64, optional: true}
  bias:   {tensor: [N], dtype: dtype, optional: true}
  dbias:  {tensor: [N], dtype: f32, mutated: true, optional: true}
  dx:     {output: [M, length], dtype: dtype}
  alpha:  {scalar: f32}
  length: {scalar: i64}
  mode:   {scalar: enum, values: [sum, mean, max]}
parameters:
  dtype:  {type: dtype, values: [bf16, f32]}
  causal: {type: bool}
  wide:   {type: bool, token: wide}
front: {name: demo_gradient, takes: {wide: N > 8}}
"""

CPU = "target: cpu\nkernel: cpu.h\nsets:\n  default:\n    - {}\n"


@pytest.fixture
def pair(workspace):
    (workspace.demo / "sm80.yaml").unlink()
    other = workspace.demo.parent / "demo_gradient"
    other.mkdir()
    for folder, family in ((workspace.demo, FAMILY), (other, OTHER)):
        for name, text in (("family.yaml", family), ("cpu.yaml", CPU), ("cpu.h", "")):
            (folder / name).write_text(text)
    return workspace


def test_the_manifest_has_what_a_call_is_passed(pair) -> None:
    assert pair.run("regenerate").status == 0
    demo, _ = json.loads(pair.tree()["manifest.json"])["families"]
    assert demo["gradient"] == {
        "family": "demo_gradient",
        "inputs": ["x", "bias"],
        "outputs": ["y"],
        "keeps": ["rows"],
        "tensors": [
            {"what": "gradient", "name": "y"},
            {"what": "input", "name": "x", "contiguous": True},
            {"what": "output", "name": "rows"},
            {"what": "output", "name": "most"},
            {"what": "input", "name": "bias"},
            {"what": "zeros", "shape": ["N"], "dtype": "f32"},
        ],
        "scalars": ["alpha", "N", "mode"],
        "parameters": {"causal": "causal"},
        "returns": {"x": "dx", "bias": "dbias"},
    }
    pair.edit("family.yaml", "length: N", "length: N, most: null, causal: alpha > 1, mode: mean")
    assert pair.run("regenerate").status == 0
    demo, _ = json.loads(pair.tree()["manifest.json"])["families"]
    assert demo["gradient"]["tensors"][3] == {"what": "nothing"}
    assert demo["gradient"]["scalars"] == ["alpha", "N", "'mean'"]
    assert demo["gradient"]["parameters"] == {"causal": "alpha > 1"}


def test_kernels_do_not_have_what_the_gradient_alone_takes(pair) -> None:
    assert pair.run("regenerate").status == 0
    tree = {path: file.decode() for path, file in pair.tree().items()}
    assert "exact" not in tree["demo/args.h"]
    assert "args.exact" not in tree["demo/family.cpp"]
    assert "exact: bool | None = None" in tree["python/demo.py"]
    pair.edit(
        "cpu.yaml", "kernel: cpu.h", "kernel: cpu.h\nworkspace: {m: {shape: [exact], dtype: f32}}"
    )
    assert "unknown name 'exact'" in pair.run("list").output


def test_of_several_each_has_its_condition_and_its_place(pair) -> None:
    (pair.demo / "gradient.py").write_text("def backward(y): ...\n")
    one = "{family: demo_gradient, passes: {dy: gradient of y, length: N}, returns: {x: dx}"
    text = pair.demo.joinpath("family.yaml").read_text().partition("gradient:\n")[0]
    family = f"""{text}gradient:
  - {one}, when: mode == mean and not causal}}
  - {{when: N > 2, function: gradient.py:backward, inputs: [x], outputs: [y]}}
"""
    (pair.demo / "family.yaml").write_text(family)
    assert pair.run("regenerate").status == 0
    demo, _ = json.loads(pair.tree()["manifest.json"])["families"]
    named, function = demo["gradient"]["cases"]
    assert (named["family"], named["when"]) == ("demo_gradient", "mode == 'mean' and (not causal)")
    assert (function["function"], function["when"]) == ("backward", "N > 2")
    for old, new, message in (
        ("N > 2", "M > n", "21:16: unknown name 'n'"),
        ("N > 2", "N", "21:12: 'N' must be true or false"),
        ("dy: gradient of y, ", "", "20:37: the family demo_gradient needs 'dy'"),
        ("inputs: [x]", "inputs: [z]", "21:60: 'z' is not an input"),
    ):
        (pair.demo / "family.yaml").write_text(family.replace(old, new))
        assert f"demo/family.yaml:{message}" in pair.run("list").output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("demo_gradient", "demo_gradent", "20:11: there is no family 'demo_gradent' (did you mean"),
        ("length: N", "lenth: N, length: N", "21:31: the family demo_gradient takes no 'lenth'"),
        (", length: N", "", "21:11: the family demo_gradient needs 'length': give it"),
        ("dy: gradient of y, ", "", "21:11: the family demo_gradient needs 'dy': give it"),
        ("gradient of y", "gradient of x", "21:16: 'x' is not an output"),
        ("gradient of y", "gradient of most", "21:16: 'most' is i64, which has no gradient"),
        ("gradient of y", "z", "21:16: 'z' is not an input, an output or 'gradient of' an output"),
        ("gradient of y", "y", "21:11: nothing is passed a gradient"),
        ("gradient of y", "gradient of rows", "21:16: 'dy' of the family demo_gradient is [M, K]"),
        ("length: N", "length: N, rows: half", "21:48: 'half' is optional, but 'rows' is not"),
        ("length: N", "length: N, most: index, bias: half", "21:61: N of the family"),
        ("length: N", "length: N, bias: half", "dtype of the family demo_gradient is dtype, but"),
        ("length: N", "length: N, most: half", "'most' of the family demo_gradient is i64, but ha"),
        ("length: N", "length: N, rows: sizes", "21:48: 'sizes' is on the host, unlike 'rows'"),
        ("length: N", "length: N, dbias: bias", "changes 'dbias' in place: it is passed zeros"),
        ("length: N", "length: alpha", "21:39: 'alpha' must be an integer"),
        ("length: N", "length: parts", "the default of 'parts' is a fact about the device"),
        ("length: N", "length: n", "21:39: unknown name 'n'"),
        ("length: N", "length: N, mode: 3", "'3' must be one of sum, mean, max"),
        ("length: N", "length: N, wide: true", "21:42: 'wide' is taken from the call by the front"),
        ("length: N", "length: N, dtype: f32", "takes no 'dtype'"),
        ("x: dx", "z: dx", "22:13: 'z' is not an input"),
        ("x: dx", "x: dy", "22:16: the family demo_gradient returns no 'dy' (known: dbias, dx)"),
        ("x: dx", "index: dx", "22:13: 'index' is i64, which has no gradient"),
        ("bias: dbias", "half: dbias", "22:26: 'dbias' is [N], but half is [M]"),
        ("x: dx, bias: dbias", "", "22:12: must not be empty"),
        ("bias: dbias}", "bias: dbias}\n  requires: [{that: n > 1, because: y}]", "name 'n'"),
        (
            "bias: dbias}",
            "bias: dbias}\n  requires: [{that: parts > 1, because: y}]",
            "23:21: the default of 'parts' is a fact about the device",
        ),
        ("family: demo_gradient", "family: demo_gradient\n  inputs: [x]", "unknown key 'inputs'"),
        (
            "gradient:\n  family: demo_gradient\n  passes: {dy: gradient of y, length: N}\n"
            "  returns: {x: dx, bias: dbias}\n",
            "",
            "15:41: 'exact' is an argument of gradients, but the family has no gradient",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_located(pair, old, new, message) -> None:
    pair.edit("family.yaml", old, new)
    result = pair.run("list")
    assert result.status == 2
    assert f"demo/family.yaml:{message}" in result.output or message in result.output


def test_a_second_derivative_that_would_lose_a_part_is_refused(pair) -> None:
    """What demo_gradient's own gradient gives rows flows to x through rows, which passes none."""
    text = "gradient: {family: demo, passes: {x: gradient of dx, index: most}, "
    other = pair.demo.parent / "demo_gradient/family.yaml"
    whole = other.read_text().replace("mutated: true, ", "")
    other.write_text(f"{whole}{text}returns: {{rows: rows}}}}\n")
    message = "'rows' of the family demo_gradient has a gradient, which rows would lose: also pass"
    assert message in pair.run("list").output


def test_a_family_with_problems_is_what_is_reported(pair) -> None:
    other = pair.demo.parent / "demo_gradient/family.yaml"
    other.write_text(other.read_text().replace("summary", "sumary"))
    output = pair.run("list").output
    assert "unknown key 'sumary'" in output
    assert "demo/family.yaml" not in output.replace("demo_gradient/family.yaml", "")
