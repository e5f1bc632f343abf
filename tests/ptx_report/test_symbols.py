"""Symbols to keys, exactly; names for people."""

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.core.ptxas_rows import Row
from codegen.core.symbols import arguments_of_symbol, kernel_of_symbol, key_of_symbol
from tests.ptx_report.samples import DATA, read
from tools.ptx_report import demangle as names
from tools.ptx_report.diff import compare
from tools.ptx_report.report import Report

WORD = st.from_regex(r"[a-z][a-z0-9]{0,12}", fullmatch=True)
NAME = st.lists(WORD, min_size=1, max_size=4).map("_".join)


def encoded(name):
    return f"{len(name)}{name}"


@given(NAME, NAME, st.lists(WORD, min_size=1, max_size=20), st.booleans(), st.booleans())
def test_a_key_comes_back_from_its_symbol(family, target, tokens, inside, more):
    type_name = encoded(family) + encoded(target) + encoded("_".join(tokens)) + "E"
    key = f"{family}.{target}.{'-'.join(tokens)}"
    extra = "Li64E" if more else ""
    if inside:  # the kernel's own namespace: kernelmint repeats as S_
        symbol = f"_ZN10kernelmint{encoded(family)}{encoded('k')}INS_7configs{type_name}{extra}EEvv"
    else:
        symbol = f"_ZN5other{encoded('k')}IN10kernelmint7configs{type_name}{extra}EEvv"
    assert key_of_symbol(symbol) == key
    assert kernel_of_symbol(symbol) == "k"
    assert Row(symbol).arguments == (["64"] if more else [])
    # Whatever part of it is left, no other key comes out.
    for end in range(len(symbol)):
        assert key_of_symbol(symbol[:end]) in (None, key)


@pytest.mark.parametrize(
    "symbol",
    [
        "plain_c",
        "_Z4kernPf",
        "_ZN4attn3fwdI13__nv_bfloat16Li128ELi16ELb0EEEvPKT_S4_S4_PS2_if",
        "_ZN7configs13flash_forward4sm8027bf16_d128_causal_r64_c64_w4E",
        "_ZN3abcINS_7configs13flash_forward4sm8027bf16_d128_causal_r64_c64_w4EEEvv",
        "_ZN10kernelmint7configs13flash_forward4sm8099short",
        "_ZN10kernelmint7configs0a0b0cE",
        "10kernelmint7configs",
        "",
    ],
)
def test_other_symbols_have_no_key(symbol):
    assert key_of_symbol(symbol) is None


# Of data/src/namespaces.cu, by nvcc 13.0.
COMPRESSED = [
    "_ZN5other4deep6deeper5thirdIN10kernelmint3TagENS_6HolderINS3_3BoxIPfEEEENS3_7configs3fam4sm808bf16_d64EEEvPT_T0_",
    "_ZN5other4packIJN10kernelmint7configs3fam4sm808bf16_d64ENS1_3TagEEEEvv",
    "_ZN5other15with_parametersINS_3OwnEN10kernelmint7configs3fam4sm808bf16_d64EEEvPT_PKT0_",
    "_ZN5other6secondIN10kernelmint7configs5LooseENS2_3fam4sm808bf16_d64EEEvv",
    "_ZN5other6secondIN10kernelmint3BoxINS_3OwnEEENS1_7configs3fam4sm808bf16_d64EEEvv",
    "_ZN5other6secondIN10kernelmint3TagENS1_7configs3fam4sm808bf16_d64EEEvv",
    "_ZN5other5firstINS_6HolderIN10kernelmint7configs3fam4sm808bf16_d64EEEEEvv",
    "_ZN10kernelmint3fam7at_homeINS_7configs3fam4sm808bf16_d64EEEvv",
    "_ZN10kernelmint7configs24among_the_configurationsINS0_3fam4sm808bf16_d64EEEvv",
    "_Z22in_no_namespace_secondIN10kernelmint3TagENS0_7configs3fam4sm808bf16_d64EEvv",
]


@pytest.mark.parametrize("symbol", COMPRESSED)
def test_a_key_is_found_under_any_substitution(symbol):
    assert key_of_symbol(symbol) == "fam.sm80.bf16-d64"
    declaration = names.demangle([symbol])[symbol]
    assert key_of_symbol(declaration) == "fam.sm80.bf16-d64"
    assert kernel_of_symbol(declaration) == kernel_of_symbol(symbol)


def test_a_type_that_may_not_have_its_tokens_name_has_the_same_key():
    """In a symbol `bf16` means the dtype, and `default` is a word of C++."""
    for tokens in ("bf16", "default"):
        name = f"{len(tokens) + 1}{tokens}_"
        symbol = f"_ZN10kernelmint3fam4scanINS_7configs3fam4sm80{name}ELi3EEEvv"
        key = f"fam.sm80.{tokens}"
        assert key_of_symbol(symbol) == key_of_symbol(names.demangle([symbol])[symbol]) == key
        assert arguments_of_symbol(symbol, key) == ["3"]


