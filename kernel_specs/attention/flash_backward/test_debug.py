"""`kernelmint debug` of flash_backward: traced twins do as their simulation, and planted faults are
named: the step and the tensor that each enters first.

A fault lives in a copy of a header. On the CPU and in the emulator the environment chooses one, so
that all faults of a kernel are compiled once; on a GPU a template parameter of the copy does.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from click.testing import CliRunner

import runtime
from kernel_specs.attention.flash_backward.tools.debug import Inputs, Sides, simulated
from kernel_specs.attention.flash_backward.tools.divergence import DIMS, STEP
from kernel_specs.attention.reference import attention_backward
from tests.emulated import kernels as emulated
from tests.slow import slow_if
from tools.debug import __main__ as command

ROOT = Path(__file__).resolve().parents[3]
BUILT_FOR_CUDA = bool(emulated.keys("flash_backward"))
CPU = "flash_backward.cpu.f32-d64-r32-c64-trace"
TWINS = {info.key: info for info in runtime.build("flash_backward", set_name="traced")}
EMULATED = {
    "sm80": "flash_backward.sm80.bf16-d64-causal-r64-c128-trace-w4-k1-n32-m2-q2-s2-x2",
    "sm90a": "flash_backward.sm90a.bf16-d64-r128-c128-trace-q2-s2-v8",
    "sm90a, wide": "flash_backward.sm90a.bf16-d256-causal-r64-c80-trace-q2-s1-v0",
    "sm90a, by keys": "flash_backward.sm90a.bf16-d192-det-r64-c96-trace-q2-s1-v0",
}
# Prints the last line of `kernelmint debug` for each kernel, the n-th with the n-th fault.
DEBUG = """
import os
from click.testing import CliRunner
from kernelmint.tools.debug.__main__ import main
for number, key in enumerate(sys.argv[1:]):
    os.environ["PLANTED"] = str(number)
    print(CliRunner().invoke(main, [key, "3"]).output.splitlines()[-1])
