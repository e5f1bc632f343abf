"""What the hardware cannot launch is excluded, with its reason, without the author's `limits`."""

from __future__ import annotations

import json

import pytest

from codegen.core import hardware
from codegen.core.architectures import Architecture

SPEC = """\
target: {target}
kernel: {target}.cuh{kernel}
parameters:
  tile: {{type: int, token: t}}
  warps: {{type: int, token: w}}
derived:
  threads: 32 * warps
  smem_bytes: 1024 * tile
{launch}sets:
  default:
    - product: {{dtype: bf16, causal: false, tile: {tiles}, warps: {warps}}}
"""
LAUNCH = "launch: {grid: [M], block: threads, shared_memory: smem_bytes}\n"


def specify(workspace, target="sm80", launch=LAUNCH, tiles="[32]", warps="[4]") -> None:
    (workspace.demo / "sm80.yaml").unlink(missing_ok=True)
    workspace.write(f"{target}.cuh", "")
    kernel = ":demo" if launch else ""
    text = SPEC.format(target=target, launch=launch, kernel=kernel, tiles=tiles, warps=warps)
    workspace.write(f"{target}.yaml", text)


def keys(workspace, target="sm80") -> list[str]:
    listed = workspace.run("list", "--where", f"target == '{target}'")
    assert listed.status == 0, listed.output
    return [line for line in listed.stdout.split() if line.startswith(f"demo.{target}.")]


@pytest.mark.parametrize("launch", [LAUNCH, ""], ids=["launch", "a launch of the header's own"])
def test_products_hold_what_can_be_launched(workspace, launch) -> None:
    """2,048 threads and 400,000 bytes are no more than a rule's reason."""
    specify(workspace, launch=launch, tiles="[32, 227, 228, 400]", warps="[4, 32, 64]")
    assert keys(workspace) == [
        f"demo.sm80.bf16-t{tile}-w{warps}" for tile in (32, 227) for warps in (4, 32)
    ]
    excluded = workspace.run("explain", "demo.sm80.bf16-t400-w64")
    assert excluded.status == 1
    line = 9 if launch else 6
    assert (
        f"sm80.yaml:{line}:1: threads <= 1024: a thread block has at most 1,024 threads"
        in excluded.output
    )
    assert (
        f"sm80.yaml:{line}:1: smem_bytes <= 232448: a thread block of compute capability 9.0 has "
        "at most 232,448 bytes of shared memory, and none from 8.0 on has more" in excluded.output
    )


def test_an_exact_target_has_what_its_architecture_has(workspace) -> None:
    specify(workspace, "sm120a", tiles="[99, 100]")
    assert keys(workspace, "sm120a") == ["demo.sm120a.bf16-t99-w4"]
    said = workspace.run("explain", "demo.sm120a.bf16-t100-w4").output
    assert "compute capability 12.0 has at most 101,376 bytes of shared memory" in said
    assert "none from" not in said


def test_a_written_configuration_that_cannot_be_launched_is_an_error(workspace) -> None:
    specify(workspace, tiles="32", warps="33")
    workspace.edit("sm80.yaml", "- product: {dtype", "- {dtype")
    result = workspace.run("regenerate")
    assert result.status == 2
    assert "'threads <= 1024' excludes the configuration on line 12" in result.stderr
    assert "a thread block has at most 1,024 threads" in result.stderr


def test_where_some_architectures_cannot_launch_it_explain_says_so(workspace) -> None:
    specify(workspace, tiles="[64, 100, 164]")
    assert workspace.run("regenerate").status == 0
    said = workspace.run("explain", "demo.sm80.bf16-t100-w4").output
    assert (
        "not on compute capability 8.6, 8.9, 12.0, 12.1: it takes 102,400 bytes of shared memory a "
        "thread block, and those have 101,376" in said
    )
    assert "not on" not in workspace.run("explain", "demo.sm80.bf16-t64-w4").output
    said = workspace.run("explain", "demo.sm80.bf16-t164-w4").output
    assert "not on compute capability 8.0, 8.7: it takes 167,936 bytes" in said
    (family,) = json.loads((workspace.out / "manifest.json").read_text())["families"]
    (target,) = [target for target in family["targets"] if target["name"] == "sm80"]
    memory = [kernel.get("shared_memory") for kernel in target["kernels"]]
    assert memory == [None, 102_400, 167_936]  # which the runtime compares with the device's


def test_what_a_call_decides_is_not_judged_before_it(workspace) -> None:
    specify(workspace, launch=LAUNCH.replace("smem_bytes", "1024 * M"), tiles="[1, 400]")
    assert len(keys(workspace)) == 2


def test_capabilities_of_a_target() -> None:
    assert hardware.capabilities(Architecture(90, "a")) == (90,)
    assert min(hardware.capabilities(Architecture(89, ""))) == 89
    assert hardware.capabilities(Architecture(91, "a")) == ()
    assert hardware.capabilities(Architecture(100, "f")) == (100, 103)
