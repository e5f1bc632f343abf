"""Kernels are spread over files: by what compiling costs, and so that one more touches one file."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.emit.target import split

KEYS = st.lists(st.integers(0, 10**6).map(str), unique=True, min_size=1, max_size=300)
COSTS = "costs: {{sm80: {{file_seconds: {}, kernel_seconds: {}, mib: {}}}}}\n"


def parts(keys, most, least):
    """The keys of each part, by its number."""
    kernels = [SimpleNamespace(key=key) for key in keys]
    return {number: [k.key for k in held] for _, number, held in split(kernels, most, least)}


@given(keys=KEYS, most=st.integers(1, 20), least=st.integers(0, 4))
def test_every_kernel_is_in_one_part_and_no_part_holds_too_many(keys, most, least) -> None:
    found = parts(keys, most, least)
    assert sorted(key for held in found.values() for key in held) == sorted(keys)
    assert all(1 <= len(held) <= most for held in found.values())


@given(keys=KEYS, most=st.integers(1, 20), least=st.integers(0, 4), new=st.text("abc", min_size=1))
def test_a_kernel_more_touches_one_part_or_splits_it(keys, most, least, new) -> None:
    before, after = parts(keys, most, least), parts([*keys, new], most, least)
    changed = {number for number in before if after.get(number) != before[number]}
    assert len(changed) <= 1
    moved = {key for number in changed for key in before[number]} | {new}
    fresh = {key for number, held in after.items() if number not in before for key in held}
    assert fresh <= moved


@given(keys=KEYS, most=st.integers(1, 20), least=st.integers(0, 4), order=st.randoms())
def test_parts_do_not_depend_on_the_order_of_a_set(keys, most, least, order) -> None:
    shuffled = list(keys)
    order.shuffle(shuffled)
    found, other = parts(keys, most, least), parts(shuffled, most, least)
    assert {n: sorted(held) for n, held in found.items()} == {
        n: sorted(held) for n, held in other.items()
    }


def files(workspace) -> Counter[str]:
    """How many kernels each file of sm80 holds."""
    result = workspace.run("regenerate", "--where", "target == 'sm80'")
    assert result.status == 0, result.output
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    (target,) = manifest["families"][0]["targets"]
    return Counter(kernel["file"] for kernel in target["kernels"])


def light(workspace, configurations: int) -> None:
    """A set of so many configurations, with as many values of the first parameters as can be."""
    tiles = ", ".join(str(8 * (i + 1)) for i in range(configurations // 2))
    workspace.edit("sm80.yaml", "tile: [32, 64, 128]", f"tile: [{tiles}]")
    workspace.edit("sm80.yaml", "warps: [1, 2, 4, 8, 16]", "warps: [1], dtype: bf16")


@pytest.mark.parametrize(("configurations", "most"), [(100, 100), (10_000, 400)])
def test_many_kernels_of_unknown_weight_are_a_few_hundred_files(
    workspace, configurations, most
) -> None:
    light(workspace, configurations)
    found = files(workspace)
    assert sum(found.values()) == configurations
    assert len(found) <= most


def test_light_kernels_share_a_file_and_heavy_ones_do_not(workspace) -> None:
    light(workspace, 1000)
    workspace.write("costs.yaml", COSTS.format(2.5, 0.05, 300))
    cheap = files(workspace)
    assert max(cheap.values()) <= 128
    assert len(cheap) <= 32
    workspace.write("costs.yaml", COSTS.format(2.5, 60, 3400))
    dear = files(workspace)
    assert max(dear.values()) == 1
    workspace.write("costs.yaml", COSTS.format(30, 10, 3400))
    assert 1 < max(files(workspace).values()) <= 2  # else a file's headers would be most of it


def test_shards_of_a_spec_count_files_whatever_kernels_cost(workspace) -> None:
    light(workspace, 100)
    workspace.write("costs.yaml", COSTS.format(2.5, 0.05, 300))
    workspace.edit("sm80.yaml", "sets:", "shards: 1\nsets:")
    assert len(files(workspace)) == 100  # each tile is a file's name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COSTS.format(2, 0, 3), "costs.yaml:1:49: input should be greater than 0"),
        ("costs: {sm90: {file_seconds: 1, kernel_seconds: 1, mib: 1}}\n",
         "costs.yaml:1:9: the family has no target 'sm90' (did you mean 'sm80'?)"),
        ("costs: {sm80: {file_seconds: many, kernel_seconds: 1, mib: 1}}\n",
         "costs.yaml:1:30: must be a number, not the text 'many'"),
        ("costs: {}\n", "costs.yaml:1:8: must not be empty"),
    ],
)  # fmt: skip
def test_costs_are_checked_and_located(workspace, text, message) -> None:
    workspace.write("costs.yaml", text)
    result = workspace.run("regenerate")
    assert result.status == 2
    assert message in result.stderr


def test_costs_are_an_input_of_the_tree(workspace) -> None:
    workspace.write("costs.yaml", COSTS.format(2.5, 0.05, 300))
    assert workspace.run("regenerate").status == 0
    assert "set(KERNELMINT_MIB 300)" in (workspace.out / "files.cmake").read_text()
    assert workspace.run("check").status == 0
    workspace.write("costs.yaml", COSTS.format(2.5, 60, 3400))
    assert workspace.run("check").status == 1
