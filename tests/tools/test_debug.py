"""`kernelmint debug`: both sides' intermediates, the files, and where they diverge.

Kernels stand in for traced ones if only the tool is looked at: a `Fake` writes the simulation's
own intermediates, with a fault if a test wants one.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import runtime
from codegen.core.manifest import Selection
from codegen.space.expand import exclusions, expand
from codegen.spec.load import load
from kernel_specs.attention.flash_forward.tools import counting_inputs, divergence, trace
from runtime.operators import DTYPES
from tools.debug import __main__ as command
from tools.debug import twin
from tools.families import oracle, specs
from tools.text import number_lines

NVCC = shutil.which(os.environ.get("CUDACXX", "nvcc"))
KEY = "flash_forward.cpu.f32-d64-r64-c128"
TRACED = {info.key: info for info in runtime.build("flash_forward", set_name="traced")}
PARAMETERS = {"dtype": "f32", "d_head": 64, "B_r": 32, "B_c": 16, "causal": False, "trace": True}


def debug(*arguments, tmp_path, **environment):
    done = CliRunner().invoke(
        command.main, [*map(str, arguments), "--out", str(tmp_path)], env=environment
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


class Fake:
    """The simulation in a kernel's place, with the softmax that a target has.
    `fault(block, name, value)` may return another value."""

    def __init__(self, parameters, fault=lambda block, name, value: value, target="cpu"):
        self.info = SimpleNamespace(
            key="fake", target=target, parameters=parameters,
            is_cuda=False, available=True, reason=None,
        )  # fmt: skip
        self.fault = fault

    def trace(self, q, k, v, *, out):
        parameters = self.info.parameters
        B_r, B_c = parameters["B_r"], parameters["B_c"]
        grid = (1, q.shape[2], -(-q.shape[1] // B_r), -(-k.shape[1] // B_c))
        extents = {"row": B_r, "key": B_c, "d": parameters["d_head"]}
        tensors = {
            name: torch.full((*grid, *(extents[dim] for dim in trace.DIMS[name])), math.nan)
            for name in trace.STEP
        }
        for head in range(grid[1]):
            for block in range(grid[2]):
                for step in trace.simulated(q, k, v, self.info, head, block):
                    value = self.fault(step.block, step.name, step.value)
                    if step.block < 0:
                        out[0, block * B_r : (block + 1) * B_r, head] = value.to(out.dtype)
                    else:
                        tensors[step.name][0, head, block, step.block] = value
        return out, tensors


def make_inputs(info, seq_len, heads, kv_heads, counting):
    sizes = {"B": 1, "Sq": seq_len, "Sk": seq_len, "H": heads, "Hk": kv_heads}
    if counting:
        return counting_inputs(sizes, info.parameters).values()
    dtype, d_head = DTYPES[info.parameters["dtype"]], info.parameters["d_head"]
    return [torch.randn(1, seq_len, n, d_head).to(dtype) for n in (heads, kv_heads, kv_heads)]


def judged(kernel, *, seq_len=64, heads=1, head=0, query_block=0, counting=False):
    parameters = kernel.info.parameters
    q, k, v = make_inputs(kernel.info, seq_len, heads, heads, counting)
    expected = trace.simulated(q, k, v, kernel.info, head, query_block)
    run = trace.traced(kernel, q, k, v)
    blocks = [step.block for step in expected if step.name == "Q"]
    return divergence.first_divergence(
        list(run.steps(head, query_block, blocks)),
        expected,
        parameters,
        divergence.Rows.of(parameters, query_block, seq_len, seq_len),
        fused=trace.softmax_form(kernel.info)["fused"],
        head=head,
        query_block=query_block,
    )


def test_the_simulation_yields_what_the_spec_declares() -> None:
    """The record of `trace:`, under its names, in its order and shapes; then the output."""
    B_r, B_c, d_head = 32, 16, 64
    q, k, v = torch.randn(3, 64, d_head)
    steps = list(oracle("flash_forward", function="simulate")(q, k, v, B_r=B_r, B_c=B_c))
    assert [step.name for step in steps] == [*trace.STEP * 4, trace.FINAL]
    extents = {"row": B_r, "key": B_c, "d": d_head}
    for step in steps:
        assert step.value.shape == tuple(extents[dim] for dim in trace.DIMS[step.name])


def test_the_slack_is_the_kernels() -> None:
    header = (Path(__file__).parents[2] / "runtime/include/attention/softmax.cuh").read_text()
    assert float(re.search(r"constexpr float kSlack = (\d+)", header)[1]) == trace.SLACK


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("target", "form"),
    [
        ("cpu", {}),
        ("sm80", {"optimized_softmax": False}),
        ("sm80", {"optimized_softmax": True}),
        ("sm90a", {}),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("counting", [False, True])
def test_the_simulation_ends_at_the_oracle(causal, target, form, dtype, counting) -> None:
    """In every form of the softmax, its last maximum too; O_final is the oracle's output."""
    parameters = {**PARAMETERS, "causal": causal, "dtype": dtype, **form}
    info = Fake(parameters, target=target).info
    q, k, v = make_inputs(info, 96, 2, 1, counting)
    want = oracle("flash_forward")(q, k, v, causal=causal)
    for block in range(3):
        steps = trace.simulated(q, k, v, info, 1, block)
        assert steps[-1].name == "O_final"
        bound = {"bf16": 2.0**-8, "f32": 2.0**-23}[dtype] * v.double().abs().max()
        difference = steps[-1].value - want[0, block * 32 : block * 32 + 32, 1]
        assert float(difference.abs().max()) <= bound


