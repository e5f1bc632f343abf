"""A project of `kernelmint init`, whose tests hold whatever families it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codegen import scaffold
from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
# Kernels that are built on demand stand for those of an installed pack.
BUILT = """\
import kernelmint

kernelmint.build("kernel_specs", "target == 'cpu'")
"""


@pytest.mark.parametrize("moved", slow_after(1, [False, True]))
def test_the_tests_of_a_project_pass_before_and_after_its_first_family_is_replaced(
    tmp_path: Path, moved: bool
) -> None:
    """As docs/moved.md says: the folder goes, and its line of the package."""
    project = tmp_path / "own"
    scaffold.create_project("own", project)
    if moved:
        specs = project / "kernel_specs"
        scaffold.create("own_kernel", specs)
        for path in (specs / "own_scale_add").iterdir():
            path.unlink()
        (specs / "own_scale_add").rmdir()
        package = project / "own/__init__.py"
        text = package.read_text().replace("own_scale_add as scale_add", "own_kernel")
        package.write_text(text.replace('"scale_add"', '"own_kernel"'))
    (project / "conftest.py").write_text(BUILT)
    paths = [str(ROOT), str(project), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "kernel_specs"],
        cwd=project, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
