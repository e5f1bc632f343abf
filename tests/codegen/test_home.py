"""Where the cache is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/home/me"}, "/home/me/.cache/kernelmint"),
        ({"HOME": "/home/me", "KERNELMINT_CACHE_DIR": "~/x"}, "/home/me/x"),
        ({"HOME": "/home/me", "KERNELMINT_CACHE_DIR": "~"}, "/home/me"),
        ({"HOME": "/home/me", "KERNELMINT_CACHE_DIR": "x~/y"}, "{here}/x~/y"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "~/c"}, "/home/me/c/kernelmint"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/c"}, "/c/kernelmint"),
        ({"KERNELMINT_CACHE_DIR": "x"}, "{here}/x"),
        ({}, "{temporary}/kernelmint-{user}"),
        ({"KERNELMINT_CACHE_DIR": "~/x"}, "{temporary}/kernelmint-{user}/x"),
        ({"XDG_CACHE_HOME": "~/c"}, "{temporary}/kernelmint-{user}/c/kernelmint"),
    ],
)
def test_the_folder_of_a_user_with_and_without_a_home(tmp_path, environment, expected) -> None:
    """Without one: HOME is unset, and the system has no name for the user's number."""
    code = (
        f"import pwd, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "def getpwuid(_): raise KeyError\n"
        "pwd.getpwuid = getpwuid\n"
        "from codegen.core.home import cache_folder; print(cache_folder())"
    )
    (tmp_path / "t").mkdir()
    environment = {"TMPDIR": str(tmp_path / "t"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    places = {"here": tmp_path, "temporary": tmp_path / "t", "user": os.getuid()}
    assert done.stdout.strip() == expected.format(**places)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