@pytest.mark.parametrize(
    ("target", "form", "lags"),
    [
        ("cpu", {}, False),
        ("sm80", {"optimized_softmax": False}, False),
        ("sm80", {"optimized_softmax": True}, True),
        ("sm90a", {}, True),
    ],
)
@pytest.mark.parametrize(("growth", "is_little"), [(7.9, True), (8.1, False)])
def test_a_maximum_lags_until_it_grows_by_2_to_the_8(target, form, lags, growth, is_little) -> None:
    """In the GPU's optimised softmax; there nothing is rescaled meanwhile."""
    info = Fake({**PARAMETERS, **form}, target=target).info
    q = torch.zeros(1, 32, 1, 64)
    q[..., 0] = 1
    k = torch.zeros_like(q)
    k[:, :16, :, 0] = growth * 8 * math.log(2)  # the scale is 1 / 8; the block that comes last
    steps = {s.name: s.value for s in trace.simulated(q, k, k, info, 0, 0) if s.block == 0}
    factor = 1.0 if lags and is_little else 2**-growth
    torch.testing.assert_close(steps["O_scale"], torch.full((32,), factor, dtype=torch.float64))
    assert bool((steps["M"] > 0).all()) is not (lags and is_little)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("counting", [False, True])
def test_what_does_as_the_simulation_does_not_part(causal, counting) -> None:
    for block in range(2):
        fake = Fake({**PARAMETERS, "causal": causal})
        assert judged(fake, query_block=block, counting=counting) is None


def scaled(where, name, factor):
    return lambda block, tensor, value: (
        value * factor if (block, tensor) == (where, name) else value
    )


@pytest.mark.parametrize("name", trace.STEP)
@pytest.mark.parametrize("block", [2, 0])
def test_a_wrong_scale_of_one_tensor_in_one_block_is_named(name, block) -> None:
    found = judged(Fake(PARAMETERS, scaled(block, name, 1.01)))
    assert found is not None
    assert (found.block, found.name) == (block, name)


def test_the_first_of_several_faults_is_named() -> None:
    """Blocks come from the last to the first, and O_scale comes after V."""

    def fault(block, name, value):
        return value * 2 if (block, name) in ((0, "S_pre_scaling"), (1, "O_scale")) else value

    found = judged(Fake(PARAMETERS, fault), query_block=1)
    assert (found.block, found.name, found.query_block) == (1, "O_scale", 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 7.0])
def test_one_wrong_element_is_named(bad) -> None:
    def fault(block, name, value):
        if (block, name) == (3, "P"):
            value = value.clone()
            value[17, 5] = bad
        return value

    parameters = {**PARAMETERS, "n_warps": 2}
    found = judged(Fake(parameters, fault))
    assert (found.block, found.name, found.difference.first.index) == (3, "P", (17, 5))
    assert found.difference.beyond == 1
    assert found.warp == 1
    assert "block 3, P, row=17 key=5: " in str(found)
    assert "(warp 1); 1 of 512 elements differ" in str(found)


def test_a_step_that_was_not_taken_is_named() -> None:
    class Skips(Fake):
        def trace(self, q, k, v, *, out):
            o, tensors = super().trace(q, k, v, out=out)
            for tensor in tensors.values():
                tensor[0, 0, 0, 1] = math.nan
            return o, tensors

    found = judged(Skips(PARAMETERS))
    assert (found.block, found.name) == (1, "Q")


def test_text_has_groups_of_8_and_two_decimals() -> None:
    lines = list(number_lines(torch.arange(20.0).view(2, 10) / 3))
    assert lines[0] == "0.00 0.33 0.67 1.00 1.33 1.67 2.00 2.33 | 2.67 3.00"
    assert list(number_lines(torch.tensor([-1.0, float("inf")]))) == ["-1.00   inf"]


@pytest.mark.parametrize("key", sorted(TRACED))
@pytest.mark.parametrize("options", [(), ("--range",), ("--head", 2, "--kv-heads", 1)])
def test_every_traced_kernel_does_as_its_simulation(key, options, tmp_path) -> None:
    done = debug(key, 2, *options, tmp_path=tmp_path)
    assert done.exit_code == 0, done.output
    assert "the kernel does as its simulation" in done.output


def test_traced_kernels_are_here_for_the_cpu() -> None:
    assert [key for key in TRACED if key.startswith("flash_forward.cpu.")]


