"""Configuration <-> key, exactly, both ways; and the C++ types that are named after keys."""

from __future__ import annotations

import json
import re

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from codegen.core.expressions import DTYPES
from codegen.core.nearest import nearest
from codegen.core.problems import Location
from codegen.spec.checks import confusable
from codegen.spec.keys import (
    KeyFormatError,
    parse_tokens,
    symbol_fragment,
    tokens_of,
)
from codegen.spec.model import Parameter, ParameterType
from codegen.spec.names import CPP_KEYWORDS, cpp_type_name, taken

tokens = st.from_regex(r"[a-z][a-z0-9]{0,3}", fullmatch=True)
PLACE = Location("spec.yaml", 1, 1)


def parameter(name, kind, token, values=None) -> Parameter:
    return Parameter(
        name=name, type=ParameterType(kind), token=token, values=values, default=None, doc="",
        location=PLACE,
    )  # fmt: skip


@st.composite
def parameters(draw) -> list[Parameter]:
    """A list of parameters that a spec could have: the checks that loading makes hold."""
    result: list[Parameter] = []
    for i in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["dtype", "int", "bool", "enum"]))
        token = draw(tokens) if kind in ("int", "bool") else None
        values = tuple(draw(st.sets(tokens, min_size=1, max_size=3))) if kind == "enum" else None
        result.append(parameter(f"p{i}", kind, token, values))
    for i, later in enumerate(result):
        assume(not any(confusable(earlier, later) for earlier in result[:i]))
    return result


@st.composite
def configurations(draw, of: list[Parameter]):
    kinds = {
        "dtype": lambda p: st.sampled_from(DTYPES),
        "int": lambda p: st.integers(-(2**31) + 1, 2**31 - 1),
        "bool": lambda p: st.booleans(),
        "enum": lambda p: st.sampled_from(p.values),
    }
    return tuple(draw(kinds[p.type.value](p)) for p in of)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_a_key_gives_back_its_configuration(data) -> None:
    known = data.draw(parameters())
    values = data.draw(configurations(known))
    text = tokens_of(known)(values)
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*", text)
    assert parse_tokens(known, text) == values


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_a_text_that_parses_is_the_key_of_what_it_parses_to(data) -> None:
    known = data.draw(parameters())
    pieces = [p.token or "" for p in known] + [v for p in known for v in p.values or ()]
    pieces += ["0", "1", "01", "m1", "m0", "-", "-", "-", "bf16", "default", "x"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=12)))
    try:
        values = parse_tokens(known, text)
    except KeyFormatError:
        return
    assert tokens_of(known)(values) == text


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_two_configurations_never_share_a_key_or_a_type(data) -> None:
    known = data.draw(parameters())
    a, b = data.draw(configurations(known)), data.draw(configurations(known))
    write = tokens_of(known)
    assert (write(a) == write(b)) == (a == b)
    names = taken(p.name for p in known)
    assert (cpp_type_name(write(a), names) == cpp_type_name(write(b), names)) == (a == b)
    assert cpp_type_name(write(a), names) not in CPP_KEYWORDS


@pytest.mark.parametrize(
    "text", ["r064", "r-5", "rm0", "r", "r5-", "-r5", "r5-r5", "R5", "r5 ", ""]
)
def test_only_the_canonical_form_is_a_key(text) -> None:
    known = [parameter("B_r", "int", "r")]
    with pytest.raises(KeyFormatError):
        parse_tokens(known, text)


def test_negative_ints() -> None:
    known = [parameter("B_r", "int", "r")]
    assert tokens_of(known)((-5,)) == "rm5"
    assert parse_tokens(known, "rm5") == (-5,)


def test_no_token_at_all_is_default() -> None:
    known = [parameter("causal", "bool", "causal")]
    assert tokens_of(known)((False,)) == "default"
    assert parse_tokens(known, "default") == (False,)
    assert cpp_type_name("default", taken(())) == "default_"


@pytest.mark.parametrize("tokens", ["bf16", "key", "std", "kernelmint", "causal", "mode_type"])
def test_a_type_hides_no_name_that_its_own_members_use(tokens) -> None:
    names = taken(("causal", "mode", "mode_type"))
    assert cpp_type_name(tokens, names) == f"{tokens}_"
    assert cpp_type_name(f"{tokens}-r1", names) == f"{tokens}_r1"


def test_a_mangled_name_holds_the_length_prefixed_type() -> None:
    assert symbol_fragment("flash_forward", "sm80", "bf16_d128_r64") == (
        "7configs13flash_forward4sm8013bf16_d128_r64E"
    )


# ---- list and explain


