"""Fingerprints of all that a row's figures depend on: the toolchain, and the code with its flags.

A change of registers under one code fingerprint and two toolchains is the compiler's doing; under
one toolchain and two code fingerprints it is the author's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from codegen.core import manifest
from codegen.core.architectures import of_code, of_target
from codegen.core.ptxas_rows import ReportError, Row
from codegen.core.symbols import key_of_symbol

_INCLUDE = re.compile(rb'^#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


class Manifest:
    """Manifests of codegen, as far as a report needs them; ReportError if a file is not one.

    Attributes:
        paths: the files.
        kernels: parameters, derived values and source of each kernel, by key.
        targets: what the manifests say of each target, by family and name.
        spec_dirs: the folders of specs.

    A kernel whose symbol names no configuration belongs to those of the object that holds it: a
    shard's, or, if a spec's `build:` names the source, all of the target's.
    """

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.kernels: dict[str, manifest.Kernel] = {}
        self.targets: dict[tuple[str, str], manifest.Target] = {}
        self.spec_dirs: list[Path] = []
        self._shards: dict[str, list[str]] = {}  # keys by file
        self._units: dict[str, str] = {}  # the unit compiled in place of a file
        self._sources: dict[str, list[tuple[str, str]]] = {}  # targets by a source of their own
        for path in paths:
            try:
                self._read(path)
            except OSError as error:
                raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from error
            except ValueError as error:
                raise ReportError(f"{path}: not a manifest of codegen ({error})") from error

    def _read(self, path: Path) -> None:
        tree = manifest.read(path)
        for family in tree.families:
            for target in family.targets:
                self.targets[family.name, target.name] = target
                for source in (*family.build.sources, *target.build.sources):
                    owners = self._sources.setdefault(source["path"], [])
                    owners.append((family.name, target.name))
        for _, _, kernel in tree.kernels:
            self.kernels[kernel.key] = kernel
            self._shards.setdefault(kernel.file, []).append(kernel.key)
        self.spec_dirs += [(path.parent / folder).resolve() for folder in tree.spec_dirs]

    def compiled_together(self, folder: Path) -> None:
        """Notes that files in `folder`, written by codegen/build/units.py, are compiled in place of
        the generated files that they include. Their names are relative to the folder."""
        for path in sorted(folder.rglob("*.cu")):
            unit = path.relative_to(folder).as_posix()
            for include in _INCLUDE.findall(path.read_bytes()):
                shard = include.decode()
                self._shards.setdefault(unit, []).extend(self._shards.pop(shard, ()))
                self._units[shard] = unit

    def attributed(self, rows: Iterable[Row]) -> list[Row]:
        """Returns the rows; a kernel whose symbol names no configuration has the key of its object,
        if that holds one."""
        return [
            row._replace(object_key=keys[0])
            if row.key is None and row.kind == "kernel" and len(keys := self._keys(row)) == 1
            else row
            for row in rows
        ]

    def _keys(self, row: Row) -> list[str]:
        """Returns the configurations that the object of a row holds."""
        return self._shards.get(row.source or "", [])

    def owners(self, row: Row) -> list[tuple[str, str]]:
        """Returns the family and target that a row was compiled for: several, if they share its
        source."""
        key = row.key or key_of_symbol(row.symbol) or next(iter(self._keys(row)), None)
        if key is not None:
            family, target, _ = key.split(".", 2)
            return [(family, target)]
        return self._sources.get(row.source or "", [])

    def absent(
        self, rows: Iterable[Row], architectures: Iterable[str] = ()
    ) -> list[tuple[str, str]]:
        """Returns (key, architecture) of every kernel of the rows' build that has no row.

        The build's architectures are those of the rows and the given ones (`90a`): `sm80` is
        compiled for each of them from 8.0 up, `sm90a` for 9.0a if they hold 9.0. A kernel has a
        row also if one without a key is of its shard, or if its shard has none at all and a
        source of its target has.
        """
        present = {(row.key, row.arch) for row in rows if row.key}
        shards = {(row.source, row.arch) for row in rows if row.source in self._shards}
        keyless = {(row.source, row.arch) for row in rows if row.key is None}
        in_sources = {
            (owner, row.arch) for row in rows for owner in self._sources.get(row.source or "", [])
        }
        names = {arch for _, arch in present | shards | in_sources if arch} | {*architectures}
        built = {named.capability for name in names if (named := of_code(name))}
        absent = []
        for name, target in self.targets.items():
            architecture = of_target(name[1])
            if architecture is None:
                continue
            for capability in sorted(filter(architecture.suits, built)):
                arch = f"sm_{architecture.on(capability)}"
                for kernel in target.kernels:
                    shard = (self._units.get(kernel.file, kernel.file), arch)
                    stands_in = shard in keyless or (
                        shard not in shards and (name, arch) in in_sources
                    )
                    if (kernel.key, arch) not in present and not stands_in:
                        absent.append((kernel.key, arch))
        return absent

    @cached_property
    def files(self) -> frozenset[str]:
        """Returns the generated sources, relative to the manifest's folder, and the sources that
        specs name, relative to the specs' folder."""
        return frozenset((*self._shards, *self._sources))


