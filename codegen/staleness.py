"""Whether a generated tree is what its specs, templates and generator make now.

    python codegen/staleness.py GENERATED_DIR

exits 1 and says what is stale, and which command mends it. CMake runs this when it configures, so
it needs Python's standard library alone: it compares hashes that manifest.json records.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
JOURNAL = ".regenerate.json"  # lies in the tree while it is written


def codegen_files() -> dict[str, Path]:
    """The files of this codegen that decide what it writes, by their path within it."""
    folder = Path(__file__).resolve().parent
    paths = [*folder.glob("*.py"), *folder.glob("templates/*.mako")]
    return {path.relative_to(folder).as_posix(): path for path in sorted(paths)}


def spec_files(folder: Path) -> Iterator[Path]:
    """The YAML files below a folder of specs."""
    yield from sorted(path for path in folder.glob("*/*.y*ml"))


def sha256(path: Path) -> str | None:
    """A file's hash; None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def mending_command(generated: Path, manifest: dict[str, Any]) -> str:
    """The regenerate command that makes this tree anew, for the current folder."""
    words = ["python", "-m", "codegen", "regenerate"]
    folders = shown_spec_dirs(generated, manifest)
    if folders != ["kernel_specs"]:
        words += [word for folder in folders for word in ("--specs", folder)]
    if _shown(generated) != "generated":
        words += ["--out", _shown(generated)]
    selection = manifest.get("selection", {})
    if selection.get("set", "default") != "default":
        words += ["--set", selection["set"]]
    if selection.get("where") is not None:
        words += ["--where", selection["where"]]
    return shlex.join(words)


def read_manifest(generated: Path) -> dict[str, Any]:
    """What the tree's manifest says; empty where there is none that can be read."""
    try:
        manifest = json.loads((generated / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) and _is_whole(manifest) else {}


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Whether the parts that are read have the types that codegen writes."""
    kinds = {
        "selection": dict,
        "spec_dirs": list,
        "inputs": dict,
        "codegen": dict,
        "outputs": dict,
        "families": list,
    }
    if not all(isinstance(manifest.get(name), kind) for name, kind in kinds.items()):
        return False
    selection = manifest["selection"]
    texts = [selection.get("set"), selection.get("where") or "", *manifest["spec_dirs"]]
    return all(isinstance(text, str) for text in texts)


def shown_spec_dirs(generated: Path, manifest: dict[str, Any]) -> list[str]:
    """The folders of specs a manifest names, as seen from the current folder."""
    return [_shown(generated / folder) for folder in manifest.get("spec_dirs", [])]


def stale(generated: Path) -> tuple[list[str], str]:
    """What is stale in a tree (nothing: it is fresh), and the command that mends it."""
    manifest = read_manifest(generated)
    command = mending_command(generated, manifest)
    if not manifest:
        exists = (generated / MANIFEST).exists()
        shown = _shown(generated / MANIFEST)
        return [f"{shown} cannot be read" if exists else f"there is no {shown}"], command
    inputs, outputs = manifest["inputs"], manifest["outputs"]
    spec_dirs = [generated / folder for folder in manifest["spec_dirs"]]
    reasons = []
    if (generated / JOURNAL).exists():
        reasons.append("a regenerate was interrupted")
    present = []
    for folder in spec_dirs:
        if folder.is_dir():
            present += list(spec_files(folder))
        else:
            reasons.append(f"the specs it was made from are gone: there is no {_shown(folder)}")
    known = {os.path.normpath(generated / name) for name in inputs}
    for path in present:
        if os.path.normpath(path) not in known:
            reasons.append(f"{_shown(path)} is new")
    absent = [folder for folder in spec_dirs if not folder.is_dir()]  # reported above
    for name, expected in inputs.items():
        if not any((generated / name).is_relative_to(folder) for folder in absent):
            reasons += _changed(generated / name, expected)
    own = codegen_files()
    for name in sorted(own.keys() | manifest["codegen"].keys()):
        if name not in own or sha256(own[name]) != manifest["codegen"].get(name):
            reasons.append(f"codegen/{name} has changed")
    for name, expected in outputs.items():
        reasons += _changed(generated / name, expected)
    return reasons, command


def _changed(path: Path, expected: str) -> list[str]:
    actual = sha256(path)
    if actual is None:
        return [f"{_shown(path)} is gone"]
    return [] if actual == expected else [f"{_shown(path)} has changed"]


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith("..") else relative


def main(arguments: list[str]) -> int:
    """The command."""
    if len(arguments) != 1:
        print("usage: python codegen/staleness.py GENERATED_DIR", file=sys.stderr)
        return 2
    reasons, command = stale(Path(arguments[0]))
    for reason in reasons[:20]:
        print(reason)
    if len(reasons) > 20:
        print(f"and {len(reasons) - 20} more")
    if reasons:
        print(f"mend it with: {command}")
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
