"""The compilers that build on demand, and their flags, which are those of kernelmint/cmake."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from codegen.build import nvcc
from codegen.core.home import CMAKE
from runtime.errors import BuildError
from runtime.ondemand.answers import ENVIRONMENT, ask, contents
from runtime.ondemand.cache import digest

EXPORTS = CMAKE / "exports.map"

_FLAGS = json.loads((CMAKE / "flags.json").read_text(encoding="utf-8"))
# CMake's Release has -DNDEBUG.
_COMMON = (*_FLAGS["optimise"], "-DNDEBUG", f"-std=c++{_FLAGS['standard']}")
_HOST = tuple(_FLAGS["host"])
_CUDA = (f"-Xcompiler={','.join(_FLAGS['cuda_host'])}", *_FLAGS["cuda"])
_ISA = {name: tuple(flags) for name, flags in _FLAGS["isas"].items()}
_LINK = ("-shared", *_FLAGS["link"], "-pthread")


@dataclass(frozen=True)
class Compiler:
    """A compiler: the command that runs it, its identity and its version."""

    command: tuple[str, ...]
    identity: str  # the hash of its --version and of its programs
    version: str  # for people


@dataclass(frozen=True)
class Toolkit:
    """nvcc, and the folders of its toolkit's headers and libraries."""

    nvcc: Compiler
    root: Path
    includes: tuple[str, ...]
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """A way to compile the kernels of a target for this machine.

    Attributes:
        isas: the instruction set of a CPU target's kernels.
        architectures: those of a CUDA target's kernels: "80", "90a".
        compiler: the compiler of the host's part and of a CPU's kernels; it links.
        toolkit: the toolkit of a CUDA target.
        host: the flags of the host's part.
        device: the flags of the kernels.
        link: the flags of the link.
    """

    isas: tuple[str, ...]
    architectures: tuple[str, ...]
    compiler: Compiler
    toolkit: Toolkit | None
    host: tuple[str, ...]
    device: tuple[str, ...]
    link: tuple[str, ...]

    @property
    def identity(self) -> list[object]:
        """Returns the part of it that decides the result, without any folder's name."""
        compilers = [self.compiler.identity, self.toolkit.nvcc.identity if self.toolkit else None]
        exports = hashlib.sha256(EXPORTS.read_bytes()).hexdigest()
        return [compilers, self.host, self.device, self.link, environment(), exports]


def _compiler(*command: str) -> Compiler:
    # A driver prints the name that it was called by before its version.
    version_text = re.sub(r"^\S+ (?=\()", "", ask((*command, "--version")).output)
    release = re.search(r"release \S+, V(\S+)", version_text)  # nvcc
    version = release[1] if release else called(version_text)
    # A script may call any program, a driver calls these, and each of them may be replaced.
    programs = [*command] if release else [*command, *_programs(command)]
    return Compiler(command, digest([version_text, contents(programs)]), version)


def called(version_text: str) -> str:
    """Returns a C++ compiler's name by its --version, as CMake calls it, and so pack.json of a
    wheel."""
    if clang := re.search(r"clang version (\d[\d.]*)", version_text):
        return f"Clang {clang[1]}"
    if gnu := re.match(r"\(.*\) (\d[\d.]*).*\n.*Free Software Foundation", version_text):
        return f"GNU {gnu[1]}"
    return version_text.partition("\n")[0]


def _programs(command: tuple[str, ...]) -> list[str]:
    """Returns the programs that a C++ compiler runs."""
    names = ("cc1plus", "as", "ld")
    return [ask((*command, f"-print-prog-name={name}")).output.strip() for name in names]


@functools.cache
def _cxx(named: str | None, path: str | None) -> Compiler:
    if named:
        return _compiler(*_words("CXX", named))
    path_of_compiler = next(
        filter(None, (shutil.which(name) for name in ("c++", "g++", "clang++"))), None
    )
    if path_of_compiler is None:
        raise BuildError(
            "no C++ compiler: none named by CXX, and no c++, g++ or clang++ on PATH; install one "
            "(Debian and Ubuntu: apt install g++)"
        )
    return _compiler(path_of_compiler)


def searched(compiler: Compiler) -> list[str]:
    """Returns the folders that a C++ compiler searches for headers by itself."""
    output = ask((*compiler.command, "-E", "-v", "-x", "c++", os.devnull)).errors
    _, _, listing = output.partition("search starts here:\n")
    return [line[1:] for line in listing.splitlines() if line.startswith(" /")]


def library_folders(compiler: Compiler) -> list[str]:
    """Returns the folders in which a C++ compiler has the linker look for libraries."""
    output = ask((*compiler.command, "-print-search-dirs")).output
    match = re.search(r"^libraries: =?(.*)$", output, re.MULTILINE)
    return [os.path.normpath(path) for path in match[1].split(":")] if match else []


