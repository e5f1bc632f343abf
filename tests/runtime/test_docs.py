"""The examples of docs/runtime.md and docs/models.md run as they stand."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "least", "printed"),
    [
        ("runtime.md", 5, "k: got dtype torch.float64"),
        ("models.md", 2, "Calls(ours=1, pytorch={})"),
    ],
)
def test_the_examples_run(name, least, printed, capsys):
    torch.compiler.reset()
    page = DOCS / name
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= least
    scope = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), scope)
    assert printed in capsys.readouterr().out
