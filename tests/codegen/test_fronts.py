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
    (workspace.demo / "front.py").write_text("def call(x): ...\n")
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
    (workspace.demo / "front.py").write_text("def call(x): ...\n\n\nexplain_call = call\n")
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
    (workspace.demo / "gradient.py").write_text("def f(y): ...\n")
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
    signature = "def call(\n    x: torch.Tensor,\n    alpha: float | None = None,\n    *,\n"
    assert signature in face
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


def test_scalars_of_a_front_follow_the_tensors_by_position(workspace) -> None:
    """But a scalar without a default cannot follow an argument that has one."""
    family = workspace.demo / "family.yaml"
    family.write_text(
        family.read_text().replace("  alpha:", "  beta: {scalar: f32}\n  alpha:") + "front: call\n"
    )
    assert workspace.run("regenerate").status == 0
    face = workspace.tree()["python/demo.py"].decode()
    scalars = "    beta: float,\n    alpha: float | None = None,\n"
    assert f"def call(\n    x: torch.Tensor,\n{scalars}    *,\n" in face
    family.write_text(family.read_text().replace("the input}", "the input, optional: true}"))
    workspace.edit("family.yaml", "  x:", "  z: {tensor: [M, N], dtype: dtype}\n  x:")
    workspace.edit("family.yaml", "reference: reference.py:demo\n", "")
    assert workspace.run("regenerate").status == 0
    face = workspace.tree()["python/demo.py"].decode()
    assert f"    x: torch.Tensor | None = None,\n    *,\n{scalars}" in face


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
    ("rule", "message"),
    [
        ("not expanded(x, 2)", "expanded takes an input and one of its dimensions"),
        ("not expanded(y, 0)", "expanded takes an input and one of its dimensions"),
        ("stride(x, 0) == 1", "unknown function 'stride'"),
        ("not expanded(x, 0) or N > 1", "a rule that asks how tensors lie decides whether a front"),
    ],
)
def test_what_a_target_requires_of_how_tensors_lie(workspace, rule, message) -> None:
    target = workspace.demo / "cpu.yaml"
    plain = target.read_text()
    target.write_text(plain + 'requires: [{that: "not expanded(x, 0)", because: of it}]\n')
    assert workspace.run("regenerate").status == 0
    table = workspace.tree()["demo/cpu_table.cpp"].decode()
    assert "(!(scope.tensors[0].strides[0] == 0 && (scope.symbols[0]) > 1))" in table
    target.write_text(plain + f'requires: [{{that: "{rule}", because: of it}}]\n')
    assert message in workspace.run("list").output


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
        ("{name: call, takes: {causal: 'expanded(x, 2)'}}", "expanded takes an input and one of"),
        ("{name: call, takes: {causal: dtype == f3}}", "unknown name 'f3'"),
        ("{name: call, takes: {causal: K > 1}}", "unknown name 'K'"),
        ("{name: call, takes: {causal: N}}", "must be true or false"),
        ("{name: call, flags: {causal: 3}}", "3 is not a bool"),
        ("{name: call, takes: {causal: N > 1}, flags: {causal: true}}", "taken from the call"),
        ("{name: call, takes: {causal: causal}, flags: {causal: null}}", "unknown name 'causal'"),
        ("[call, other]", "one front of a family is generated, not two"),
        ("{call: name}", "unknown key 'call'"),
    ],
)
def test_a_wrong_generated_front_is_located(workspace, front, message) -> None:
    check_located(workspace, f"front: {front}", "14:", message)


HIDDEN = """\
family: demo
summary: A width that is compiled in.
arguments:
  x: {tensor: [M, N], dtype: f32}
  y: {output: [M, N], dtype: f32}
parameters:
  hidden: {type: int, token: h}
  exact: {type: bool}
requires:
  - {that: N == hidden, because: the width is compiled in}
  - {that: M % 2 == 0 or not exact, because: rows come in pairs}
"""
COPY = """\
target: cpu
kernel: cpu.h
sets: {default: [{product: {hidden: [1024, 4096], exact: [false, true]}}]}
"""


@pytest.mark.parametrize(
    ("front", "undecided"),
    [
        ("demo", "hidden"),
        ("demo", "exact"),
        ("{name: demo}", "hidden"),
        ("{name: demo, flags: {exact: false}}", "hidden"),
        ("{name: demo, takes: {exact: M % 2 == 0}}", "hidden"),
        ("{name: demo, takes: {hidden: N}}", None),
        ("{name: demo, takes: {hidden: N}, flags: {exact: false}}", None),
        ("{name: demo, flags: {hidden: null, exact: false}}", None),
        ("{name: demo, takes: {hidden: N, exact: exact or M > 8}, flags: {exact: false}}", None),
    ],
)
def test_a_generated_front_decides_what_requires_names(workspace, front, undecided) -> None:
    workspace.write("family.yaml", f"{HIDDEN}front: {front}\n")
    (workspace.demo / "sm80.yaml").unlink()
    workspace.write("cpu.yaml", COPY)
    result = workspace.run("regenerate")
    if undecided is None:
        assert (result.status, result.stderr) == (0, "")
    else:
        assert result.status == 2
        assert f"family.yaml:12:8: the front does not decide '{undecided}', which" in result.stderr
        assert f"takes: {{{undecided}: …}}" in result.stderr


