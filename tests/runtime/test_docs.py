"""The examples of docs/runtime.md run as they stand."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs/runtime.md"


def test_the_examples_run(capsys):
    torch.compiler.reset()
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    scope = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert "k: got dtype torch.float64" in capsys.readouterr().out
