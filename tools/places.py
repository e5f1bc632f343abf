"""Where the specs, the generated tree and the shared headers are."""

from __future__ import annotations

from pathlib import Path

_HOME = Path(__file__).resolve().parents[1]  # the checkout's root; in a wheel, kernelmint/
ROOT = _HOME if (_HOME / "kernel_specs").is_dir() else _HOME.parent
SPECS = ROOT / "kernel_specs"
GENERATED = ROOT / "generated"
INCLUDE = ROOT / "runtime" / "include"
