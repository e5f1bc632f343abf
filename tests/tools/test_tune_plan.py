"""What is timed on which shape: of flash_forward's sets and shapes; and its rows are of them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from codegen.spec.load import load
from tests.tools.test_tune import CUDA_FILES, ROOT
from tools.tune.executor import Device
from tools.tune.plan import plan

(FAMILY,) = load([ROOT / "kernel_specs"], only="flash_forward")
TARGETS = {target.name: target for target in FAMILY.targets}
H200 = {"sm_count": 132, "max_shared_memory": 232448}
DEVICES = {
    "cpu": Device("a CPU"),
    "sm80": Device("H200", 90, H200),
    "sm90a": Device("H200", 90, H200),
}


@pytest.mark.parametrize("name", TARGETS)
def test_each_shape_has_all_kernels_of_its_parameters_but_traced_ones(name):
    target = TARGETS[name]
    shape_plans, _ = plan(FAMILY, target, target.shapes, DEVICES[name], "default", None)
    assert [shape_plan.shape for shape_plan in shape_plans] == list(target.shapes.shapes)
    for shape_plan in shape_plans:
        wanted = dict(shape_plan.shape.parameters).items()
        assert shape_plan.incumbents[-1] == shape_plan.configurations[0]
        assert shape_plan.costly == ()
        assert all(wanted <= c.parameters.items() for c in shape_plan.configurations)
        assert not any(c.parameters["trace"] for c in shape_plan.configurations)
    times = sum(len(shape_plan.configurations) for shape_plan in shape_plans)
    assert times >= len(shape_plans)


@pytest.mark.parametrize(("name", "keys"), [("cpu", 64), ("sm80", 32), ("sm90a", 64)])
def test_what_is_taken_now_takes_part_whatever_is_asked_for(name, keys):
    """If anything does."""
    target = TARGETS[name]
    first, _ = plan(FAMILY, target, target.shapes, DEVICES[name], "default", None)
    found, _ = plan(FAMILY, target, target.shapes, DEVICES[name], "tune", f"B_c == {keys}")
    added = 0
    for shape_plan, of_default in zip(found, first, strict=True):
        assert shape_plan.incumbents == of_default.incumbents
        others = [c for c in shape_plan.configurations if c not in shape_plan.incumbents]
        assert all(c.parameters["B_c"] == keys for c in others)
        assert not shape_plan.configurations or set(shape_plan.incumbents) <= set(
            shape_plan.configurations
        )
        added += bool(others) and shape_plan.incumbents[-1].parameters["B_c"] != keys
    assert added


@pytest.mark.parametrize("name", TARGETS)
def test_rows_are_of_the_shapes_that_are_measured_and_no_two_cover_a_length(name):
    target = TARGETS[name]
    measured = {(shape.parameters, shape.ranges) for shape in target.shapes.shapes}
    lengths = {}
    for row in target.tuned:
        parameters = tuple(row.parameters.items())
        assert (parameters, row.ranges) in measured
        ranges = {found.symbols: (found.least, found.most) for found in row.ranges}
        assert ranges["Sq",] == ranges["Sk",]
        lengths.setdefault((row.device, parameters), []).append(ranges["Sq",])
    assert lengths
    for found in lengths.values():
        found.sort()
        assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


def test_where_rows_of_sm80_stand_on_hopper_those_of_sm90a_come_first():
    """A row decides before a kernel without one: of the other target, it would slow a call down."""

    def places(name):
        return [(row.device, *row.parameters.items(), row.ranges) for row in TARGETS[name].tuned]

    on_hopper = {device for device, *_ in places("sm90a")}
    of_sm80 = {place for place in places("sm80") if place[0] in on_hopper}
    assert of_sm80
    assert of_sm80 <= set(places("sm90a"))


def test_the_kernel_of_a_row_takes_part_before_that_which_is_taken_without_rows():
    """On the device that the row is of."""
    target = TARGETS["sm90a"]
    shape = target.shapes.shapes[0]
    (row,) = (
        r
        for r in target.tuned
        if (r.parameters, r.ranges) == (dict(shape.parameters), shape.ranges)
    )
    other = next(
        c
        for c in plan(FAMILY, target, target.shapes, DEVICES["sm90a"], "tune", None)[0][
            0
        ].configurations
        if c.key != row.take
    )
    target = dataclasses.replace(
        target,
        tuned=(
            dataclasses.replace(row, device="H200", take=other.key, configuration=other.parameters),
        ),
    )
    for device, expected in (("H200", [other.key, row.take]), ("H100", [row.take])):
        (shape_plan, *_), _ = plan(
            FAMILY, target, target.shapes, Device(device, 90, H200), "default", None
        )
        assert [c.key for c in shape_plan.incumbents] == expected
        assert set(expected) <= {c.key for c in shape_plan.configurations}


def test_the_cost_model_leaves_out_what_it_says():
    """At a length that long blocks do not divide."""
    target = TARGETS["cpu"]
    shape = target.shapes.shapes[0]
    sizes = tuple((n, 260 if n in ("Sq", "Sk") else value) for n, value in shape.sizes)
    shapes = dataclasses.replace(
        target.shapes, shapes=(dataclasses.replace(shape, sizes=sizes),), within=1.25
    )
    (shape_plan,), _ = plan(FAMILY, target, shapes, DEVICES["cpu"], "tune", None)

    def rows(length, block):
        return -(-length // block) * block

    def computed(c):
        return rows(260, c.parameters["B_r"]) * rows(260, c.parameters["B_c"])

    most = 1.25 * min(map(computed, shape_plan.configurations))
    assert shape_plan.costly
    assert all(computed(c) > most for c in shape_plan.costly)
    assert all(computed(c) <= most or c in shape_plan.incumbents for c in shape_plan.configurations)
    assert computed(shape_plan.incumbents[-1]) > most


def test_what_a_device_has_too_little_shared_memory_for_is_not_timed(tmp_path):
    """At compute capability 8.9 a block may have 99 KiB, at 8.0 163."""
    folder = tmp_path / "tuned_rows"
    folder.mkdir()
    for name, text in CUDA_FILES.items():
        (folder / name).write_text(
            text.replace("block: 128", "block: 128, shared_memory: 1024 * work")
            .replace("default: [{work: 64}]", "default: [{work: 128}, {work: 32}]")
            .replace("work: [64, 1]", "work: [128, 64]")
        )
    (family,) = load([tmp_path])
    (target,) = family.targets
    timed = {}
    for capability in (80, 89):
        device = Device("a GPU", capability)
        (shape_plan,), _ = plan(family, target, target.shapes, device, None, "mode == plain")
        timed[capability] = [c.parameters["work"] for c in shape_plan.configurations]
        assert [c.parameters["work"] for c in shape_plan.incumbents] == [
            {80: 128, 89: 32}[capability]
        ]
    assert timed == {80: [128, 64], 89: [32, 64]}