def cxx() -> Compiler:
    """Returns the C++ compiler: the one that CXX names, else the first on PATH."""
    return _cxx(os.environ.get("CXX"), os.environ.get("PATH"))


def toolkit(command: tuple[str, ...] | None = None) -> Toolkit:
    """Returns the toolkit of the nvcc that `command` runs; without a command, of the nvcc that
    compiles here. Raises BuildError if no nvcc compiles here."""
    try:
        command = command or nvcc.find().command
    except nvcc.NvccNotFoundError as error:
        raise BuildError(str(error)) from None
    return _toolkit(command, _flags("CUDAFLAGS"), environment())


@functools.cache
def _toolkit(
    command: tuple[str, ...], flags: tuple[str, ...], environment: tuple[str, ...]
) -> Toolkit:
    compiler = _compiler(*command)
    dry = ask((*command, *flags, "--dryrun", "-c", "x.cu")).errors
    hosts = [line for line in dry.splitlines() if line.startswith("#$ ") and " -E " in line]
    settings = dict(re.findall(r"^#\$ (\w+)=(.*)$", dry, re.MULTILINE))
    try:
        root = Path(settings["TOP"].strip()).resolve()
        listed = shlex.split(f"{settings['INCLUDES']} {settings.get('SYSTEM_INCLUDES', '')}")
        searched = [p.removeprefix("-L") for p in shlex.split(settings["LIBRARIES"])]
        host = _compiler(shlex.split(hosts[0])[1])
    except (LookupError, ValueError):
        raise BuildError(
            f"{shlex.join(command)} --dryrun does not say where its toolkit and its C++ compiler "
            f"are:\n{dry}"
        ) from None
    names = ("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")
    programs = contents(str(root / name) for name in names)
    includes = [word.removeprefix("-I") for word in listed if word != "-isystem"]
    # The nvcc.profile of 13.0 and 13.1 looks for lib64; PyPI's wheels have lib.
    libraries = dict.fromkeys(os.path.normpath(p) for p in (*searched, str(root / "lib")))
    return Toolkit(
        Compiler(command, digest([compiler.identity, host.identity, programs]), compiler.version),
        root,
        tuple(os.path.normpath(path) for path in includes),
        tuple(libraries),
    )


def environment() -> tuple[str, ...]:
    """Returns what the environment tells compilers beside their command lines."""
    return tuple(os.environ.get(name, "") for name in ENVIRONMENT)


def _flags(variable: str) -> tuple[str, ...]:
    return _words(variable, os.environ.get(variable, ""))


def _words(variable: str, text: str) -> tuple[str, ...]:
    try:
        return nvcc.words(text) if variable == "CXX" else tuple(shlex.split(text))
    except ValueError as error:
        raise BuildError(f"{variable}={text}: {error}") from None


def cpu(isa: str) -> Recipe:
    """Returns how a CPU target's kernels are compiled for an instruction set."""
    compiler = cxx()
    host = (*_flags("CXXFLAGS"), *_COMMON, *_HOST)
    define = f"-DKERNELMINT_ISA={isa}"
    return Recipe(
        isas=(isa,),
        architectures=(),
        compiler=compiler,
        toolkit=None,
        host=(*host, f"-DKERNELMINT_ISA_{isa}"),
        device=(*host, define, *_ISA[isa], *_FLAGS["cpu"]),
        link=_LINK,
    )


def cuda(architectures: tuple[str, ...], command: tuple[str, ...] | None = None) -> Recipe:
    """Returns how a CUDA target's kernels are compiled for architectures, such as "80" and
    "90a": by the nvcc that `command` runs; without a command, by the nvcc that compiles here."""
    kit = toolkit(command)
    code = tuple(f"--generate-code=arch=compute_{a},code=[sm_{a}]" for a in architectures)
    return Recipe(
        isas=(),
        architectures=architectures,
        compiler=cxx(),
        toolkit=kit,
        host=(*_flags("CXXFLAGS"), *_COMMON, *_HOST),
        device=(
            *_flags("CUDAFLAGS"), *_COMMON, *code, *_CUDA,
        ),
        link=(*_LINK, "-lcudart_static", "-ldl", "-lrt"),
    )  # fmt: skip


@functools.cache
def best_isa(runs: tuple[str, ...]) -> str:
    """Returns the greatest of the instruction sets, given the least first, that the compiler
    has."""
    compiler = cxx()
    for isa in reversed(runs):
        with contextlib.suppress(BuildError):
            ask((*compiler.command, *_ISA[isa], "-E", "-x", "c++", os.devnull))
            return isa
    raise BuildError(f"{shlex.join(compiler.command)}: it compiles for none of {', '.join(runs)}")
