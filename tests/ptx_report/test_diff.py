"""Two reports: which kernel is which, and what got worse."""

import pytest

from codegen.core.ptxas_rows import Row
from tests.ptx_report.project import KEYS, symbol
from tools.ptx_report.diff import compare, notes

DECODE = "flash_decode.sm80.bf16-d64-c128-w4-s2"


def kernel(function, key=DECODE, **figures):
    """A row of one of the kernels of a key."""
    name = symbol(key).replace("18flash_forward_sm80", f"{len(function)}{function}")
    return Row(name, arch="sm_80", **figures)


def foreign(name, registers=64, **figures):
    return Row(f"_Z{name}", name=name, arch="sm_80", used_registers=registers, **figures)


def facts(changes):
    """Old name, new name and verdict of each change."""
    return [
        (c.old and c.old.kernel_config, c.new and c.new.kernel_config, c.verdict) for c in changes
    ]


def test_kernels_of_one_key_are_told_apart():
    names = ("flash_decode", "combine", "reduce")
    old = [kernel(name, used_registers=64) for name in names]
    new = [kernel(name, used_registers=65 + n) for n, name in enumerate(names)]
    changes = compare(old, reversed(new))
    assert [(c.function, c.deltas["used_registers"]) for c in changes] == [
        ("reduce", (64, 67)),
        ("combine", (64, 66)),
        ("flash_decode", (64, 65)),
    ]


def test_a_kernel_of_a_log_is_that_of_the_binary():
    rows = [Row(symbol(key), arch="sm_80", used_registers=64, spill_stores=0) for key in KEYS]
    objects = [row._replace(kind="object", spill_stores=None, source="a.so") for row in rows]
    assert [change.verdict for change in compare(rows, objects)] == ["same", "same"]
    assert [change.verdict for change in compare(objects, rows)] == ["same", "same"]


def test_ptx_is_no_addition_to_a_log_which_holds_none():
    log = [Row("_Z1kv", arch="sm_80", used_registers=64)]
    code = log[0]._replace(kind="object", source="k.o")
    ptx = Row("_Z1kv", "ptx", "compute_80", ptx_bytes=100, source="k.o")
    for old, new in ((log, [code, ptx]), ([code, ptx], log)):
        assert [change.verdict for change in compare(old, new)] == ["same"]
    assert [change.verdict for change in compare([code], [code, ptx])] == ["added", "same"]
    functions = [Row("_Z1fv", "function"), Row("_Z1kv", "link", "sm_80")]
    assert [change.verdict for change in compare([*log, *functions], [code, ptx])] == ["same"]


def test_what_speaks_against_a_verdict_is_said():
    old = kernel("k", used_registers=64, stack_frame=888, spill_stores=0, spill_loads=0)
    (change,) = compare([old], [old._replace(used_registers=128, stack_frame=416)])
    assert change.verdict == "worse"
    assert change.why == "by registers, though fewer stack bytes"
    (change,) = compare([old._replace(spill_stores=8)], [old._replace(used_registers=128)])
    assert (change.verdict, change.why) == ("better", "by spill bytes, though more registers")


def test_registers_against_a_stack_that_may_hold_spills_are_neither_worse_nor_better():
    old = kernel("k", used_registers=64, stack_frame=888)._replace(kind="object")
    for new in ((128, 416), (32, 1000)):
        (change,) = compare([old], [old._replace(used_registers=new[0], stack_frame=new[1])])
        assert (change.verdict, change.is_worse) == ("mixed", True)
        assert "spills are unknown" in change.why
    (change,) = compare([old], [old._replace(used_registers=128, stack_frame=1000)])
    assert change.verdict == "worse"