class CodeFingerprint:
    """Fingerprints each kernel's code: its configuration, the headers that it includes, the flags,
    and what its target's `build:` adds to them.

    The headers are those that its shard reaches through #include among the generated, the
    families', the shared and the foreign ones. Lines of comments do not count.
    """

    def __init__(self, manifest: Manifest, include: Sequence[Path], flags: str) -> None:
        (path,) = manifest.paths
        self._generated = path.parent
        self._manifest = manifest
        self._folders = [self._generated, *manifest.spec_dirs, *include]
        self._flags = flags
        self._texts: dict[Path, tuple[bytes, list[str]]] = {}
        self._shards: dict[str, str] = {}

    def of(self, key: str) -> str | None:
        """Returns 12 hex digits; None for a key that the manifest does not hold."""
        kernel = self._manifest.kernels.get(key)
        if kernel is None:
            return None
        shard = kernel.file
        family, target, _ = key.split(".", 2)
        build = self._manifest.targets[family, target].build
        if shard not in self._shards:
            self._shards[shard] = self._headers(self._generated / shard)
        everything = [
            key,
            kernel.parameters,
            kernel.derived,
            self._shards[shard],
            self._flags,
            *(self._settings(build) if build != manifest.BuildSettings() else []),
            *([kernel.flags] if kernel.flags else []),
        ]
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:12]

    def _settings(self, build: manifest.BuildSettings) -> Iterable[object]:
        return build.flags, build.definitions

    def _counts(self, header: Path) -> bool:
        return True

    def _headers(self, shard: Path) -> str:
        """Returns a digest of all headers that a shard includes, at any depth, not of the shard."""
        if not shard.is_file():
            return ""
        seen: set[Path] = set()
        waiting = self._resolved(shard, self._read(shard)[1])
        digest = hashlib.sha256()
        while waiting:
            path = waiting.pop(0)
            if path not in seen:
                seen.add(path)
                text, includes = self._read(path)
                digest.update(text if self._counts(path) else b"")
                waiting += self._resolved(path, includes)
        return digest.hexdigest()

    def _read(self, path: Path) -> tuple[bytes, list[str]]:
        if path not in self._texts:
            lines = (line.strip() for line in path.read_bytes().splitlines())
            text = b"\n".join(line for line in lines if line and not line.startswith(b"//"))
            names = [name.decode("utf-8", "replace") for name in _INCLUDE.findall(text)]
            self._texts[path] = (text, names)
        return self._texts[path]

    def _resolved(self, path: Path, names: Iterable[str]) -> list[Path]:
        places = [path.parent, *self._folders]
        paths = (
            next((place / name for place in places if (place / name).is_file()), None)
            for name in names
        )
        return [Path(os.path.normpath(path)) for path in paths if path is not None]


class SourceFingerprint(CodeFingerprint):
    """Fingerprints what people write of each kernel: its configuration, its headers in the folders
    of specs, its arguments, and its target's `build:`, whatever set the kernel is compiled in and
    whatever flags builds add.

    Files of archives count by the archive's hash; the runtime's headers do not count, which change
    with each version.
    """

    def __init__(self, manifest: Manifest, specs: Sequence[Path]) -> None:
        super().__init__(manifest, specs, "")

    def _settings(self, build: manifest.BuildSettings) -> Iterable[object]:
        return build.flags, build.definitions, build.include, build.sources

    def _counts(self, header: Path) -> bool:
        """Returns whether a header is not generated for several kernels together."""
        return header.name == "args.h" or self._generated not in header.parents
