"""`build:` of family.yaml and <target>.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from codegen.core.problems import Location
from codegen.core.staleness import specs_folder
from codegen.core.words import did_you_mean
from codegen.spec import schema
from codegen.spec.checks import check_file
from codegen.spec.flags import check_text, load_flag
from codegen.spec.model import BuildPath, BuildSettings
from codegen.spec.source import Document

_CXX, _CUDA = (".cpp", ".cc", ".cxx"), (".cu",)
_MACRO = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_LIBRARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+.-]*\Z")
_Path = str | schema.PackagePath | schema.ArchivePath | schema.Shims
_HEADER = re.compile(r"\w[\w+-]*(\.\w[\w+-]*)*\Z", re.ASCII)
_TAKEN = re.compile(r"[A-Za-z_]\w*\Z|operator[-+*/%^&|~!=<>]+\Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# The user, password or key of an address.
_SECRET = re.compile(r"//[^/]*@|[?&][^=&]*(token|secret|passw|key|sig|cred|auth)[^=&]*=", re.I)
_PACKAGE = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)


class BuildLoader:
    """Loads `build:` of one file."""

    def __init__(self, document: Document, spec_dir: Path, folder: Path) -> None:
        self.document = document
        self.spec_dir = spec_dir
        self.folder = folder
        self.archives: dict[str, Mapping[str, str]] = {}

    def load(
        self,
        written: schema.Build | None,
        is_cuda: bool | None,
        family: BuildSettings | None = None,
    ) -> BuildSettings:
        """Returns the build; problems go to the document.

        `is_cuda`: whether nvcc compiles the build's targets; None: it compiles some of them.
        `family`: the build of the target's family, whose archives it may name.
        """
        if written is None:
            return BuildSettings()
        if family is not None:
            self.archives.update(family.archives)
        for name, archive in written.archives.items():
            self.archives[name] = self._archive(archive, "build", "archives", name)
        if written.flags and is_cuda is None:
            self.document.report(
                "nvcc and the C++ compiler take different flags: write them in <target>.yaml",
                "build",
                "flags",
            )
        return BuildSettings(
            flags=tuple(
                load_flag(self.document, text, "build", "flags", i)
                for i, text in enumerate(written.flags)
            ),
            definitions=tuple(
                self._definition(name, value) for name, value in written.definitions.items()
            ),
            include=(
                *(
                    self._path(entry, "build", "include", i)
                    for i, entry in enumerate(written.include)
                ),
                *(self._excerpt(name, entry) for name, entry in written.excerpts.items()),
            ),
            libraries=tuple(self._library(entry, i) for i, entry in enumerate(written.libraries)),
            sources=self._sources(written.sources, is_cuda),
            archives=self.archives,
        )

    def _archive(self, written: schema.Archive, *path: str | int) -> Mapping[str, str]:
        """Returns the members that the manifest's entries of an archive share."""
        keys = tuple(written.model_dump(exclude_none=True))
        if keys == ("folder",):
            return {"folder": self._relative(written.folder or "", *path, "folder")}
        if keys == ("pypi", "version", "sha256"):
            origin = f"pypi:{written.pypi}=={written.version}"
        elif keys == ("url", "sha256"):
            origin = written.url or ""
            if _SECRET.search(origin):
                self.document.report(
                    "the address holds a secret, which would be in the generated tree and in every "
                    "wheel: leave it out, and lay the file into a folder that KERNELMINT_SOURCES "
                    "names",
                    *path,
                    "url",
                )
        else:
            self.document.report(
                "an archive is {pypi, version, sha256}, {url, sha256}, or a {folder}; got "
                f"{', '.join(keys) or 'nothing'}",
                *path,
            )
            origin = ""
        check_text(self.document, origin, *path)
        if written.sha256 is not None and not _SHA256.match(written.sha256):
            self.document.report(
                f"got '{written.sha256}', expected the 64 digits that sha256sum prints of the file",
                *path,
                "sha256",
            )
        if any(character.isspace() for character in origin):
            self.document.report(f"'{origin}' has a space", *path)
        return {"archive": origin, "sha256": written.sha256 or ""}

    def _definition(self, name: str, value: int | str | None) -> str:
        path = ("build", "definitions", name)
        if not _MACRO.match(name):
            self.document.report(f"'{name}' cannot be a macro's name", *path, key=True)
        check_text(self.document, str(value), *path)
        return name if value is None else f"{name}={value}"

    def _library(self, entry: _Path, i: int) -> BuildPath | str:
        path = ("build", "libraries", i)
        if not isinstance(entry, str) or "/" in entry:
            return self._path(entry, *path)
        if not _LIBRARY.match(entry):
            self.document.report(
                f"'{entry}' is not a library: a name, as -l takes it, or the path of a file", *path
            )
        elif entry == "cuda":
            self.document.report(
                "'cuda' is the CUDA driver's library, without which a machine without a GPU cannot "
                "load the kernels: take its functions by driver_function() of driver_function.h",
                *path,
            )
        return entry

    def _path(self, entry: _Path, *path: str | int) -> BuildPath:
        location = self.document.locate(*path)
        if isinstance(entry, str):
            return self._of_specs(self._relative(entry, *path), location)
        if isinstance(entry, schema.Shims):
            return BuildPath({"shims": entry.shims, "path": ""}, location)
        inner = PurePosixPath(entry.path)
        what = "package" if isinstance(entry, schema.PackagePath) else "archive"
        if inner.is_absolute() or ".." in inner.parts:
            self.document.report(f"'{inner}' leaves the {what}", *path, "path")
        check_text(self.document, entry.path, *path, "path")
        if isinstance(entry, schema.ArchivePath):
            return self._of_archive(entry, inner.as_posix(), *path)
        if not _PACKAGE.match(entry.package):
            self.document.report(
                f"'{entry.package}' is not the name of a package: folders within it go in `path`",
                *path,
                "package",
            )
        pip = entry.pip or entry.package.replace("_", "-")
        return BuildPath({"package": entry.package, "path": inner.as_posix(), "pip": pip}, location)

    def _of_specs(self, path: str, location: Location) -> BuildPath:
        return BuildPath({"specs": specs_folder(self.spec_dir).name, "path": path}, location)

    def _of_archive(self, entry: schema.ArchivePath, inner: str, *path: str | int) -> BuildPath:
        location = self.document.locate(*path)
        shared = self.archives.get(entry.archive)
        if shared is None:
            hint = did_you_mean(entry.archive, self.archives)
            self.document.report(
                f"unknown archive '{entry.archive}'{hint}: `archives` of `build:` names them",
                *path,
                "archive",
            )
            shared = {"archive": "", "sha256": ""}
        if "folder" in shared:
            return self._of_specs((PurePosixPath(shared["folder"]) / inner).as_posix(), location)
        return BuildPath({**shared, "path": inner}, location)

    def _excerpt(self, name: str, written: schema.Excerpt) -> BuildPath:
        path = ("build", "excerpts", name)
        if not _HEADER.match(name):
            self.document.report(f"'{name}' cannot be a header's name", *path, key=True)
        for i, taken in enumerate(written.take):
            if not _TAKEN.match(taken):
                self.document.report(f"'{taken}' is not a name of C++", *path, "take", i)
        file = self._path(schema.ArchivePath(archive=written.archive, path=written.path), *path)
        excerpt = {"excerpt": name, "take": ",".join(written.take), "kernels": written.kernels}
        return BuildPath({**file.entry, **excerpt}, file.location)

    def _relative(self, path: str, *steps: str | int) -> str:
        if Path(path).is_absolute():
            self.document.report(
                f"'{path}' is a path of one machine: write it relative to the folder of specs, or "
                "name an installed package, {package: …, path: …}, or an archive",
                *steps,
            )
        check_text(self.document, path, *steps)
        return PurePosixPath(path).as_posix()

    def _sources(
        self, entries: Sequence[str | schema.ArchivePath], is_cuda: bool | None
    ) -> tuple[BuildPath, ...]:
        sources: list[BuildPath] = []
        kinds = (*_CXX, *(() if is_cuda is False else _CUDA))
        for i, entry in enumerate(entries):
            path = ("build", "sources", i)
            if isinstance(entry, schema.ArchivePath):
                place = self._path(entry, *path)
            else:
                check_file(self.document, self.folder, entry, *path)
                within = (self.folder / entry).relative_to(self.spec_dir).as_posix()
                place = self._of_specs(within, self.document.locate(*path))
            if not place.path.endswith(kinds):
                self.document.report(f"a source is one of {', '.join(kinds)}", *path)
            elif entry in entries[:i]:
                name = entry if isinstance(entry, str) else entry.path
                self.document.report(f"'{name}' is listed twice", *path)
            sources.append(place)
        return tuple(sources)
