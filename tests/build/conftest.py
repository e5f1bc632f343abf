from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .few_kernels import PYTHONS, environment, run, settings


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The wheel, and what was printed."""
    folder = tmp_path_factory.mktemp("wheel")
    made = [sys.executable, "tools/build/wheel.py", "--out", folder / "dist"]
    printed = run(*made, *settings(folder))
    (wheel,) = (folder / "dist").iterdir()
    return wheel, printed


@pytest.fixture(scope="session")
def wheels(
    made: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """The wheel that serves Python 3.x, built with it or, from 3.12 on, with the first there is."""

    @functools.cache
    def build(minor: int) -> Path:
        if minor == sys.version_info.minor:
            return made[0]
        folder = tmp_path_factory.mktemp("wheel")
        pip = environment(folder / "environment", PYTHONS[minor])
        run(*pip, "wheel", ".", "--no-deps", "--wheel-dir", folder / "dist", *settings(folder))
        (wheel,) = (folder / "dist").iterdir()
        return wheel

    return lambda minor: build(min(m for m in PYTHONS if m == minor or 12 <= m <= minor))
