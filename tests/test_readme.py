"""What README shows runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_spec_on_the_first_screen_says_what_is_shown_there(tmp_path) -> None:
    """Its keys, and what is answered for one that it excludes."""

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "kernelmint", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    (spec,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    assert len(spec.splitlines()) <= 10
    run("new", "scale_add")
    (tmp_path / "kernel_specs/scale_add/sm80.yaml").write_text(spec)
    keys = set(run("list").splitlines())
    shown = set(re.findall(r"scale_add\.sm80\.[\w-]+", README))
    excluded = "scale_add.sm80.bf16-t96-n1024"
    assert shown - keys == {excluded}
    lines = [f"    {line}" for line in run("explain", excluded).splitlines()[:2]]
    assert "\n".join(lines) in README


def test_the_python_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    key, _, difference = done.stdout.splitlines()[-1].split()
    assert key.startswith("flash_forward.cpu.bf16-d128-causal-")
    assert float(difference) == 0.0  # attention() took the same kernel
