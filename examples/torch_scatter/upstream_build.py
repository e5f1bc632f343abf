"""Upstream's own build, as little of it as compare.py needs: all its functions, for float alone, as
one library of four files, which are compiled at once: a minute instead of four.

    python upstream_build.py sources/torch_scatter-2.1.2.tar.gz FOLDER
    PYTHONPATH=FOLDER python compare.py --device cuda --dtypes float

The sources and flags are those of its setup.py, but for a macro: AT_DISPATCH_ALL_TYPES_AND2 of
PyTorch's names one dtype of nine. It needs ninja, and for the GPU nvcc and a PyTorch with CUDA.
"""

from __future__ import annotations

import importlib.machinery
import shutil
import sys
import tarfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

EXTENSIONS = ("version", "scatter", "segment_csr", "segment_coo")
FLOAT = """\
#include <{header}>
#undef AT_DISPATCH_ALL_TYPES_AND2
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, TYPE, NAME, ...) \\
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE(at::ScalarType::Float, __VA_ARGS__))
"""
PART = """
#define registry registry_of_{name}
#include "{path}"
#undef registry
"""


def build(archive: Path, folder: Path) -> None:
    """Unpacks the sources and lays the package, built, into the folder."""
    has_cuda = torch.cuda.is_available() and cpp_extension.CUDA_HOME is not None
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    csrc, package = unpacked / "csrc", folder / "torch_scatter"
    shutil.copytree(unpacked / "torch_scatter", package, dirs_exist_ok=True)
    cpp = [csrc / f"{name}.cpp" for name in EXTENSIONS] + sorted((csrc / "cpu").glob("*.cpp"))
    files = {folder / "host.cpp": cpp}
    if has_cuda:
        files |= {folder / part.name: [part] for part in (csrc / "cuda").glob("*.cu")}
    for file, parts in files.items():
        header = "torch/script.h" if file.suffix == ".cpp" else "torch/torch.h"
        each = (PART.format(name=part.stem, path=part) for part in parts)
        file.write_text(FLOAT.replace("{header}", header) + "".join(each))
    macros = ["-DWITH_PYTHON", "-DNDEBUG", *(["-DWITH_CUDA"] if has_cuda else [])]
    library = "_scatter_all"
    cpp_extension.load(
        library,
        [str(file) for file in files],
        extra_cflags=[*macros, "-O3", "-DAT_PARALLEL_OPENMP", "-fopenmp", "-w"],
        extra_cuda_cflags=[*macros[:1], *macros[2:], "-O3", "--expt-relaxed-constexpr", "-w"],
        extra_include_paths=[str(csrc), str(csrc / "cpu"), str(csrc / "cuda")],
        build_directory=str(folder),
        with_cuda=has_cuda,
        is_python_module=False,
        verbose=True,
    )
    suffix = importlib.machinery.EXTENSION_SUFFIXES[-1]
    for name in EXTENSIONS:  # one file, so that it is loaded once
        link = package / f"_{name}_{'cuda' if has_cuda else 'cpu'}{suffix}"
        link.unlink(missing_ok=True)
        link.symlink_to(folder / f"{library}.so")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {(__doc__ or '').splitlines()[3].strip()}")
    target = Path(sys.argv[2]).resolve()
    target.mkdir(parents=True, exist_ok=True)
    build(Path(sys.argv[1]), target)