def test_the_same_symbol_of_several_objects_meets_in_its_object():
    rows = [foreign("k(int)", 10 + n, source=f"{n}.o", code="1") for n in range(3)]
    assert facts(compare(rows, rows[::-1])) == [("k(int)", "k(int)", "same")] * 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("void fwd<__half, 64>(__half*)", "void fwd<half_t, 64>(half_t*)"),
        ("void v1::fwd<float, 64>(float*)", "void v2::fwd<float, 64>(float*)"),
        ("void fwd<float, 64>(float*)", "void fwd<float, 64, false>(float*)"),
        ("void fwd<float, 64>(Params<64>)", "void fwd<float, 64, 2>(Params<64, 2>)"),
        ("void fwd<float, 64, true>(float*)", "void fwd<float, 64>(float*)"),
        ("flash_decode.sm80.bf16-d64-w4", "flash_decode.sm80.bf16-d64-x2-w4"),
    ],
)
def test_a_kernel_is_the_same_under_another_name(old, new):
    one = Row(old, arch="sm_80", used_registers=64)
    stays = foreign("void other<float>(float*)")
    (change, _) = compare([one, stays], [one._replace(symbol=new, used_registers=70), stays])
    assert facts([change]) == [(old, new, "worse")]
    assert change.why == f"was {old}"


@pytest.mark.parametrize(
    ("olds", "news"),
    [
        # Another configuration, another function, or one of several.
        (["void k<float, 64>()"], ["void k<float, 128>()"]),
        (["void one<float>(float*)"], ["void two<float>(float*)"]),
        (["void k<float>()"], ["void k<float, 1>()", "void k<float, 2>()"]),
        (["f.sm80.bf16-d64", "f.sm80.bf16-d32-causal"], ["f.sm80.bf16-d64-causal"]),
        (["f.sm80.bf16-w4"], ["f.sm80.bf16-w8"]),
    ],
)
def test_what_may_be_another_kernel_is_gone_and_added(olds, news):
    changes = compare(
        [Row(name, arch="sm_80") for name in olds], [Row(name, arch="sm_80") for name in news]
    )
    assert {change.verdict for change in changes} == {"added", "removed"}


def test_several_types_with_new_names_are_told_by_the_kernels_that_have_one_alone():
    def rows(half, single):
        names = (f"k<{half}>(int)", f"k<{single}>(int)", f"only<{half}>(int)", f"o2<{single}>(int)")
        return [foreign(name, n) for n, name in enumerate(names)]

    changes = compare(rows("__half", "flt"), rows("half_t", "f32"))
    assert {change.verdict for change in changes} == {"same"}
    assert len(changes) == 4


def test_occupancy_and_bytes_are_shown_and_decide_nothing():
    old = kernel("k", used_registers=64, barriers=1, code_bytes=1000)
    (change,) = compare([old], [old._replace(barriers=2, code_bytes=1500)])
    assert (change.verdict, change.deltas) == ("same", {})
    assert change.details == {"barriers": (1, 2), "code_bytes": (1000, 1500)}
    assert notes([change]) == ["1,000 → 1,500 bytes of code (+50.0%)"]


def test_bytes_of_some_kernels_are_no_total():
    known, unknown = kernel("k", code_bytes=1000), kernel("l")
    assert notes(compare([known, unknown], [known, known])) == []


def test_a_thousand_kernels_whose_names_all_changed():
    """Types, or an argument more."""

    def rows(half, more):
        return [
            foreign(f"void k{n % 40}<{half}, {n}{more}>({half} const*, int)", n)
            for n in range(1000)
        ]

    for new in (rows("half_t", ""), rows("__half", ", false")):
        assert {change.verdict for change in compare(rows("__half", ""), new)} == {"same"}


def test_a_binary_counts_the_drivers_shared_memory_and_has_no_device_functions():
    log = [
        kernel("k", smem=4096)._replace(arch="sm_90"),
        kernel("l")._replace(arch="sm_90"),
        foreign("helper(int)", kind="function"),
    ]
    objects = [row._replace(kind="object", smem=(row.smem or 0) + 1024) for row in log[:2]]
    assert [change.verdict for change in compare(log, objects)] == ["same", "same"]
    assert [change.verdict for change in compare(objects, log)] == ["same", "same"]
    more = [row._replace(smem=8192) for row in objects]
    assert compare(objects[:1], more[:1])[0].deltas == {"smem": (5120, 8192)}
    assert compare(log[:1], more[:1])[0].deltas == {"smem": (4096, 7168)}
