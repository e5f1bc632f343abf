"""The pages on families show what is there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

from codegen.core import packs
from codegen.core.expressions import DTYPES, FUNCTIONS
from codegen.scaffold import create, create_project
from codegen.spec import schema

ROOT = Path(__file__).resolve().parents[2]


def test_adding_a_family_shows_the_files_that_new_writes(tmp_path) -> None:
    page = (ROOT / "docs/adding_a_family.md").read_text()
    blocks = re.findall(r"```\w+\n(.*?)```", page, re.DOTALL)
    for path in create("scale_add", tmp_path):
        assert path.read_text() in blocks, path.name


def test_the_page_of_headers_is_theirs() -> None:
    """If it is not: python tools/build/headers_page.py"""
    page = runpy.run_path(str(ROOT / "tools/build/headers_page.py"))["page"]()
    assert (ROOT / "docs/headers.md").read_text() == page
    for member in ("Memory* data", "T* as() const", "F32 fma(F32 a, F32 b, F32 c)"):
        assert member in page


def test_own_kernels_names_what_init_writes(tmp_path) -> None:
    page = (ROOT / "docs/own_kernels.md").read_text()
    for path in create_project("my_kernels", tmp_path / "project"):
        name = path.relative_to(tmp_path / "project").as_posix()
        folders = [f"{parent.as_posix()}/" for parent in Path(name).parents[:-1]]
        assert any(f"`{part}`" in page for part in (name, *folders)), name


def test_own_kernels_states_the_versions_of_a_pack() -> None:
    page = (ROOT / "docs/own_kernels.md").read_text()
    (abi,) = re.findall(r"kAbi = (\d+);", (ROOT / "runtime/include/library.h").read_text())
    assert f"`kAbi` in `library.h`, **{abi}** today" in page
    assert f"`FORMAT` in `codegen/core/packs.py`, **{packs.FORMAT}** today" in page


def test_the_reference_names_every_key_and_function() -> None:
    pages = ("specs", "expressions", "launches")
    page = "".join((ROOT / f"docs/{name}.md").read_text() for name in pages)
    for model in (
        schema.FamilyFile,
        schema.ChoicesFile,
        schema.Choice,
        schema.TargetFile,
        schema.Build,
        schema.PackagePath,
        schema.Budget,
        schema.SetPart,
    ):
        for key in model.model_fields:
            assert re.search(rf"\b{key}\b", page), key
    for name in (*FUNCTIONS, *DTYPES, "dtype", "int", "bool", "enum"):
        assert re.search(rf"\b{name}\b", page), name


@pytest.mark.parametrize("page", ["specs", "expressions", "launches", "adding_a_family"])
def test_examples_in_yaml_are_quoted_as_yaml_needs_it(page) -> None:
    """A comma in a text without quotes begins another key, which has no value."""

    def check(value: object) -> None:
        assert value is not None
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (dict, list)) or item is None:
                check(item)

    text = (ROOT / f"docs/{page}.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        check(yaml.safe_load(example))


@pytest.mark.parametrize("page", ["specs", "adding_a_family"])
def test_pages_name_the_dtypes_that_vectors_are_loaded_from(page) -> None:
    header = (ROOT / "runtime/include/cpu_convert.h").read_text()
    names = {"float": ["f32"], "Float8<kMantissa>": ["e4m3fn", "e5m2"]}
    loaded = re.findall(r" load\(const ([\w<>]+)\* from\)", header)
    expected = {name for written in loaded for name in names.get(written, [written])}
    text = " ".join((ROOT / f"docs/{page}.md").read_text().split())
    (told,) = re.findall(r"`cpu::load` and `cpu::store`[^;]*? (f32, [^:;.]*? and \w+)", text)
    assert set(re.findall(r"\b[a-z]+\d\w*", told)) == expected
