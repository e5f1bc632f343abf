"""tools/build/environment.py: what `make` says while it fills the virtual environment, and what it
takes."""

import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_installed_is_said_as_it_is(tmp_path):
    wheel = tmp_path / "nothing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "nothing-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    script = (
        "import runpy\n"
        "install = runpy.run_path('tools/build/environment.py')['pip_install']\n"
        f"install('--no-index', '--target', {str(tmp_path / 'site')!r}, {str(wheel)!r})\n"
        "install('--no-index', 'no-such-thing')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    said = ["  Installing collected packages: nothing", "  Successfully installed nothing-1.0"]
    assert done.stdout.splitlines() == said
    assert done.returncode == 1
    assert "No matching distribution found for no-such-thing" in done.stderr
    assert "installing the requirements failed" in done.stderr


def pins():
    """The requirements of constraints.txt, by name, and how many hashes each has."""
    text = (ROOT / "constraints.txt").read_text().replace("\\\n", " ")
    lines = [line.split(" --hash=") for line in text.splitlines() if line[:1] not in ("#", "")]
    return [(Requirement(pin), len(hashes)) for pin, *hashes in lines]


def test_all_that_make_installs_has_a_version_and_hashes():
    environment = runpy.run_path(str(ROOT / "tools/build/environment.py"))
    for requirement, hashes in pins():
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        # PyTorch's build depends on the index.
        assert (hashes > 0) == (requirement.name != "torch"), requirement
    taken = [*environment["requirements"](), *environment["tools"](), *environment["CUTLASS"]]
    taken.append(runpy.run_path(str(ROOT / "codegen/build/nvcc.py"))["REQUIREMENT"])
    for text in taken:
        asked = Requirement(text)
        pinned = [r for r, _ in pins() if r.name == canonicalize_name(asked.name)]
        assert pinned, text
        versions = [str(requirement.specifier).removeprefix("==") for requirement in pinned]
        assert all(map(asked.specifier.contains, versions)), (text, versions)


def test_constraints_name_no_index():
    assert "://" not in (ROOT / "constraints.txt").read_text()


def test_the_demo_takes_what_calls_take_and_no_developers_tools():
    environment = runpy.run_path(str(ROOT / "tools/build/environment.py"))
    needed = {Requirement(text).name for text in environment["requirements"]()}
    tools = {Requirement(text).name for text in environment["tools"]()}
    assert {"torch", "numpy", "pydantic", "nanobind"} <= needed
    assert not needed & {"ray", "triton", "selenium", "diffusers", "transformers", "mypy", "ruff"}
    assert {"ray", "triton", "selenium", "diffusers", "transformers", "mypy", "ruff"} <= tools


def commands(target, folder):
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, f"VENV={folder}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
    )  # fmt: skip
    return done.stdout


def test_make_demo_installs_less_than_make_build_and_says_how_long_it_took(tmp_path):
    demo, build = (commands(target, tmp_path) for target in ("demo", "build"))
    assert "environment.py\n" in demo
    assert "--tools" not in demo
    assert f"make {tmp_path}/.tools" in build
    assert "environment.py --tools" in commands(f"{tmp_path}/.tools", tmp_path)
    assert "make demo took" in demo.splitlines()[-1]
