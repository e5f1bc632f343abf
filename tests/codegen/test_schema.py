"""The JSON Schema for editors: kept fresh, and no stricter than the loader."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_schema_in_docs_is_fresh(workspace) -> None:
    printed = workspace.run("schema").stdout
    path = ROOT / "docs/spec.schema.json"
    assert path.read_text() == printed, "kernelmint schema > docs/spec.schema.json"


def test_the_schema_is_draft_7(workspace) -> None:
    schema = json.loads(workspace.run("schema").stdout)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    text = json.dumps(schema)
    for newer in ("prefixItems", "dependentSchemas", "unevaluatedProperties", "$anchor"):
        assert newer not in text
    for reference in text.split('"$ref": "')[1:]:
        name = reference.split('"')[0]
        assert name.removeprefix("#/$defs/") in schema["$defs"]


def test_every_key_of_every_spec_is_in_the_schema(workspace) -> None:
    definitions = json.loads(workspace.run("schema").stdout)["$defs"]
    assert {
        "family", "arguments", "parameters", "derived", "requires", "trace", "build", "summary",
        "reference", "gradient", "shards", "operations", "front",
    } == set(definitions["FamilyFile"]["properties"])  # fmt: skip
    assert set(definitions["ChoicesFile"]["properties"]) == {"choices"}
    assert set(definitions["TunedFile"]["properties"]) == {"tuned"}
    assert set(definitions["ShapesFile"]["properties"]) == {"shapes", "cost"}
    assert {"target", "kernel", "constraints", "derived", "limits", "launch", "sets"} <= set(
        definitions["TargetFile"]["properties"]
    )
    assert all(
        definition.get("additionalProperties") is False
        for name, definition in definitions.items()
        if definition.get("type") == "object"
    )
