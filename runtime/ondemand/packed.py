"""A pack of a cache as one value, for the caches of other machines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runtime.ondemand.cache import SEAL, Cache, Dependencies, Entry, Roots, texts


@dataclass(frozen=True)
class Packed:
    """A pack of a cache.

    Attributes:
        request: the hash of the build's request.
        name: the pack's name in a cache.
        dependencies: the files that it was built from.
        files: its own, by their path with forward slashes.
    """

    request: str
    name: str
    dependencies: Dependencies
    files: Mapping[str, bytes]

    def encoded(self) -> bytes:
        """Returns the pack as bytes: a line of JSON, and the files one after the other."""
        sizes = {name: len(content) for name, content in sorted(self.files.items())}
        parts = as_lists(self.dependencies)
        head = json.dumps([self.request, self.name, parts, sizes])
        return b"".join([f"{head}\n".encode(), *(self.files[name] for name in sizes)])


def as_lists(dependencies: Dependencies) -> list[tuple[str, ...]]:
    """Returns dependencies as plain data."""
    return [dependencies.files, dependencies.folders, dependencies.sought]


def of_lists(parts: object) -> Dependencies:
    """Returns dependencies that were plain data. Raises TypeError for anything else."""
    if not isinstance(parts, list) or len(parts) != len(as_lists(Dependencies())):
        raise TypeError
    return Dependencies(*map(texts, parts))


def decoded(data: bytes) -> Packed:
    """Returns a pack that was encoded. Raises ValueError if the bytes are damaged."""
    head, _, rest = data.partition(b"\n")
    try:
        request, name, parts, sizes = json.loads(head)
        dependencies, files, begin = of_lists(parts), {}, 0
        for file, size in sizes.items():
            if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts or size < 0:
                raise ValueError(file)
            files[file] = rest[begin : begin + size]
            begin += size
        hashes = {file: hashlib.sha256(files[file]).hexdigest() for file in files if file != SEAL}
        if begin != len(rest) or hashes != json.loads(files[SEAL]):
            raise ValueError("a pack with other contents than were published")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return Packed(str(request), str(name), dependencies, files)


def pack_up(request: str, entry: Entry) -> Packed:
    """Packs a kernel's pack up, for another cache."""
    files = {
        path.relative_to(entry.folder).as_posix(): path.read_bytes()
        for path in entry.folder.rglob("*")
        if path.is_file()
    }
    return Packed(request, entry.folder.name, entry.dependencies, files)


def unpack(packed: Packed, cache: Cache) -> Entry:
    """Puts a pack into a cache, as if it had been built here."""
    with cache.locked([packed.request], "it", lambda text: None):
        return put(packed, cache)


def put(packed: Packed, cache: Cache) -> Entry:
    """Puts a pack into a cache in which its request is locked."""
    with cache.work() as (work, _):
        pack = work / "pack"
        write(packed.files, pack)
        nowhere = Roots({})  # no dependency is looked at
        return cache.publish(packed.request, packed.dependencies, nowhere, packed.name, pack)


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
