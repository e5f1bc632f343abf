"""Where the specs, the generated tree and the shared headers are."""

from __future__ import annotations

from pathlib import Path

_HOME = Path(__file__).resolve().parents[1]  # the checkout's root; in a wheel, kernelmint/
_IN_CHECKOUT = (_HOME / "runtime").is_dir()
ROOT = _HOME if _IN_CHECKOUT else _HOME.parent
SPECS = _HOME / ("kernel_specs" if _IN_CHECKOUT else "_pack/kernel_specs")
GENERATED = ROOT / "generated"
INCLUDE = _HOME / ("runtime/include" if _IN_CHECKOUT else "include")