def test_rows_may_decide_what_requires_names(workspace) -> None:
    workspace.write("family.yaml", f"{HIDDEN}front: demo\n")
    (workspace.demo / "sm80.yaml").unlink()
    workspace.write("cpu.yaml", COPY)
    workspace.write("choices.yaml", "choices: [{take: {hidden: 1024, exact: false}}]\n")
    assert workspace.run("regenerate").status == 0


@pytest.mark.parametrize("other", ["call", "front.py:call", "[front.py:other, call]"])
def test_two_families_have_no_front_of_one_name(workspace, other) -> None:
    family = (workspace.demo / "family.yaml").read_text()
    workspace.write("family.yaml", f"{family}front: call\n")
    second = workspace.demo.with_name("second")
    second.mkdir()
    for path in workspace.demo.iterdir():
        text = path.read_text().replace("family: demo", "family: second")
        (second / path.name).write_text(text.replace("front: call", f"front: {other}"))
    (second / "front.py").write_text("def call(x): ...\n\n\nother = call\n")
    result = workspace.run("regenerate")
    assert result.status == 2
    assert "second/family.yaml:14:" in result.stderr
    assert "'call' is also the front of demo: rename one" in result.stderr


def test_a_front_is_listed_once(workspace) -> None:
    workspace.write("front.py", "def call(x): ...\n")
    line = "front: [front.py:call, front.py:call]"
    check_located(workspace, line, "14:", "'call' is listed twice: rename one")


# Functions are read, never imported

PLACES = {
    "reference": "reference: {}",
    "front": "front: {}",
    "gradient": "gradient: {{function: {}, inputs: [x], outputs: [y]}}",
    "operations": "operations: {}",
}


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no function 'f' in kernel_specs/demo/some.py"),
        ("def g(x, alpha): ...\n", "there is no function 'f'"),
        ("class A:\n    def f(x, alpha): ...\n", "there is no function 'f'"),
        ("def ff(x, alpha): ...\n", "(did you mean 'ff'?)"),
        ("g = f\n", "there is no function 'f'"),
        ("def f(:\n", "some.py:1 is not Python: "),
        ("def f(x, alpha): ...\n", None),
        ("async def f(x, alpha): ...\n", None),
        ("from there import f\n", None),
        ("from there import *\n", None),
        ("import there as f\n", None),
        ("f = make()\n", None),
        ("if a:\n    f = 1\n", None),
        ("try:\n    import a\nexcept ImportError:\n    def f(x, alpha): ...\n", None),
        ("def __getattr__(name): ...\n", None),
        ("raise SystemExit('it runs')\n\n\ndef f(x, alpha): ...\n", None),
    ],
)
def test_a_function_that_a_spec_names_is_there(workspace, key, text, message) -> None:
    path = workspace.demo / "family.yaml"
    family = path.read_text().replace("reference: reference.py:demo\n", "")
    path.write_text(f"{family}{PLACES[key].format('some.py:f')}\n")
    workspace.write("some.py", text)
    result = workspace.run("regenerate")
    assert result.status == (0 if message is None else 2), result.stderr
    assert (message or "") in result.stderr
    assert message is None or "family.yaml:13:" in result.stderr


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("x", None),
        ("x, alpha", None),
        ("x, **others", None),
        ("*tensors, alpha", None),
        ("x, dtype, causal, *, alpha=1.0", None),
        ("x, tile, threads", None),  # of a target
        ("x, speed=1", None),
        ("", "demo has no parameter 'x', as the family's input is named"),
        ("alpha, y", "demo has no parameter 'x'"),
        ("x, /", "demo takes 'x' only by its place"),
        ("x, speed", "demo needs 'speed', which no call gives: give it a default"),
        ("x, *, alpa", "demo needs 'alpa', which no call gives: give it a default (did you mean "),
        ("x, mask", "demo needs 'mask', which a call may leave out: give it a default"),
        ("x, mask=None", None),
        ("x, parts", "demo needs 'parts', which no call gives"),
    ],
)
def test_a_reference_takes_what_a_call_gives(workspace, parameters, message) -> None:
    workspace.edit(
        "family.yaml", "  y: ", "  mask: {tensor: [M], dtype: f32, optional: true}\n  y: "
    )
    workspace.edit(
        "family.yaml", "parameters:", "  parts: {scalar: i32, default: sm_count}\nparameters:"
    )
    workspace.write("reference.py", f"def demo({parameters}): ...\n")
    result = workspace.run("regenerate")
    assert result.status == (0 if message is None else 2), result.stderr
    assert (message or "") in result.stderr
    assert message is None or "family.yaml:15:12: " in result.stderr
