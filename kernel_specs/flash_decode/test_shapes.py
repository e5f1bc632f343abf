"""What `kernelmint tune` measures of flash_decode, and which calls that is for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from codegen.spec.load import load
from tools.tune.executor import Device
from tools.tune.plan import plan

ROOT = Path(__file__).resolve().parents[2]
(FAMILY,) = load([ROOT / "kernel_specs"], only="flash_decode")
TARGETS = {target.name: target for target in FAMILY.targets}
DEVICES = {
    "cpu": Device("a CPU"),
    "sm80": Device("H200", 90, {"sm_count": 132, "max_shared_memory": 232448}),
}
MOST_BYTES = 4 * 2**30


def test_there_are_shapes_of_all_targets() -> None:
    assert all(target.shapes is not None for target in TARGETS.values())


@pytest.mark.parametrize("name", TARGETS)
def test_each_point_has_kernels_to_choose_from_and_is_quick(name: str) -> None:
    target = TARGETS[name]
    assert target.shapes is not None
    plans, _ = plan(FAMILY, target, target.shapes, DEVICES[name], None, None)
    for found in plans:
        sizes = dict(found.shape.sizes)
        keys = sizes["N"] * sizes["P"] * sizes["Hk"]
        assert len(found.configurations) > 1
        assert len(found.incumbents) == 1
        assert 2 * keys * (sizes["D"] + sizes["Dv"]) <= MOST_BYTES


def test_what_choices_yaml_takes_is_the_incumbent() -> None:
    target = TARGETS["sm80"]
    assert target.shapes is not None
    plans, _ = plan(FAMILY, target, target.shapes, DEVICES["sm80"], "tune", None)
    taken = {}
    for found in plans:
        shape = found.shape
        sizes, parameters = dict(shape.sizes), dict(shape.parameters)
        if parameters["d_head"] == 128 and sizes["Hk"] == 8:
            tokens = found.incumbents[0].key.rpartition("-d128-")[2]
            taken[(sizes["B"], sizes["P"] >> 10, *shape.given)] = tokens
    assert taken == {
        (1, 1): "c64-w4-s2",  # up to 8 MiB
        (1, 4): "c64-w4-s5", (1, 16): "c64-w4-s5", (1, 64): "c128-w8-s2",
        (8, 1): "c64-w4-s5", (8, 4): "c64-w4-s5",  # up to 128 MiB
        (8, 16): "c128-w8-s2", (8, 64): "c128-w8-s2",
        (64, 1): "c64-w4-s2", (64, 4): "c128-w8-s2", (64, 16): "c128-w8-s2",
        (8, 4, "seqused_k"): "c64-w4-s5", (8, 16, "seqused_k"): "c128-w8-s2",
        (64, 4, "seqused_k"): "c64-w4-s2", (64, 16, "seqused_k"): "c64-w4-s2",
    }  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_no_two_points_stand_for_the_same_call(name: str) -> None:
    target = TARGETS[name]
    assert target.shapes is not None
    kinds: dict[object, list[dict[str, tuple[int, int]]]] = {}
    for shape in target.shapes.shapes:
        ranges = {found.text: (found.least, found.most) for found in shape.ranges}
        kinds.setdefault((shape.parameters, shape.when), []).append(ranges)
    for found in kinds.values():
        for one, other in itertools.combinations(found, 2):
            assert any(
                one[size][1] < other[size][0] or other[size][1] < one[size][0] for size in one
            )
