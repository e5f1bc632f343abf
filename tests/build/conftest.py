from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .few_kernels import run, settings


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The wheel, and what was printed."""
    folder = tmp_path_factory.mktemp("wheel")
    made = [sys.executable, "tools/build/wheel.py", "--out", folder / "dist"]
    printed = run(*made, *settings(folder))
    (wheel,) = (folder / "dist").iterdir()
    return wheel, printed
