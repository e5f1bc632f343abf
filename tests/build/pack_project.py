"""A project with a pack, built by CMake alone: seconds where an install takes minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.26...4.4)
project({name} LANGUAGES CXX)
find_package(Kernelmint CONFIG REQUIRED NO_DEFAULT_PATH PATHS "{root}/kernelmint/cmake")
kernelmint_add_pack({name} GENERATED generated DESTINATION pack {options})
"""


@dataclass(frozen=True)
class PackProject:
    """A folder with kernel_specs/, which the caller filled; `python_path` are further folders of
    Python packages."""

    root: Path
    name: str = "own"
    python_path: tuple[Path, ...] = ()

    @property
    def pack(self) -> Path:
        """The installed pack."""
        return self.root / "installed/pack"

    @property
    def build_folder(self) -> Path:
        return self.root / "build"

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        paths = [*map(str, self.python_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(paths)
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.root, env={**os.environ, "PYTHONPATH": path}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip

    def regenerate(self, *options: str) -> str:
        done = self.run(sys.executable, "-m", "codegen", "regenerate", *options)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def configure(self, *settings: str, options: str = "") -> subprocess.CompletedProcess[str]:
        text = CMAKE_LISTS.format(name=self.name, root=ROOT, options=options)
        (self.root / "CMakeLists.txt").write_text(text)
        return self.run(
            *(BIN / "cmake", "-S", ".", "-B", "build", "-G", "Ninja"),
            *(f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}"),
            *("-DKERNELMINT_ISAS=native", *settings),
        )

    def build(self, *settings: str, regenerate: tuple[str, ...] = (), options: str = "") -> str:
        """Regenerates, configures, builds and installs; what was printed."""
        self.regenerate(*regenerate)
        printed = ""
        for step in (
            lambda: self.configure(*settings, options=options),
            lambda: self.run(BIN / "cmake", "--build", "build"),
            lambda: self.run(BIN / "cmake", "--install", "build", "--prefix", "installed"),
        ):
            done = step()
            assert done.returncode == 0, done.stdout[-6000:]
            printed += done.stdout
        return printed

    def ninja(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(BIN / "ninja", "-C", "build", *arguments)
