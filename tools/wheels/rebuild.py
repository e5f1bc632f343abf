"""A wheel built again from the sources that another names, with the settings of its build."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen import scaffold
from codegen.build.dist_info import EPOCH, FOLDER, SETTING, VARIABLE
from codegen.core.ptxas_rows import ReportError
from codegen.core.words import display_path
from codegen.sources.unpack import unpack

from .wheel import Wheel

BUILD = "build"  # the folder of the build in that of the work
_TOLD = 3000  # characters of a failed build's output


@dataclass(frozen=True)
class Sources:
    """A folder of a wheel's sources.

    Attributes:
        folder: the project's.
        description: where they come from.
    """

    folder: Path
    description: str


def sources_of(wheel: Wheel, named: str | None, work: Path) -> Sources:
    """Returns the sources of a wheel. Raises ReportError without them.

    Args:
        wheel: the wheel.
        named: a folder, a source distribution or the address of a git repository; None for the
            source distribution beside the wheel, or else the current folder.
        work: a folder for copies.
    """
    if named is not None and "://" in named:
        place = work / "repository"
        _git("clone", "--quiet", named, str(place))
    else:
        beside = wheel.path.parent / f"{wheel.dist_info.removesuffix('.dist-info')}.tar.gz"
        place = Path(named) if named else beside if beside.is_file() else Path()
    shown = named if named and "://" in named else display_path(place)
    if place.is_file():
        folder = work / "sources"
        try:
            unpack(place, folder)
        except Exception as error:  # whatever a damaged archive makes its decoders raise
            raise ReportError(f"{place}: cannot be unpacked: {error!r:.100}") from None
        (place,) = folder.iterdir() if len([*folder.iterdir()]) == 1 else (folder,)
    revision = wheel.build.revision
    if revision and _has(place, revision):
        top = _git("-C", str(place), "rev-parse", "--show-toplevel")
        checkout = work / "checkout"
        _git("clone", "--quiet", "--shared", "--no-checkout", top, str(checkout))
        _git("-C", str(checkout), "checkout", "--quiet", "--detach", revision)
        place = checkout / wheel.build.properties.get(FOLDER, "")
        shown = f"{shown} at {revision[:12]}"
    if not (place / "pyproject.toml").is_file():
        raise ReportError(
            f"{shown}: no sources of {wheel.name} {wheel.version}: there is no pyproject.toml. "
            "Name its checkout or its source distribution (--source DIR), or put "
            f"{wheel.dist_info.removesuffix('.dist-info')}.tar.gz beside the wheel"
        )
    return Sources(place.resolve(), shown)


def _has(folder: Path, revision: str) -> bool:
    command = ["git", "-C", str(folder), "cat-file", "-e", f"{revision}^{{commit}}"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ReportError(f"git cannot be run: {error.strerror}") from None
    if done.returncode:
        raise ReportError(f"git {words[0]} failed: {done.stderr.strip()[-_TOLD:]}")
    return done.stdout.strip()


def built(
    wheel: Wheel, sources: Sources, work: Path, settings: Mapping[str, str], isolated: bool | None
) -> Path:
    """Builds a wheel from sources, for the architectures and instruction sets of `wheel`, with its
    settings, flags of the environment and SOURCE_DATE_EPOCH. Raises ReportError.

    Args:
        wheel: the wheel that is built again.
        sources: its sources.
        work: a folder for the build and the wheel.
        settings: pip's further ones (`-C`).
        isolated: whether pip builds in an environment with the recorded packages; None if a new
            project of this Kernelmint is built so.
    """
    options = scaffold.pip_options()
    if isolated is not None:
        options = [o for o in options if o != "--no-build-isolation"]
        options += [] if isolated else ["--no-build-isolation"]
    constraints = work / "constraints.txt"
    packages = wheel.build.packages.items()
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in packages))
    environment = {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"}
    if "--no-build-isolation" not in options:  # pip from 25.3 on, and before
        environment |= dict.fromkeys(("PIP_BUILD_CONSTRAINT", "PIP_CONSTRAINT"), str(constraints))
    environment |= wheel.build.named(VARIABLE)
    if epoch := wheel.build.properties.get(EPOCH):
        environment["SOURCE_DATE_EPOCH"] = epoch
    out = work / "dist"
    chosen = {**_settings(wheel), **settings, "build-dir": str(work / BUILD)}
    command = [
        *(sys.executable, "-m", "pip", "wheel", str(sources.folder), "--no-deps"),
        *("--wheel-dir", str(out), *options),
        *_options(chosen),
    ]
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        told = (done.stdout + done.stderr)[-_TOLD:]
        raise ReportError(f"{sources.description}: cannot be built:\n{told}")
    (path,) = out.glob("*.whl")
    return path


def _options(settings: Mapping[str, str]) -> Sequence[str]:
    return [word for name, value in settings.items() for word in ("-C", f"{name}={value}")]


def _settings(wheel: Wheel) -> dict[str, str]:
    """Returns the settings of pip with which a wheel was built, as far as they change it."""
    definitions = {
        "CMAKE_CUDA_ARCHITECTURES": ";".join(wheel.architectures),
        "KERNELMINT_CUDA": "ON" if "nvcc" in wheel.settings else "OFF",
        "KERNELMINT_DEBUG": wheel.settings.get("debug", ""),
        "KERNELMINT_ISAS": ";".join(wheel.isas),
    }
    return wheel.build.named(SETTING) | {
        f"cmake.define.{name}": value for name, value in definitions.items() if value
    }
