"""Puts the licences of a pack's sources into its wheel, and names them in the wheel's metadata.

    python codegen/build/licences.py WHEEL

runs in the project. WHEEL is a wheel, or the unpacked .dist-info folder of one, to which it adds
licenses/ (PEP 639): the LICENSE, LICENCE, NOTICE and COPYING files of Kernelmint, whose headers
every pack compiles; of the specs' folders; and beside each file or folder that `build:` names, up
to the top of its archive, Python package or project. An archive or package without any is an error;
a project, or foreign sources in it, without any, a warning. Standard library only.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # it is run by its path; modules of its folder are not packages
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from codegen.build import dist_info
from codegen.core import staleness
from codegen.sources import archives, build_paths

_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING)(?!.*\.(py|h|cuh)$)", re.IGNORECASE)
_GENERATED = re.compile(r"kernelmint_add_pack\s*\([^)]*?\bGENERATED\s+\"?([^\s\")]+)")
_NAMES = "LICENSE, LICENCE, NOTICE or COPYING"


class LicenceError(LookupError):
    """A source has no licence; the message says which, and what to do."""


def of_project(project: Path) -> dict[str, bytes]:
    """Returns the licences of a project's packs by their names below licenses/. Raises LicenceError
    or PathNotFoundError."""
    return {name: path.read_bytes() for name, path in _paths(project)}


def _paths(project: Path) -> Iterator[tuple[str, Path]]:
    if (
        Path(__file__).resolve().parents[2] != project.resolve()
    ):  # else it is Kernelmint's own wheel
        yield from _of_distribution("kernelmint")
    top = list(_within(project, [project], ""))
    yield from top
    if not top:
        _warn(f"the project has no {_NAMES} file: add {project / 'LICENSE'}")
    text = (project / "CMakeLists.txt").read_text(encoding="utf-8")
    for generated in _GENERATED.findall(text):
        folder = project / generated.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
        manifest = staleness.read_manifest(folder)
        if not manifest:
            _warn(f"{folder} has no manifest, so the licences of foreign sources are not known")
        specs = [Path(os.path.normpath(folder / d)) for d in manifest.get("spec_dirs", [])]
        own = [(n, p) for s in specs for n, p in _within(project, [s, *_folders_below(s)], "")]
        yield from own
        for entry in _entries(manifest):
            yield from _of_entry(entry, project, {s.name: s for s in specs}, [n for n, _ in own])


def _entries(manifest: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Returns the places that the families and targets of a manifest name under `build`."""
    families = manifest.get("families", [])
    builds = [part["build"] for f in families for part in (f, *f["targets"]) if "build" in part]
    entries = [
        e for b in builds for what in ("include", "libraries", "sources") for e in b.get(what, ())
    ]
    return list({str(e): e for e in entries if not isinstance(e, str)}.values())


def _of_entry(
    entry: Mapping[str, str], project: Path, specs: Mapping[str, Path], own: list[str]
) -> Iterator[tuple[str, Path]]:
    """Yields the licences of an entry of a manifest's `build`."""
    if "shims" in entry:
        return
    if "package" in entry:
        distributions = importlib.metadata.packages_distributions().get(entry["package"], [])
        of, licences = entry["pip"], [n for d in distributions for n in _of_distribution(d)]
    else:
        path = build_paths.named(entry, specs)
        if "archive" in entry:
            top = archives.folder(entry["archive"], entry["sha256"]).resolve()
            of, prefix = entry["archive"], f"{top.name}/"
        else:
            top, of, prefix = project, os.path.relpath(path, project), ""
        folders = [folder for folder in (path, *path.parents) if folder.is_relative_to(top)]
        licences = list(_within(top, folders if "archive" in entry else folders[:-1], prefix))
    yield from licences
    name = re.split(r"[=<>~!]", of.removeprefix("pypi:").rpartition("/")[2])[0].strip()
    if licences or any(n.endswith(f"LICENSE.{name}") for n in own):
        return
    wrong = f"{of}, which a spec's `build:` names, has no {_NAMES} file"
    if "specs" not in entry:
        place = f"{next(iter(specs), 'kernel_specs')}/LICENSE.{name}"
        raise LicenceError(f"{wrong}: lay its licence into {place}; the wheel takes it")
    if not any(path.is_relative_to(folder) for folder in specs.values()):
        folder = of if path.is_dir() else os.path.dirname(of)
        _warn(f"{wrong} beside it: if others wrote it, add {folder}/LICENSE")


def _warn(text: str) -> None:
    print(f"Kernelmint: {text}", file=sys.stderr)


def _within(top: Path, folders: list[Path], prefix: str) -> Iterator[tuple[str, Path]]:
    """Yields the licences that lie in folders, named below `top`."""
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if _LICENCE.match(path.name) and path.is_file():
                below = path.relative_to(top) if path.is_relative_to(top) else Path(path.name)
                yield f"{prefix}{below.as_posix()}", path


def _folders_below(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_dir()]


def _of_distribution(name: str) -> Iterator[tuple[str, Path]]:
    """Yields the licences of an installed distribution."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # Kernelmint's own build
        return
    prefix = f"{distribution.metadata['Name']}-{distribution.version}"
    for file in distribution.files or ():
        if _LICENCE.match(file.name) and ".dist-info" in file.parts[0]:
            inner = [part for part in file.parts[1:] if part != "licenses"]
            yield "/".join((prefix, *inner)), Path(str(distribution.locate_file(file)))


def with_names(metadata: str, names: list[str]) -> str:
    """Returns a METADATA file that names these licences beside those that it names."""
    head, blank, body = metadata.partition("\n\n")
    lines = head.split("\n")
    version = next(line for line in lines if line.startswith("Metadata-Version:"))
    if float(version.split()[1]) < 2.4:  # License-File came with 2.4
        lines[lines.index(version)] = "Metadata-Version: 2.4"
    named = [f"License-File: {name}" for name in sorted(names)]
    return "\n".join([*lines, *(line for line in named if line not in lines)]) + blank + body


def into_folder(folder: Path, licences: Mapping[str, bytes]) -> None:
    """Adds licences to an unpacked .dist-info folder."""
    for name, content in licences.items():
        path = folder / "licenses" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    metadata = folder / "METADATA"
    text = with_names(metadata.read_text(encoding="utf-8"), list(licences))
    metadata.write_text(text, encoding="utf-8")


def into_wheel(wheel: Path, licences: Mapping[str, bytes]) -> None:
    """Adds licences to a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{dist_info.folder_of(archive)}/METADATA").decode()
    files = {f"licenses/{name}": content for name, content in licences.items()}
    dist_info.add(wheel, {"METADATA": with_names(metadata, list(licences)).encode(), **files})


def main(arguments: list[str]) -> int:
    """Runs the command."""
    place = Path(arguments[0])
    try:
        licences = of_project(Path.cwd())
    except (LicenceError, build_paths.PathNotFoundError) as error:
        _warn(str(error))
        return 1
    (into_folder if place.is_dir() else into_wheel)(place, licences)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
