"""The vector code under the CPU kernels: on each instruction set, and on aarch64 when emulated."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime import _native, packs
from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
ARM_COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
FLAGS = json.loads((ROOT / "kernelmint/cmake/flags.json").read_text())["isas"]

BUILT_FOR = packs.of("flash_forward").isas  # what the compiler can
ISAS = [isa for isa in _native.supported_cpu_isas() if isa in BUILT_FOR]


def build(compiler: str, isa: str, flags: list[str], folder: Path) -> str:
    program = str(folder / "probe")
    folders = ("runtime/include", "runtime/pack", "runtime/src", "kernel_specs", "generated")
    includes = [f"-I{ROOT / name}" for name in folders]
    parts = (
        "tests/kernels/cpu_probe.cpp",
        "runtime/pack/library.cpp",
        "runtime/src/thread_pool.cpp",
    )
    sources = [str(ROOT / name) for name in parts]
    options = ["-std=c++20", "-O2", "-pthread", "-Wno-psabi", f"-DKERNELMINT_ISA={isa}", *flags]
    subprocess.run([compiler, *options, *includes, *sources, "-o", program], check=True)
    return program


def run(command: list[str]) -> dict[str, float]:
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in map(str.split, result.stdout.splitlines())}


def assert_right(figures: Mapping[str, float]) -> None:
    """Conversions are exact or nearest-even; exp2 is within its bound; attention is near fp64."""
    wrong = {name: value for name, value in figures.items() if name.startswith("wrong_")}
    assert len(wrong) == 7
    assert not any(wrong.values()), wrong
    assert figures["exp2_ulp"] < 2
    # In units of the dtype's roundoff, for outputs of up to 4: half precisions round the result,
    # and the probabilities; f32 also sums up 128 products, with an error of sqrt(128) roundings.
    for name, bound in (("f32", 4 * 12), ("fp16", 4), ("bf16", 4)):
        for shape in ("64_0", "128_1"):
            assert figures[f"attention_{name}_{shape}"] < bound
            assert figures[f"lse_{name}_{shape}"] < 12 * 2**-22


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("isa", slow_after(1, ISAS))
def test_vectors_are_right_on_this_processor(isa: str, tmp_path: Path) -> None:
    flags = FLAGS[isa] if platform.machine() == "x86_64" else []
    assert_right(run([build("c++", isa, flags, tmp_path), "997"]))


@pytest.mark.slow
@pytest.mark.skipif(ARM_COMPILER is None, reason="needs aarch64-linux-gnu-g++")
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
def test_vectors_are_right_on_aarch64(tmp_path: Path) -> None:
    assert ARM_COMPILER is not None
    assert EMULATOR is not None
    assert_right(run([EMULATOR, build(ARM_COMPILER, "baseline", ["-static"], tmp_path), "9973"]))
