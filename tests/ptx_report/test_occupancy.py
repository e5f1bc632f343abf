"""Occupancy against CUDA's calculator: some rows of it kept here, and all of a grid if it is."""

import importlib.util
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from codegen.core.hardware import LIMITS
from tools.ptx_report.occupancy import capability, occupancy

ARCHITECTURES = {(8, 0): "sm_80", (8, 6): "sm_86", (8, 9): "sm_89", (9, 0): "sm_90a"}
ARCHITECTURES |= {(10, 0): "sm_100a", (12, 0): "sm_120"}
# Bits of cudaOccResult.limitingFactors.
FACTORS = {1: "warps", 2: "registers", 4: "shared memory", 8: "blocks", 16: "barriers"}

# (architecture, registers, threads, shared memory, barriers): blocks and limiters, from
# cuda_occupancy.h of CUDA 13.0.
PUBLISHED = """
sm_80   32  256      0  1:  8 warps and registers
sm_80  168  128  49152  1:  3 registers and shared memory
sm_80  255  128  81920  1:  2 registers and shared memory
sm_80   64 1024      0  1:  1 registers
sm_80   16   32      0  1: 32 blocks
sm_86   32   96      0  1: 16 warps and blocks
sm_86  128  128  24576  1:  4 registers and shared memory
sm_86   40   32  10240  1:  9 shared memory
sm_89   24   64      0  1: 24 warps and blocks
sm_89   96  128  33000  1:  3 shared memory
sm_90a 168  384 200000  1:  1 registers and shared memory
sm_90a  32   64      0 16:  4 barriers
sm_90a  32   64      0  2: 32 warps and registers and blocks and barriers
sm_100a 64  128  40000  1:  5 shared memory
sm_100a 32  256      0 16:  4 barriers
sm_120  32   64      0  1: 24 warps and blocks and barriers
sm_120  48  192 101376  1:  1 shared memory
sm_120 128  512      0  1:  1 registers
"""


@pytest.mark.parametrize("line", PUBLISHED.strip().splitlines())
def test_published(line):
    given, expected = line.split(":")
    arch, *numbers = given.split()
    registers, threads, smem, barriers = map(int, numbers)
    found = occupancy(arch, registers, threads, smem, barriers)
    blocks, limiters = expected.strip().split(" ", 1)
    assert found.blocks == int(blocks)
    assert set(found.limiters) == set(limiters.strip().split(" and "))
    warps = -(-threads // 32)
    assert found.warps == found.blocks * warps
    assert found.fraction == found.warps / LIMITS[capability(arch)].warps


def calculator():
    """The folder of cuda_occupancy.h, None if there is no CUDA toolkit."""
    places = [Path("/usr/local/cuda/include")]
    if nvcc := shutil.which("nvcc"):
        dry = subprocess.run([nvcc, "-dryrun", "x.cu"], capture_output=True, text=True, check=False)
        top = [line.split("=")[1] for line in dry.stderr.splitlines() if "_HERE_" in line]
        places += [Path(name, "..", "include") for name in top]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        places += Path(folder).glob("cu*/include")
    return next((place for place in places if (place / "cuda_occupancy.h").exists()), None)


def test_a_grid_against_cudas_calculator(tmp_path):
    include, compiler = calculator(), shutil.which(os.environ.get("CXX", "c++"))
    if include is None or compiler is None:
        pytest.skip("needs CUDA's cuda_occupancy.h and a C++ compiler")
    probe = tmp_path / "probe"
    source = Path(__file__).with_name("occupancy_probe.cpp")
    subprocess.run([compiler, "-O1", f"-I{include}", str(source), "-o", str(probe)], check=True)
    cases, lines = [], []
    for (major, minor), arch in ARCHITECTURES.items():
        limits = LIMITS[10 * major + minor]
        for case in itertools.product(
            (16, 24, 33, 64, 96, 127, 128, 168, 200, 255),
            (32, 64, 96, 128, 160, 256, 384, 512, 768, 1024),
            (0, 1000, 1024, 8192, 24576, 49152, 65536, limits.shared_memory_block),
            (0, 1, 2, 3, 16),
        ):
            registers, threads, smem, barriers = case
            cases.append((arch, *case))
            lines.append(
                f"{major} {minor} {limits.warps * 32} {limits.shared_memory} "
                f"{limits.shared_memory_block} {registers} {threads} {smem} {barriers}\n"
            )
    done = subprocess.run([probe], input="".join(lines), capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(cases) == 24_000
    wrong = []
    for case, answer in zip(cases, answers, strict=True):
        blocks, factors = map(int, answer.split())
        found = occupancy(*case)
        limiters = {name for bit, name in FACTORS.items() if factors & bit}
        if "barriers" in found.limiters:  # CUDA's keeps what limited before barriers did
            limiters &= set(found.limiters)
        if found.blocks != blocks or (blocks and set(found.limiters) != limiters):
            wrong.append((case, blocks, limiters, found))
    assert wrong == []


def test_what_is_not_known_is_none():
    assert occupancy("sm_75", 32, 128, 0) is None
    assert occupancy(None, 32, 128, 0) is None
    assert capability("compute_80") is None
    assert capability("sm_103a") == 103


def test_what_does_not_fit():
    assert occupancy("sm_80", 255, 1024, 0).blocks == 0
    assert occupancy("sm_80", 32, 128, 164 << 10).limiters == ("shared memory",)
    assert occupancy("sm_80", 32, 2048, 0).blocks == 0
