"""Configurations to {path: text}: pure functions, the same bytes for the same inputs.

Paths are relative to generated/. The shards, the tables, the list of files and the manifest come
from one list of configurations, so they cannot disagree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from codegen.core import manifest
from codegen.core.staleness import MANIFEST
from codegen.emit import family as emit_family
from codegen.emit import target as emit_target
from codegen.emit.manifest import Inputs, described
from codegen.emit.render import render, sha256
from codegen.sources import build_paths
from codegen.space.expand import FamilySpace
from codegen.spec.model import BuildPath, BuildSettings


class Options(NamedTuple):
    """The flags of some values of a target's compiler options, and the files that have them."""

    flags: Sequence[str]
    shards: list[str]


def emit(spaces: Sequence[FamilySpace], inputs: Inputs) -> dict[str, str]:
    """Returns the whole tree."""
    files: dict[str, str] = {}
    shards: dict[tuple[str, str], list[str]] = {}  # (family, target) -> paths
    options: dict[tuple[str, str], dict[str, Options]] = {}  # likewise, by the options' name
    file_of: dict[str, str] = {}  # key -> path of its shard
    fingerprints: dict[str, str] = {}  # by family
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
                    family, target, target.launch
                )
            if target.workspace:
                files[f"{folder}/{target.name}_args.h"] = emit_target.args(target)
            if target.wgmma is not None:
                files[f"{folder}/{target.name}_wgmma.cuh"] = emit_target.wgmma(chosen, target.wgmma)
            files[f"{folder}/{target.name}_table.cpp"] = emit_target.table(family, chosen)
            for path, text, configurations in emit_target.shards(family, chosen):
                files[path] = text
                if name := emit_target.options_of(configurations[0]):
                    of_target = options.setdefault((folder, target.name), {})
                    of_options = of_target.setdefault(name, Options(configurations[0].flags, []))
                    of_options.shards.append(path)
                else:
                    shards.setdefault((folder, target.name), []).append(path)
                file_of.update(dict.fromkeys((c.key for c in configurations), path))
        fingerprint = fingerprints[folder] = _fingerprint(files, folder)
        files[f"{folder}/library.cpp"] = render(
            "library.cpp", family.file, family=folder, fingerprint=fingerprint
        )
    source = ", ".join(dict.fromkeys(space.family.file.split("/")[0] for space in spaces))
    files["files.cmake"] = _files_cmake(spaces, shards, options, inputs, fingerprints, source)
    files[MANIFEST] = manifest.text(described(spaces, files, file_of, inputs, fingerprints))
    return files


def _fingerprint(files: Mapping[str, str], family: str) -> str:
    """Returns the hash of all that was generated for a family, its Python module included."""
    own = [path for path in sorted(files) if path.startswith(f"{family}/")]
    listed = "".join(f"{path} {sha256(files[path])}\n" for path in (*own, f"python/{family}.py"))
    return sha256(listed)[:32]


def _files_cmake(
    spaces: Sequence[FamilySpace],
    shards: Mapping[tuple[str, str], list[str]],
    options: Mapping[tuple[str, str], Mapping[str, Options]],
    inputs: Inputs,
    fingerprints: Mapping[str, str],
    source: str,
) -> str:
    folders = dict(zip(inputs.spec_names, inputs.spec_dirs, strict=True))
    targets = [chosen.target for space in spaces for chosen in space.targets]
    cuda = {(target.capability, target.name) for target in targets if target.is_cuda}
    return render(
        "files.cmake",
        source,
        spec_dirs=[_cmake_path(folder) for folder in inputs.spec_dirs],
        spaces=spaces,
        shards=shards,
        options=options,
        word=lambda flag: _cmake_words(shlex.quote(flag)),
        fingerprints=fingerprints,
        settings=lambda build: _settings(build, folders),
        cuda_targets=[name for _, name in sorted(cuda)],
    )


def _settings(build: BuildSettings, folders: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Returns a build's settings, by the names that kernelmint/cmake/build_settings.cmake reads:
    lists of escaped values."""

    def at(named: BuildPath) -> str:
        if named.specs is None:
            return _cmake_text(build_paths.as_text(named.entry))
        path = _cmake_path(f"{folders[named.specs]}/{named.path}")
        return build_paths.as_text(named.entry, path)

    lists = {
        "FLAGS": [_cmake_words(flag) for flag in build.flags],
        "DEFINITIONS": [_cmake_words(shlex.quote(f"-D{text}")) for text in build.definitions],
        "INCLUDE": [at(named) for named in build.include],
        "LIBRARIES": [
            at(entry) if isinstance(entry, BuildPath) else entry for entry in build.libraries
        ],
        "SOURCES": [at(named) for named in build.sources],
    }
    return [(name, values) for name, values in lists.items() if values]


def _cmake_words(words: str) -> str:
    """Returns words of a command line that CMake keeps together, since it drops repeated words;
    CMake takes a backslash for an escape, even between single quotes."""
    return _cmake_text("SHELL:" + words.replace("\\", "\\\\"))


def _cmake_text(text: str) -> str:
    """Returns a text as it stands between quotes in a CMake list."""
    return re.sub(r'(["\\$;])', r"\\\1", text)


def _cmake_path(folder: str) -> str:
    """Returns a path as it stands between quotes in a CMake list."""
    escaped = _cmake_text(folder)
    return escaped if Path(folder).is_absolute() else f"${{CMAKE_CURRENT_LIST_DIR}}/{escaped}"
