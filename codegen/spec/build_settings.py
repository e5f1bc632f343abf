"""`build:` of family.yaml and <target>.yaml."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from codegen.spec import schema
from codegen.spec.checks import check_file
from codegen.spec.model import BuildPath, BuildSettings
from codegen.spec.source import Document

_CXX, _CUDA = (".cpp", ".cc", ".cxx"), (".cu",)
_MACRO = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_LIBRARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+.-]*\Z")
_PACKAGE = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
# What CMake has meanings of its own for: lists, variables.
_UNSPEAKABLE = re.compile(r"[;$\[\]\x00-\x1f]")
# Options that say what another key says, or what the build chooses.
_ELSEWHERE = (
    (("-I", "-isystem", "--include-path", "--system-include"), "folders go in `include`"),
    (("-L", "-l", "--library"), "libraries go in `libraries`"),
    (("-M",), "the build asks for a file's dependencies itself"),
    (
        ("-arch", "--gpu-architecture", "-code", "--gpu-code", "-gencode", "--generate-code"),
        "architectures are chosen when building, with CMAKE_CUDA_ARCHITECTURES",
    ),
)


class BuildLoader:
    """Loads `build:` of one file."""

    def __init__(self, document: Document, spec_dir: Path, folder: Path) -> None:
        self.document = document
        self.spec_dir = spec_dir
        self.folder = folder

    def load(self, written: schema.Build | None, is_cuda: bool | None) -> BuildSettings:
        """The build; what is wrong goes to the document.

        `is_cuda`: whether nvcc compiles the targets that it is of; None: it does some of them.
        """
        if written is None:
            return BuildSettings()
        if written.flags and is_cuda is None:
            self.document.report(
                "nvcc and the C++ compiler take different flags: write them in <target>.yaml",
                "build",
                "flags",
            )
        return BuildSettings(
            flags=tuple(self._flag(text, i) for i, text in enumerate(written.flags)),
            definitions=tuple(
                self._definition(name, value) for name, value in written.definitions.items()
            ),
            include=tuple(
                self._path(entry, "build", "include", i) for i, entry in enumerate(written.include)
            ),
            libraries=tuple(self._library(entry, i) for i, entry in enumerate(written.libraries)),
            sources=self._sources(written.sources, is_cuda),
        )

    def _flag(self, text: str, i: int) -> str:
        path = ("build", "flags", i)
        self._check_text(text, *path)
        try:
            words = shlex.split(text)
        except ValueError as error:
            self.document.report(f"not words of a command line: {error}", *path)
            return text
        if not words or not words[0].startswith("-"):
            self.document.report(
                "an option of the compiler begins with '-'; its value comes after it, as in "
                '"-Xptxas -O3"',
                *path,
            )
            return text
        for options, message in _ELSEWHERE:
            if any(_is_option(words[0], option) for option in options):
                self.document.report(message, *path)
        return shlex.join(words)

    def _definition(self, name: str, value: int | str | None) -> str:
        path = ("build", "definitions", name)
        if not _MACRO.match(name):
            self.document.report(f"'{name}' cannot be a macro's name", *path, key=True)
        self._check_text(str(value), *path)
        return name if value is None else f"{name}={value}"

    def _library(self, entry: str | schema.PackagePath, i: int) -> BuildPath | str:
        path = ("build", "libraries", i)
        if isinstance(entry, schema.PackagePath) or "/" in entry:
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

    def _path(self, entry: str | schema.PackagePath, *path: str | int) -> BuildPath:
        location = self.document.locate(*path)
        if isinstance(entry, schema.PackagePath):
            if not _PACKAGE.match(entry.package):
                self.document.report(
                    f"'{entry.package}' is not the name of a package: folders within it go in "
                    "`path`",
                    *path,
                    "package",
                )
            inner = PurePosixPath(entry.path)
            if inner.is_absolute() or ".." in inner.parts:
                self.document.report(f"'{inner}' leaves the package", *path, "path")
            self._check_text(entry.path, *path, "path")
            pip = entry.pip or entry.package.replace("_", "-")
            return BuildPath(None, entry.package, inner.as_posix(), pip, location)
        if Path(entry).is_absolute():
            self.document.report(
                f"'{entry}' is a path of one machine: write it relative to the folder of specs, or "
                "name an installed package: {package: …, path: …}",
                *path,
            )
        self._check_text(entry, *path)
        name = PurePosixPath(entry).as_posix()
        return BuildPath(self.spec_dir.resolve().name, None, name, None, location)

    def _sources(self, names: Sequence[str], is_cuda: bool | None) -> tuple[BuildPath, ...]:
        sources = []
        kinds = (*_CXX, *(() if is_cuda is False else _CUDA))
        for i, name in enumerate(names):
            path = ("build", "sources", i)
            check_file(self.document, self.folder, name, *path)
            if not name.endswith(kinds):
                self.document.report(f"a source is one of {', '.join(kinds)}", *path)
            elif name in names[:i]:
                self.document.report(f"'{name}' is listed twice", *path)
            within = (self.folder / name).relative_to(self.spec_dir).as_posix()
            location = self.document.locate(*path)
            sources.append(BuildPath(self.spec_dir.resolve().name, None, within, None, location))
        return tuple(sources)

    def _check_text(self, text: str, *path: str | int) -> None:
        if wrong := _UNSPEAKABLE.search(text):
            self.document.report(f"CMake cannot spell the character {wrong[0]!a} here", *path)


def _is_option(word: str, option: str) -> bool:
    """Whether a command line's word is this option, its value perhaps behind it in the word."""
    if option.startswith("--") or len(option) > 2:
        return word.partition("=")[0] == option
    return word.startswith(option)
