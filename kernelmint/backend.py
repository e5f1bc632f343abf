"""The PEP 517 backend: scikit-build-core, plus PyPI's nvcc if a build needs one and has none.

A wheel that compiles CUDA needs nvcc. Asking for PyPI's 105 MB in the static build requirements
would make everybody download it; so it is asked for only if neither CUDACXX nor PATH names one
and CUDA has not been switched off.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as _skbuild
from scikit_build_core.build import (  # noqa: F401 - the backend's other hooks, unchanged
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

# By its path: an editable install of another checkout would answer the import.
_nvcc = runpy.run_path(str(Path(__file__).resolve().parents[1] / "codegen/build/nvcc.py"))

Settings = dict[str, Any] | None


def _definition(name: str, settings: Settings) -> str | None:
    """What a CMake variable will be: -C cmake.define.NAME=..., else -DNAME=... in CMAKE_ARGS."""
    given = (settings or {}).get(f"cmake.define.{name}")
    if given is not None:
        return str(given)
    for argument in shlex.split(os.environ.get("CMAKE_ARGS", "")):
        if argument.startswith((f"-D{name}=", f"-D{name}:")):
            return argument.partition("=")[2]
    return None


def _cuda_requirements(settings: Settings) -> list[str]:
    if (_definition("KERNELMINT_CUDA", settings) or "ON").upper() in {"OFF", "0", "FALSE", "NO"}:
        return []
    if _definition("CMAKE_CUDA_COMPILER", settings) or _nvcc["of_machine"]():
        return []
    return [_nvcc["REQUIREMENT"]] if sys.platform.startswith("linux") else []


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Build requirements of a wheel, with nvcc if the machine has none."""
    return [
        *_skbuild.get_requires_for_build_wheel(config_settings),
        *_cuda_requirements(config_settings),
    ]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Build requirements of an editable install, with nvcc if the machine has none."""
    return [
        *_skbuild.get_requires_for_build_editable(config_settings),
        *_cuda_requirements(config_settings),
    ]


def _keep_objects(build_dir: Path) -> None:
    """Have a build folder that another isolated environment left configured anew.

    CMake's cache then names tools that are gone, and scikit-build-core, which sees that it lies in
    another place itself, would remove the objects too. They are good: ninja compares the commands
    that made them.
    """
    cache, record = build_dir / "CMakeCache.txt", build_dir / ".skbuild-info.json"
    try:
        info = json.loads(record.read_text(encoding="utf-8"))
        nvcc = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(/.*)", cache.read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return
    here = str(Path(_skbuild.__file__).resolve().parents[1])
    if info.get("skbuild_path") == here and not (nvcc and not Path(nvcc[1]).exists()):
        return
    cache.unlink()
    for compilers in (build_dir / "CMakeFiles").glob("[0-9]*"):  # what CMake found out of them
        shutil.rmtree(compilers)
    record.write_text(json.dumps({**info, "skbuild_path": here}), encoding="utf-8")


def _build_dir(state: str, settings: Settings) -> Path:
    return Path(str((settings or {}).get("build-dir", "build/{state}")).replace("{state}", state))


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel; its build folder, logs included, stays in build/wheel."""
    _keep_objects(_build_dir("wheel", config_settings))
    return _skbuild.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build an editable install; its build folder stays in build/editable."""
    _keep_objects(_build_dir("editable", config_settings))
    return _skbuild.build_editable(wheel_directory, config_settings, metadata_directory)


if __name__ == "__main__":  # `make` installs these before it builds without isolation
    print("\n".join(get_requires_for_build_editable()))