def test_list_prints_keys_in_spec_order_and_writes_nothing(workspace) -> None:
    result = workspace.run("list", "--where", "target == 'cpu'")
    assert result.status == 0
    assert result.stdout.splitlines() == [
        f"demo.cpu.{dtype}{causal}-t64"
        for dtype in ("bf16", "fp16", "f32")
        for causal in ("", "-causal")
    ]
    assert result.stderr == "6 demo.cpu\n"
    assert not workspace.out.exists()


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("threads == 64", 2 * 2 * 3),
        ("causal and dtype == bf16 and target == 'sm80'", 11),
        ("family == 'demo' and tile == 64 and mode == 'auto'", 16),
        ("target == cpu or warps == 1", 6 + 12),
    ],
)
def test_where_knows_parameters_derived_values_family_and_target(workspace, where, count) -> None:
    result = workspace.run("list", "--where", where)
    assert result.status == 0, result.output
    assert len(result.stdout.splitlines()) == count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "tile == 7"], "no configuration of the set 'default' matches --where"),
        (["--where", "tyle == 7"], "unknown name 'tyle' (did you mean 'tile'?)"),
        (["--where", "tile =="], "not an expression"),
        (["--where", "tile"], "'tile' must be true or false"),
        (["--where", "dtype == 'bf61'"], "'bf61' is not among its values (did you mean 'bf16'?)"),
        (["--where", "1 // (tile - 64) == 0"], "has no value for demo.cpu.bf16-t64"),
        (["--set", "defalt"], "no target has a set 'defalt' (did you mean 'default'?)"),
    ],
)
def test_zero_matches_is_an_error(workspace, arguments, message) -> None:
    result = workspace.run("list", *arguments)
    assert result.status == 2
    assert message in result.stderr


def test_list_json(workspace) -> None:
    import json

    entries = json.loads(workspace.run("list", "--set", "small", "--json").stdout)
    assert entries == [
        {
            "key": "demo.sm80.bf16-t32-w1-split",
            "family": "demo",
            "target": "sm80",
            "parameters": {
                "dtype": "bf16", "causal": False, "tile": 32, "warps": 1, "mode": "split",
            },
            "derived": {"threads": 32},
        }
    ]  # fmt: skip


def test_explain_a_built_key(workspace) -> None:
    workspace.run("regenerate")
    result = workspace.run("explain", "demo.sm80.bf16-causal-t64-w2-auto")
    assert result.status == 0
    first, *values = result.stdout.splitlines()
    assert re.fullmatch(
        r"demo\.sm80\.bf16-causal-t64-w2-auto is built: demo/sm80_\d+\.cu, "
        "in set default",
        first,
    )
    assert "  threads = 64" in values
    assert "  causal = true" in values


def test_explain_an_excluded_key(workspace) -> None:
    result = workspace.run("explain", "demo.sm80.f32-t9-w16-auto")
    assert result.status == 1
    assert result.stdout.splitlines()[:4] == [
        "demo.sm80.f32-t9-w16-auto is excluded:",
        "  kernel_specs/demo/sm80.yaml:8:5: dtype != f32: the matrix units take 16-bit numbers",
        "  kernel_specs/demo/sm80.yaml:9:5: tile % (8 * warps) == 0: every warp owns whole tiles",
        "  kernel_specs/demo/sm80.yaml:12:10: threads <= 256: threads is at most 256 on sm80",
    ]


def test_explain_a_valid_key_that_is_in_no_set(workspace) -> None:
    key = "demo.sm80.bf16-t256-w1-auto"
    result = workspace.run("explain", key)
    assert result.status == 0
    entry = "  - {dtype: bf16, causal: false, tile: 256, warps: 1, mode: auto}"
    assert f"{key} is valid, but in no set; add to a set of kernel_specs/demo/sm80.yaml" in (
        result.stdout
    )
    assert entry in result.stdout.splitlines()
    # The YAML it prints is the YAML that builds it.
    workspace.edit("sm80.yaml", "  default:\n", f"  default:\n  {entry}\n")
    assert key in workspace.run("list").stdout.splitlines()
    assert workspace.run("regenerate").status == 0
    assert "is built" in workspace.run("explain", key).stdout


def test_explain_a_key_that_a_product_prunes(workspace) -> None:
    product = "mode: [auto]}\n"
    rule = "      prune: [{that: tile != 64, because: 64 is slow}]\n"
    workspace.edit("sm80.yaml", product, product + rule)
    result = workspace.run("explain", "demo.sm80.bf16-t64-w1-auto")
    assert result.status == 0
    reason = "kernel_specs/demo/sm80.yaml:17:15: tile != 64: 64 is slow"
    assert f"the set default prunes it: {reason}" in result.stdout


