"""A comparison of the machine code of foreign kernels with that of their own build, for packs of
foreign kernels (docs/moved.md). It needs nvcc and PyTorch's headers, and no GPU."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from codegen.core import home, machine_code, manifest
from codegen.sources import build_paths
from runtime.ondemand import compilers

_TEXT = ".text."  # the sections of kernels


@dataclass(frozen=True)
class Compiled:
    """A CUDA file's kernels, by symbol, and the processor time that compiling them took."""

    code: dict[str, bytes]
    seconds: float

    def named(self, word: str) -> Counter[bytes]:
        """Returns the code of the kernels whose symbols contain a word, with the number of each."""
        return Counter(code for symbol, code in self.code.items() if word in symbol)


def of_family(
    specs: Path, family: str, architecture: str, work: Path, which: str, where: str | None = None
) -> Compiled:
    """Compiles a set's kernels of a family for CUDA as one file.

    Args:
        specs: the folder of specs.
        family: one of its families.
        architecture: "80".
        work: a folder for written files.
        which: the set.
        where: an expression over its kernels (docs/expressions.md).
    """
    options = ("--specs", str(specs), "--out", str(work / "generated"), "--set", which)
    of = f"family == {family}" + (f" and ({where})" if where else "")
    regenerate = [sys.executable, "-m", "codegen", "regenerate", *options, "--where", of]
    subprocess.run(regenerate, check=True, stdout=subprocess.DEVNULL)
    entries = manifest.read(work / "generated/manifest.json").families
    (target,) = (t for entry in entries if entry.name == family for t in entry.targets if t.is_cuda)
    foreign = [build_paths.find(entry, {}) for entry in target.build.include]
    source = work / f"{family}.cu"
    files = sorted({work / "generated" / kernel.file for kernel in target.kernels})
    source.write_text("".join(f'#include "{file}"\n' for file in files))
    flags = {kernel.flags for kernel in target.kernels}
    if len(flags) > 1:
        raise SystemExit(f"{of}: kernels of {len(flags)} compiler options: let --where choose one")
    recipe = compilers.cuda((architecture,))
    folders = [home.INCLUDE, specs, work / "generated", *foreign]
    words = [*recipe.device, *target.build.flags, *flags.pop(), *_includes(folders)]
    return _compiled(source, words)


def of_file(
    file: Path, architecture: str, work: Path, flags: Sequence[str], folders: Sequence[Path] = ()
) -> Compiled:
    """Compiles a foreign file's kernels, unchanged, with PyTorch's headers.

    Args:
        file: a .cu file.
        architecture: "80".
        work: a folder for written files.
        flags: nvcc's options in its own build.
        folders: the folders of its headers.
    """
    settings = work / "c10/cuda/impl/cuda_cmake_macros.h"  # PyTorch for the CPU lacks them
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("")
    source = work / f"their_{file.name}"
    source.write_text(f'#include "{file}"\n')
    headers = [*folders, Path(torch.__file__).parent / "include", work]
    return _compiled(source, [f"-arch=sm_{architecture}", *flags, *_includes(headers)])


def _includes(folders: Sequence[Path]) -> list[str]:
    return [f"-I{folder}" for folder in folders]


def _compiled(source: Path, options: Sequence[str]) -> Compiled:
    cubin = source.with_suffix(".cubin")
    nvcc = compilers.toolkit().nvcc.command
    command = [*nvcc, "-cubin", "-w", *options, str(source), "-o", str(cubin)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Compiled(
        {name.removeprefix(_TEXT): code for name, code in machine_code.sections(cubin.read_bytes())
         if name.startswith(_TEXT)},
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )  # fmt: skip