def test_the_files_hold_every_intermediate_of_both_sides(tmp_path) -> None:
    done = debug(KEY, 3, "--query-block", 2, "--query-block", 0, tmp_path=tmp_path)
    assert done.exit_code == 0, done.output
    sides = [np.load(tmp_path / f"{name}.npz") for name in ("debug_pt", "debug_cpu")]
    blocks = {f"head0/query{i}/key{j}/" for i in (0, 2) for j in (0, 1)}
    names = {block + name for block in blocks for name in trace.STEP}
    names |= {"head0/query0/O_final", "head0/query2/O_final", "head0/O_full", "head0/O_ref"}
    for side in sides:
        assert set(side) == names
    pt, cpu = sides
    assert pt["head0/query0/key1/S_pre_scaling"].dtype == np.float64
    assert cpu["head0/query0/key1/S_pre_scaling"].dtype == np.float32
    np.testing.assert_allclose(cpu["head0/O_full"], pt["head0/O_ref"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(cpu["head0/query2/key0/K"], pt["head0/query2/key0/K"])
    for name in ("debug_pt", "debug_cpu"):
        text = (tmp_path / f"{name}.txt").read_text()
        assert re.findall(r"^(\S+) \[", text, re.M)[:9] == [
            f"head0/query2/key1/{tensor}" for tensor in trace.STEP
        ]
        row = text.split("head0/query2/key1/Q [64, 64]\n")[1].splitlines()[0]
        assert [len(group.split()) for group in row.split("|")] == [8] * 8
        assert re.fullmatch(r"-?\d+\.\d\d", row.split()[0])


def test_range_counts(tmp_path) -> None:
    debug(KEY, 2, "-r", tmp_path=tmp_path)
    found = np.load(tmp_path / "debug_cpu.npz")
    q, k, v = (found[f"head0/query0/key0/{name}"] for name in "QKV")
    np.testing.assert_array_equal(q.ravel(), np.arange(64.0 * 64))
    np.testing.assert_array_equal(k.ravel(), -np.arange(128.0 * 64))
    np.testing.assert_array_equal(v, -k)


def test_the_twin_of_a_kernel_that_no_set_holds_is_built(tmp_path) -> None:
    """Of a key in no set, of which no pack was built."""
    key = "flash_forward.cpu.f32-d64-r16-c32"
    with pytest.raises(runtime.KernelNotFound):
        runtime.kernel(key)
    done = debug(key, 2, tmp_path=tmp_path)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{key}-trace: ")


def test_a_twin_that_a_constraint_excludes_says_so(tmp_path) -> None:
    done = debug("flash_forward.sm90a.bf16-d128-r64-c128-wg2-q2-s2-l1", 1, tmp_path=tmp_path)
    assert done.exit_code == 2
    assert "-r64-c128-trace-wg2-q2-s2-l1 is excluded:" in done.output
    assert "a warpgroup owns the 64 rows of a wgmma" in done.output


@pytest.mark.parametrize("set_name", ["default", "tune"])
@pytest.mark.parametrize("target", ["sm80", "sm90a"])
def test_every_kernel_has_a_twin(target, set_name) -> None:
    """Nothing excludes it, whether a set holds it or not."""
    families = load([specs("flash_forward")], only="flash_forward")
    (space,) = expand(families, Selection(set_name, f"target == '{target}'"))
    (kernels,) = space.targets
    assert kernels.configurations
    for configuration in kernels.configurations:
        named = {**configuration.parameters, "trace": True}
        assert not exclusions(kernels.target, tuple(named.values())), configuration.key


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_a_twin_compiles_without_a_gpu() -> None:
    """For sm90a, with everything in registers: what is traced is the kernel as it runs untraced."""
    key = "flash_forward.sm90a.fp16-d128-r128-c128-trace-wg2-q1-qr-s2-pp-dyn-l1"
    (info,) = runtime.build("flash_forward", keys=[key], architectures=["90a"])
    assert (info.key, info.built, info.spills) == (key, True, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense", 1), "'nonsense' is not a valid key"),
        (("(FP16, 1): x", 1), "'(FP16, 1): x' is not a valid key"),
        ((KEY, 2, "--query-block", 2), "--query-block 2: there are 2, from 0"),
        ((KEY, 2, "--heads", 3, "--kv-heads", 2), "--kv-heads 2 does not divide"),
        (("9999", 1), "KERNEL: got 9999, expected 0 to"),
    ],
)
def test_bad_input_is_answered_in_words(arguments, said, tmp_path) -> None:
    done = debug(*arguments, tmp_path=tmp_path)
    assert done.exit_code == 2
    assert said in done.output


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    done = debug(KEY, 1, tmp_path=tmp_path / "file/folder")
    assert done.exit_code == 2
    assert "file/folder: Not a directory" in " ".join(done.output.split())
    assert "normal, seed 0" not in done.output


def test_a_number_is_one_of_the_kernels_that_KERNELS_selects(tmp_path) -> None:
    done = debug("0", 1, tmp_path=tmp_path, KERNELS="64,128")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("flash_forward.cpu.f32-d64-r64-c128-trace: ")


def test_a_traced_kernel_is_its_own_twin() -> None:
    for info in TRACED.values():
        assert twin.find(info.key).key == info.key
