"""Every kind of bad input is an error with its place, all at once, exit status 2, no traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

STALENESS = Path(__file__).resolve().parents[2] / "codegen/core/staleness.py"

# (what, file, text to replace, its replacement, what is reported where)
EDITS = [
    (
        "unknown key",
        "sm80.yaml",
        "budget:",
        "budgett:",
        "sm80.yaml:19:1: unknown key 'budgett' (did you mean 'budget'?)",
    ),
    (
        "unknown key within",
        "family.yaml",
        "doc: the input",
        "docs: the input",
        "family.yaml:4:37: unknown key 'docs' (did you mean 'doc'?)",
    ),
    (
        "duplicate key",
        "sm80.yaml",
        "  warps: {type",
        "  tile: {type",
        "sm80.yaml:5:3: duplicate key 'tile' (first on line 4)",
    ),
    (
        "wrong type",
        "sm80.yaml",
        "limits: {threads: 256}",
        "limits: {threads: many}",
        "sm80.yaml:12:19: must be an integer, not the text 'many'",
    ),
    (
        "missing key",
        "sm80.yaml",
        "kernel: sm80.cuh:demo_sm80\n",
        "",
        "sm80.yaml:1:1: the key 'kernel' is missing",
    ),
    (
        "unknown name in an expression",
        "sm80.yaml",
        "32 * warps",
        "32 * warp",
        "sm80.yaml:11:17: unknown name 'warp' (did you mean 'warps'?)",
    ),
    (
        "unknown symbol",
        "family.yaml",
        "rows: {output: [M]",
        "rows: {output: [K]",
        "family.yaml:6:19: unknown name 'K'",
    ),
    (
        "an expression that leaves the whitelist",
        "sm80.yaml",
        "threads: 32 * warps",
        "threads: __import__('os').getpid()",
        "sm80.yaml:11:12: unknown function '__import__('os').getpid'",
    ),
    (
        "attribute",
        "sm80.yaml",
        "threads: 32 * warps",
        "threads: warps.bit_length",
        "sm80.yaml:11:12: 'warps.bit_length' is not part of the expression language",
    ),
    (
        "lambda",
        "sm80.yaml",
        "threads: 32 * warps",
        '"threads": "(lambda: 1)"',
        "is not part of the expression language",
    ),
    (
        "not an expression",
        "sm80.yaml",
        "threads: 32 * warps",
        "threads: 32 *",
        "not an expression: invalid syntax",
    ),
    (
        "unknown value of a dtype",
        "sm80.yaml",
        "dtype != f32",
        "dtype != 'f3'",
        "sm80.yaml:8:21: 'f3' is not among its values (did you mean 'f32'?)",
    ),
    (
        "wrong kind",
        "sm80.yaml",
        "dtype != f32",
        "tile + 1",
        "sm80.yaml:8:12: 'tile + 1' must be true or false",
    ),
    (
        "text compared with a number",
        "sm80.yaml",
        "dtype != f32",
        "dtype != 32",
        "sm80.yaml:8:12: compares a text ('dtype') with a number ('32')",
    ),
    (
        "division by zero",
        "sm80.yaml",
        "32 * warps",
        "32 // 0 * warps",
        "sm80.yaml:11:12: '32 // 0' has no value: division by zero",
    ),
    (
        "a constraint that excludes everything",
        "sm80.yaml",
        "tile % (8 * warps) == 0",
        "tile < 0",
        "sm80.yaml:9:5: 'tile < 0' excludes everything that the product on line 16 holds",
    ),
    (
        "constraints that exclude everything together",
        "sm80.yaml",
        "tile: [32, 64, 128], warps: [1, 2, 4, 8, 16]",
        "tile: [8, 16], warps: [4, 8, 16]",
        "sm80.yaml:9:5: 'tile % (8 * warps) == 0' excludes everything",
    ),
    (
        "a written configuration that a constraint excludes",
        "sm80.yaml",
        "  small:\n    - {dtype: bf16",
        "  small:\n    - {dtype: bf16, causal: true, tile: 9, warps: 1, mode: auto}\n"
        "    - {dtype: bf16",
        "sm80.yaml:18:7: 'tile % (8 * warps) == 0' excludes the configuration on line 18",
    ),
    (
        "a constraint without a value",
        "sm80.yaml",
        "tile % (8 * warps) == 0",
        "tile % (warps - 1) == 0",
        "sm80.yaml:9:5: 'tile % (warps - 1) == 0' has no value for tile = 32, warps = 1",
    ),
    (
        "two configurations with one key",
        "cpu.yaml",
        "    - {tile: 64}",
        "    - {dtype: f32, causal: true, tile: 64}\n    - {dtype: f32, causal: true, tile: 64}",
        "cpu.yaml:8:7: demo.cpu.f32-causal-t64 is listed twice: first on line 7",
    ),
    (
        "a token that makes keys ambiguous",
        "sm80.yaml",
        "warps: {type: int, token: w}",
        "warps: {type: int, token: t1}",
        "sm80.yaml:5:3: 't11' in a key could be tile or warps: give one of them another token",
    ),
    (
        "a token that is another's value",
        "family.yaml",
        "causal: {type: bool}",
        "causal: {type: bool, token: bf16}",
        "family.yaml:10:3: 'bf16' in a key could be dtype or causal",
    ),
    (
        "a header that is missing",
        "sm80.yaml",
        "sm80.cuh:",
        "sm8.cuh:",
        "sm80.yaml:2:9: there is no file kernel_specs/demo/sm8.cuh (did you mean 'sm80.cuh'?)",
    ),
    (
        "a header outside its family's folder",
        "sm80.yaml",
        "sm80.cuh:",
        "../../sm80.cuh:",
        "sm80.yaml:2:9: '../../sm80.cuh' must lie in the family's folder, kernel_specs/demo",
    ),
    (
        "an absolute header",
        "sm80.yaml",
        "sm80.cuh:",
        "/etc/passwd:",
        "must lie in the family's folder",
    ),
    (
        "a missing reference",
        "family.yaml",
        "reference.py:",
        "refrence.py:",
        "family.yaml:13:12: there is no file kernel_specs/demo/refrence.py",
    ),
    (
        "a set that names an unknown parameter",
        "sm80.yaml",
        "product: {tile:",
        "product: {tiles:",
        "sm80.yaml:16:17: unknown parameter 'tiles' (did you mean 'tile'?)",
    ),
    (
        "a configuration that names an unknown parameter",
        "cpu.yaml",
        "- {tile: 64}",
        "- {tyle: 64}",
        "cpu.yaml:7:8: unknown parameter 'tyle' (did you mean 'tile'?)",
    ),
    (
        "a value of the wrong type in a set",
        "cpu.yaml",
        "{tile: 64}",
        "{tile: true}",
        "cpu.yaml:7:14: True is not an int",
    ),
    (
        "a value that is not listed",
        "cpu.yaml",
        "{tile: 64}",
        "{tile: 64, dtype: bf61}",
        "cpu.yaml:7:25: 'bf61' is not among the values of dtype (did you mean 'bf16'?)",
    ),
    (
        "a parameter without a value",
        "cpu.yaml",
        "{tile: 64}",
        "{dtype: f32}",
        "cpu.yaml:7:7: no value for tile",
    ),
    (
        "an unknown set included",
        "cpu.yaml",
        "- {tile: 64}",
        "- {include: [defualt]}",
        "cpu.yaml:7:18: unknown set 'defualt' (did you mean 'default'?)",
    ),
    (
        "a set that includes itself",
        "cpu.yaml",
        "- {tile: 64}",
        "- {include: [default]}",
        "cpu.yaml:6:3: the set 'default' includes itself",
    ),
    ("no default set", "cpu.yaml", "default:", "first:", "the set 'default' is missing"),
    (
        "YAML 1.1's on",
        "family.yaml",
        "optional: true",
        "optional: on",
        "family.yaml:6:45: YAML 1.1 reads 'on' as a boolean: write true or false",
    ),
    (
        "YAML 1.1's no as a key",
        "sm80.yaml",
        "  small:",
        "  no:",
        "sm80.yaml:17:3: in YAML 1.1 'no' is not a name: write \"no\"",
    ),
    (
        "an octal number",
        "cpu.yaml",
        "tile: 64",
        "tile: 064",
        "cpu.yaml:7:14: YAML 1.1 reads '064' as a int",
    ),
    ("a sexagesimal number", "cpu.yaml", "tile: 64", "tile: 1:30", "reads '1:30' as a int"),
    (
        "a C++ keyword",
        "cpu.yaml",
        "  tile: {",
        "  union: {",
        "cpu.yaml:4:3: 'union' is a C++ keyword: choose another",
    ),
    (
        "a reserved name",
        "family.yaml",
        "  x: {",
        "  out: {",
        "family.yaml:4:3: argument 'out' is reserved in generated code",
    ),
    (
        "an unknown dtype",
        "family.yaml",
        "dtype: f32, optional",
        "dtype: f23, optional",
        "family.yaml:6:30: 'f23' is neither a dtype nor a dtype parameter (did you mean 'f32'?)",
    ),
    (
        "an unknown kind of argument",
        "family.yaml",
        "x: {tensor:",
        "x: {tenser:",
        "family.yaml:4:6: an argument is one of tensor:, tensors:, output:, scalar:",
    ),
    (
        "a workspace over what is unknown",
        "cpu.yaml",
        "sets:",
        "workspace:\n  part: {shape: [M, tiel], dtype: f32}\nsets:",
        "cpu.yaml:6:21: unknown name 'tiel' (did you mean 'tile'?)",
    ),
    (
        "a workspace over a floating-point scalar",
        "cpu.yaml",
        "sets:",
        "workspace:\n  part: {shape: [M, alpha], dtype: f32}\nsets:",
        "cpu.yaml:6:21: unknown name 'alpha'",
    ),
    (
        "a workspace of an unknown dtype",
        "cpu.yaml",
        "sets:",
        "workspace:\n  part: {shape: [M], dtype: f23}\nsets:",
        "cpu.yaml:6:29: 'f23' is neither a dtype nor a dtype parameter (did you mean 'f32'?)",
    ),
    (
        "a workspace named as an argument",
        "cpu.yaml",
        "sets:",
        "workspace:\n  x: {shape: [M], dtype: f32}\nsets:",
        "cpu.yaml:6:3: 'x' already has a meaning in this spec",
    ),
    (
        "an invalid condition",
        "cpu.yaml",
        "sets:",
        "workspace:\n  part: {shape: [M], dtype: f32, when: M}\nsets:",
        "cpu.yaml:6:40: 'M' must be true or false",
    ),
    (
        "an unknown parameter type",
        "cpu.yaml",
        "type: int",
        "type: integer",
        "cpu.yaml:4:16: unknown value 'integer' (did you mean 'int'?)",
    ),
    (
        "a family not named as its folder",
        "family.yaml",
        "family: demo",
        "family: other",
        "family.yaml:1:9: family 'other' must be named as its folder, 'demo'",
    ),
    (
        "a target not named as its file",
        "cpu.yaml",
        "target: cpu",
        "target: sm90",
        "cpu.yaml:1:9: target 'sm90' must be named as its file, cpu.yaml",
    ),
    (
        "a limit that 64 bits do not hold",
        "sm80.yaml",
        "{threads: 256}",
        "{threads: 99999999999999999999}",
        "sm80.yaml:12:19: input should be less than or equal to",
    ),
    (
        "an unknown limit",
        "sm80.yaml",
        "limits: {threads:",
        "limits: {thread:",
        "sm80.yaml:12:10: unknown derived value 'thread' (did you mean 'threads'?)",
    ),
    (
        "a launch for the CPU",
        "cpu.yaml",
        "sets:",
        "launch: {grid: [M], block: 1}\nsets:",
        "cpu.yaml:5:1: a cpu target's header brings its own launch<Config, Isa>",
    ),
    (
        "a launch without its kernel",
        "sm80.yaml",
        "sm80.cuh:demo_sm80",
        "sm80.cuh",
        "sm80.yaml:2:9: no kernel to launch: write sm80.cuh:<name",
    ),
    (
        "an unquoted comma",
        "sm80.yaml",
        '"ceil_div(M, tile)"',
        "ceil_div(M, tile)",
        "'(' was never closed; quote a text that holds commas",
    ),
    (
        "broken YAML",
        "cpu.yaml",
        "{type: int, token: t}",
        "{type: int, token: t",
        "cpu.yaml:5:5: not YAML: expected ',' or '}'",
    ),
    ("an empty file", "cpu.yaml", None, "", "cpu.yaml:1:1: must be a mapping with the keys target"),
    ("a list for a mapping", "cpu.yaml", None, "- 1\n", "cpu.yaml:1:1: must be a mapping"),
    (
        "an alias without end",
        "cpu.yaml",
        None,
        "target: &a [*a]\n",
        "endless aliases",
    ),
    ("depth without end", "cpu.yaml", None, "[" * 5000, "the file is nested too deeply"),
    (
        "an expression without end",
        "cpu.yaml",
        "{tile: 64}",
        "{product: {tile: [1]}, prune: [{that: " + "-" * 1500 + "1 == 1, because: it ends}]}",
        "nests at most",
    ),
    (
        "a power without end",
        "sm80.yaml",
        "32 * warps",
        "9 ** 99",
        "'9 ** 99' has no value: 9 ** 99 exceeds 64 bits",
    ),
    (
        "a derived value that 64 bits do not hold",
        "sm80.yaml",
        "derived:",
        "derived:\n  big: tile * 4611686018427387904 * 4",
        "sm80.yaml:11:8: 'tile * 4611686018427387904 * 4' has no value for demo.sm80.bf16-t32-w1"
        "-auto: the result exceeds 64 bits",
    ),
    (
        "a derived value that is infinite",
        "sm80.yaml",
        "derived:",
        "derived:\n  big: 1e308 * tile",
        "sm80.yaml:11:8: '1e308 * tile' has no value for demo.sm80.bf16-t32-w1-auto: the result is "
        "not a finite number",
    ),
    (
        "a derived value that is not a number",
        "sm80.yaml",
        "derived:",
        "derived:\n  big: 1e308 * tile - 1e308 * tile",
        "the result is not a finite number",
    ),
    (
        "a constant that is infinite",
        "sm80.yaml",
        "derived:",
        "derived:\n  big: 1e308 * 10",
        "sm80.yaml:11:8: '1e+308 * 10' has no value: the result is not a finite number",
    ),
    (
        "a block that CUDA does not launch",
        "sm80.yaml",
        "block: threads",
        "block: threads * 2 ** 31",
        "sm80.yaml:13:1: '(threads * 2 ** 31) <= 1024' excludes everything that the product on line"
        " 16 holds: a thread block has at most 1,024 threads",
    ),
    (
        "shared memory below nothing",
        "sm80.yaml",
        "block: threads",
        "block: threads, shared_memory: 31 - threads",
        "sm80.yaml:13:73: '31 - threads' is -1 for demo.sm80.bf16-t32-w1-auto: shared memory is 0",
    ),
    (
        "a derived name with a space",
        "sm80.yaml",
        "threads",
        "my threads",
        "sm80.yaml:11:3: 'my threads' cannot be the name of a derived value",
    ),
    (
        "a derived name that is a keyword",
        "sm80.yaml",
        "threads",
        "if",
        "sm80.yaml:11:3: 'if' is a C++ keyword: choose another",
    ),
    (
        "a name with a line break",
        "cpu.yaml",
        "  tile: {",
        '  "tile\\n": {',
        "cpu.yaml:4:3: 'tile\\n' cannot be the name of a parameter",
    ),
    (
        "a name that is a macro",
        "cpu.yaml",
        "  tile: {",
        "  INT_MAX: {",
        "cpu.yaml:4:3: 'INT_MAX' is a macro of C++'s headers: choose another",
    ),
    (
        "a name that is the C++ type of another",
        "sm80.yaml",
        "warps",
        "mode_type",
        "sm80.yaml:1:1: 'mode_type' is the C++ type of 'mode': rename one of them",
    ),
    (
        "a very long name",
        "cpu.yaml",
        "  tile: {",
        f"  {'t' * 65}: {{",
        "has 65 characters, more than 64",
    ),
    (
        "a token that is the key without tokens",
        "family.yaml",
        "causal: {type: bool}",
        "causal: {type: bool, token: default}",
        "family.yaml:10:3: 'default' is the key without tokens: give it another token",
    ),
    (
        "a token that is another's with a minus",
        "sm80.yaml",
        "warps: {type: int, token: w}",
        "warps: {type: int, token: tm1}",
        "sm80.yaml:5:3: 'tm11' in a key could be tile or warps",
    ),
    (
        "a text of several lines",
        "cpu.yaml",
        "{tile: 64}",
        "\n        tile: |\n          a\n          b\n",
        r"cpu.yaml:8:15: 'a\nb\n' is not an int",
    ),
    (
        "a control character",
        "family.yaml",
        "doc: the input",
        r'doc: "a \e[2J terminal"',
        r"family.yaml:4:43: this text holds the character '\x1b'",
    ),
    (
        "a mark that turns text around",
        "family.yaml",
        "doc: the input",
        r'doc: "a \u202E comment"',
        r"this text holds the character '\u202e'",
    ),
    (
        "a header whose name C++ reads otherwise",
        "cpu.yaml",
        "kernel: cpu.h",
        "kernel: 'cpu>.h'",
        "cpu.yaml:2:10: 'cpu>.h' is quoted in C++: a file's name is letters, digits and _ + . - /",
    ),
    (
        "a header's name with a backslash",
        "cpu.yaml",
        "kernel: cpu.h",
        r"kernel: 'cp\u.h'",
        "is quoted in C++",
    ),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [case[1:] for case in EDITS],
    ids=[case[0] for case in EDITS],
)
def test_bad_input(workspace, file, old, new, expected) -> None:
    if old is None:
        workspace.write(file, new)
    else:
        workspace.edit(file, old, new)
    result = workspace.run("list")
    assert result.status == 2, result.output
    assert expected in result.stderr
    problems = result.stderr.splitlines()[:-1]
    assert all(re.match(r"kernel_specs/demo/\w+\.yaml:\d+:\d+: \S", line) for line in problems)


def test_a_derived_value_that_is_none(workspace) -> None:
    workspace.edit("cpu.yaml", "sets:", "derived: {half: 64 // (tile - 64)}\nsets:")
    result = workspace.run("list")
    assert result.status == 2
    assert (
        "cpu.yaml:5:17: '64 // (tile - 64)' has no value for demo.cpu.bf16-t64: "
        "division by zero" in result.stderr
    )


@pytest.mark.parametrize("command", ["regenerate", "check", "list"])
def test_all_problems_of_all_files_at_once(workspace, command) -> None:
    workspace.edit("family.yaml", "N % 2", "L % 2")
    workspace.edit("sm80.yaml", "32 * warps", "32 * warp")
    workspace.edit("sm80.yaml", "budget:", "budgett:")
    workspace.edit("cpu.yaml", "type: int", "type: integer")
    result = workspace.run(command)
    assert result.status == 2
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [
        "kernel_specs/demo/cpu.yaml:4:16",
        "kernel_specs/demo/family.yaml:12:12",
        "kernel_specs/demo/sm80.yaml:11:17",
        "kernel_specs/demo/sm80.yaml:19:1",
        "4 problems",
    ]
    assert not workspace.out.exists()


@pytest.mark.parametrize("others", [["cpu.yaml"], []])
def test_a_fault_in_a_target_is_not_reported_in_the_familys_build_too(workspace, others) -> None:
    """Whether nvcc compiles a target does not depend on what its file says."""
    if others:
        build = "build: {sources: [more.cu]}"
    else:
        build = "build: {flags: [-O1]}"
        (workspace.demo / "cpu.yaml").unlink()
    workspace.write("more.cu", "")
    workspace.edit("family.yaml", "reference:", f"{build}\nreference:")
    workspace.edit("sm80.yaml", "token: t", "token: 3")
    result = workspace.run("check")
    assert result.status == 2
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == [
        "kernel_specs/demo/sm80.yaml",
        "1 problem",
    ]


@pytest.mark.parametrize("extents", ["block: ", "block: threads, cluster: "])
def test_extents_of_a_launch_whose_product_exceeds_64_bits(workspace, extents) -> None:
    workspace.edit("sm80.yaml", "target: sm80", "target: sm90")
    workspace.edit("sm80.yaml", "block: threads", f"{extents}[2 ** 40, 2 ** 40]")
    (workspace.demo / "sm80.yaml").rename(workspace.demo / "sm90.yaml")
    result = workspace.run("check")
    assert result.status == 2
    assert "sm90.yaml:13:" in result.stderr
    assert "'2 ** 40 * 2 ** 40' has no value: the result exceeds 64 bits" in result.stderr


def test_binary_and_unreadable_files(workspace) -> None:
    (workspace.demo / "cpu.yaml").write_bytes(b"target: \xff\xfe\n")
    (workspace.demo / "sm80.yaml").write_bytes(b"\x00\x01\x02")
    result = workspace.run("list")
    assert result.status == 2
    assert "cpu.yaml:1:1: the file is not UTF-8 text (byte 8)" in result.stderr
    assert "sm80.yaml:1:1: the file is not YAML text" in result.stderr
    (workspace.demo / "cpu.yaml").unlink()
    (workspace.demo / "cpu.yaml").mkdir()
    assert "cpu.yaml:1:1: the file cannot be read: Is a directory" in workspace.run("list").stderr


def test_missing_family_yaml(workspace) -> None:
    (workspace.demo / "family.yaml").unlink()
    result = workspace.run("list")
    assert result.status == 2
    assert "family.yaml:1:1: the file cannot be read: No such file or directory" in result.stderr


def test_no_specs(workspace) -> None:
    result = workspace.run("list", "--specs", "nowhere")
    assert result.status == 2
    assert "nowhere:1:1: no folder of specs: No such file or directory" in result.stderr


def test_one_family_in_two_folders(workspace) -> None:
    os.symlink(workspace.root / "kernel_specs", workspace.root / "more")
    result = workspace.run("list", "--specs", "kernel_specs", "--specs", "more")
    assert result.status == 2
    assert "family 'demo' is also in kernel_specs/demo/family.yaml" in result.stderr


def test_a_family_named_as_anothers_operator(workspace) -> None:
    """torch.ops.kernelmint has one function of a name."""
    shutil.copytree(workspace.demo, workspace.demo.parent / "demo_out")
    family = workspace.demo.parent / "demo_out/family.yaml"
    family.write_text(family.read_text().replace("family: demo", "family: demo_out"))
    result = workspace.run("list")
    assert result.status == 2
    assert (
        "demo_out/family.yaml:1:9: family 'demo_out' is named as an operator of the family 'demo'"
        in result.stderr
    )


def test_unwritable_output(workspace) -> None:
    (workspace.root / "file").write_text("")
    result = workspace.run("regenerate", "--out", "file/tree")
    assert result.status == 2
    assert result.stderr.startswith("error: cannot write")
    assert (workspace.root / "file").read_text() == ""
    (workspace.out / "demo/library.cpp").mkdir(parents=True)
    result = workspace.run("regenerate")
    assert result.status == 2
    assert "generated/demo/library.cpp is in the way" in result.stderr
    result = workspace.run("check")
    assert result.status == 2
    assert "cannot read generated/demo/library.cpp: Is a directory" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "null",
        "{",
        '{"selection": [], "families": 1}',
        "\udcff",
        '{"outputs": {"a": 1}}',
        "[" * 100_000,
        '{"selection": {"set": "default", "where": "\\ud800"}}',
    ],
)
def test_a_broken_manifest_is_repaired(workspace, text) -> None:
    workspace.run("regenerate")
    path = workspace.out / "manifest.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    key = "demo.cpu.f32-t64"
    assert workspace.run("check").status == 1
    assert "in set default, but not in the generated tree" in workspace.run("explain", key).stdout
    assert workspace.python(str(STALENESS), "generated").status == 1
    assert workspace.run("regenerate").status == 0
    assert workspace.run("check").status == 0


@pytest.mark.parametrize(
    "path",
    [("selection", "set"), ("selection", "where"), ("inputs",), ("outputs",), ("spec_dirs",),
     ("families", 0, "targets", 0, "kernels", 0, "key")],
)  # fmt: skip
@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
def test_a_manifest_with_invalid_texts_is_repaired(workspace, path, text) -> None:
    workspace.run("regenerate")
    file = workspace.out / "manifest.json"
    manifest = json.loads(file.read_text())
    place = manifest
    for step in path[:-1]:
        place = place[step]
    old = place[path[-1]]
    changed = [text] if isinstance(old, list) else {text: text} if isinstance(old, dict) else text
    place[path[-1]] = changed
    file.write_text(json.dumps(manifest))
    assert workspace.run("check").status == 1
    assert workspace.run("explain", "demo.cpu.f32-t64").status == 0
    stale = workspace.python(str(STALENESS), "generated")
    assert (stale.status, stale.stderr) == (1, "")
    assert "generated/manifest.json cannot be read" in stale.stdout
    assert workspace.run("regenerate").status == 0
    assert workspace.run("check").status == 0


def test_any_text_is_reported_and_not_raised(workspace) -> None:
    """Every prefix of a good file is either good or reported."""
    text = (workspace.demo / "sm80.yaml").read_text()
    for end in range(0, len(text), 7):
        workspace.write("sm80.yaml", text[:end])
        result = workspace.run("list")
        assert result.status in (0, 2), text[:end]


def test_problems_are_found_by_a_real_process(workspace) -> None:
    workspace.edit("sm80.yaml", "32 * warps", "32 * warp")
    result = workspace.python("-m", "codegen", "regenerate")
    assert result.status == 2
    assert "Traceback" not in result.output
    assert not Path("generated").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("sm80.yaml", "threads: 32 * warps", "threads: lanes * warps\n  lanes: 32",
         "sm80.yaml:11:12: 'lanes' is defined below: move it above 'threads'"),
        ("sm80.yaml", "threads: 32 * warps", "threads: threads * warps",
         "sm80.yaml:11:12: 'threads' is defined on this line: it cannot use itself"),
        ("family.yaml", "because: pairs are combined", "because: pairs, always",
         "family.yaml:12:40: unknown key 'always'; quote a text that holds commas"),
        ("family.yaml", "doc: the input", "doc: the input, here",
         "unknown key 'here'; quote a text that holds commas"),
        ("family.yaml", "{that: N % 2 == 0", "{that: max(N, 2) == 0",
         "not an expression: '(' was never closed; quote a text that holds commas"),
        ("sm80.yaml", "derived:\n  threads: 32 * warps", "derived: {threads: max(warps, 32)}",
         "must be an expression, such as `32 * n_warps`; quote a text that holds commas"),
        ("family.yaml", "dtype: f32, optional", "dtype: float, optional",
         "'float' is neither a dtype nor a dtype parameter (did you mean 'f32'?)"),
        ("sm80.yaml", "{dtype: bf16,", "{dtype: bfloat16,",
         "'bfloat16' is not among the values of dtype (did you mean 'bf16'?)"),
        ("family.yaml", "{scalar: f32", "{scalar: float32", "did you mean 'f32'?"),
    ],
)  # fmt: skip
def test_what_was_meant_is_said(workspace, file, old, new, message) -> None:
    workspace.edit(file, old, new)
    result = workspace.run("list")
    assert result.status == 2
    assert message in result.stderr
