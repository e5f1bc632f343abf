"""What a row's figures depend on: the toolchain, and the code with its flags.

A change of registers under one code fingerprint and two toolchains is the compiler's doing; under
one toolchain and two code fingerprints it is the author's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tools.ptx_report.records import ReportError

_NOT_COMPILED = {".yaml", ".yml", ".py", ".md", ".csv", ".json", ".pyc"}


class Manifest:
    """generated/manifest.json, as far as a report needs it; ReportError where it is not one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            self.kernels: dict[str, Mapping[str, Any]] = {}
            self.targets: dict[tuple[str, str], Mapping[str, Any]] = {}
            for family in data["families"]:
                for target in family["targets"]:
                    self.targets[family["name"], target["name"]] = target
                    for kernel in target["kernels"]:
                        self.kernels[kernel["key"]] = {
                            "parameters": kernel["parameters"],
                            "derived": kernel.get("derived", {}),
                            "file": kernel["file"],
                        }
            self.spec_dirs = [Path(folder) for folder in data.get("spec_dirs", ())]
        except OSError as error:
            raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReportError(
                f"{path}: not a manifest of codegen ({type(error).__name__}: {error})"
            ) from error

    @cached_property
    def files(self) -> frozenset[str]:
        """The generated sources, relative to the manifest's folder."""
        return frozenset(str(kernel["file"]) for kernel in self.kernels.values())

    def family_folder(self, family: str) -> Path | None:
        """Where the family's templates are, None where its folder is not there."""
        for folder in self.spec_dirs:
            path = (self.path.parent / folder / family).resolve()
            if path.is_dir():
                return path
        return None


class CodeFingerprint:
    """Fingerprints each kernel's code.

    That is its family's headers, the shared headers, its configuration and the flags.
    """

    def __init__(self, manifest: Manifest, include: Path, flags: str) -> None:
        self._manifest = manifest
        self._shared = _digest_of_files([include] if include.is_dir() else [])
        self._flags = flags
        self._families: dict[str, str] = {}

    def of(self, key: str) -> str | None:
        """12 hex digits, None for a key that the manifest does not hold."""
        kernel = self._manifest.kernels.get(key)
        if kernel is None:
            return None
        family = key.split(".", 1)[0]
        if family not in self._families:
            folder = self._manifest.family_folder(family)
            self._families[family] = _digest_of_files([folder] if folder else [])
        text = json.dumps(
            [
                key,
                kernel["parameters"],
                kernel["derived"],
                self._families[family],
                self._shared,
                self._flags,
            ],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _digest_of_files(folders: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in _NOT_COMPILED:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()
