"""A check that a generated tree is still that of its specs, and that this Kernelmint can build it.

    python codegen/core/staleness.py GENERATED_DIR

prints the stale parts and the command that fixes them, and exits with 1. CMake runs this when it
configures, so it needs only Python's standard library: it compares the hashes of specs and outputs
that manifest.json records. It does not ask which codegen wrote them: another version may have made
a checked-in tree, and `kernelmint check` compares the tree with the one that this version would
write.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "codegen.core"

from codegen.core.words import display_path

MANIFEST = "manifest.json"
# Version of the interface between generated code and the headers, CMake and runtime; raised with a
# change after which a tree must be written anew.
VERSION = 1
JOURNAL = ".regenerate.json"  # lies in the tree while it is written


def read_regular(path: Path, most: int = -1) -> bytes:
    """Returns the first `most` bytes of a regular file; all of them, if `most` is negative. Raises
    OSError for any other kind of file."""
    with open_regular(path) as file:
        return file.read(most)


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a regular file to read its bytes.

    Raises OSError for any other kind of file: a FIFO would be waited for, a device never end.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_json(path: Path) -> Any:
    """Returns the contents of a JSON file; None if it is absent, torn, nested too deeply or not
    UTF-8."""
    try:
        return json.loads(read_regular(path).decode())
    except (OSError, ValueError, RecursionError):
        return None


def codegen_files() -> dict[str, Path]:
    """Returns the files of this codegen that decide what it writes, by their path within it."""
    folder = Path(__file__).resolve().parents[1]
    paths = [*folder.rglob("*.py"), *folder.glob("emit/templates/*.mako")]
    return {path.relative_to(folder).as_posix(): path for path in sorted(paths)}


def spec_files(folder: Path) -> Iterator[Path]:
    """Returns the YAML files below a folder of specs: of its families, and of those in a group's
    folder."""
    yield from sorted([*folder.glob("*/*.y*ml"), *folder.glob("*/*/*.y*ml")])


def specs_folder(folder: Path) -> Path:
    """Returns the absolute path of a folder of specs. The folder and its entries may be links: they
    keep their names, which name families, files and includes; the folder around them has its real
    path."""
    path = Path(os.path.abspath(folder))
    return path.parent.resolve() / path.name


def sha256(path: Path) -> str | None:
    """Returns a file's hash; None if it cannot be read."""
    try:
        return hashlib.sha256(read_regular(path)).hexdigest()
    except OSError:
        return None


def fixing_command(generated: Path, manifest: dict[str, Any]) -> str:
    """Returns the regenerate command that makes this tree anew, for the current folder."""
    words = ["kernelmint", "regenerate"]
    folders = shown_spec_dirs(generated, manifest)
    if folders != ["kernel_specs"]:
        words += [word for folder in folders for word in ("--specs", folder)]
    if display_path(generated) != "generated":
        words += ["--out", display_path(generated)]
    selection = manifest.get("selection", {})
    if selection.get("set", "default") != "default":
        words += ["--set", selection["set"]]
    if selection.get("where") is not None:
        words += ["--where", selection["where"]]
    return shlex.join(words)


def read_manifest(generated: Path) -> dict[str, Any]:
    """Returns the contents of the tree's manifest; empty if it cannot be read."""
    manifest = read_json(generated / MANIFEST)
    try:
        return manifest if _is_whole(manifest) else {}
    except (AttributeError, KeyError, TypeError):
        return {}


def _is_whole(manifest: Any) -> bool:
    """Returns whether the parts that are read have codegen's form; else an error may be raised."""
    selection = manifest["selection"]
    hashes = [manifest[part].items() for part in ("inputs", "outputs")]
    kernels = [k for f in manifest["families"] for t in f["targets"] for k in t["kernels"]]
    texts = [
        *(
            str(manifest["version"]),
            selection["set"],
            selection["where"] or "",
            *manifest["spec_dirs"],
        ),
        *(text for entries in hashes for entry in entries for text in entry),
        *(text for kernel in kernels for text in (kernel["key"], kernel["file"])),
    ]
    return all(map(is_text, texts))


def is_text(value: object) -> bool:
    """Returns whether a value is a text that can be printed, and that can name a file."""
    return isinstance(value, str) and not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)


def shown_spec_dirs(generated: Path, manifest: dict[str, Any]) -> list[str]:
    """Returns the folders of specs a manifest names, as seen from the current folder."""
    return [display_path(generated / folder) for folder in manifest.get("spec_dirs", [])]


def stale(generated: Path) -> tuple[list[str], str]:
    """Returns the stale parts of a tree (empty for a fresh one), and the command that fixes it.

    Waits for a regenerate that is writing the tree.
    """
    try:
        folder = os.open(generated, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return _stale(generated)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        return _stale(generated)
    finally:
        os.close(folder)


def _stale(generated: Path) -> tuple[list[str], str]:
    manifest = read_manifest(generated)
    command = fixing_command(generated, manifest)
    if not manifest:
        exists = (generated / MANIFEST).exists()
        shown = display_path(generated / MANIFEST)
        return [f"{shown} cannot be read" if exists else f"there is no {shown}"], command
    inputs, outputs = manifest["inputs"], manifest["outputs"]
    spec_dirs = [generated / folder for folder in manifest["spec_dirs"]]
    reasons = []
    if manifest["version"] != VERSION:
        reasons.append(
            f"{display_path(generated / MANIFEST)} has version {manifest['version']}, but this "
            f"Kernelmint builds version {VERSION}"
        )
    if (generated / JOURNAL).exists():
        reasons.append("a regenerate was interrupted")
    present = []
    for folder in spec_dirs:
        if folder.is_dir():
            present += list(spec_files(folder))
        else:
            gone = f"there is no {display_path(folder)}"
            reasons.append(f"the specs it was made from are gone: {gone}")
    recorded = {os.path.normpath(generated / name) for name in inputs}
    for path in present:
        if os.path.normpath(path) not in recorded:
            reasons.append(f"{display_path(path)} is new")
    absent = [folder for folder in spec_dirs if not folder.is_dir()]  # reported above
    for name, expected in inputs.items():
        if not any((generated / name).is_relative_to(folder) for folder in absent):
            reasons += _changed(generated / name, expected)
    for name, expected in outputs.items():
        reasons += _changed(generated / name, expected)
    return reasons, command


def _changed(path: Path, expected: str) -> list[str]:
    actual = sha256(path)
    if actual is None:
        return [f"{display_path(path)} is gone"]
    return [] if actual == expected else [f"{display_path(path)} has changed"]


def main(arguments: list[str]) -> int:
    """Runs the command."""
    if len(arguments) != 1:
        print("usage: python codegen/core/staleness.py GENERATED_DIR", file=sys.stderr)
        return 2
    reasons, command = stale(Path(arguments[0]))
    for reason in reasons[:20]:
        print(reason)
    if len(reasons) > 20:
        print(f"and {len(reasons) - 20} more")
    if reasons:
        print(f"fix it with: {command}")
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
