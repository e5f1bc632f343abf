"""A copy of one family's specs, for tests that change them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy(folder: Path) -> Path:
    """Copies flash_forward's specs, and what its group shares, to `folder`, without the gradients
    that another family gives."""
    group, specs = ROOT / "kernel_specs/attention", folder / "attention/flash_forward"
    families = {file.parent.name for file in group.glob("*/family.yaml")}
    others = shutil.ignore_patterns(*families - {specs.name})
    shutil.copytree(group, specs.parent, ignore=others)
    family = specs / "family.yaml"
    text, count = re.subn(r"(?m)^  - when: .*\n(    .*\n)+", "", family.read_text())
    assert count == 1
    family.write_text(text)
    return specs
