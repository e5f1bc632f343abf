"""The tensors that both sides have of each block of keys: the record of flash_forward's `trace:`.

`simulate` in flash_forward's reference.py yields them under the same names, in the same order.
"""

from __future__ import annotations

from runtime import manifest

from ..selection import FAMILY

_AXES = {"B_r": "row", "B_c": "key", "d_head": "d"}
_TRACE = manifest.family(FAMILY).trace
assert _TRACE is not None

STEP = tuple(tensor.name for tensor in _TRACE.record)
FINAL = "O_final"  # after the last block: O / L
DIMS = {t.name: tuple(_AXES[extent] for extent in t.shape) for t in _TRACE.record}
DIMS[FINAL] = ("row", "d")
