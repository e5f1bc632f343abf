"""What `kernelmint tune` measures of attention over caches and of packed sequences, and which calls
that is for."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.spec.load import load
from tools.tune import rows
from tools.tune.executor import Device
from tools.tune.plan import plan

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = {
    name: load([ROOT / "kernel_specs"], only=name)[0] for name in ("flash_decode", "flash_prefill")
}
TARGETS = {
    f"{name}.{target.name}": (family, target)
    for name, family in FAMILIES.items()
    for target in family.targets
}
H200 = Device("H200", 90, {"sm_count": 132, "max_shared_memory": 232448})
MOST_BYTES = 4 * 2**30


def plans_of(name):
    family, target = TARGETS[name]
    assert target.shapes is not None
    device = Device("a CPU") if target.name == "cpu" else H200
    return plan(family, target, target.shapes, device, None, None)[0]


@pytest.mark.parametrize("name", TARGETS)
def test_each_point_has_kernels_to_choose_from_and_what_is_taken_now(name):
    for found in plans_of(name):
        assert len(found.configurations) > 1
        assert len(found.incumbents) == 1
        assert found.incumbents[0] in found.configurations


def test_no_cache_is_so_large_that_it_takes_long():
    for found in plans_of("flash_decode.sm80"):
        sizes = dict(found.shape.sizes)
        assert 2 * sizes["N"] * sizes["P"] * sizes["Hk"] * (sizes["D"] + sizes["Dv"]) <= MOST_BYTES


def test_what_choices_yaml_takes_is_the_incumbent():
    taken = {}
    for found in plans_of("flash_decode.sm80"):
        sizes, parameters = dict(found.shape.sizes), dict(found.shape.parameters)
        if parameters["d_head"] == 128 and sizes["Hk"] == 8:
            tokens = found.incumbents[0].key.rpartition("-d128-")[2]
            taken[(sizes["B"], sizes["P"] >> 10, *found.shape.given)] = tokens
    assert taken == {
        (1, 1): "c64-w4-s2",  # up to 8 MiB
        (1, 4): "c64-w4-s5", (1, 16): "c64-w4-s5", (1, 64): "c128-w8-s2",
        (8, 1): "c64-w4-s5", (8, 4): "c64-w4-s5",  # up to 128 MiB
        (8, 8): "c128-w8-s2", (8, 16): "c128-w8-s2", (8, 64): "c128-w8-s2",
        (64, 1): "c64-w4-s2", (64, 4): "c128-w8-s2", (64, 16): "c128-w8-s2",
        (8, 4, "seqused_k"): "c64-w4-s5", (8, 16, "seqused_k"): "c128-w8-s2",
        (64, 4, "seqused_k"): "c64-w4-s2", (64, 16, "seqused_k"): "c64-w4-s2",
    }  # fmt: skip


def calls_of(target):
    """The calls that points stand for: ranges, by what else there is to a call."""
    found = {}
    for shape in target.shapes.shapes:
        ranges = {size.text: (size.least, size.most) for size in shape.ranges}
        found.setdefault((shape.parameters, shape.when), []).append(ranges)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_no_two_points_stand_for_the_same_call(name):
    for found in calls_of(TARGETS[name][1]).values():
        for one, other in itertools.combinations(found, 2):
            assert any(
                one[size][1] < other[size][0] or other[size][1] < one[size][0] for size in one
            )


def test_on_hopper_no_row_of_sm80_stands_where_sm90a_has_none():
    """A row decides before a kernel without one: of sm80, it would slow a call down."""
    sm80, sm90a = (calls_of(TARGETS[f"flash_prefill.{name}"][1]) for name in ("sm80", "sm90a"))
    assert sm80 == sm90a


SHAPES = {
    "flash_decode": """\
shapes:
  - parameters: {dtype: f32}
    when: not (seqused_k or block_table)
    sizes: {B: 2, Sq: 1, H: 4, Hk: 2, N: B, P: 70, D: 64, Dv: D}
    points: [{range: {B * Hk: [1, 64]}}]
  - parameters: {dtype: f32}
    given: [block_table, seqused_k]
    when: seqused_k and block_table
    sizes: {B: 2, Sq: 1, H: 4, Hk: 2, N: B * pages, pages: 3, P: 16, D: 64, Dv: D}
    points: [{range: {B * Hk: [1, 64], pages: [1, 64]}}]
""",
    "flash_prefill": """\
shapes:
  - parameters: {dtype: f32, d_head: 64}
    given: [cu_seqlens_q, cu_seqlens_k]
    scalars: {window_right: 0}
    when: cu_seqlens_q and cu_seqlens_k and window_right == 0
    sizes: {Nq: 1, Nk: 1, Tq: 100, Tk: 150, Cq: 5, Ck: Cq, H: 2, Hk: H, D: d_head, Dv: D}
    points: [{range: {Cq: [2, 64]}}]
  - parameters: {dtype: f32, d_head: 64}
    given: [seqused_q, seqused_k, block_table, s_aux]
    when: seqused_q and seqused_k and block_table
    sizes: {Nq: 3, Tq: 40, Nk: 12, Tk: 32, pages: 4, H: 2, Hk: H, D: d_head, Dv: D}
    points: [{range: {Nq: [1, 64]}}]
""",
}
WHEN = {
    "flash_decode": ["not (seqused_k or block_table)", "seqused_k and block_table"],
    "flash_prefill": [
        "cu_seqlens_q and cu_seqlens_k and window_right == 0",
        "seqused_q and seqused_k and block_table",
    ],
}
KEYS = {
    "flash_decode": "flash_decode.cpu.f32-c64",
    "flash_prefill": "flash_prefill.cpu.f32-d64-r64-c128",
}


@pytest.mark.slow
@pytest.mark.parametrize("family", SHAPES)
def test_caches_pages_and_packed_sequences_are_tuned_on_the_cpu(family, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    shapes, out = tmp_path / "shapes.yaml", tmp_path / "cpu.tuned.yaml"
    shapes.write_text(SHAPES[family])
    done = subprocess.run(
        [sys.executable, "-m", "tools.tune", family, "--target", "cpu", "--set", "default",
         "--shapes", str(shapes), "--out", str(out), "--seconds", "0"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = rows.read(out)
    assert [row["when"] for row in found] == WHEN[family]
    assert {row["take"] for row in found} == {KEYS[family]}
