"""One rule for a parameter that is left out: its default, else all its values, else it is named."""

from __future__ import annotations

import itertools
import json

import pytest

CPU = """\
target: cpu
kernel: cpu.h
parameters:
  tile: {type: int, values: [16, 32]}
  swizzled: {type: bool, token: swz}
  mode: {type: enum, values: [auto, split], default: split}
  trace: {type: bool, default: true}
sets:
  default: SET
"""


@pytest.mark.parametrize(
    ("chosen", "tiles", "swizzled"),
    [
        ("[{}]", [16, 32], [False, True]),
        ("{product: {}}", [16, 32], [False, True]),
        ("[{tile: 32}]", [32], [False, True]),
        ("{product: {tile: [32]}}", [32], [False, True]),
        ("[{tile: 16, swizzled: true}]", [16], [True]),
        ("{product: {tile: [16], swizzled: [true]}}", [16], [True]),
    ],
)
def test_left_out_of_a_set(workspace, chosen, tiles, swizzled) -> None:
    workspace.write("cpu.yaml", CPU.replace("SET", chosen))
    result = workspace.run("list", "--where", "target == cpu")
    assert result.status == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"demo.cpu.{dtype}{'-causal' * causal}-tile{tile}{'-swz' * is_swizzled}-split-trace"
        for dtype, causal, tile, is_swizzled in itertools.product(
            ["bf16", "fp16", "f32"], [False, True], tiles, swizzled
        )
    ]


@pytest.mark.parametrize("chosen", ["[{swizzled: true}]", "{product: {swizzled: [true]}}"])
def test_what_may_be_any_integer_is_named(workspace, chosen) -> None:
    text = CPU.replace("SET", chosen).replace(", values: [16, 32]", "")
    workspace.write("cpu.yaml", text)
    result = workspace.run("list")
    assert result.status == 2
    assert "no value for tile" in result.stderr


def test_the_manifest_says_what_leaving_out_means(workspace) -> None:
    workspace.write("cpu.yaml", CPU.replace("SET", "[{}]"))
    workspace.run("regenerate")
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    (target,) = (t for t in manifest["families"][0]["targets"] if t["name"] == "cpu")
    defaults = {p["name"]: p["default"] for p in target["parameters"]}
    assert defaults == {"tile": None, "swizzled": None, "mode": "split", "trace": True}
