"""The commands that make a library of one kernel; kernelmint/cmake has the same."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.core import home
from codegen.core.manifest import BuildSettings, Family
from codegen.sources import build_paths
from runtime.errors import BuildError
from runtime.ondemand import compilers
from runtime.ondemand.answers import ask
from runtime.ondemand.compilers import Recipe
from runtime.ondemand.dependencies import libraries, searched
from runtime.ondemand.specs import Source

# Options that list dependencies elsewhere than the build looks for them, or list fewer of them, and
# files of options, which are no dependencies.
_HIDES_DEPENDENCIES = re.compile(
    r"@.*|-optf.*|--options-file.*|(?:--compiler-options=|-\w+=|-W\w,)?(?:.*,)?-M.*"
    r"|--(?:generate-(?:nonsystem-)?dependenc|dependency-).*"
)
_UNLISTABLE = re.compile(r"[\n\\]")  # -MD cannot list these so that the list can be read
HOST = "host.cpp"
HOST_INCLUDES = "library.cpp"  # in runtime/pack


@dataclass(frozen=True)
class Unit:
    """A compilation: its command, run in the build's folder, and its files without a suffix."""

    name: str
    command: tuple[str, ...]
    log: str | None = None  # the name of its log, for a report on registers


class Commands:
    """The commands that compile and link a kernel, the only one of `family`, a manifest's entry."""

    def __init__(self, family: Family, source: Source, recipe: Recipe) -> None:
        self._source = source
        self._recipe = recipe
        self._name = family.name
        (self._target,) = family.targets
        (kernel,) = self._target.kernels
        self._shard, self._flags = kernel.file, kernel.flags
        self._shared = family.build  # the target has all of it but the sources
        self._own = self._target.build
        for folder in (source.root, *self.foreign):
            if _UNLISTABLE.search(str(folder)):
                raise BuildError(
                    f"{str(folder)!a}: compilers do not list headers in a folder whose name "
                    "holds a newline or a backslash: rename it"
                )
        self.units = [self._host(), self._kernel(), *self._sources()]

    def _path(self, entry: Mapping[str, str]) -> Path:
        try:
            return build_paths.find(entry, {self._source.root.name: self._source.root})
        except build_paths.PathNotFoundError as error:
            raise BuildError(f"{self._source.folder}: {error}") from None

    @property
    def foreign(self) -> list[Path]:
        """Returns the folders of foreign headers."""
        return [self._path(entry) for entry in self._own.include]

    @property
    def excerpts(self) -> list[Mapping[str, str]]:
        """Returns the manifest's entries of excerpts."""
        return [entry for entry in self._own.include if "excerpt" in entry]

    @property
    def excerpted(self) -> list[Path]:
        """Returns the files that excerpts come from, but for those of archives, which do not
        change."""
        roots = {self._source.root.name: self._source.root}
        return [build_paths.named(entry, roots) for entry in self.excerpts if "specs" in entry]

    @property
    def archives(self) -> list[Path]:
        """Returns the libraries that are files."""
        return [self._path(e) for e in self._own.libraries if not isinstance(e, str)]

    @property
    def searched(self) -> list[str]:
        """Returns the folders that are searched for headers."""
        commands = (*(unit.command for unit in self.units), self._environment())
        named = [folder for command in commands for folder in searched(command)]
        return [*named, *compilers.searched(self._recipe.compiler)]

    def libraries(self, read: set[str]) -> list[str]:
        """Returns the files that were tried for the spec's libraries, of which some were `read`."""
        names = [entry for entry in self._own.libraries if isinstance(entry, str)]
        if not names:
            return []
        folders = [word[2:] for word in self.link() if word.startswith("-L")]
        return [
            *libraries(names, [*folders, *compilers.library_folders(self._recipe.compiler)], read)
        ]

    def _settings(self, build: BuildSettings, flags: bool) -> list[str]:
        """Returns the options that `build:` adds to a compiler's command; `flags` adds its
        flags."""
        options = [f"-D{definition}" for definition in build.definitions]
        for entry in build.include:
            options += ["-isystem", str(self._path(entry))]
        return [*(build.flags if flags else ()), *options]

    def _includes(self) -> list[str]:
        return [f"-I{folder}" for folder in (home.INCLUDE, self._source.root, ".")]

    def _toolkit_includes(self) -> list[str]:
        toolkit = self._recipe.toolkit
        return [w for folder in toolkit.includes for w in ("-isystem", folder)] if toolkit else []

    def _unit(self, name: str, command: list[str], source: str, log: str | None = None) -> Unit:
        for word in (*command, *self._environment()):
            if _HIDES_DEPENDENCIES.fullmatch(word):
                raise BuildError(
                    f"the option {word} (of the spec's `flags`, or of CXXFLAGS, CUDAFLAGS, "
                    "NVCC_PREPEND_FLAGS or NVCC_APPEND_FLAGS) hides what a kernel depends on, and "
                    "a change of it would go unnoticed: leave it out"
                )
        files = ("-MD", "-MF", f"{name}.d", "-c", source, "-o", f"{name}.o")
        return Unit(name, (*command, *files), log)

    def _environment(self) -> list[str]:
        """Returns the words that nvcc takes from the environment."""
        names = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS") if self._recipe.toolkit else ()
        return [word for name in names for word in shlex.split(os.environ.get(name, ""))]

    def _host(self) -> Unit:
        recipe = self._recipe
        command = [*recipe.compiler.command, *recipe.host, f"-I{home.PACK}", *self._includes()]
        command += [f"-DKERNELMINT_TARGET_{self._target.name}=1", *self._toolkit_includes()]
        return self._unit("host", command, HOST)

    def _device_command(self, build: BuildSettings) -> list[str]:
        recipe = self._recipe
        compiler = recipe.toolkit.nvcc if recipe.toolkit else recipe.compiler
        settings = self._settings(build, flags=True)
        return [*compiler.command, *recipe.device, *self._includes(), *settings]

    def _kernel(self) -> Unit:
        command = [*self._device_command(self._own), *self._flags]
        return self._unit("kernel", command, self._shard, self._shard)

    def _sources(self) -> list[Unit]:
        """Returns the sources that `build:` names, of the family and of the target."""
        units: list[Unit] = []
        for build in (self._shared, self._own):
            for entry in build.sources:
                path, name = self._path(entry), f"source{len(units)}"
                is_cuda = path.suffix == ".cu"
                if is_cuda and self._recipe.toolkit is None:
                    continue
                # A CPU target's sources are compiled for its instruction set, its family's once.
                if is_cuda or (build is self._own and self._recipe.toolkit is None):
                    log = os.path.relpath(path, self._source.root) if is_cuda else None
                    units.append(self._unit(name, self._device_command(build), str(path), log))
                    continue
                command = [*self._recipe.compiler.command, *self._recipe.host, *self._includes()]
                command += ["-DKERNELMINT_ISA=baseline", *self._toolkit_includes()]
                command += self._settings(build, flags=self._recipe.toolkit is None)
                units.append(self._unit(name, command, str(path)))
        return units

    def trace(self, unit: Unit) -> tuple[str, ...]:
        """Returns the option that has the compiler write a time trace beside the unit's object;
        nothing if the compiler of a host's part writes none.

        Raises BuildError if the compiler of the kernel writes none.
        """
        recipe, toolkit = self._recipe, self._recipe.toolkit
        nvcc = toolkit.nvcc if toolkit is not None else None
        if nvcc is not None and unit.command[: len(nvcc.command)] == nvcc.command:
            if "--fdevice-time-trace" in ask((*nvcc.command, "--help")).output:
                return ("--fdevice-time-trace", unit.name)
            raise BuildError(
                f"nvcc {nvcc.version} writes no time trace: name nvcc 13.0 or later by CUDACXX"
            )
        if recipe.compiler.version.startswith("Clang "):
            return ("-ftime-trace",)
        if toolkit is not None:
            return ()
        raise BuildError(
            f"{recipe.compiler.version} writes no time trace: name a Clang by CXX, CXX=clang++"
        )

    def link(self) -> tuple[str, ...]:
        """Returns the command that links the objects and fingerprint.cpp."""
        recipe = self._recipe
        named = [
            f"-l{entry}" if isinstance(entry, str) else str(self._path(entry))
            for entry in self._own.libraries
        ]
        system = [flag for flag in recipe.link if flag.startswith("-l")]
        return (
            *(*recipe.compiler.command, "-fPIC", *(f for f in recipe.link if f not in system)),
            *("-Wl,--version-script=exports.map", "-Wl,--trace", "fingerprint.cpp"),
            *(*(f"{unit.name}.o" for unit in self.units), *named),
            *(f"-L{folder}" for folder in (recipe.toolkit.libraries if recipe.toolkit else ())),
            *(*system, "-o", f"pack/{self._name}.so"),
        )

    def script(self) -> str:
        """Returns all commands, for a shell."""
        return "\n".join(map(shlex.join, [*(unit.command for unit in self.units), self.link()]))
