"""A project with a pack: docs/own_kernels.md word for word, with the wheel alone, in a fresh
environment with no checkout in reach and no nvcc; then its wheel beside stock Kernelmint, in two
Pythons."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.pages import block, steps

from .few_kernels import PYTHONS, ROOT, environment, run
from .test_builds import hidden_nvcc_path, objects

pytestmark = [pytest.mark.build, pytest.mark.xdist_group("wheel")]

OURS = ("kernelmint", "_kernelmint", "codegen", "runtime", "my_kernels")
PAGE = ROOT / "docs/own_kernels.md"
SHAPES = f"""cat > kernel_specs/my_kernels_scale_add/cpu.shapes.yaml <<'END'
{block(PAGE, "shapes:")}END"""
TRAIN = """cat > train.py <<'END'
import my_kernels, torch
my_kernels.scale_add(torch.ones(3, 100), torch.ones(3, 100), alpha=0.5)
END"""
USE = """
import kernelmint, my_kernels, runtime, torch

x, y = torch.randn(2, 3, 100)
want = 0.5 * x + y
for name in ("my_kernels_scale_add", "my_kernels_row_norm"):
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
        environment(folder)
        libraries = folder / "libraries"
        libraries.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(OURS) and entry.suffix != ".pth":
                (libraries / entry.name).symlink_to(entry)
        (site,) = folder.glob("lib/python3*/site-packages")
        (site / "libraries.pth").write_text(f"{libraries}\n")
        self.bin = folder / "bin"
        for name in ("pip", "pytest"):  # the libraries' commands are not linked; these are typed
            command = self.bin / name
            command.write_text(f'#!/bin/sh\nexec {self.bin}/python -m {name} "$@"\n')
            command.chmod(0o755)
        self.path = f"{self.bin}{os.pathsep}{path}"

    def type(self, lines: list[str], before: dict[str, str] | None = None, *, cwd: Path) -> str:
        """What commands print that are typed into one shell; `before`: what is done before a
        command that begins so."""
        typed = [
            text
            for line in lines
            for text in (*(b for a, b in (before or {}).items() if line.startswith(a)), line)
        ]
        # For this processor alone: which instruction sets does not matter here.
        native = {"CMAKE_ARGS": "-DKERNELMINT_ISAS=native", "PIP_VERBOSE": "1"}
        return self.run("bash", "-e", "-x", "-c", "\n".join(typed), cwd=cwd, **native)

    def run(self, *command: str | Path, cwd: Path, **environment: str) -> str:
        """What a command of the environment prints."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if k not in {"CUDACXX", "CMAKE_ARGS", "PYTHONPATH", "PIP_CONSTRAINT"}
        }
        done = subprocess.run(
            [shutil.which(command[0], path=self.path) or command[0], *map(str, command[1:])],
            cwd=cwd, env={**kept, "PATH": self.path, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


@pytest.fixture(scope="module")
def pack_wheel(made: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a project whose author had a wheel of Kernelmint and an empty folder, and typed
    the commands of docs/own_kernels.md, all of them in their order."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "kernelmint").mkdir()
    (folder / "kernelmint/dist").symlink_to(made[0].parent)
    author = Environment(folder / ".venv", hidden_nvcc_path(folder / "bin"))
    seen = {
        "pip install -e . ": "cp -a build ../before",
        "ptx-report --installed  ": "cp -a build ../after",
        "kernelmint tune": SHAPES,
        "KERNELMINT_RECORD=used.yaml": TRAIN,
    }
    printed = author.type(steps(PAGE), seen, cwd=folder)
    assert "(from PyPI)" in printed  # the build is isolated, and brings an nvcc
    assert "Collecting torch" not in printed
    assert "my_kernels_row_norm.sm80.f32" in printed
    before, after = (
        {path.relative_to(folder / name): time for path, time in objects(folder / name).items()}
        for name in ("before", "after")
    )
    # Nothing of the first family changed but the record of the pack that it is in.
    assert {path.name for path in before if before[path] != after[path]} == {"fingerprint.cpp.o"}
    assert len(after) > len(before) > 5
    project = folder / "my_kernels"
    assert f"2 rows in {project}/kernel_specs/my_kernels_scale_add/cpu.tuned.yaml" in printed
    assert (project / "kernel_specs/my_kernels_scale_add/sm80.ptxas.csv").is_file()
    (built,) = project.glob("*.whl")
    assert "-py3-none-" in built.name
    kept = folder / built.name
    built.rename(kept)
    shutil.rmtree(project)
    return kept


def test_init_and_slim_work_with_a_kernelmint_from_a_clone(
    made: tuple[Path, str], tmp_path: Path
) -> None:
    """No index has it, and pip has written down where it comes from."""
    author = Environment(tmp_path / ".venv", os.environ["PATH"])
    author.type([f"pip install --no-deps {made[0]}"], cwd=tmp_path)
    (record,) = tmp_path.glob(".venv/lib/python3*/site-packages/kernelmint-*/direct_url.json")
    record.write_text(json.dumps({"url": ROOT.as_uri(), "dir_info": {}}))
    named = author.type(["kernelmint init my_kernels"], cwd=tmp_path).partition("next:\n")[2]
    assert "--no-build-isolation" in named
    assert " passed" in author.type(named.splitlines(), cwd=tmp_path)

    project, used = tmp_path / "my_kernels", "my_kernels_scale_add.cpu.f32-n8192"
    resolve = f"import kernelmint; kernelmint.kernel({used!r})"
    author.run("python", "-c", resolve, cwd=project, KERNELMINT_RECORD="used.yaml")
    slim = ("kernelmint", "slim", "used.yaml", "--wheel", "slim")
    author.run(*slim, cwd=project, CMAKE_ARGS="-DKERNELMINT_ISAS=native -DKERNELMINT_CUDA=OFF")
    (wheel,) = project.glob("slim/*.whl")
    (installed,) = project.glob("build/cmake/packs/*/my_kernels_scale_add.so")
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read("my_kernels/_pack/manifest.json"))
        names = [name for name in archive.namelist() if ".dist-info/licenses/kernelmint-" in name]
        slimmed = archive.getinfo("my_kernels/_pack/my_kernels_scale_add.so").file_size
    targets = [target for family in manifest["families"] for target in family["targets"]]
    assert [kernel["key"] for target in targets for kernel in target["kernels"]] == [used]
    assert slimmed < installed.stat().st_size / 2
    assert names, "the wheel holds no licence of Kernelmint's headers, which it was compiled of"


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
    pip = environment(folder, PYTHONS[minor])
    python = folder / "bin/python"
    version = metadata.version("torch").partition("+")[0]
    torch = subprocess.run(
        [*pip, "install", "--quiet", f"torch=={version}", "numpy"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if torch.returncode:
        pytest.skip(f"PyTorch cannot be installed for Python 3.{minor}: {torch.stderr[-300:]}")
    run(*pip, "install", "--quiet", wheels(minor), pack_wheel, cwd=tmp_path)
    used = run(python, "-c", USE, cwd=tmp_path)
    assert used.strip().splitlines()[-1] == "['kernelmint', 'my_kernels']"
