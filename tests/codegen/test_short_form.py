"""Configuration <-> short form, exactly, both ways, and where the commands take and print it."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from codegen.core.problems import Location
from codegen.spec import short_form
from codegen.spec.keys import KeyFormatError
from codegen.spec.model import Feature, Parameter, ParameterType, ShortForm

PLACE = Location("spec.yaml", 1, 1)
words = st.from_regex(r"[a-z][a-z0-9]{0,3}(_[a-z][a-z0-9]{0,2}){0,2}", fullmatch=True)
ints = st.integers(-(10**9), 10**9)


def parameter(name, kind, values=None) -> Parameter:
    return Parameter(
        name=name, type=ParameterType(kind), token=None, values=values, default=None, doc="",
        location=PLACE,
    )  # fmt: skip


# What flash_forward's sm80 says.
NAMES = ["dtype", "d_head", "causal", "B_r", "n_warps", "async_copy", "Q", "K", "buffer"]
KINDS = ["dtype", "int", "bool", "int", "int", "bool", "int", "int", "bool"]
SEED = SimpleNamespace(
    family="flash_forward",
    name="sm80",
    parameters=[parameter(n, k) for n, k in zip(NAMES, KINDS, strict=True)],
    short=ShortForm(
        ("dtype", "d_head", "B_r", "n_warps"),
        (
            Feature("async", ("async_copy",)),
            Feature("load_{}_{}_tiles", ("Q", "K")),
            Feature("buffer", ("buffer",)),
            Feature("causal", ("causal",)),
        ),
    ),
)


def named(target, values):
    return {p.name: value for p, value in zip(target.parameters, values, strict=True)}


VALUES = ("fp16", 128, False, 64, 4, True, 0, 2, True)
TEXT = "(FP16, 128, 64, 4): async+load_0_2_tiles+buffer"


def test_the_form_is_the_seeds() -> None:
    assert short_form.write(SEED, named(SEED, VALUES)) == TEXT
    assert short_form.parse(SEED, TEXT) == VALUES


@st.composite
def targets(draw):
    """A target with a short form that loading would accept."""
    patterns = draw(st.lists(words, unique=True, max_size=5))
    parameters, values, features = [], [], []
    for i in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["dtype", "int", "enum"]))
        parameters.append(parameter(f"v{i}", kind, ("auto", "wide") if kind == "enum" else None))
        values.append(f"v{i}")
    for i, pattern in enumerate(patterns):
        holes = draw(st.integers(0, 3))
        names = tuple(f"f{i}{j}" for j in range(max(1, holes)))
        kind = "int" if holes else "bool"
        parameters += [parameter(name, kind) for name in names]
        features.append(Feature("_".join([pattern, *["{}"] * holes]), names))
    order = draw(st.permutations(parameters))
    return SimpleNamespace(
        family="f", name="t", parameters=order, short=ShortForm(tuple(values), tuple(features))
    )


def configuration(draw, target):
    kinds = {
        "dtype": st.sampled_from(["bf16", "fp16", "f32"]),
        "int": ints,
        "bool": st.booleans(),
        "enum": st.sampled_from(["auto", "wide"]),
    }
    return tuple(draw(kinds[p.type.value]) for p in target.parameters)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data(), st.randoms(use_true_random=False))
def test_a_short_form_gives_back_its_configuration_however_it_is_spaced(data, dice) -> None:
    target = data.draw(targets())
    values = configuration(data.draw, target)
    text = short_form.write(target, named(target, values))
    assert short_form.is_short(text)
    assert short_form.parse(target, text) == values
    head, _, features = text.partition(":")
    shuffled = features.split("+")
    dice.shuffle(shuffled)
    other = f"  {head.lower().replace(', ', ' ,')} :{' + '.join(shuffled).upper()} "
    assert short_form.parse(target, other) == values


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_two_configurations_never_share_a_short_form(data) -> None:
    target = data.draw(targets())
    a, b = configuration(data.draw, target), configuration(data.draw, target)
    short = [short_form.write(target, named(target, values)) for values in (a, b)]
    assert (short[0] == short[1]) == (a == b)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.integers(0, 2**32))
def test_a_damaged_short_form_is_refused_or_means_something_else(seed) -> None:
    dice = random.Random(seed)
    at = dice.randrange(len(TEXT))
    text = TEXT[:at] + dice.choice("(),:+_0129ab") + TEXT[at + dice.randint(0, 2) :]
    try:
        values = short_form.parse(SEED, text)
    except KeyFormatError:
        return
    written = short_form.write(SEED, named(SEED, values))
    assert short_form.parse(SEED, written) == values
    assert "".join(sorted(written.lower().replace(" ", ""))) == "".join(
        sorted(text.lower().replace(" ", ""))
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(FP16, 128, 64): load_0_2_tiles", "got 3 values in the parentheses, expected dtype"),
        ("(FP17, 128, 64, 4): load_0_2_tiles", "got 'fp17', expected dtype"),
        ("(FP16, x, 64, 4): load_0_2_tiles", "got 'x', expected d_head, an integer"),
        ("(FP16, 128, 64, 4): async", r"it lacks load_\{\}_\{\}_tiles"),
        ("(FP16, 128, 64, 4)", r"it lacks load_\{\}_\{\}_tiles"),
        (
            "(FP16, 128, 64, 4): load_0_2_tiles+asink",
            "feature 'asink'.*did you mean 'async'",
        ),
        ("(FP16, 128, 64, 4): load_0_02_tiles", "unknown feature 'load_0_02_tiles'"),
        ("(FP16, 128, 64, 4): load_0_0_tiles+load_0_2_tiles", "is given twice"),
        ("(FP16, 128, 64, 4): async+async+load_0_0_tiles", "is given twice"),
        ("(FP16, 128, 64, 4) load_0_0_tiles", "a short form is"),
        ("FP16, 128, 64, 4: load_0_0_tiles", "a short form is"),
    ],
)
def test_what_is_wrong_is_said(text, why) -> None:
    with pytest.raises(KeyFormatError, match=why):
        short_form.parse(SEED, text)


SHORT = """\
short:
  values: [dtype, tile, mode]
  features: {"{}_warps": [warps], causal: causal}
