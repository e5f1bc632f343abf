"""The PEP 517 backend: scikit-build-core, plus PyPI's nvcc for a build that needs one on a machine
without, the licences of sources, and a bill of materials.

A wheel has the licences of the sources that it holds or that were compiled into it, and says what
it is made of and by what.

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
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from scikit_build_core import build as _skbuild
from scikit_build_core.build import (  # noqa: F401 - the backend's other hooks, unchanged
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)
from scikit_build_core.settings.skbuild_read_settings import SettingsReader

# By its path: an editable install of another checkout would answer the import.
_ROOT = Path(__file__).resolve().parents[1]
_nvcc = runpy.run_path(str(_ROOT / "codegen/build/nvcc.py"))

Settings = dict[str, Any] | None


def _definition(name: str, settings: Settings) -> str | None:
    """Returns the value that a CMake variable will have: -C cmake.define.NAME=..., else -DNAME=...
    in CMAKE_ARGS."""
    setting = (settings or {}).get(f"cmake.define.{name}")
    if setting is not None:
        return str(setting)
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
    """Returns build requirements of a wheel, with nvcc if the machine has none."""
    return [
        *_skbuild.get_requires_for_build_wheel(config_settings),
        *_cuda_requirements(config_settings),
    ]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Returns build requirements of an editable install, with nvcc if the machine has none."""
    return [
        *_skbuild.get_requires_for_build_editable(config_settings),
        *_cuda_requirements(config_settings),
    ]


def _build_dir(state: Literal["wheel", "editable"], settings: Settings) -> Path:
    project = SettingsReader.from_file("pyproject.toml", settings, state=state).settings
    return Path(project.build_dir.replace("{state}", state))


def _prepare(state: Literal["wheel", "editable"], settings: Settings) -> None:
    """Makes CMake configure a build folder of another build anew.

    CMake's cache then holds the options of that build (an editable install is for this processor
    only), and names tools of an isolated environment that are gone; scikit-build-core, which sees
    that the environment lies elsewhere, would remove the objects. They are good: ninja compares the
    commands that made them.
    """
    build_dir = _build_dir(state, settings)
    cache, record = build_dir / "CMakeCache.txt", build_dir / ".skbuild-info.json"
    try:
        info = json.loads(record.read_text(encoding="utf-8"))
        values = dict(re.findall(r"^(\w+):\w+=(.*)", cache.read_text(), re.MULTILINE))
    except (OSError, ValueError):
        return
    last, nvcc = values.get("SKBUILD_STATE"), values.get("CMAKE_CUDA_COMPILER", "")
    prefix = Path(values.get("CMAKE_INSTALL_PREFIX", ""))
    if last == "editable" != state and prefix.is_relative_to(build_dir.resolve()):
        sys.exit(
            f"Kernelmint: {build_dir} belongs to an editable install that is built again at every "
            "import (editable.rebuild): build the wheel in a folder of its own, -C build-dir=DIR"
        )
    here = str(Path(_skbuild.__file__).resolve().parents[1])
    gone = nvcc.startswith("/") and not Path(nvcc).exists()
    if info.get("skbuild_path") == here and last == state and not gone:
        return
    cache.unlink()
    for compilers in (build_dir / "CMakeFiles").glob("[0-9]*"):  # CMake's findings about the tools
        shutil.rmtree(compilers)
    record.write_text(json.dumps({**info, "skbuild_path": here}), encoding="utf-8")


def _run(script: str, *arguments: str | Path) -> None:
    """Runs a script of codegen/build on a wheel, or on its metadata's folder."""
    command = [sys.executable, str(_ROOT / "codegen/build" / script), *map(str, arguments)]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(1)


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Writes the metadata of a wheel."""
    name = _skbuild.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    _run("licences.py", Path(metadata_directory, name))
    return name


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds a wheel; its build folder, logs included, stays. The metadata is made anew."""
    _prepare("wheel", config_settings)
    name = _skbuild.build_wheel(wheel_directory, config_settings, None)
    wheel = Path(wheel_directory, name)
    _run("licences.py", wheel)
    _run(
        *("sbom.py", wheel, "--build-dir", _build_dir("wheel", config_settings)),
        *("--requirements", json.dumps(get_requires_for_build_wheel(config_settings))),
        *("--settings", json.dumps(config_settings or {})),
    )
    _run("sizes.py", wheel)
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds an editable install; its build folder stays."""
    _prepare("editable", config_settings)
    return _skbuild.build_editable(wheel_directory, config_settings, metadata_directory)


if __name__ == "__main__":  # `make` installs these before it builds without isolation
    print("\n".join(get_requires_for_build_editable()))
