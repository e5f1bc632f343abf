"""What holds for all tests: those marked `gpu` are skipped if there is none; and builds of their
own, for tests of kernels that the installed build does not have."""

from __future__ import annotations

import copy
import gc
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).resolve().parent
# What the tests build on demand lies there from one run to the next.
if not torch.cuda.is_available():  # before anything imports Triton, which reads it then
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["KERNELMINT_CACHE_DIR"] = str(ROOT / "build/cache")
# Two processes that package the same graph write the same files, and read them half written.
_worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(ROOT / "build/inductor" / _worker)
# `make test` draws the same examples every time, `make fuzz` other and more ones.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=10_000)
settings.load_profile("gate")
# The checkout's editable install has a finder that comes before every path.
_WITHOUT_EDITABLE = (
    "import sys\n"
    "sys.meta_path = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]\n"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU if there is none."""
    if torch.cuda.is_available():
        return
    no_device = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(no_device)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The collector passes over what lives as long as the process: PyTorch, and the tests."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_finish() -> None:
    """What was built on demand while tests were collected is listed in none."""
    _forget_singles()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A test's tensors depend on no test before it, nor on the process that it runs in."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _no_packs_of_other_modules() -> Iterator[None]:
    """What a module's tests load is gone when it ends; but for the operators, which PyTorch never
    forgets, so that within a module a family stays."""
    if "runtime.packs" not in sys.modules:
        yield
        if "runtime.packs" in sys.modules:
            sys.modules["runtime.packs"]._registry.cache_clear()
        return
    registry = sys.modules["runtime.packs"]._registry()
    before = {name: copy.copy(known) for name, known in vars(registry).items()}
    yield
    vars(registry).update(before)


@pytest.fixture(autouse=True)
def _no_kernels_of_other_tests() -> Iterator[None]:
    """What a test builds on demand is not listed in the next; calls of it by key still work."""
    yield
    _forget_singles()


def _forget_singles() -> None:
    if "runtime.packs" in sys.modules:
        sys.modules["runtime.packs"]._registry().singles.clear()


@dataclass(frozen=True)
class SeparateBuild:
    """A build that is not installed, unpacked below `folder`."""

    folder: Path

    def python(self, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs a script that imports this build's `runtime`; its errors are in stdout, too."""
        path = os.pathsep.join([str(self.folder / "site"), os.environ.get("PYTHONPATH", "")])
        return _run(
            *(sys.executable, "-c", _WITHOUT_EDITABLE + script, *arguments),
            cwd=self.folder,
            PYTHONPATH=path,
        )


def _run(
    *command: object, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


@pytest.fixture(scope="session")
def separate_build() -> Callable[..., SeparateBuild]:
    """build(folder, where, kernels, specs=None, defines=()): the kernels for which `where` holds,
    so many, of the specs in `specs` or of the project's, with CMake's variables `defines`."""

    def build(
        folder: Path,
        where: str,
        kernels: int,
        specs: Path | None = None,
        defines: tuple[str, ...] = (),
    ) -> SeparateBuild:
        done = _run(
            *(sys.executable, "-m", "codegen", "regenerate", "--out", folder / "generated"),
            *("--where", where),
            *(() if specs is None else ("--specs", specs)),
        )
        assert re.search(rf" {kernels} kernels?;", done.stdout), done.stdout
        from runtime import _native  # its extension is this checkout's, which compiles for long

        (folder / "build").mkdir()
        shutil.copy(_native.__file__, folder / "build")
        done = _run(
            *(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", folder / "dist", "-C", f"build-dir={folder / 'build'}"),
            *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={folder / 'generated'}"),
            *("-C", "build.targets=kernelmint_report"),  # the pack without the extension
            *(part for define in defines for part in ("-C", f"cmake.define.{define}")),
        )
        assert done.returncode == 0, done.stdout[-4000:]
        (wheel,) = (folder / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
        return SeparateBuild(folder)

    return build