def test_explain_a_key_of_another_set(workspace) -> None:
    workspace.run("regenerate")
    result = workspace.run("explain", "demo.sm80.bf16-t32-w1-split")
    assert result.status == 0
    assert "is in set small, but not in the generated tree" in result.stdout
    assert "kernelmint regenerate --set small" in result.stdout


@pytest.mark.parametrize(
    ("key", "messages"),
    [
        ("dem.cpu.f32-t64", ["there is no family 'dem' (did you mean 'demo'?)", "demo.cpu.f32"]),
        ("demo.cpy.f32-t64", ["demo has no target 'cpy' (did you mean 'cpu'?)"]),
        ("demo.cpu.f23-t64", ["got 'f23', expected dtype (bf16, fp16, f32)"]),
        ("demo.cpu.f32-causl-t64", ["got 'causl', expected tile (t<number>)",
                                    "demo.cpu.f32-causal-t64"]),
        ("demo.cpu.f32", ["it ends before tile (t<number>)"]),
        ("demo.cpu.f32-t64-x", ["'x' is unknown, or not in its place"]),
        ("nonsense", ["a key is family.target.tokens"]),
    ],
)  # fmt: skip
def test_explain_an_unknown_or_misspelt_key(workspace, key, messages) -> None:
    result = workspace.run("explain", key)
    assert result.status == 2
    assert "Traceback" not in result.output
    for message in [*messages, "the nearest keys of the default sets:"]:
        assert message in result.stderr


@pytest.mark.parametrize(
    ("key", "code", "status", "facts"),
    [
        ("demo.sm80.bf16-causal-t64-w2-auto", 0, "built", {"sets": ["default"]}),
        ("demo.sm80.f32-t9-w16-auto", 1, "excluded", {"family": "demo", "target": "sm80"}),
        ("demo.sm80.bf16-t256-w1-auto", 0, "valid", {"command": "kernelmint regenerate"}),
        ("demo.sm80.bf16-t32-w1-split", 0, "in_set", {"sets": ["small"]}),
        ("demo.cpu.f32", 2, "unknown", {"reasons": ["it ends before tile (t<number>)"]}),
    ],
)
def test_explain_as_json(workspace, key, code, status, facts) -> None:
    workspace.run("regenerate")
    result = workspace.run("explain", key, "--json")
    found = json.loads(result.stdout)
    assert (result.status, found["status"], found["key"]) == (code, status, key)
    assert facts.items() <= found.items()


KNOWN = [
    *(f"rms_norm.sm80.bf16-n{n}-w4" for n in (240, 409, 1024, 4096, 40960)),
    "rms_norm.sm80.fp16-n4096-w4",
    "rms_norm.cpu.bf16-n4096-w4",
    "soft_max.sm80.bf16-n4096-w4",
]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        # by number, not by spelling: 409 and 40960 are spelt more like 4097
        ("rms_norm.sm80.bf16-n4097-w4", ["bf16-n4096-w4", "bf16-n1024-w4", "bf16-n409-w4"]),
        ("rms_norm.sm80.bf16-n200-w4", ["bf16-n240-w4", "bf16-n409-w4", "bf16-n1024-w4"]),
        # one parameter that differs before two
        ("rms_norm.sm80.fp16-n4096-w8", ["fp16-n4096-w4", "bf16-n4096-w4", "bf16-n1024-w4"]),
        ("rms_norn.sm80.f32-n240-w4", ["bf16-n240-w4", "bf16-n409-w4", "bf16-n1024-w4"]),
    ],
)
def test_the_nearest_keys_are_those_of_the_nearest_parameters(key, near) -> None:
    assert nearest(key, KNOWN) == [f"rms_norm.sm80.{tokens}" for tokens in near]
    assert nearest("rms_norm.cpu.bf16-n1-w4", KNOWN, 1) == ["rms_norm.cpu.bf16-n4096-w4"]


def test_of_a_large_set_one_kernel_is_built_alone(workspace) -> None:
    """No tree of hundreds is advised for the sake of one."""
    workspace.edit("sm80.yaml", "  small:", "  large:\n    - product: {tile: [" + ", ".join(
        str(16 * n) for n in range(1, 60)
    ) + "], warps: [1, 2], mode: [split]}\n  small:")  # fmt: skip
    assert workspace.run("regenerate").status == 0
    key = "demo.sm80.bf16-t48-w1-split"
    result = workspace.run("explain", key)
    assert result.status == 0
    first, command, *others = result.stdout.splitlines()
    assert first == f"{key} is in set large; build it alone, into the cache:"
    assert command == f"  kernelmint build kernel_specs/demo --key {key}"
    assert "(`kernelmint regenerate --set large` writes " in others[-1]
    details = json.loads(workspace.run("explain", key, "--json").stdout)
    assert (details["status"], details["command"]) == ("in_set", command.strip())
