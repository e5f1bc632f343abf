"""The work of one row: a folder, a log, processes, and environments of a Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/matrix"
# For pip: the extension is compiled fast; kernels have flags of their own.
UNOPTIMIZED = ("-C", "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0")
_FOREIGN = {"CMAKE_ARGS", "PYTHONPATH"}  # variables that would change a build
# The lines of CMake, compilers, pip and Python that say why; pip's last one says only that it ends.
_REASON = re.compile(
    r"^(\s*CMake Error.*\n\s*.*"
    r"|(\s*(ERROR(?!: Failed)|FAILED): |.*\berror: |[\w.]*(Error|Exception|Unsupported): ).*)",
    re.MULTILINE,
)
_LONGEST = 300  # characters of a reason


class AbsentError(Exception):
    """A row needs something that cannot be had here; the message says where it was looked for."""


class FailedError(Exception):
    """A step of a row failed; the message is the step's own."""

    def __init__(self, command: str, output: str) -> None:
        reasons = [" ".join(match[0].split()) for match in _REASON.finditer(output)]
        lines = output.strip().splitlines()
        self.output = output
        reason = reasons[-1] if reasons else lines[-1] if lines else "no output"
        super().__init__(f"{command}: {reason.replace(f'{ROOT}/', '')[:_LONGEST]}")


class Work:
    """A row's folder in build/matrix, which keeps the log of its processes."""

    def __init__(self, name: str) -> None:
        """Makes the folder and empties the log."""
        self.folder = FOLDER / name.replace(":", "-")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "log"
        self.log.write_text("")

    def run(
        self,
        *command: str | Path,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Runs a command, adds its output to the log, and returns the output. Raises
        FailedError."""
        line = [str(part) for part in command]
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        done = subprocess.run(
            line, cwd=cwd, env={**kept, **(environment or {})}, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(line)}\n{done.stdout}\n")
        if done.returncode:
            words = [Path(line[0]).name, *line[1:]]
            raise FailedError(" ".join(words).replace(f"{ROOT}/", "")[:60], done.stdout)
        return done.stdout

    def cmake(self, source: Path, settings: Mapping[str, object], target: str = "all") -> Path:
        """Builds a target of a CMake project in an empty folder, and returns the folder. Raises
        FailedError."""
        build = self.folder / "build"
        shutil.rmtree(build, ignore_errors=True)
        tools = {"CMAKE_MAKE_PROGRAM": tool("ninja"), "Python_EXECUTABLE": sys.executable}
        self.run(
            *(tool("cmake"), "-S", source, "-B", build, "-G", "Ninja"),
            *(f"-D{name}={value}" for name, value in {**tools, **settings}.items()),
        )
        self.run(tool("cmake"), "--build", build, "--target", target)
        return build

    def environment(self, python: Path) -> Path:
        """Makes an empty environment of a Python, without pip; returns the environment's Python.
        `pip` fills it."""
        folder = self.folder / "environment"
        shutil.rmtree(folder, ignore_errors=True)
        self.run(python, "-m", "venv", "--without-pip", folder)
        return folder / "bin/python"

    def pip(self, python: Path, *arguments: str | Path) -> str:
        """Runs this environment's pip for another Python. Raises AbsentError if the index has no
        such package for it, FailedError."""
        try:
            return self.run(sys.executable, "-m", "pip", "--python", python, *arguments)
        except FailedError as error:
            if "No matching distribution found" in error.output or "(constraint)" in error.output:
                asked = " ".join(str(word) for word in arguments if str(word)[0] not in "-:")
                raise AbsentError(f"`pip {asked}` finds no release for this Python") from None
            raise

    def clean(self) -> None:
        """Removes what is big: environments."""
        shutil.rmtree(self.folder / "environment", ignore_errors=True)


def tool(program: str) -> Path:
    """Returns a program of this environment."""
    return Path(sys.executable).with_name(program)


def interpreter(version: str) -> Path:
    """Returns the Python of a version such as 3.12, or 3.13t for a free-threaded one.

    Raises AbsentError: it is neither on PATH nor beside the Python that runs this.
    """
    name = f"python{version}"
    beside = sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))
    for program in filter(None, [shutil.which(name), *map(str, beside)]):
        if subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0:
            return Path(program).resolve()  # Python finds its modules from there
    raise AbsentError(f"no {name} on PATH or beside this Python")
