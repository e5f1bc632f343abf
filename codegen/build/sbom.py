"""Writes into a wheel what it is made of and by what: a bill of materials (CycloneDX 1.6).

    python codegen/build/sbom.py WHEEL --build-dir DIR --requirements JSON --settings JSON

runs in the project. WHEEL gets .dist-info/sboms/kernelmint.cdx.json (PEP 770):

    components      what its libraries hold: headers of Kernelmint and of packages, pinned archives
                    with their hashes, the static C++ and CUDA runtimes
    formulation     what built it: compilers, linker, CMake, ninja, Python, packages of the build
    metadata        its sources' revision, if they are a clean checkout, and as properties
                    SOURCE_DATE_EPOCH, pip's settings, and flags of the environment

The hash of each source is in the packs' pack.json. `kernelmint verify WHEEL` builds by these
(tools/wheels). Builds of one tree by the same tools write the same bytes. Needs the standard
library, and packaging, which scikit-build-core brings.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if __name__ == "__main__":  # it is run by its path; modules of its folder are not packages
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from codegen.build import dist_info
from codegen.build.dist_info import BILL, EPOCH, FOLDER, SETTING, VARIABLE

# Variables that CMake, nvcc or the linker read, and pack.json does not have.
_VARIABLES = (
    "CMAKE_ARGS", "CUDAFLAGS", "CXXFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"
)  # fmt: skip
# Settings whose outcome pack.json has: architectures, instruction sets, whether CUDA was compiled.
_IN_PACKS = frozenset(
    f"cmake.define.{name}"
    for name in (
        *("CMAKE_CUDA_ARCHITECTURES", "KERNELMINT_CUDA", "KERNELMINT_DEBUG"),
        *("KERNELMINT_ISAS", "KERNELMINT_WITHOUT_GPU"),
    )
)
_PYPI = "pypi:"
Component = dict[str, Any]


def of_wheel(
    wheel: Path, build_dir: Path, requirements: Sequence[str], settings: Mapping[str, Any]
) -> bytes:
    """Returns the bill of materials of a wheel that was built in this project and environment.

    Args:
        wheel: the wheel.
        build_dir: CMake's build folder.
        requirements: of the build, beside those in pyproject.toml.
        settings: pip's (`-C`).
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        packs = [json.loads(archive.read(n)) for n in names if n.endswith("_pack/pack.json")]
        text = archive.read(f"{dist_info.folder_of(archive)}/METADATA").decode()
    metadata = HeaderParser().parsestr(text)
    (wheel_component,) = _referred([_package(metadata["Name"], metadata["Version"])])
    if revision := _revision():
        wheel_component["pedigree"] = {"commits": [{"uid": revision}]}
    build_system = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    packages = dict(_installed([*build_system["requires"], *requirements]))
    components = _referred(_held(packs, packages))
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    properties = {
        **({EPOCH: epoch} if epoch else {}),
        **({FOLDER: folder} if revision and (folder := _git("rev-parse", "--show-prefix")) else {}),
        **{
            f"{SETTING}{name}": str(value)
            for name, value in sorted(settings.items())
            # A path is another on each machine.
            if name not in _IN_PACKS and not os.path.isabs(str(value))
        },
        **{f"{VARIABLE}{n}": os.environ[n] for n in _VARIABLES if os.environ.get(n)},
    }
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            **({"timestamp": _time(int(epoch))} if epoch else {}),
            "component": wheel_component,
            "properties": [{"name": name, "value": value} for name, value in properties.items()],
        },
        "components": components,
        "dependencies": [
            {"ref": wheel_component["bom-ref"], "dependsOn": [c["bom-ref"] for c in components]}
        ],
        "formulation": [
            {
                "components": [
                    *_tools(packs, build_dir),
                    *(_package(*package) for package in sorted(packages.items())),
                ]
            }
        ],
    }
    return (json.dumps(bill, indent=1) + "\n").encode()


def _time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _component(kind: str, name: str, version: str | None, **others: Any) -> Component:
    return {"type": kind, "name": name, **({"version": version} if version else {}), **others}


def _package(name: str, version: str, **others: Any) -> Component:
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    return _component("library", name, version, purl=purl, **others)


def _referred(components: Iterable[Component]) -> list[Component]:
    """Returns components with references, once each."""
    of_ref = {str(c.get("purl") or f"{c['name']} {c.get('hashes', '')}"): c for c in components}
    return [{**component, "bom-ref": ref} for ref, component in of_ref.items()]


