"""Writes pack.json, which describes a pack and its sources, and the C++ that names the pack's
fingerprint.

    pack_json.py --name PACK --folder DIR --root PROJECT --kernelmint DIR --manifest FILE
                 --targets FAMILY.TARGET ... --architectures ... --isas ... --specs NAME=FOLDER ...
                 [--slice NAME ARCHITECTURE,... FAMILY.TARGET ...] ...
                 --set NAME=VALUE ... --headers NAME FOLDER ... -- SOURCE ...

pack.json holds each setting, the hash of each folder of foreign headers and of each source (by its
path within the project, or within Kernelmint), the built targets, and as `fingerprint` the hash of
all inputs of the libraries. A slice's, in slices/NAME, has that fingerprint, and its own
architectures and targets. CMake runs this whenever a source or a setting changes. Standard
library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is run by its path

from codegen.core import manifest, packs
from codegen.core.words import below

ABI = re.compile(r"constexpr std::uint32_t kAbi = (\d+);")


def hash_of_folder(folder: Path) -> str:
    """Returns the hash of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def main(arguments: list[str]) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    for option in ("--folder", "--root", "--kernelmint", "--manifest"):
        parser.add_argument(option, type=Path, required=True)
    for option in ("--targets", "--architectures", "--isas"):
        parser.add_argument(option, nargs="*", default=[])
    parser.add_argument("--specs", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--slice", nargs="+", action="append", default=[], dest="slices")
    parser.add_argument("--headers", nargs=2, action="append", default=[])
    parser.add_argument("sources", nargs="*", type=Path)
    options = parser.parse_args(arguments)

    def name_of(path: Path) -> str:
        # Either folder may lie in the other: an example in the checkout, a copy in a build folder.
        homes = sorted((options.root, options.kernelmint), key=lambda home: -len(home.parts))
        place = below(path, homes)
        return (place[1] if place else Path(os.path.relpath(path, options.root))).as_posix()

    def folder_name(name: str, folder: str) -> str:
        is_named = name.startswith(("package:", "excerpt:"))
        return name if is_named else os.path.relpath(folder, options.root)

    sources = sorted(options.sources)
    options.root, options.kernelmint = options.root.resolve(), options.kernelmint.resolve()
    (abi,) = (
        match[1]
        for path in sources
        if path.name == "library.h" and (match := ABI.search(path.read_text()))
    )
    if len(options.specs) != len({folder.partition("=")[0] for folder in options.specs}):
        sys.exit(f"pack {options.name}: two folders of specs have one name: {options.specs}")
    families = manifest.read(options.manifest).families
    made_of: dict[str, Any] = {
        "abi": int(abi),
        "settings": {
            **dict(setting.split("=", 1) for setting in options.settings),
            **{
                f"headers of {folder_name(name, folder)}": hash_of_folder(Path(folder))
                for name, folder in options.headers
            },
        },
        "architectures": options.architectures,
        "isas": options.isas,
        "targets": options.targets,
        "sources": {
            name_of(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sources
        },
    }
    slices = tuple(
        packs.Slice(name=name, architectures=tuple(names.split(",")), targets=tuple(targets))
        for name, names, *targets in options.slices
    )
    generated = {family.name: family.fingerprint for family in families}
    hashed = json.dumps(
        {**made_of, "generated": generated, "slices": options.slices}, sort_keys=True
    )
    fingerprint = hashlib.sha256(hashed.encode()).hexdigest()[:32]
    specs = dict(folder.split("=", 1) for folder in options.specs)
    options.folder.mkdir(parents=True, exist_ok=True)
    packs.write(
        options.folder, families, name=options.name, fingerprint=fingerprint, spec_folders=specs,
        slices=slices, **made_of,
    )  # fmt: skip
    for part in slices:
        folder = options.folder / packs.SLICES / part.name
        folder.mkdir(parents=True, exist_ok=True)
        of_slice = {"architectures": part.architectures, "targets": part.targets, "isas": ()}
        packs.write(
            folder, families, name=options.name, fingerprint=fingerprint, spec_folders={},
            slice_name=part.name, **{**made_of, "sources": {}, **of_slice},
        )  # fmt: skip
    (options.folder / "fingerprint.cpp").write_text(
        f'#include "generated.h"\n\nconst char kernelmint::kBuild[] = "{fingerprint}";\n'
    )


if __name__ == "__main__":
    main(sys.argv[1:])
