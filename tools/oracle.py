"""A family's reference, as its spec names it: `reference: reference.py:attention`."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.manifest import FOLDER

SPECS = Path(__file__).resolve().parents[1] / "kernel_specs"


def oracle(family: str, specs: Path = SPECS, function: str | None = None) -> Callable[..., Any]:
    """The function that defines what `family` computes.

    Args:
        family: a family's name, as in `runtime.families()`.
        specs: the folder of families.
        function: another function of the same file.

    Raises:
        ValueError: the family names no reference, or its file is not there.
    """
    named = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))["families"]
    entry: dict[str, Any] = next((f for f in named if f["name"] == family), {})
    reference = entry.get("reference")
    if not reference:
        raise ValueError(f"family {family!r} names no reference in its family.yaml")
    file, _, named_function = reference.partition(":")
    path = specs / entry["folder"] / file
    if not path.is_file():
        raise ValueError(f"{path}: no such file; run from a checkout, where kernel_specs/ is")
    spec = importlib.util.spec_from_file_location(f"kernel_specs_{family}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function or named_function)  # type: ignore[no-any-return]  # a spec's own function
