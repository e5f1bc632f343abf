"""Configurations to {path: text}: pure functions, the same bytes for the same inputs.

Paths are relative to generated/. The shards, the tables, the list of files and the manifest come
from one list of configurations, so they cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen.emit import family as emit_family
from codegen.emit import target as emit_target
from codegen.emit.manifest import Inputs, manifest
from codegen.emit.render import render, sha256
from codegen.space.expand import FamilySpace
from codegen.staleness import MANIFEST


def emit(spaces: Sequence[FamilySpace], inputs: Inputs) -> dict[str, str]:
    """The whole tree."""
    files: dict[str, str] = {}
    shards: dict[str, list[str]] = {}  # target -> paths
    places: dict[str, str] = {}  # key -> path of its shard
    for space in spaces:
        family = space.family
        folder = family.name
        files[f"{folder}/args.h"] = emit_family.args(family)
        if family.trace is not None:
            files[f"{folder}/trace.h"] = emit_family.trace_h(family, family.trace)
        files[f"{folder}/family.cpp"] = emit_family.family_cpp(space)
        files[f"python/{folder}.py"] = emit_family.python(family)
        for chosen in space.targets:
            target = chosen.target
            if target.launch is not None:
                files[f"{folder}/{target.name}_launch.cuh"] = emit_target.launch(
                    target, target.launch
                )
            if target.workspace:
                files[f"{folder}/{target.name}_args.h"] = emit_target.args(target)
            if target.wgmma is not None:
                files[f"{folder}/{target.name}_wgmma.cuh"] = emit_target.wgmma(chosen, target.wgmma)
            files[f"{folder}/{target.name}_table.cpp"] = emit_target.table(family, chosen)
            for path, text, configurations in emit_target.shards(family, chosen):
                files[path] = text
                shards.setdefault(target.name, []).append(path)
                places.update(dict.fromkeys((c.key for c in configurations), path))
    families = [space.family.name for space in spaces]
    source = ", ".join(dict.fromkeys(space.family.file.split("/")[0] for space in spaces))
    files["python/__init__.py"] = render("package.py", source, families=families)
    fingerprint = sha256("".join(f"{path} {sha256(files[path])}\n" for path in sorted(files)))[:32]
    files["registry.cpp"] = render(
        "registry.cpp", source, families=families, fingerprint=fingerprint
    )
    files["files.cmake"] = _files_cmake(spaces, shards, inputs, fingerprint, source)
    files[MANIFEST] = manifest(spaces, files, places, inputs, fingerprint)
    return files


@dataclass(frozen=True)
class _TargetFiles:
    name: str
    is_cuda: bool
    kernels: int
    sources: list[str]
    tables: list[str]


def _files_cmake(
    spaces: Sequence[FamilySpace],
    shards: Mapping[str, list[str]],
    inputs: Inputs,
    fingerprint: str,
    source: str,
) -> str:
    chosen = [target for space in spaces for target in space.targets]
    names = dict.fromkeys(
        t.target.name for t in sorted(chosen, key=lambda t: (t.target.capability, t.target.name))
    )
    targets = [
        _TargetFiles(
            name,
            name != "cpu",
            sum(len(t.configurations) for t in chosen if t.target.name == name),
            shards[name],
            [f"{t.target.family}/{name}_table.cpp" for t in chosen if t.target.name == name],
        )
        for name in names
    ]
    return render(
        "files.cmake",
        source,
        fingerprint=fingerprint,
        spec_dirs=[_cmake_path(folder) for folder in inputs.spec_dirs],
        families=[space.family.name for space in spaces],
        common=[*(f"{space.family.name}/family.cpp" for space in spaces), "registry.cpp"],
        targets=targets,
    )


def _cmake_path(folder: str) -> str:
    """A path as it stands between quotes in a CMake list."""
    escaped = re.sub(r'(["\\$;])', r"\\\1", folder)
    return escaped if Path(folder).is_absolute() else f"${{CMAKE_CURRENT_LIST_DIR}}/{escaped}"