def _held(packs: Sequence[Mapping[str, Any]], packages: Mapping[str, str]) -> Iterator[Component]:
    """Yields what the libraries of packs hold beside the project's own code."""
    yield from (_package(n, packages[n]) for n in ("kernelmint", "nanobind") if n in packages)
    settings = {name: value for pack in packs for name, value in pack["settings"].items()}
    for name, value in sorted(settings.items()):
        if match := re.fullmatch("archive ([0-9a-f]{64})", name):
            yield _archive(value, match[1])
        elif match := re.fullmatch(r"headers of (?:excerpt:.*)?package:([^:]*):.*", name):
            owners = importlib.metadata.packages_distributions().get(match[1], ())
            yield from (_package(o, importlib.metadata.version(o)) for o in owners)
    if packs:
        compiler, _, version = settings["c++"].partition(" ")
        yield _component("library", "libstdc++", version if compiler == "GNU" else None)
    if "nvcc" in settings:
        release = ".".join(settings["nvcc"].split(".")[:2])
        yield _component("library", "cudart_static", release, supplier={"name": "NVIDIA"})


def _archive(origin: str, sha256: str) -> Component:
    hashes = [{"alg": "SHA-256", "content": sha256}]
    if origin.startswith(_PYPI):
        return _package(*origin.removeprefix(_PYPI).split("==", 1), hashes=hashes)
    reference = [{"type": "distribution", "url": origin}]
    name = origin.rpartition("/")[2]
    return _component("library", name, None, hashes=hashes, externalReferences=reference)


def _tools(packs: Sequence[Mapping[str, Any]], build_dir: Path) -> Iterator[Component]:
    """Yields the programs that built packs, as their build folder names them."""
    settings = {name: value for pack in packs for name, value in pack["settings"].items()}
    for setting in ("c++", "c++ of nvcc", "linker"):
        if version := settings.get(setting, "").strip():
            name, _, number = version.partition(" ")
            yield _component("application", name, number, description=setting)
    if "nvcc" in settings:
        yield _component("application", "nvcc", settings["nvcc"], supplier={"name": "NVIDIA"})
    try:
        cache = (build_dir / "CMakeCache.txt").read_text(encoding="utf-8")
    except OSError:  # a wheel without CMake's part
        cache = ""
    values = dict(re.findall(r"^(\w+):\w+=(.*)", cache, re.MULTILINE))
    if values:
        numbers = (values[f"CMAKE_CACHE_{part}_VERSION"] for part in ("MAJOR", "MINOR", "PATCH"))
        yield _component("application", "cmake", ".".join(numbers))
        ninja = [values["CMAKE_MAKE_PROGRAM"], "--version"]
        done = subprocess.run(ninja, capture_output=True, text=True, check=False)
        yield _component("application", "ninja", ".".join(done.stdout.strip().split(".")[:3]))
    yield _component("application", "python", platform.python_version())


def _installed(requirements: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the installed packages that requirements name, and those that these require."""
    waiting, seen = list(map(Requirement, requirements)), set()
    while waiting:
        wanted = waiting.pop()
        extras = [*wanted.extras] or [""]
        name = canonicalize_name(wanted.name)
        is_unmet = wanted.marker is not None and not wanted.marker.evaluate()
        if is_unmet or (name, *sorted(extras)) in seen:
            continue
        seen.add((name, *sorted(extras)))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # the project builds itself
            continue
        yield name, distribution.version
        for required in map(Requirement, distribution.requires or ()):
            if required.marker is None or any(
                required.marker.evaluate({"extra": extra}) for extra in extras
            ):
                required.marker = None
                waiting.append(required)


def _git(*words: str) -> str | None:
    """Returns what git prints in the project; None if git fails."""
    command = ["git", "-c", "safe.directory=*", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _revision() -> str | None:
    """Returns the commit of the project's sources; None if they are not a checkout of one, or were
    changed since."""
    if not _git("ls-files", "--error-unmatch", "pyproject.toml"):
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return _git("rev-parse", "HEAD") if changed == "" else None


def main(arguments: list[str]) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--requirements", type=json.loads, default=[])
    parser.add_argument("--settings", type=json.loads, default={})
    options = parser.parse_args(arguments)
    dist_info.add(options.wheel, {BILL: of_wheel(**vars(options))})


if __name__ == "__main__":
    main(sys.argv[1:])
