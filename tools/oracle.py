"""The families' references: by name, as specs name them (`reference: reference.py:attention`);
and those of HSTU's families, with what lies beside them, as modules.

No other module of tools imports Python from the specs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_specs.hstu import jagged, semantics
from kernel_specs.hstu.block_sparse import reference as block_sparse
from kernel_specs.hstu.hstu_bsa import reference as hstu_bsa
from runtime.manifest import FOLDER

from .places import SPECS

__all__ = ["block_sparse", "hstu_bsa", "jagged", "oracle", "semantics", "triton_kernels"]


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


def triton_kernels() -> Any:
    """The module of HSTU's Triton kernels. ModuleNotFoundError where Triton is not installed."""
    return importlib.import_module("kernel_specs.hstu.block_sparse.triton_kernels")