"""


@pytest.fixture
def short(workspace):
    workspace.edit("sm80.yaml", "budget:", SHORT + "budget:")
    return workspace


def test_list_prints_short_forms(short) -> None:
    done = short.run("list", "--short", "--set", "small")
    assert done.stdout == "(BF16, 32, split): 1_warps\n"
    entries = json.loads(short.run("list", "--json", "--set", "small").stdout)
    assert [entry["short"] for entry in entries] == ["(BF16, 32, split): 1_warps"]


def test_a_target_without_a_short_form_lists_keys(short) -> None:
    done = short.run("list", "--short", "--where", "target == 'cpu' and dtype == f32")
    assert done.stdout.splitlines() == ["demo.cpu.f32-t64", "demo.cpu.f32-causal-t64"]


def test_explain_takes_a_short_form(short) -> None:
    done = short.run("explain", "(bf16,32,split):1_warps")
    assert "demo.sm80.bf16-t32-w1-split is in set small" in done.output
    done = short.run("explain", "(BF16, 32, slit): 1_warps")
    assert done.status == 2
    assert "got 'slit', expected mode (auto, split)" in done.output


def test_the_manifest_holds_them(short) -> None:
    short.run("regenerate")
    manifest = json.loads((short.out / "manifest.json").read_text())
    by_target = {t["name"]: t["kernels"] for t in manifest["families"][0]["targets"]}
    assert not any("short" in kernel for kernel in by_target["cpu"])
    assert by_target["sm80"][0]["short"] == "(BF16, 32, auto): 1_warps"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tile, mode]", "mode]", "each parameter is named exactly once; look at tile"),
        ("tile, mode]", "tile, mode, warps]", "exactly once; look at warps"),
        ("tile, mode]", "tile, mode, causal]", "'causal' is a bool: it is a feature"),
        ("[warps]", "[wraps]", "unknown parameter 'wraps' (did you mean 'warps'?)"),
        ("[warps]", "[warps, tile]", "1 {} stand for 2 parameters"),
        ("[warps]", "warps", "1 {} stand for 1 parameters"),
        ("causal: causal", "causal: warps", "'warps' is not a bool"),
        ("causal: causal", "Causal: causal", "a feature is lower-case words"),
    ],
)
def test_a_wrong_short_form_in_the_spec_is_reported_in_its_place(short, old, new, said) -> None:
    short.edit("sm80.yaml", old, new)
    done = short.run("list")
    assert done.status == 2
    assert said in done.output
    line = next(line for line in done.output.splitlines() if said in line)
    assert line.startswith("kernel_specs/demo/sm80.yaml:")


def test_a_default_stands_in_for_a_parameter_that_sets_leave_out(workspace) -> None:
    workspace.edit("family.yaml", "causal: {type: bool}", "causal: {type: bool, default: false}")
    keys = workspace.run("list", "--where", "target == 'cpu'").stdout.splitlines()
    assert keys == ["demo.cpu.bf16-t64", "demo.cpu.fp16-t64", "demo.cpu.f32-t64"]
    keys = workspace.run("list", "--where", "target == 'sm80'").stdout.splitlines()
    assert keys
    assert not [key for key in keys if "causal" in key]
    workspace.edit("cpu.yaml", "{tile: 64}", "{tile: 64, causal: true, dtype: f32}")
    keys = workspace.run("list", "--where", "target == 'cpu'").stdout.splitlines()
    assert keys == ["demo.cpu.f32-causal-t64"]


def test_a_default_is_a_value_of_its_parameter(workspace) -> None:
    workspace.edit("family.yaml", "causal: {type: bool}", "causal: {type: bool, default: 1}")
    done = workspace.run("list")
    assert done.status == 2
    assert "family.yaml:10:33: 1 is not a bool" in done.output
