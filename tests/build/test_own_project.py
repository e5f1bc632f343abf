"""A project of one's own: `kernelmint init` with the wheel alone, in a fresh environment with no
checkout in reach and no nvcc; then its wheel beside stock Kernelmint, in two Pythons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from .few_kernels import PYTHONS, run
from .test_builds import hidden_nvcc_path, objects

pytestmark = [pytest.mark.build, pytest.mark.xdist_group("wheel")]

OURS = ("kernelmint", "_kernelmint", "codegen", "runtime", "my_kernels")
USE = """
import kernelmint, my_kernels, runtime, torch

x, y = torch.randn(2, 3, 100)
want = 0.5 * x + y
for name in ("scale_add", "second_add"):
    (info,) = runtime.kernels(name, "cpu", "dtype == f32")
    operator = getattr(torch.ops.kernelmint, name)
    for z in (
        runtime.kernel(info.key)(x, y, alpha=0.5),
        operator(info.key, x, y, alpha=0.5),
        getattr(runtime, name)(x, y, alpha=0.5),
        torch.compile(getattr(runtime, name), backend="aot_eager")(x, y, alpha=0.5),
    ):
        assert torch.allclose(z, want, atol=1e-6)
assert torch.allclose(my_kernels.scale_add(x, y, alpha=0.5), want, atol=1e-6)
q, k, v = torch.randn(3, 2, 47, 4, 64)
want = torch.nn.functional.scaled_dot_product_attention(*[t.transpose(1, 2) for t in (q, k, v)])
assert torch.allclose(kernelmint.attention(q, k, v).transpose(1, 2), want, atol=1e-5)
assert "site-packages" in kernelmint.__file__ and "site-packages" in runtime.__file__
print([pack.name for pack in runtime.packs.all_packs()])
"""


class Environment:
    """A virtual environment that has this one's libraries, Kernelmint's excepted."""

    def __init__(self, folder: Path, path: str) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        libraries = folder / "libraries"
        libraries.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(OURS) and entry.suffix != ".pth":
                (libraries / entry.name).symlink_to(entry)
        (site,) = folder.glob("lib/python3*/site-packages")
        (site / "libraries.pth").write_text(f"{libraries}\n")
        self.bin = folder / "bin"
        self.path = f"{self.bin}{os.pathsep}{path}"

    def run(self, *command: str | Path, cwd: Path, **environment: str) -> str:
        """What a command of the environment prints."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if k not in {"CUDACXX", "CMAKE_ARGS", "PYTHONPATH", "PIP_CONSTRAINT"}
        }
        done = subprocess.run(
            [str(self.bin / command[0]), *map(str, command[1:])],
            cwd=cwd, env={**kept, "PATH": self.path, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


@pytest.fixture(scope="module")
def pack_wheel(made: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a project that its author made with the wheel of Kernelmint alone."""
    tmp_path = tmp_path_factory.mktemp("author")
    kernelmint, _ = made
    found = {"PIP_FIND_LINKS": str(kernelmint.parent)}
    path = hidden_nvcc_path(tmp_path / "bin")
    author = Environment(tmp_path / "author", path)
    author.run("pip", "install", "--no-deps", kernelmint, cwd=tmp_path)
    author.run("kernelmint", "init", "my_kernels", cwd=tmp_path)
    project = tmp_path / "my_kernels"
    # An isolated build: nvcc from PyPI, and no PyTorch.
    log = author.run("pip", "install", "-v", "--no-deps", "-e", ".", cwd=project, **found)
    assert "(from PyPI)" in log
    assert "Collecting torch" not in log
    author.run("kernelmint", "new", "second_add", cwd=project)
    author.run("kernelmint", "regenerate", cwd=project)
    before = objects(project / "build")
    author.run("pip", "install", "--no-deps", "-e", ".", cwd=project, **found)
    after = objects(project / "build")
    # Nothing of scale_add changed but the record of the pack that it is in.
    assert {path.name for path in before if before[path] != after[path]} == {"record.cpp.o"}
    assert len(after) > len(before) > 5
    author.run("python", "-m", "pytest", "-q", cwd=project)
    report = author.run("ptx-report", "--installed", cwd=project)
    assert "second_add.sm80.f32" in report
    author.run(
        *("ptx-report", "--installed", "--baselines", "kernel_specs", "--write-baseline"),
        cwd=project,
    )
    assert (project / "kernel_specs/scale_add/sm80.ptxas.csv").is_file()
    author.run("pip", "wheel", "--no-deps", "-w", "dist", ".", cwd=project, **found)
    (built,) = (project / "dist").iterdir()
    assert "-py3-none-" in built.name

    kept = tmp_path / built.name
    built.rename(kept)
    shutil.rmtree(project)
    return kept


def test_a_colleague_uses_it_beside_stock_kernelmint(
    made: tuple[Path, str], pack_wheel: Path, tmp_path: Path
) -> None:
    colleague = Environment(tmp_path / "colleague", hidden_nvcc_path(tmp_path / "bin"))
    colleague.run("pip", "install", "--no-deps", made[0], pack_wheel, cwd=tmp_path)
    used = colleague.run("python", "-c", USE, cwd=tmp_path)
    assert used.strip().splitlines()[-1] == "['kernelmint', 'my_kernels']"


def test_the_same_wheel_serves_another_python(
    wheels: Callable[[int], Path], pack_wheel: Path, tmp_path: Path
) -> None:
    others = [minor for minor in PYTHONS if minor != sys.version_info.minor]
    if not others:
        pytest.skip("no other Python from 3.10 on is on PATH or beside this one")
    minor = min(others, key=lambda minor: (minor < 12, minor))
    folder = tmp_path / "environment"
    subprocess.run([PYTHONS[minor], "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    version = metadata.version("torch").partition("+")[0]
    torch = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"torch=={version}", "numpy"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if torch.returncode:
        pytest.skip(f"PyTorch cannot be installed for Python 3.{minor}: {torch.stderr[-300:]}")
    run(python, "-m", "pip", "install", "--quiet", wheels(minor), pack_wheel, cwd=tmp_path)
    used = run(python, "-c", USE, cwd=tmp_path)
    assert used.strip().splitlines()[-1] == "['kernelmint', 'my_kernels']"
