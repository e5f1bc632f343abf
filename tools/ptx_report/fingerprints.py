"""What a row's figures depend on: the toolchain, and the code with its flags.

A change of registers under one code fingerprint and two toolchains is the compiler's doing; under
one toolchain and two code fingerprints it is the author's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .records import Record, ReportError

_INCLUDE = re.compile(rb'^#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


class Manifest:
    """Manifests of codegen, as far as a report needs them; ReportError where a file is not one.

    Attributes:
        paths: the files.
        kernels: parameters, derived values and source of each kernel, by key.
        targets: what the manifests say of each target, by family and name.
        spec_dirs: the folders of specs.
    """

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.kernels: dict[str, Mapping[str, Any]] = {}
        self.targets: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.spec_dirs: list[Path] = []
        for path in paths:
            try:
                self._read(path)
            except OSError as error:
                raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from error
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ReportError(
                    f"{path}: not a manifest of codegen ({type(error).__name__}: {error})"
                ) from error

    def _read(self, path: Path) -> None:
        data = json.loads(path.read_text(encoding="utf-8"))
        for family in data["families"]:
            for target in family["targets"]:
                self.targets[family["name"], target["name"]] = target
                for kernel in target["kernels"]:
                    self.kernels[kernel["key"]] = {
                        "parameters": kernel["parameters"],
                        "derived": kernel.get("derived", {}),
                        "file": kernel["file"],
                    }
        self.spec_dirs += [(path.parent / folder).resolve() for folder in data.get("spec_dirs", ())]

    def absent(self, rows: Iterable[Record]) -> list[tuple[str, str]]:
        """(key, architecture) of every kernel that the rows' build must have, and that has no row.

        The architectures are those of the rows: `sm80` is compiled for each of them from 8.0 up,
        `sm90a` for 9.0a where they hold 9.0.
        """
        present = {(row.key, row.arch) for row in rows if row.key}
        built = {_capability(arch) for _, arch in present if arch}
        absent = []
        for target in self.targets.values():
            least = target.get("capability", 0)
            for capability in sorted(built):
                if least and (capability == least if target["exact"] else capability >= least):
                    arch = f"sm_{capability}{'a' if target['exact'] else ''}"
                    keys = (str(kernel["key"]) for kernel in target["kernels"])
                    absent += [(key, arch) for key in keys if (key, arch) not in present]
        return absent

    @cached_property
    def files(self) -> frozenset[str]:
        """The generated sources, relative to the manifest's folder."""
        return frozenset(str(kernel["file"]) for kernel in self.kernels.values())


def _capability(arch: str) -> int:
    """90 of sm_90 and of sm_90a."""
    return int(re.sub(r"\D", "", arch) or 0)


class CodeFingerprint:
    """Fingerprints each kernel's code: its configuration, the headers that it includes, the flags.

    The headers are those that its shard reaches through #include among the generated, the
    families' and the shared ones. Lines of comments do not count.
    """

    def __init__(self, manifest: Manifest, include: Path, flags: str) -> None:
        (path,) = manifest.paths
        self._generated = path.parent
        self._manifest = manifest
        self._folders = [self._generated, *manifest.spec_dirs, include]
        self._flags = flags
        self._texts: dict[Path, tuple[bytes, list[str]]] = {}
        self._shards: dict[str, str] = {}

    def of(self, key: str) -> str | None:
        """12 hex digits, None for a key that the manifest does not hold."""
        kernel = self._manifest.kernels.get(key)
        if kernel is None:
            return None
        shard = str(kernel["file"])
        if shard not in self._shards:
            self._shards[shard] = self._headers(self._generated / shard)
        everything = [
            key,
            kernel["parameters"],
            kernel["derived"],
            self._shards[shard],
            self._flags,
        ]
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:12]

    def _headers(self, shard: Path) -> str:
        """A digest of all headers that a shard includes, at any depth, without the shard."""
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
                digest.update(text)
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
        found = (
            next((place / name for place in places if (place / name).is_file()), None)
            for name in names
        )
        return [path.resolve() for path in found if path is not None]
