"""What family.yaml may say of arguments, and what is refused, with its place."""

from __future__ import annotations

import json

import pytest

from codegen.spec.load import load

X = "  x: {tensor: [M, N], dtype: dtype, doc: the input}\n"
MASK = X + "  mask: {tensor: [M, K], dtype: i32, optional: true}\n"
Y = 'y: {output: [M, "ceil_div(N, 2)"], dtype: dtype}'
RULE = "N % 2 == 0"
ALPHA = 'alpha: {scalar: f32, default: "N ** -0.5"}'

# (what, [(text of family.yaml, its replacement)], what is reported where)
REFUSED = [
    (
        "nothing that is written",
        [(f"  {Y}\n", ""), ("  rows: {output: [M], dtype: f32, optional: true}\n", "")],
        "family.yaml:3:1: a family has at least one argument of kind 'output:', or a 'tensor:' "
        "with 'mutated: true'",
    ),
    (
        "nothing that must be passed",
        [("doc: the input", "optional: true")],
        "family.yaml:3:1: a family has at least one argument of kind 'tensor:' that is not "
        "optional and not on the host",
    ),
    (
        "nothing that says where the call runs",
        [("doc: the input", "device: host")],
        "family.yaml:3:1: a family has at least one argument of kind 'tensor:' that is not "
        "optional and not on the host",
    ),
    (
        "an unknown device",
        [("doc: the input", "device: cuda")],
        "family.yaml:4:45: unknown value 'cuda' (known: host)",
    ),
    (
        "what may be left out before what may not",
        [(X, MASK + "  z: {tensor: [M], dtype: f32}\n")],
        "family.yaml:6:3: 'z' comes after the optional 'mask': in Python, optional arguments "
        "come last",
    ),
    (
        "a mutated output",
        [(Y, Y.replace("}", ", mutated: true}"))],
        "family.yaml:5:52: unknown key 'mutated'",
    ),
    (
        "an extent in an input",
        [(Y, "y: {output: [M], dtype: i32, extent: x}")],
        "family.yaml:5:40: 'x' is not an output that is always there",
    ),
    (
        "a packed extent that only memory tells",
        [("doc: the input}", "doc: the input}\n  w: {tensor: [M, K], dtype: u8, packed: 2}")],
        "family.yaml:5:19: no tensor that is not packed has the extent K, which memory tells to a "
        "multiple of 2: write `2 * NAME`",
    ),
    (
        "a true extent of several in an element",
        [
            (
                Y,
                f"{Y[:-1]}, packed: 2, extent: n}}\n  n: {{output: [], dtype: i32}}".replace(
                    "M, ", ""
                ),
            )
        ],
        "family.yaml:5:68: the first extent of 'y' is packed",
    ),
    *(
        (what, [(X, X + f"  {text}\n")], f"family.yaml:{message}")
        for what, text, message in (
            (
                "lists of two lengths that share an extent",
                "a: {tensors: [K], length: L, dtype: f32}\n"
                "  b: {tensors: [K], length: 2, dtype: f32}",
                "6:17: 'K' is an extent of lists of L tensors and of 2: choose another",
            ),
            (
                "an extent of a list elsewhere",
                "a: {tensors: [K], length: L, dtype: f32}\n  b: {tensor: [2 * K], dtype: f32}",
                "6:20: unknown name 'K'",
            ),
            (
                "a flat list of two extents",
                "a: {tensors: [K, M], length: L, dtype: f32, flat: true}",
                "5:16: a flat list has one extent: the elements",
            ),
            (
                "a list that may be left out",
                "a: {tensors: [K], length: L, dtype: f32, optional: true}",
                "5:44: unknown key 'optional'",
            ),
            (
                "a list of texts",
                "a: {scalar: enum, values: [b], length: 2}",
                "5:34: a list holds numbers, not an enum's texts",
            ),
            ("more numbers than there may be", "a: {scalar: i32, length: 32}", "3:1: 33 scalars"),
        )
    ),
    (
        "outputs whose device only lists say",
        [(X, "  x: {tensors: [M, N], length: L, dtype: dtype}\n")],
        "family.yaml:3:1: a family has at least one argument of kind 'tensor:' that is not "
        "optional and not on the host: its lists may be empty, and say nothing of its outputs' "
        "device",
    ),
    (
        "an extent in several numbers",
        [(Y, "y: {output: [M], dtype: i32, extent: n}\n  n: {output: [M], dtype: i32}")],
        "family.yaml:5:40: 'n' holds an extent: it is [] of i32 or i64",
    ),
    *(
        (
            f"{value} of {dtype}",
            [(Y, f"y: {{output: [M], dtype: {dtype}, fill: {value}}}")],
            f"family.yaml:5:{35 + len(dtype)}: {message}",
        )
        for dtype, value, message in (
            ("u8", "-1", "an element of u8 is not -1"),
            ("i8", "128", "an element of i8 is not 128"),
            ("i32", "inf", "an element of i32 is not inf"),
            ("i32", "0.5", "an element of i32 is not 0.5"),
            ("bool", "2", "an element of bool is not 2"),
            ("e4m3fn", "-inf", "an element of e4m3fn is not -inf"),
            ("dtype", "70000", "an element of fp16 is not 70000; 'dtype' may be fp16"),
            ("f32", "one", "must be a number, inf, -inf or nan"),
        )
    ),
    (
        "an extent that may be unknown, in a rule",
        [(X, MASK), (RULE, "N % K == 0")],
        "family.yaml:13:16: 'K' is known only if mask is passed: say so, as in 'not mask or …' "
        "and '… if mask else …'",
    ),
    (
        "in the wrong branch",
        [(X, MASK), (RULE, "mask or K == 2")],
        "family.yaml:13:20: 'K' is known only if mask is passed",
    ),
    (
        "if only one of two is known to be there",
        [(X, MASK), (RULE, "N % K == 0 if mask or rows else true")],
        "family.yaml:13:16: 'K' is known only if mask is passed",
    ),
    (
        "in an output's shape",
        [(X, MASK), (Y, "y: {output: [M, K], dtype: dtype}")],
        "family.yaml:6:19: 'K' is known only if mask is passed",
    ),
    (
        "in a default",
        [(X, MASK), ("N ** -0.5", "K ** -0.5 if not mask else 1.0")],
        "family.yaml:8:34: 'K' is known only if mask is passed",
    ),
    (
        "an enum without values",
        [(ALPHA, "alpha: {scalar: enum}")],
        "family.yaml:7:10: an enum lists its values",
    ),
    (
        "values without an enum",
        [(ALPHA, "alpha: {scalar: f32, values: [a]}")],
        "family.yaml:7:24: only an enum has values, not a scalar of f32",
    ),
    (
        "a value that C++ does not have",
        [(ALPHA, "alpha: {scalar: enum, values: [a, B-c]}")],
        "family.yaml:7:37: 'B-c' cannot be a value: lower-case letters and digits, joined by "
        "single underscores",
    ),
    (
        "a value twice",
        [(ALPHA, "alpha: {scalar: enum, values: [a, a]}")],
        "family.yaml:7:37: 'a' is listed twice",
    ),
    (
        "an invalid default",
        [(ALPHA, "alpha: {scalar: enum, values: [mean, sum], default: maen}")],
        "family.yaml:7:55: 'maen' is not among the values of alpha (did you mean 'mean'?)",
    ),
    (
        "a name that an enum's C++ type has",
        [(ALPHA, "alpha: {scalar: enum, values: [a]}\n  alpha_type: {scalar: i32}")],
        "family.yaml:7:3: 'alpha_type' is the C++ type of 'alpha'",
    ),
    (
        "a rule with an unknown text",
        [(ALPHA, "alpha: {scalar: enum, values: [mean, sum]}"), (RULE, "alpha != maen")],
        "family.yaml:12:",
    ),
    (
        "strides of two kinds",
        [("doc: the input", "contiguous: true, strided: true")],
        "family.yaml:4:55: a tensor is contiguous or has strides, not both",
    ),
    (
        "an output like none of the inputs",
        [('N, 2)"], dtype: dtype}', 'N, 2)"], dtype: dtype, like: z}')],
        "family.yaml:5:58: 'z' is not an input that is always there",
    ),
    (
        "an output like an input of other extents",
        [('N, 2)"], dtype: dtype}', 'N, 2)"], dtype: dtype, like: x}')],
        "family.yaml:5:58: 'x' has other extents",
    ),
    (
        "an output like an input with other strides",
        [
            ("doc: the input", "strided: true"),
            ("{output: [M], dtype: f32, ", "{output: [M, N], like: x, dtype: f32, "),
        ],
        "family.yaml:6:32: 'x' may have strides that 'rows' may not",
    ),
    (
        "an invalid alignment",
        [("doc: the input", "alignment: 12")],
        "family.yaml:4:48: an alignment is a power of two, at most 1024",
    ),
    (
        "an alignment beyond what there is",
        [("doc: the input", "alignment: 2048")],
        "family.yaml:4:48: an alignment is a power of two, at most 1024",
    ),
    (
        "an alignment of what a call decides",
        [("doc: the input", "alignment: 4 * N")],
        "family.yaml:4:52: unknown name 'N'",
    ),
    (
        "an optional tensor's name for a parameter",
        [(X, MASK), ("  causal: {type: bool}", "  mask: {type: bool}")],
        "family.yaml:5:3: 'mask' is also a parameter's name",
    ),
]
GUARDED = [
    "not mask or N % K == 0",
    "N == 2 or mask and K > 1 and N % K == 0",
    "(K if mask else 2) == 2",
    "(2 if not mask else K) == 2",
    "not (mask and K > 8)",
    "not (not mask or N > 2) or N % 2 == 0",
    "not mask or other or K == 2",
    "N % K == 0 if mask or other else true",
    "not (mask or other) or N % K == 0",
    "(mask and N > 2 or other) and N % K == 0",
]


