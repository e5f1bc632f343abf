"""The pages on families show what is there."""

from __future__ import annotations

import re
from pathlib import Path

from codegen.scaffold import create
from codegen.spec import schema
from codegen.spec.expressions import DTYPES, FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]


def test_adding_a_family_shows_the_files_that_new_writes(tmp_path) -> None:
    page = (ROOT / "docs/adding_a_family.md").read_text()
    blocks = re.findall(r"```\w+\n(.*?)```", page, re.DOTALL)
    for path in create("scale_add", tmp_path):
        assert path.read_text() in blocks, path.name


def test_specs_names_every_key_and_function() -> None:
    page = (ROOT / "docs/specs.md").read_text()
    for model in (
        schema.FamilyFile,
        schema.ChoicesFile,
        schema.Choice,
        schema.TargetFile,
        schema.Budget,
        schema.SetPart,
    ):
        for key in model.model_fields:
            assert re.search(rf"\b{key}\b", page), key
    for name in (*FUNCTIONS, *DTYPES, "dtype", "int", "bool", "enum"):
        assert re.search(rf"\b{name}\b", page), name
