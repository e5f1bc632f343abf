"""A fault planted in a real kernel is named by tools.debug: its block and its tensor.

The fault lives in a copy of the specs alone: a template parameter `fault`, with which a kernel
takes a scale that is 1 % too large at one block of keys.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tools import forward_alone

pytestmark = pytest.mark.xdist_group("planted fault")  # each target's build is made once

ROOT = Path(__file__).resolve().parents[2]
DEBUG = """
import runpy
sys.argv = ["kernelmint", "debug", *sys.argv[1:]]
runpy.run_module("kernelmint", run_name="__main__")
"""


class Target(NamedTuple):
    key: str  # of the kernel without the fault
    others: tuple[str, ...]  # the targets that are left out
    spec: str
    first_of_set: str  # what the spec's default set begins with
    twin: str  # added to it, and again with the fault
    header: str
    right: str  # in the header
    faulty: str
    first: str  # the first tensor that the fault enters
    where: str
    rows: int  # B_r
    kernels: int
    defines: tuple[str, ...]


TARGETS = {
    "cpu": Target(
        key="flash_forward.cpu.f32-d64-r64-c128-trace",
        others=("sm80",),
        spec="cpu.yaml",
        first_of_set="  default:\n",
        twin="    - {dtype: f32, d_head: 64, causal: false, B_r: 64, B_c: 128, trace: true}\n",
        header="../cpu.h",
        right="float scale_log2 = family.scale_log2;",
        faulty="float scale_log2 = (Family::kFault && block == 1 ? 1.01f : 1.0f) * "
        "family.scale_log2;",
        first="M",
        where="trace and dtype == f32",
        rows=64,
        kernels=2,
        defines=("KERNELMINT_CUDA=OFF", "KERNELMINT_ISAS=native"),
    ),
    "sm80": Target(
        key="flash_forward.sm80.bf16-d128-r64-c64-trace-w4-async-eager-swz-q0-k0-v0-opt",
        others=("cpu",),
        spec="sm80.yaml",
        first_of_set="    configurations:\n      - product: {d_head: 128, causal: false,  ",
        twin=(
            "      - {dtype: bf16, d_head: 128, causal: false, B_r: 64, Q_mma_load_K_tiles: 0,"
            " K_mma_load_K_tiles: 0, V_mma_load_K_tiles: 0, trace: true}\n"
        ),
        header="sm80.cuh",
        right="    if (kMasked && (",
        faulty=(
            "    if (Config::fault && block == 1)\n"
            "      scores.for_each([](float& score) { score *= 1.01f; });\n"
            "    if (kMasked && ("
        ),
        first="[ML]",  # a maximum that grew by little is kept
        where="trace and optimized_softmax",
        rows=64,
        kernels=2,
        defines=(),
    ),
    "sm90a": Target(
        key="flash_forward.sm90a.bf16-d128-r128-c128-trace-wg2-q2-s2-pp-dyn-l1",
        others=("cpu", "sm80"),
        spec="sm90a.yaml",
        first_of_set="    configurations:\n      - product: {d_head: 128, causal: false, dyn",
        twin="      - {dtype: bf16, d_head: 128, causal: false, trace: true}\n",
        header="sm90a.cuh",
        right="    if constexpr (kMasked) context_.mask.apply(scores_, tile, block);",
        faulty=(
            "    if (Config::fault && block == 1)\n"
            "      scores_.for_each([](float& score) { score *= 1.01f; });\n"
            "    if constexpr (kMasked) context_.mask.apply(scores_, tile, block);"
        ),
        first="[ML]",
        where="trace and target == 'sm90a'",
        rows=128,
        kernels=2,
        defines=(),
    ),
}


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


def planted(target: Target, folder: Path) -> Path:
    """A copy of the family's specs in `folder`, with the fault in it."""
    specs = forward_alone.copy(folder / "specs")
    for other in target.others:
        for path in specs.glob(f"{other}.*yaml"):  # its shapes too
            path.unlink()
    replace(
        specs / "family.yaml",
        "  trace:  {",
        "  fault:  {type: bool, default: false}\n  trace:  {",
    )
    faulty = target.twin.replace("trace", "fault: true, trace")
    head, _, tail = target.first_of_set.partition("\n")
    both = f"{head}\n{target.twin}{faulty}{tail}"
    replace(specs / target.spec, target.first_of_set, both)
    replace(specs / target.header, target.right, target.faulty)
    if target.header == "../cpu.h":  # the group's loop, which does not know the configuration
        finishes = "  static constexpr bool kFinishesScores = false;\n"
        fault = "  static constexpr bool kFault = Config::fault;\n"
        replace(specs / "cpu.h", finishes, finishes + fault)
    if "\nshort:" in (specs / target.spec).read_text():
        replace(specs / target.spec, "    trace: trace\n", "    fault: fault\n    trace: trace\n")
    return folder / "specs"


@pytest.mark.parametrize("name", TARGETS)
def test_the_fault_is_in_a_copy_of_the_specs_alone(name, tmp_path) -> None:
    """Also if kernels cannot run: a spec or a header that has changed shows here."""
    target = TARGETS[name]
    specs = planted(target, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "codegen", "list", f"--specs={specs}", f"--where={target.where}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    keys = [line.split()[0] for line in done.stdout.splitlines() if "flash_forward." in line]
    assert set(keys) == {target.key, target.key.replace("-trace", "-fault-trace")}, done


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("cpu", marks=pytest.mark.build),
        pytest.param("sm80", marks=[pytest.mark.build, pytest.mark.gpu]),
        pytest.param("sm90a", marks=[pytest.mark.build, pytest.mark.gpu]),
    ],
)
def debug(request, tmp_path_factory, separate_build):
    """tools.debug over a build of a kernel and of its faulty sibling; and the target."""
    target = TARGETS[request.param]
    folder = tmp_path_factory.mktemp("planted")
    specs = planted(target, folder)
    build = separate_build(
        folder, target.where, target.kernels, specs=specs, defines=target.defines
    )
    return lambda *arguments: build.python(DEBUG, *arguments), target


@pytest.mark.parametrize(
    "options",
    [(), *(pytest.param(o, marks=pytest.mark.slow) for o in (("--range",), ("--head", 1)))],
)
def test_the_right_block_and_tensor_are_named(debug, options) -> None:
    """M is the first tensor that the scale enters, in rows whose maximum lies in that block.

    The blocks before it are right.
    """
    call, target = debug
    done = call(target.key.replace("-trace", "-fault-trace"), 3, *options)
    assert done.returncode == 1, done.stdout
    last = done.stdout.splitlines()[-1]
    assert "the kernel diverges from its simulation first at head" in last
    where = (
        rf", query block 0: block 1, {target.first}, row=\d+: .* of {target.rows} elements differ$"
    )
    assert re.search(where, last), last


def test_its_sibling_without_the_fault_is_right(debug) -> None:
    call, target = debug
    done = call(target.key, 3)
    assert done.returncode == 0, done.stdout
    assert "the kernel does as its simulation" in done.stdout
