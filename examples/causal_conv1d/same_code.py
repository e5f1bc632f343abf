"""Whether upstream's kernels are the same machine code here as compiled by its own files with
PyTorch's headers. It needs nvcc and PyTorch, and no GPU.

    python same_code.py [--architecture 80] [--set all] [fwd channellast_fwd update …]

Of each family, the code of all kernels of a set is looked for among upstream's, byte by byte, each
as often as it is there. The backward families take minutes, and 3 GB.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from upstream_tests import HERE, upstream

from codegen import build_paths, home

FLAGS = ("-O3", "-std=c++20", "--use_fast_math", "--expt-relaxed-constexpr")
THEIRS = ("--expt-extended-lambda",)  # what upstream's setup.py has beside them
KERNEL = re.compile(r"causal_conv1d_(\w+?)_kernelI")


def kernels(source: Path, options: list[str]) -> dict[str, Counter[bytes]]:
    """The machine code of a file's kernels, by upstream's names of them."""
    cubin = source.with_suffix(".cubin")
    subprocess.run(["nvcc", "-cubin", "-w", *FLAGS, *options, source, "-o", cubin], check=True)
    elf = cubin.read_bytes()
    (table,), (size, count, names) = (
        struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HHH", elf, 0x3A),
    )  # fmt: skip
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    found: dict[str, Counter[bytes]] = {}
    for name, _, _, _, offset, length in sections:
        begin = sections[names][4] + name
        symbol = elf[begin : elf.index(b"\0", begin)].decode()
        if symbol.startswith(".text.") and (kernel := KERNEL.search(symbol)):
            found.setdefault(kernel[1], Counter())[elf[offset : offset + length]] += 1
    return found


def ours(family: str, which: str, architecture: str, work: Path) -> Counter[bytes]:
    """Of a family's set, compiled as one file."""
    options = ("--specs", HERE / "kernel_specs", "--out", work / "generated", "--set", which)
    regenerate = [sys.executable, "-m", "codegen", "regenerate", *options]
    subprocess.run(regenerate, check=True, stdout=subprocess.DEVNULL)
    manifest = json.loads((work / "generated/manifest.json").read_text())
    (found,) = (f for f in manifest["families"] if f["name"] == f"causal_conv1d_{family}")
    (target,) = (t for t in found["targets"] if t["name"] == "sm80")
    foreign = [build_paths.find(entry, {}) for entry in target["build"]["include"]]
    folders = [home.INCLUDE, HERE / "kernel_specs", work / "generated", *foreign]
    shards = sorted((work / f"generated/causal_conv1d_{family}").glob("sm80_*.cu"))
    source = work / f"{family}.cu"
    source.write_text("".join(f'#include "{shard}"\n' for shard in shards))
    options = [f"-arch=sm_{architecture}", *(f"-I{folder}" for folder in folders)]
    return kernels(source, options)[family]


def theirs(file: str, architecture: str, work: Path) -> dict[str, Counter[bytes]]:
    """Of one of upstream's files, as it is."""
    settings = work / "c10/cuda/impl/cuda_cmake_macros.h"  # which PyTorch for the CPU lacks
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("")
    source = work / f"upstream_{file}.cu"
    source.write_text(f'#include "{upstream()}/csrc/causal_conv1d_{file}.cu"\n')
    headers = Path(torch.__file__).parent / "include"
    options = [f"-arch=sm_{architecture}", f"-I{headers}", f"-I{work}"]
    return kernels(source, [*THEIRS, *options])


def main() -> None:
    """The command; exit status 1 if a kernel's code is not upstream's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    families = ("fwd", "channellast_fwd", "update", "bwd", "channellast_bwd")
    parser.add_argument("families", nargs="*", default=families, metavar="FAMILY")
    parser.add_argument("--architecture", default="80")
    parser.add_argument("--set", default="all", dest="which")
    options = parser.parse_args()
    files: dict[str, dict[str, Counter[bytes]]] = {}
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for family in options.families:
            file = family.removeprefix("channellast_")
            if file not in files:
                files[file] = theirs(file, options.architecture, Path(folder))
            found = ours(family, options.which, options.architecture, Path(folder))
            same = (found & files[file][family]).total()
            print(f"causal_conv1d_{family}: {same} of {found.total()} kernels are the same machine "
                  f"code as upstream's {files[file][family].total()}", flush=True)  # fmt: skip
            good &= same == found.total()
    sys.exit(not good)


if __name__ == "__main__":
    main()
