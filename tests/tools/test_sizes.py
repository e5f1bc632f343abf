"""Sizes and budgets of wheels, slices, families and kernels."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen.build import sizes as of_build
from codegen.core import packs
from runtime import _native
from tools import sizes

LIBRARY = Path(_native.__file__)
SLICED = {"": {}, "slices/sm90/": {"slice_name": "sm90"}}


def wheel(folder: Path, parts: dict[str, dict[str, str]] = SLICED) -> Path:
    path = folder / "own-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, described in parts.items():
            archive.write(LIBRARY, f"own/_pack/{place}scaled.so")
            archive.writestr(f"own/_pack/{place}pack.json", json.dumps(described))
        archive.writestr("own/__init__.py", "import own\n")
        archive.writestr("own-1.0.dist-info/METADATA", "Name: own\n")
    return path


def check(folder: Path, budget: str, built: Path) -> subprocess.CompletedProcess[str]:
    """A build of a wheel checks its budget in this way."""
    (folder / "pyproject.toml").write_text(f"[tool.kernelmint.budget]\n{budget}\n")
    command = [sys.executable, of_build.__file__, built]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_byte_of_a_wheel_is_counted_once(tmp_path: Path) -> None:
    built = wheel(tmp_path)
    with zipfile.ZipFile(built) as archive:
        whole = sum(info.file_size for info in archive.infolist())
    parts = sizes.measured(built)
    assert sum(part.size for part in parts) == whole
    size = LIBRARY.stat().st_size
    assert dict(of_build.totals(parts, "family")) == {"scaled": 2 * size}
    assert dict(of_build.totals(parts, "slice"))["sm90"] == size + len('{"slice_name": "sm90"}')
    kinds = [kind for kind, _ in of_build.totals(parts, "kind")]
    assert kinds[0] == "host code"
    assert {"data", "symbols and padding", "Python", "metadata"} == {*kinds[1:]}


def test_kernels_have_the_bytes_that_they_take() -> None:
    usable, _ = packs.installed()
    (pack,) = (pack for pack in usable if pack.name == "kernelmint")
    if not pack.architectures:
        pytest.skip("built without CUDA")
    library = pack.library("hstu_bsa")
    parts = sizes.measured(library)
    assert sum(part.size for part in parts) == library.stat().st_size
    kernels = dict(of_build.totals(parts, "kernel"))
    assert any(name.startswith("hstu_bsa.") and name.endswith("]") for name in kernels)
    assert sum(kernels.values()) == dict(of_build.totals(parts, "kind"))[of_build.DEVICE]
    printed = CliRunner().invoke(sizes.main, [str(library), "--json", "--by", "kernel"])
    (facts,) = json.loads(printed.output)
    assert facts["by"]["kernel"] == kernels
    assert list(kernels.values()) == sorted(kernels.values(), reverse=True)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("slice_mb = { sm90 = 0.1 }", "own-1.0-py3-none-any.whl: slice sm90: "),
        ("slice_mb = 0.1", "the budget is 0.1 (pyproject.toml: tool.kernelmint.budget.slice_mb)"),
        ("family_mb = { scaled = 0.2 }", "own-1.0-py3-none-any.whl: family scaled: "),
        ("wheel_mb = 0.01", ""),  # it will be split
        ("slice_mb = { sm80 = 0.1 }", ""),
        ("family_mb = 100\nslice_mb = 100", ""),
        ("weel_mb = 1", "tool.kernelmint.budget.weel_mb: expected one of wheel_mb, "),
        ('wheel_mb = "1"', "tool.kernelmint.budget.wheel_mb: got '1', expected a number"),
    ],
)
def test_a_wheel_over_its_budget_fails_its_build(tmp_path: Path, budget: str, says: str) -> None:
    done = check(tmp_path, budget, wheel(tmp_path))
    assert done.returncode == (1 if says else 0)
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == bool(says)


def test_a_wheel_of_one_part_is_held_to_its_own_bytes(tmp_path: Path) -> None:
    built = wheel(tmp_path, {"": {}})
    done = check(tmp_path, "wheel_mb = 0.01", built)
    assert done.stderr.startswith(f"Kernelmint: wheel {built.name}: ")
    options = ["--check", "--budgets", str(tmp_path / "pyproject.toml")]
    result = CliRunner().invoke(sizes.main, [str(built), *options])
    assert result.exit_code == 1
    assert "the budget is 0.01" in result.output