"""


def debug(*arguments: object, out: Path) -> str:
    done = CliRunner().invoke(command.main, [*map(str, arguments), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return done.output


class Fake:
    """A simulation in the place of a kernel: two heads that share keys, two blocks of keys."""

    def __init__(self, causal: bool, deterministic: bool, target: str) -> None:
        parameters = dict(TWINS[CPU].parameters, causal=causal, deterministic=deterministic)
        self.info = replace(TWINS[CPU], parameters=parameters, target=target)
        self.inputs = Inputs.random(parameters, 100, 2, 1, seed=0)

    def sides(self, *key_blocks: int, wrong: str | None = None) -> Sides:
        """`wrong` is off by 1 % in the second head's third block of queries and the last block of
        keys."""
        p = self.info.parameters
        extents = {"row": p["B_r"], "key": p["B_c"], "d": p["d_head"]}
        trace = {
            name: torch.full((1, 2, 4, 2, *(extents[dim] for dim in DIMS[name])), math.nan)
            for name in STEP
        }
        dq, dk, dv = (torch.zeros_like(t) for t in (self.inputs.q, self.inputs.k, self.inputs.v))
        for block in key_blocks:
            for head, query_block, name, value in simulated(self.inputs, self.info, 0, block):
                if name in STEP:
                    is_wrong = (head, query_block, block, name) == (1, 2, 1, wrong)
                    value = value * 1.01 if is_wrong else value
                    trace[name][0, head, query_block, block] = value
                if name in ("dQ", "dk", "dv"):
                    to, place = {"dQ": (dq, query_block), "dk": (dk, block), "dv": (dv, block)}[
                        name
                    ]
                    rows = to[0, place * len(value) :][: len(value), max(head, 0)]
                    rows += (value[: len(rows)] * (1 / 8 if name == "dQ" else 1)).float()
        return Sides(self.info, self.inputs, (dq, dk, dv), trace, (0,), key_blocks)


@pytest.mark.parametrize(
    ("target", "causal", "deterministic"),
    [("cpu", False, False), ("sm80", True, True), ("sm90a", True, False)],
)
def test_the_simulation_ends_at_the_oracle(target: str, causal: bool, deterministic: bool) -> None:
    """The simulation yields the tensors that the spec declares, in each order of steps."""
    fake = Fake(causal, deterministic, target)
    steps = simulated(fake.inputs, fake.info, 0, 0)
    assert [step.name for step in steps] == [*STEP * 8, "dv", "dk"]
    blocks = [step.query_block for step in steps if step.name == "Q"]
    assert blocks == sorted(blocks, reverse=target != "cpu")
    sides = fake.sides(0, 1)
    assert not sides.compare()
    want = attention_backward(*fake.inputs.tensors, scale=1 / 8, causal=causal)
    for gradient, exact in zip(sides.gradients.values(), want, strict=True):
        assert float((gradient - exact).abs().max()) <= 1e-5


@pytest.mark.parametrize("name", STEP)
def test_a_wrong_tensor_of_one_step_is_named(name: str) -> None:
    first, *_ = Fake(True, False, "cpu").sides(1, wrong=name).compare()
    assert str(first).startswith(f"key head 0, key block 1, head 1, query block 2: {name}, ")


@pytest.mark.parametrize(
    ("key", "options"),
    [
        (CPU, ()),
        (
            CPU.replace("f32-d64", "bf16-d64-causal"),
            ("--heads", 4, "--kv-heads", 2, "--kv-head", 1),
        ),
    ],
)
def test_twins_of_the_cpu_do_as_their_simulation(
    key: str, options: tuple[object, ...], tmp_path: Path
) -> None:
    printed = debug(key, 3, *options, out=tmp_path)
    assert "the kernel does as its simulation" in printed
    text = (tmp_path / "debug_cpu.txt").read_text()
    assert re.search(r"^key_head\d/key1/head\d/query2/dS \[32, 64\]$", text, re.M)


@pytest.mark.gpu
@pytest.mark.parametrize("key", [key for key, info in TWINS.items() if info.is_cuda])
@pytest.mark.parametrize("length", [1, 4])
def test_twins_of_the_gpu_do_as_their_simulation(key: str, length: int, tmp_path: Path) -> None:
    printed = debug(key, length, "--heads", 4, "--kv-heads", 2, "--kv-head", 1, out=tmp_path)
    assert "the kernel does as its simulation" in printed


def test_blocks_that_are_not_there_are_refused(tmp_path: Path) -> None:
    for options, message in (
        (("--key-block", 2), "--key-block 2: there are 2, from 0"),
        (("--kv-head", 1, "--kv-heads", 1), "--kv-head 1: there are 1, from 0"),
        (("--heads", 3, "--kv-heads", 2), "--kv-heads 2 does not divide the 3 query heads"),
    ):
        arguments = [CPU, "4", *map(str, options), "--out", str(tmp_path)]
        done = CliRunner().invoke(command.main, arguments)
        assert done.exit_code == 2
        assert message in done.output


class Fault(NamedTuple):
    """A change of a header, where PLANTED(n) is true if the n-th fault is chosen."""

    header: str  # of the group
    right: str
    faulty: str
    first: str  # the first tensor that the fault enters


# A mask that is off by one; dK without its scale; D of another row; the stage of the next step,
# which is read too early.
_ROWS = Fault(
    "flash_backward/prepare.cuh",
    "problem.deltas[row + query] = sum;",
    "problem.deltas[row + (PLANTED(3) ? query ^ 1 : query)] = sum;",
    "D",
)
FAULTS = {
    "cpu": (
        Fault(
            "cpu_backward.h",
            "query + of.own_key + 1 - first;",
            "query + of.own_key + (PLANTED(1) ? 2 : 1) - first;",
            "P",
        ),
        Fault(
            "cpu_backward.h",
            "block), call_.scale(),\n",
            "block), PLANTED(2) ? 1 : call_.scale(),\n",
            "dk",
        ),
        Fault(
            "cpu_backward.h",
            "* call_.rows() + first_row;",
            "* call_.rows() + first_row + (PLANTED(3) ? 1 : 0);",
            "D",
        ),
    ),
    "sm80": (
        Fault(
            "sm80_backward_block.cuh",
            "if (ahead + Scores::row_of(row) > seen)",
            "if (ahead + Scores::row_of(row) + (PLANTED(1) ? 1 : 0) > seen)",
            "P",
        ),
        Fault(
            "flash_backward/sm80_equal_sequences.cuh",
            "return problem.args.scale;",
            "return PLANTED(2) ? 1.0f : problem.args.scale;",
            "dk",
        ),
        _ROWS,
        Fault(
            "sm80_backward_block.cuh",
            "to_queries = Queries::data(q_stage)",
            "to_queries = Queries::data((q_stage + (PLANTED(4) ? 1 : 0)) % Config::q_stages)",
            "S",
        ),
    ),
    "sm90a": (
        Fault(
            "sm90a_backward_scores.cuh",
            "if (hidden(Lane::key(e), Lane::query(e)))",
            "if (hidden(Lane::key(e) + (PLANTED(1) ? 1 : 0), Lane::query(e)))",
            "P",
        ),
        Fault(
            "flash_backward/sm90a_equal_sequences.cuh",
            "return problem.args.scale;",
            "return PLANTED(2) ? 1.0f : problem.args.scale;",
            "dk",
        ),
        _ROWS,
        Fault(
            "sm90a_backward_consumer.cuh",
            "shared_.template data<Queries>(q_stage);",
            "shared_.template data<Queries>((q_stage + (PLANTED(4) ? 1 : 0)) % Config::q_stages);",
            "Q",
        ),
    ),
}


def planted(faults: tuple[Fault, ...], expression: str) -> list[tuple[str, str, str]]:
    """Returns the changes of headers: files, texts, and what stands in their places."""
    changes = [
        (f"attention/{f.header}", f.right, re.sub(r"PLANTED\((\d)\)", expression, f.faulty))
        for f in faults
    ]
    files = dict.fromkeys(file for file, *_ in changes)
    return changes + [(f, "#pragma once\n", "#pragma once\n#include <cstdlib>\n") for f in files]


IN_ENVIRONMENT = r"""(*std::getenv("PLANTED") == '\1')"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of the specs as they are, with the twins in its generated tree."""
    folder = tmp_path_factory.mktemp("twins")
    (folder / "kernel_specs").symlink_to(ROOT / "kernel_specs")
    subprocess.run(
        [sys.executable, "-m", "codegen", "regenerate", "--set", "traced",
         "--where", "family == 'flash_backward'", "--out", folder / "generated"],
        cwd=ROOT, check=True,
    )  # fmt: skip
    return folder


