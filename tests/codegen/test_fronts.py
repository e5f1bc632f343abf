"""`front:` in family.yaml, and choices.yaml beside it: checked, and handed to the runtime."""

from __future__ import annotations

import json

import pytest

CHOICES = """\
choices:
  - {when: N <= 64 and not causal, take: {tile: 32, warps: 1}}
  - {take: {mode: auto}}
"""


def test_the_manifest_names_the_front_and_holds_the_rows(workspace) -> None:
    family = workspace.demo / "family.yaml"
    family.write_text(family.read_text() + "front: front.py:call\n")
    (workspace.demo / "front.py").write_text("")
    (workspace.demo / "choices.yaml").write_text(CHOICES)
    assert workspace.run("regenerate").status == 0
    (entry,) = json.loads(workspace.tree()["manifest.json"])["families"]
    assert entry["fronts"] == [{"module": "kernel_specs.demo.front", "function": "call"}]
    assert entry["choices"] == [
        {"when": "N <= 64 and (not causal)", "take": {"tile": 32, "warps": 1}},
        {"when": "True", "take": {"mode": "auto"}},
    ]
    assert workspace.run("check").status == 0
    rows = workspace.demo / "choices.yaml"
    rows.write_text(rows.read_text().replace("64", "32"))
    assert workspace.run("check").status == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("N <= 64", "K <= 64", "choices.yaml:2:12: unknown name 'K'"),
        ("N <= 64", "N <=", "not an expression"),
        ("N <= 64 and not causal", "N", "'N' must be true or false"),
        ("N <= 64", "parts <= 64", "2:12: the default of 'parts' is a fact about the device"),
        ("tile: 32", "tyle: 32", "choices.yaml:2:43: no target has a parameter 'tyle' (did you"),
        ("mode: auto", "mode: none", "choices.yaml:3:19: 'none' is not among the values of mode"),
        ("tile: 32", "tile: yes", "choices.yaml:2:49: "),
        ("choices:", "choice:", "unknown key 'choice' (did you mean 'choices'?)"),
        (CHOICES, "choices: []\n", "choices.yaml:1:10: "),
    ],
)
def test_a_wrong_row_is_located(workspace, old, new, message) -> None:
    workspace.edit(
        "family.yaml", "parameters:", "  parts: {scalar: i32, default: sm_count}\nparameters:"
    )
    (workspace.demo / "choices.yaml").write_text(CHOICES.replace(old, new))
    result = workspace.run("list")
    assert result.status == 2
    assert message in result.output


def test_a_family_may_have_several_fronts(workspace) -> None:
    family = workspace.demo / "family.yaml"
    (workspace.demo / "front.py").write_text("")
    family.write_text(family.read_text() + "front: [front.py:call, front.py:explain_call]\n")
    assert workspace.run("regenerate").status == 0
    (entry,) = json.loads(workspace.tree()["manifest.json"])["families"]
    assert [front["function"] for front in entry["fronts"]] == ["call", "explain_call"]
    family.write_text(family.read_text().replace("front.py:explain_call", "front:explain_call"))
    message = "family.yaml:14:24: got 'front:explain_call', expected file.py:function"
    assert message in workspace.run("list").output


def check_located(workspace, line: str, place: str, message: str) -> None:
    """A line more at the end of family.yaml is refused there."""
    family = workspace.demo / "family.yaml"
    family.write_text(f"{family.read_text()}{line}\n")
    result = workspace.run("list")
    assert result.status == 2
    assert f"family.yaml:{place}" in result.output
    assert message in result.output


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ("front.py:call", "there is no file"),
        ("../front.py:call", "must lie in the family's folder"),
        ("reference.py", "expected file.py:function"),
        ("cpu.h:call", "expected file.py:function"),
        ("/", "expected file.py:function"),
        (".py:call", "expected file.py:function"),
        ("a-b.py:call", "expected file.py:function"),
        ("./front.py:call", "expected file.py:function"),
    ],
)
def test_a_wrong_front_is_located(workspace, front, message) -> None:
    check_located(workspace, f"front: {front}", "14:8: ", message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("function: gradient.py:f, inputs: [y], outputs: [y]", "'y' is not an input"),
        ("function: gradient.py:f, inputs: [x], outputs: [x]", "'x' is not an output"),
        (
            "function: gradient.py:f, inputs: [x], outputs: [y], keeps: [y]",
            "not an optional output",
        ),
        ("function: gradient.py, inputs: [x], outputs: [y]", "expected file.py:function"),
        ("function: other.py:f, inputs: [x], outputs: [y]", "there is no file"),
    ],
)
def test_a_wrong_gradient_is_located(workspace, text, message) -> None:
    (workspace.demo / "gradient.py").write_text("")
    check_located(workspace, f"gradient: {{{text}}}", "14:", message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shards: [{along: [q]}]", "'q' is not a symbol"),
        ("shards: [{along: [N]}]", "the output y has 0 of these, expected one"),
        ("shards: [{along: [M], when: M}]", "'M' must be true or false"),
        ("operations: 2 * missing", "unknown name 'missing'"),
        ("operations: M ** 0.5", "an integer"),
        ("operations: missing.py:count", "there is no file"),
    ],
)
def test_a_wrong_division_or_count_is_located(workspace, text, message) -> None:
    check_located(workspace, text, "14:", message)


