"""Kernels are spread over files: few enough that headers are not most of the work, enough for the
processors, and so that one more touches one file."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.emit.target import split

KEYS = st.lists(st.integers(0, 10**6).map(str), unique=True, min_size=1, max_size=300)


def parts(keys, most):
    """The keys of each part, by its number."""
    kernels = [SimpleNamespace(key=key) for key in keys]
    return {number: [k.key for k in held] for _, number, held in split(kernels, most)}


@given(keys=KEYS, most=st.integers(1, 20))
def test_every_kernel_is_in_one_part_and_no_part_holds_too_many(keys, most) -> None:
    found = parts(keys, most)
    assert sorted(key for held in found.values() for key in held) == sorted(keys)
    assert all(1 <= len(held) <= most for held in found.values())


@given(keys=KEYS, most=st.integers(1, 20), new=st.text("abc", min_size=1))
def test_a_kernel_more_touches_one_part_or_splits_it(keys, most, new) -> None:
    before, after = parts(keys, most), parts([*keys, new], most)
    changed = {number for number in before if after.get(number) != before[number]}
    assert len(changed) <= 1
    moved = {key for number in changed for key in before[number]} | {new}
    fresh = {key for number, held in after.items() if number not in before for key in held}
    assert fresh <= moved


@given(keys=KEYS, most=st.integers(1, 20), order=st.randoms())
def test_parts_do_not_depend_on_the_order_of_a_set(keys, most, order) -> None:
    shuffled = list(keys)
    order.shuffle(shuffled)
    found, other = parts(keys, most), parts(shuffled, most)
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


@pytest.mark.parametrize(
    ("configurations", "least", "most"),
    [(4, 4, 4), (16, 16, 16), (24, 13, 24), (110, 16, 32), (1000, 16, 48), (10_000, 80, 200)],
)
def test_so_many_kernels_are_so_many_files(workspace, configurations, least, most) -> None:
    """A file for each of few kernels; of many, about 16 files, or the root of their number. The
    headers of 111 kernels in 81 files took two thirds of the compilers' time."""
    light(workspace, configurations)
    found = files(workspace)
    assert sum(found.values()) == configurations
    assert least <= len(found) <= most


@pytest.mark.parametrize(("asked", "least", "most"), [(1, 1, 1), (4, 4, 8), (1000, 110, 110)])
def test_a_spec_may_say_over_how_many_files(workspace, asked, least, most) -> None:
    """Of light kernels behind heavy headers, that is nearly how often more it takes to compile."""
    light(workspace, 110)
    workspace.edit("sm80.yaml", "sets:", f"files: {asked}\nsets:")
    found = files(workspace)
    assert sum(found.values()) == 110
    assert least <= len(found) <= most