def emulate(kernel: emulated.Kernel, length: int, seed: int) -> Sides:
    inputs = Inputs.random(kernel.info.parameters, length, 2, 1, seed)
    out = tuple(torch.full_like(t, math.nan) for t in (inputs.q, inputs.k, inputs.v))
    blocks = range(math.ceil(length / kernel.info.parameters["B_c"]))
    return Sides(kernel.info, inputs, *kernel.trace(*inputs.tensors, out=out), (0,), tuple(blocks))


@pytest.mark.skipif(not BUILT_FOR_CUDA, reason="built without CUDA")
@pytest.mark.parametrize("name", slow_if(lambda name: name != "sm90a", EMULATED))
def test_emulated_twins_do_as_their_simulation_and_their_faults_are_named(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = FAULTS.get(name, ())
    kernel = emulated.Kernel(EMULATED[name], planted(faults, IN_ENVIRONMENT), project)
    monkeypatch.setenv("PLANTED", "0")
    assert not emulate(kernel, 150, 0).compare()
    for number, fault in enumerate(faults, start=1):
        monkeypatch.setenv("PLANTED", str(number))
        runs = (emulate(kernel, 150, seed).compare() for seed in range(5))  # in other orders
        first = next((divergences[0] for divergences in runs if divergences), None)
        assert first is not None, fault
        assert re.fullmatch(fault.first, first.step.name), (fault, str(first))


# The only set of a copy of the specs: on a GPU, the kernel with each of its faults.
SETS = {
    "sm80": "{dtype: bf16, d_head: 64, causal: true, B_r: 64, B_c: 128, n_warps: 4, key_sharers: 1,"
    " score_queries: 32, dq_rows: 2, q_stages: 2, do_stages: 2, resident_blocks: 2, trace: true,"
    " fault: [0, 1, 2, 3, 4]}",
    "cpu": "{dtype: f32, d_head: 64, causal: true, B_r: 32, B_c: 64, trace: true}",
    "sm90a": "{dtype: bf16, d_head: 64, causal: true, B_r: 128, B_c: 128, q_stages: 2,"
    " do_stages: 2, dv_after: 8, trace: true, fault: [0, 1, 2, 3, 4]}",
}


def copy_with_faults(folder: Path, target: str) -> Path:
    """Returns a copy of the specs, with one target and its faults."""
    group, specs = ROOT / "kernel_specs/attention", folder / "specs/attention"
    families = {file.parent.name for file in group.glob("*/family.yaml")} - {"flash_backward"}
    shutil.copytree(group, specs, ignore=shutil.ignore_patterns(*families))
    for other in {"cpu", "sm80", "sm90a"} - {target}:
        (specs / f"flash_backward/{other}.yaml").unlink()
    spec = specs / f"flash_backward/{target}.yaml"
    before, *_ = spec.read_text().partition("\nsets:\n")
    spec.write_text(f"{before}\nsets:\n  default:\n    - product: {SETS[target]}\n")
    if "fault" in SETS[target]:
        family = specs / "flash_backward/family.yaml"
        parameter = "  fault:  {type: int, token: fault, default: 0}\n  trace:  {"
        family.write_text(family.read_text().replace("  trace:  {", parameter, 1))
    expression = IN_ENVIRONMENT if target == "cpu" else r"(Config::fault == \1)"
    for file, text, instead in planted(FAULTS[target], expression):
        content = (folder / "specs" / file).read_text()
        assert content.count(text) == 1, (file, text)
        (folder / "specs" / file).write_text(content.replace(text, instead))
    return folder / "specs"


@pytest.mark.build
@pytest.mark.parametrize(
    "target",
    ["cpu", *(pytest.param(target, marks=pytest.mark.gpu) for target in ("sm80", "sm90a"))],
)
def test_planted_faults_are_named(target: str, tmp_path: Path, separate_build) -> None:
    """The kernel without a fault does as its simulation."""
    key = EMULATED.get(target, CPU).replace("d64-r", "d64-causal-r")
    faults = FAULTS[target]
    build = separate_build(
        tmp_path,
        "family == 'flash_backward'",
        1 if target == "cpu" else len(faults) + 1,
        specs=copy_with_faults(tmp_path, target),
        defines=("KERNELMINT_CUDA=OFF", "KERNELMINT_ISAS=native") if target == "cpu" else (),
    )
    in_keys = ["" if target == "cpu" else f"-fault{n}" for n in range(len(faults) + 1)]
    done = build.python(DEBUG, *(key.replace("-trace", f"{fault}-trace") for fault in in_keys))
    right, *lines = done.stdout.splitlines()
    assert right == "the kernel does as its simulation", done.stdout
    for fault, line in zip(faults, lines, strict=True):
        where = rf"key head 0, key block 0(, head 0, query block \d)?: {fault.first}, "
        assert re.match(f"the kernel diverges from its simulation first at {where}", line), line