def test_a_generated_front_is_in_the_familys_face_and_named_in_the_manifest(workspace) -> None:
    family = workspace.demo / "family.yaml"
    family.write_text(family.read_text() + "front: {name: call, flags: {causal: false}}\n")
    assert workspace.run("regenerate").status == 0
    tree = workspace.tree()
    (entry,) = json.loads(tree["manifest.json"])["families"]
    assert entry["fronts"] == [{"module": "", "function": "call"}]
    face = tree["python/demo.py"].decode()
    assert '_front = Front("demo", flags={"causal": False})' in face
    assert "def call(\n    x: torch.Tensor,\n    *,\n" in face
    assert "causal: bool = False,\n    return_rows: bool = False,\n" in face
    compile(face, "demo.py", "exec")
    plain = family.read_text().partition("front:")[0]
    family.write_text(plain + "front: {name: call, takes: {causal: N % 2 == 0}}\n")
    assert workspace.run("regenerate").status == 0
    rule = 'lambda N: {"causal": True if N % 2 == 0 else False}'
    assert rule in workspace.tree()["python/demo.py"].decode()
    rule = "alpha > 1 and aligned(x, 16) and dtype == f32"
    family.write_text(plain + f"front:\n  name: call\n  takes:\n    causal: {rule}\n")
    assert workspace.run("regenerate").status == 0
    face = workspace.tree()["python/demo.py"].decode()
    assert "lambda N, _aligned_16_x, alpha, dtype: {" in face
    assert "(alpha if alpha is not None else 1.0 * _power(N, -0.5)) > 1" in face
    family.write_text(plain + "front: call\n")
    assert workspace.run("regenerate").status == 0


def test_a_front_decides_parameters_of_targets(workspace) -> None:
    family = workspace.demo / "family.yaml"
    family.write_text(
        family.read_text() + "front: {name: call, takes: {tile: 32 if N < 9 else 64}}\n"
    )
    assert workspace.run("regenerate").status == 0
    tree = workspace.tree()
    assert 'lambda N: {"tile": +(32 if N < 9 else 64)}' in tree["python/demo.py"].decode()
    (entry,) = json.loads(tree["manifest.json"])["families"]
    assert entry["fronts"] == [{"module": "", "function": "call", "takes": ["tile"]}]
    workspace.edit("family.yaml", "tile: 32 if N < 9 else 64", "mode: N > 1")
    workspace.edit("cpu.yaml", "token: t}\n", "token: t}\n  mode: {type: bool, default: false}\n")
    said = workspace.run("list").output
    assert "family.yaml:14:8: targets differ in the values of 'mode'" in said


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ("{name: a-b}", "got 'a-b', expected a function's name"),
        (
            "{name: call, takes: {casual: N > 1}}",
            "no parameter 'casual' beside inputs' dtypes (did",
        ),
        ("{name: call, takes: {dtype: N}}", "no parameter 'dtype' beside inputs' dtypes"),
        (
            "{name: call, takes: {causal: 'stride(x, 2) == 1'}}",
            "stride takes an input and one of its",
        ),
        (
            "{name: call, takes: {causal: 'aligned(x, 3)'}}",
            "aligned takes an input and a power of two",
        ),
        (
            "{name: call, takes: {causal: 'aligned(y, 4)'}}",
            "aligned takes an input and a power of two",
        ),
        ("{name: call, takes: {causal: dtype == f3}}", "unknown name 'f3'"),
        ("{name: call, takes: {causal: K > 1}}", "unknown name 'K'"),
        ("{name: call, takes: {causal: N}}", "must be true or false"),
        ("{name: call, flags: {causal: 3}}", "3 is not a bool"),
        ("{name: call, takes: {causal: N > 1}, flags: {causal: true}}", "taken from the call"),
        ("[call, other]", "one front of a family is generated, not two"),
        ("{call: name}", "unknown key 'call'"),
    ],
)
def test_a_wrong_generated_front_is_located(workspace, front, message) -> None:
    check_located(workspace, f"front: {front}", "14:", message)
