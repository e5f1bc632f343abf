"""CUDA toolkits by name: a path, or a version that is looked for among the installed ones, in the
cache and in folders of PyPI's wheels. Standard library only."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from codegen.build import nvcc
from codegen.core.advice import numbers
from codegen.core.home import cache_folder

# The wheels that compile together, and what of each tells its toolkit's version.
_PARTS = ("nvidia_cuda_nvcc", "nvidia_nvvm", "nvidia_cuda_crt", "nvidia_cuda_runtime")
_CCCL = "nvidia_cuda_cccl"  # with its own versions since 13.1
_VERSION = re.compile(r"\d+(\.\d+)*")
_PLACES = ("bin/nvcc", "nvidia/cu*/bin/nvcc")  # below a toolkit, below a folder of pip's


class Toolkit(NamedTuple):
    """A command that runs nvcc, and its version."""

    command: tuple[str, ...]
    version: str  # 13.0.88


class ToolkitError(LookupError):
    """There is no such toolkit; the message says what there is, and what to do."""


def find(name: str, wheels: Sequence[Path] = ()) -> Toolkit:
    """Returns the toolkit of a path, or the newest one of a version such as 13.0.

    Args:
        name: nvcc, a toolkit's folder, a folder into which pip installed one; or a version.
        wheels: folders of PyPI's wheels, which are unpacked into the cache.

    Raises:
        ToolkitError: no toolkit has this path or version.
    """
    if not _VERSION.fullmatch(name):
        return _at(Path(name))
    there: dict[Toolkit | Path, str] = {one: one.version for one in (*_installed(), *_cached())}
    there |= {wheel: _version_of(wheel) for wheel in reversed(_wheels(wheels, _PARTS[0]))}
    suiting = [one for one, version in there.items() if _suits(version, name)]
    if suiting:
        best = max(suiting, key=lambda one: numbers(there[one]))
        return best if isinstance(best, Toolkit) else _unpacked(best, wheels)
    shown = [
        f"{version} ({' '.join(one.command) if isinstance(one, Toolkit) else one})"
        for one, version in there.items()
    ]
    raise ToolkitError(
        f"nvcc {name}: not here; there is {', '.join(shown) or 'no nvcc at all'}: name its path, "
        f'or `pip download "cuda-toolkit[nvcc,cccl]=={name}.*" -d DIR` and --wheels DIR'
    )


def _suits(version: str, name: str) -> bool:
    return f"{version}.".startswith(f"{name}.")


def _at(path: Path) -> Toolkit:
    if not path.exists():
        raise ToolkitError(f"nvcc {path}: no such file or folder, and no version such as 13.0")
    program = next(_programs(path), None) if path.is_dir() else path
    if program is None:
        raise ToolkitError(f"nvcc {path}: no nvcc in it: looked for {' and '.join(_PLACES)}")
    version = _version((os.path.abspath(program),))
    if version is None:
        raise ToolkitError(f"nvcc {program}: its --version does not say a release of CUDA")
    return Toolkit((os.path.abspath(program),), version)


def _programs(folder: Path) -> Iterator[Path]:
    for place in _PLACES:
        yield from sorted(folder.glob(place), reverse=True)


@functools.cache
def _version(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(r"release \S+, V(\S+)", done.stdout)
    return match[1] if match else None


def _known(commands: Iterable[tuple[str, ...]]) -> Iterator[Toolkit]:
    for command in commands:
        if version := _version(command):
            yield Toolkit(command, version)


def _installed() -> Iterator[Toolkit]:
    try:
        own = [found.command] if (found := nvcc.of_machine()) else []
    except nvcc.NvccNotFoundError as error:
        raise ToolkitError(str(error)) from None
    usual = [str(path) for path in Path("/usr/local").glob("cuda*/bin/nvcc")]
    yield from _known([*own, *((path,) for path in (*nvcc.in_pypi("nvcc"), *usual))])


def _cache() -> Path:
    return cache_folder() / "toolkits"


def _cached() -> Iterator[Toolkit]:
    folders = [path for path in _cache().glob("*") if not path.name.startswith(".")]
    yield from _known((str(path),) for folder in folders for path in _programs(folder))


def _wheels(folders: Iterable[Path], part: str) -> list[Path]:
    """Returns a part's wheels in folders, the newest last."""
    found = [path for folder in folders for path in folder.glob(f"**/{part}-*.whl")]
    return sorted(found, key=lambda path: numbers(_version_of(path)))


def _version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _unpacked(compiler: Path, folders: Sequence[Path]) -> Toolkit:
    """Returns the toolkit of nvcc's wheel and of its friends, which is put into the cache."""
    version = _version_of(compiler)
    release = ".".join(version.split(".")[:2])
    parts = [compiler]
    for part in (*_PARTS[1:], _CCCL):
        every = _wheels([compiler.parent, *folders], part)
        same = [wheel for wheel in every if _suits(_version_of(wheel), release)]
        if not (same or (every and part == _CCCL)):
            raise ToolkitError(
                f"{compiler}: {part} {release} is not beside it: "
                f'`pip download "cuda-toolkit[nvcc,cccl]=={release}.*" -d {compiler.parent}`'
            )
        parts.append((same or every)[-1])
    folder = _cache() / version
    if not folder.exists():
        _cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_cache(), prefix=".") as work:
            partial = Path(work, version)
            for wheel in parts:
                with zipfile.ZipFile(wheel) as zipped:
                    zipped.extractall(partial)
            for place in ("bin", "nvvm/bin"):  # wheels do not say what may be run
                for program in partial.glob(f"nvidia/cu*/{place}/*"):
                    program.chmod(0o755)
            partial.rename(folder)
    return _at(folder)
