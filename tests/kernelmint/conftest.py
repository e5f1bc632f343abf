from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime import _native

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = [Path(entry) for entry in sys.path if entry.endswith("-packages")]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the packages as a wheel installs them, without packs."""
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("codegen", "kernelmint", "runtime"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for part in ("tools", "runtime/include", "runtime/pack"):
        shutil.copytree(ROOT / part, folder / "kernelmint" / Path(part).name, ignore=ignored)
    shutil.copy(_native.__file__, folder / "runtime")
    return folder


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this environment's libraries, PyTorch and NumPy left out."""
    folder = tmp_path_factory.mktemp("libraries")
    for library in LIBRARIES:
        for entry in library.iterdir():
            left_out = entry.name.startswith(("torch", "numpy", "_editable", "runtime", "__"))
            if not left_out and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Python:
    """python(*arguments, libraries=..., first=...): a new process in an empty folder that finds
    `first`, then the packages, then the libraries; no editable install takes part (-S)."""

    def run(
        *arguments: str | Path, libraries: list[Path] = LIBRARIES, first: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        folders = [*([first] if first else []), site, *libraries]
        return subprocess.run(
            [sys.executable, "-S", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