@pytest.mark.parametrize(
    ("edits", "expected"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(workspace, edits, expected) -> None:
    for old, new in edits:
        workspace.edit("family.yaml", old, new)
    result = workspace.run("check")
    assert result.status == 2
    assert expected in result.output


@pytest.mark.parametrize("rule", GUARDED)
def test_a_rule_may_name_an_extent_where_its_tensor_is_known_to_be_there(workspace, rule) -> None:
    workspace.edit("family.yaml", X, MASK + "  other: {tensor: [K], dtype: i32, optional: true}\n")
    workspace.edit("family.yaml", RULE, rule)
    result = workspace.run("regenerate")
    assert result.status == 0, result.output


def test_an_extent_that_a_required_tensor_names_too_is_known(workspace) -> None:
    workspace.edit("family.yaml", X, X + "  mask: {tensor: [N], dtype: i32, optional: true}\n")
    assert workspace.run("regenerate").status == 0


def test_packed_extents_lie_in_memory_divided(workspace) -> None:
    packed = "  w: {tensor: [M, 2 * P], dtype: u8, packed: 2}\n"
    workspace.edit("family.yaml", X, X + packed + "  v: {tensor: [M, N], dtype: i32, packed: 8}\n")
    workspace.write("reference.py", "def demo(x, w, v, alpha): ...\n")
    assert workspace.run("regenerate").status == 0
    args = (workspace.out / "demo/args.h").read_text()
    assert "ConstTensorView<2> w;  // [M, P] u8, 2 elements in each" in args
    assert "ConstTensorView<2> v;  // [M, ceil_div(N, 8)] i32, 8 elements in each" in args
    assert "std::int64_t M, N, P;" in args


def test_a_workspace_and_a_launch_may_ask(workspace) -> None:
    workspace.edit("family.yaml", X, MASK)
    workspace.edit("sm80.yaml", "grid: [", 'grid: ["K if mask else 1", ')
    workspace.edit("sm80.yaml", ", N], block", "], block")
    workspace.edit(
        "sm80.yaml",
        "sets:",
        "workspace:\n  kept: {shape: [K], dtype: f32, when: mask and rows}\nsets:",
    )
    result = workspace.run("regenerate")
    assert result.status == 0, result.output
    assert "(args.mask.data != nullptr) ? args.K : 1" in (
        (workspace.out / "demo/sm80_launch.cuh").read_text()
    )


@pytest.mark.parametrize(("M", "N", "elements"), [(2, 3, 0), (5, 6, 2), (2, 6, -2), (5, 3, -1)])
def test_a_workspace_has_no_negative_extents(workspace, M, N, elements) -> None:
    """Two make no memory of six elements."""
    kept = "workspace:\n  kept: {shape: [M - 4, N - 4], dtype: f32, when: M + N != 5}\nsets:"
    workspace.edit("cpu.yaml", "sets:", kept)
    (family,) = load([workspace.demo.parent])
    (part,) = family.targets[0].workspace
    assert part.elements.evaluate({"M": M, "N": N}) == elements


def operators(workspace) -> list[str]:
    result = workspace.run("regenerate")
    assert result.status == 0, result.output
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    return manifest["families"][0]["operators"]


def test_schemas_say_what_is_changed_and_what_may_be_left_out(workspace) -> None:
    changed = X.replace("doc:", "mutated: true, doc:")
    counts = "  counts: {tensor: [M], dtype: i32, optional: true, mutated: true}\n"
    workspace.edit("family.yaml", X, changed + counts)
    assert operators(workspace) == [
        "demo(str key, Tensor(a!) x, Tensor(b!)? counts=None, *, float? alpha=None, "
        "bool return_rows=False) -> (Tensor, Tensor)",
        "demo_out(str key, Tensor(a!) x, Tensor(b!)? counts=None, *, Tensor(c!) y, "
        "Tensor(d!)? rows=None, float? alpha=None) -> ()",
    ]
    arguments = (workspace.out / "demo/args.h").read_text()
    assert "  TensorView<2> x;" in arguments
    assert "  TensorView<1> counts;" in arguments


def test_a_family_without_outputs_has_one_operator(workspace) -> None:
    workspace.edit("family.yaml", "doc: the input", "mutated: true")
    workspace.edit(
        "family.yaml", f"  {Y}\n  rows: {{output: [M], dtype: f32, optional: true}}\n", ""
    )
    assert operators(workspace) == ["demo(str key, Tensor(a!) x, *, float? alpha=None) -> ()"]
    face = (workspace.out / "python/demo.py").read_text()
    assert "-> None:" in face
    assert "out:" not in face


def test_an_enum_scalar_is_an_enum_in_cpp(workspace) -> None:
    workspace.edit("family.yaml", ALPHA, "alpha: {scalar: enum, values: [auto, sum], default: sum}")
    workspace.edit("family.yaml", RULE, "alpha == auto or N % 2 == 0")
    assert operators(workspace)[0].endswith(
        "*, str? alpha=None, bool return_rows=False) -> (Tensor, Tensor)"
    )
    assert "  enum class alpha_type { auto_, sum } alpha;" in (
        (workspace.out / "demo/args.h").read_text()
    )
    face = (workspace.out / "python/demo.py").read_text()
    assert 'alpha: Literal["auto", "sum"] | None = None' in face
    assert "alpha: one of auto, sum, default sum" in face


def test_a_configuration_whose_alignment_is_none_is_excluded_with_the_reason(workspace) -> None:
    workspace.edit("sm80.yaml", "limits:", "alignment: 4 if warps == 1 else 4 + 4 * warps\nlimits:")
    listed = workspace.run("list", "--where", "target == sm80")
    assert listed.status == 0, listed.output
    keys = [line.split()[0] for line in listed.stdout.splitlines() if ".sm80." in line]
    assert keys
    assert all("-w1-" in key for key in keys)
    excluded = workspace.run("explain", keys[0].replace("-w1-", "-w2-"))
    assert "sm80.yaml:12:12: " in excluded.output
    assert "an alignment is a power of two, at most 1024" in excluded.output


def test_an_input_is_const_for_kernels(workspace) -> None:
    assert workspace.run("regenerate").status == 0
    assert "  ConstTensorView<2> x;" in (workspace.out / "demo/args.h").read_text()
