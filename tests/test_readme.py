"""What README shows is what is there. That its commands and its example run: test_commands.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from codegen import scaffold

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_spec_and_what_is_said_of_an_excluded_key_are_those_of_a_new_family(tmp_path) -> None:
    scaffold.create("scale_add", tmp_path / "kernel_specs")
    spec = (tmp_path / "kernel_specs/scale_add/sm80.yaml").read_text()
    assert f"```yaml\n{spec}```" in README
    explain = [sys.executable, "-m", "kernelmint", "explain", "scale_add.sm80.bf16-t96-n1024"]
    done = subprocess.run(explain, cwd=tmp_path, capture_output=True, text=True, check=False)
    shown = re.findall(r"^    \$ kernelmint explain .*\n((?:    .*\n)+)", README, re.MULTILINE)
    assert len(shown) == 1
    assert re.sub("^    ", "", shown[0], flags=re.MULTILINE) in done.stdout