@pytest.mark.parametrize(
    "symbol",
    [
        # abc::configs, and abc::kernelmint's first namespace: what S_ and S0_ stand for is certain.
        "_ZN3abc1kIN10kernelmint3TagENS_7configs3fam4sm808bf16_d64EEEvv",
        "_ZN3abc3def1kIN10kernelmint3TagENS0_7configs3fam4sm808bf16_d64EEEvv",
        # kernelmint::detail::sm80::scale
        "_ZN5other1kIN10kernelmint3TagENS1_6detail4sm805scaleEEEvv",
        "_ZN5other1kIN10kernelmint7configs5LooseENS1_6detail5inner5scaleEEEvv",
    ],
)
def test_other_names_of_our_namespace_are_no_keys(symbol):
    assert key_of_symbol(symbol) is None


def test_nvcc_names_a_configuration_in_every_namespace():
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc on PATH")
    source = DATA / "src" / "namespaces.cu"
    command = [nvcc, "-std=c++20", "-arch=sm_80", "-Xptxas", "-v", "-c", source, "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, check=True)
    rows = [row for row in read(done.stderr) if row.kind == "kernel"]
    instantiated = source.read_text().count("\ntemplate __global__ void ")
    assert len(rows) == instantiated + 1  # and `hidden`
    assert {row.key for row in rows} == {"fam.sm80.bf16-d64"}
    # What one configuration has of one template goes by the arguments beside it.
    assert {(row.kernel, *row.arguments) for row in rows} >= {
        ("first",),
        ("second", "Tag"),
        ("second", "Box<Own>"),
        ("third", "Tag", "Holder<Box<float*>>"),
        ("instance", "3", "true", "float", "1"),
        ("instance", "-12", "false", "Box<Tag>", "0"),
    }


def test_two_kernels_of_one_template_are_told_apart_in_reports():
    template = "_ZN10kernelmint3fam7combineINS_7configs3fam4sm808bf16_d64ELi8ELi{}EEEvv"
    rows = [Row(template.format(n), arch="sm_80", used_registers=n) for n in (3, 4)]
    other = Row(template.replace("7combine", "4fill").format(3), arch="sm_80")
    report = Report([*rows, other])
    assert list(map(report.function, report.rows)) == ["combine<3>", "combine<4>", "fill"]
    assert {change.verdict for change in compare(rows, rows[::-1])} == {"same"}


NAMES = [
    ("_Z4kernPfi", "kern(float*, int)"),
    ("plain_c", "plain_c"),
    (
        "_ZN39_GLOBAL__N__b00f04da_7_misc_cu_e3d5275c6hiddenEPf",
        "(anonymous namespace)::hidden(float*)",
    ),
    ("_Z3fwdILi128ELb0EEvPf", "void fwd<128, false>(float*)"),
    ("_Z3fwdILin3EEvPf", "void fwd<-3>(float*)"),
    ("_Zgarbled", "_Zgarbled"),
    # A class-type template value.
    (
        "_ZN4attn4kcfgIXtlNS_3CfgEtlNS_4TileELi64ELi32ELb1EELNS_4ModeE1EEEfEEvPT0_",
        "void attn::kcfg<attn::Cfg{attn::Tile{64, 32, true}, (attn::Mode)1}, float>(float*)",
    ),
]


@pytest.mark.parametrize(("symbol", "name"), NAMES)
def test_names(symbol, name):
    pytest.importorskip("pycxxfilt")
    assert names.demangle([symbol]) == {symbol: name}


def test_the_hash_of_a_file_is_not_part_of_a_name():
    one = "_ZN39_GLOBAL__N__b00f04da_7_misc_cu_e3d5275c6hiddenEPf"
    two = "_ZN39_GLOBAL__N__0123abcd_7_misc_cu_0123abcd6hiddenEPf"
    assert names.without_hash(one) == names.without_hash(two) == "_ZN12_GLOBAL__N_16hiddenEPf"


def doubling(depth):
    """A mangled name whose every type names the one before twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    types = "".join(f"S_IS{digits[i]}_S{digits[i]}_E" for i in range(depth))
    return f"_Z4kern1aIiiE{types}"


@pytest.mark.parametrize(
    "hostile",
    [doubling(16), doubling(35), "_Z4kern" + "P" * 160_000 + "i"],
    ids=["a long name", "a slow name", "a deep name"],
)
def test_a_name_that_takes_too_much_stays_and_the_others_are_read(hostile):
    pytest.importorskip("pycxxfilt")
    symbols = ["_Z4kernPfi", hostile, "_Z5otherv"]
    assert names.demangle(symbols) == dict(
        zip(symbols, ["kern(float*, int)", hostile, "other()"], strict=True)
    )


def test_so_many_names_that_take_too_much_end_it():
    hostile = [doubling(depth) for depth in range(24, 36)]
    assert names.demangle(hostile) == {symbol: symbol for symbol in hostile}


@pytest.mark.parametrize("blocked", [["pycxxfilt"], ["pycxxfilt", "cxxfilt"]])
def test_without_the_libraries(blocked, tmp_path, monkeypatch):
    pytest.importorskip("cxxfilt")
    for name in blocked:
        (tmp_path / f"{name}.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    expected = "kern(float*, int)" if len(blocked) == 1 else "_Z4kernPfi"
    assert names.demangle(["_Z4kernPfi"]) == {"_Z4kernPfi": expected}
