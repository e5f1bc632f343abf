"""tools.sanity_check and the selection of kernels by --kernel, --where and KERNELS."""

from __future__ import annotations

import json
import re

import pytest
import torch
from click.testing import CliRunner

import runtime
from tools import families, problem, sanity_check, selection

FAMILY = "flash_forward"
KEY = "flash_forward.cpu.f32-d64-r64-c128"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(selection.VARIABLE, raising=False)


def run(*arguments, **environment):
    return CliRunner().invoke(sanity_check.main, arguments, env=environment)


@pytest.mark.parametrize("options", [(), ("--range",)])
def test_a_right_kernel_passes(options) -> None:
    done = run("--kernel", KEY, *options)
    assert done.exit_code == 0, done.output
    line = next(line for line in done.output.splitlines() if line.startswith(KEY + "  "))
    assert "0/130000 mismatched (0.000%)" in line
    assert "max |d|" in line


def test_results_as_json(monkeypatch) -> None:
    done = run("--kernel", KEY, "--json")
    (found,) = json.loads(done.output)["kernels"]
    assert (done.exit_code, found["key"], found["passed"]) == (0, KEY, True)
    assert (found["mismatched"], found["compared"]) == (0, 130000)
    kernel = runtime.kernel(KEY)
    monkeypatch.setattr(runtime, "kernel", lambda key, **_: Wrong(kernel))
    done = run("--kernel", KEY, "--json")
    (found,) = json.loads(done.output)["kernels"]
    assert (done.exit_code, found["passed"]) == (1, False)
    assert found["mismatched"] >= 1 + 64 + 450


def test_a_reference_gets_what_it_names_and_by_two_stars_everything() -> None:
    info = runtime.kernel(KEY).info
    case = problem.cases(FAMILY)[0]
    made = problem.of_case(info, case, torch.device("cpu"))
    assert {"softmax_scale", "causal"} & (made.scalars.keys() | made.parameters.keys())
    got: dict[str, object] = {}

    def naming(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> object:
        got.update(causal=causal)
        return made.expected

    def taking_all(**given: object) -> object:
        got.update(given)
        return made.expected

    made.by(naming)
    assert got.keys() == {"causal"}
    made.by(taking_all)
    assert got.keys() == made.tensors.keys() | made.scalars.keys() | made.parameters.keys()


def test_a_kernel_of_another_family_is_refused() -> None:
    other = runtime.kernels("block_sparse", "cpu")[0].key
    done = run("flash_forward", "--kernel", other)
    assert done.exit_code == 2
    words = " ".join(done.output.replace("│", " ").split())
    assert "got a kernel of block_sparse, expected one of flash_forward" in words


@pytest.mark.parametrize("family", ["block_sparse", "hstu_bsa"])
def test_what_is_right_may_be_the_familys_own_rule(family, monkeypatch) -> None:
    """Lists of blocks by the oracle's scores, and what follows from them; both are looked at."""
    info = next(info for info in runtime.kernels(family, "cpu") if info.available)
    done = run("--kernel", info.key)
    assert done.exit_code == 0, done.output
    assert f"right by the rule of {families.path_of(family, 'tools.py')}" in done.output
    for output, said in ((0, "  o: worst: "), (1, "  block_indices: ")):

        class Off(Wrong):
            def __call__(self, *, out, output=output, **arguments):
                self.kernel(**arguments, out=out)
                out[output].flatten()[-1] += 1

        kernel = runtime.kernel(info.key)
        with monkeypatch.context() as patched:
            patched.setattr(runtime, "kernel", lambda key, **_: Off(kernel))  # noqa: B023
            done = run("--kernel", info.key)
        assert done.exit_code == 1
        assert said in done.output


def test_without_a_family_all_of_which_something_is_selected_are_checked() -> None:
    done = run("--where", "target == 'cpu' and block_count == 4")
    assert done.exit_code == 0, done.output
    checked = {line.split(".")[0] for line in done.output.splitlines() if "mismatched" in line}
    assert checked == {"block_sparse", "hstu_bsa"}


def test_every_available_kernel_has_a_line() -> None:
    done = run(FAMILY, "--where", "d_head == 64 and dtype == 'bf16' and B_r == 64 and not causal")
    keys = [
        info.key
        for info in runtime.kernels("flash_forward")
        if info.available
        and (info.parameters["d_head"], info.parameters["dtype"]) == (64, "bf16")
        and info.parameters["B_r"] == 64
        and not info.parameters["causal"]
    ]
    assert keys
    assert [line.split()[0] for line in done.output.splitlines() if "mismatched" in line] == keys


class Wrong:
    """A kernel that leaves an element unwritten and gets a column and a row wrong."""

    def __init__(self, kernel):
        self.kernel, self.info = kernel, kernel.info

    def __call__(self, *, out, **arguments):
        self.kernel(**arguments, out=out)
        o, _ = out
        o[0, 100, 1, 17] = float("nan")
        o[:, :, 2, 40] *= 1.5
        o[1, 200, 3] += 1


def test_a_wrong_kernel_fails_and_is_located(monkeypatch) -> None:
    kernel = runtime.kernel(KEY)
    monkeypatch.setattr(runtime, "kernel", lambda key, **_: Wrong(kernel))
    done = run("--kernel", KEY)
    assert done.exit_code == 1
    difference, of_lse = sanity_check.check(kernel.info, counting=False, seed=0)
    assert of_lse.passed
    mismatched = difference.failing
    assert mismatched[0, 100, 1, 17]
    assert mismatched[1, 200, 3].all()
    expected = int(mismatched.sum())
    assert 1 + 64 + 450 <= expected <= 1 + 64 + 500
    assert f"{expected}/130000 mismatched" in done.output
    rows, _, columns = re.split(r"by \w+ \(\d+\):", done.output.split("by Sq (250):")[1])
    by_row, by_column = (
        {int(at): counts.split() for at, counts in re.findall(r"^ +(\d+): (.*)$", part, re.M)}
        for part in (rows, columns)
    )
    assert by_row[96][4] == str(int(mismatched[:, 100].sum()))
    assert by_row[200][0] == str(int(mismatched[:, 200].sum()))
    assert by_column[16][1] == "2"  # the NaN, and the row's element
    assert by_column[40][0] == str(int(mismatched[..., 40].sum()))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nonsense", "no target has a set 'nonsense'"),
        ("64,7", "KERNELS=64,7: no kernel of it is in this build"),
    ],
)
def test_what_selects_nothing_is_an_error_that_says_so(word, said) -> None:
    done = run(KERNELS=word)
    assert done.exit_code == 2
    assert said in done.output


def test_all_is_the_default() -> None:
    chosen = selection.select(FAMILY)
    assert {info.key for info in chosen.kernels} == {
        info.key for info in runtime.kernels("flash_forward") if info.built
    }


def test_block_sizes_select(monkeypatch) -> None:
    monkeypatch.setenv(selection.VARIABLE, "64,128")
    chosen = selection.select(FAMILY)
    assert chosen.kernels
    for info in chosen.kernels:
        assert (info.parameters["B_r"], info.parameters["B_c"]) == (64, 128)


@pytest.mark.parametrize(
    ("name", "count"), [("progression", 7), ("progression_all", 56), ("tune", None)]
)
def test_sets_have_the_kernels_that_they_are_known_for(name, count) -> None:
    listed = selection.keys_of_set(FAMILY, name)
    assert len(set(listed)) == len(listed)
    sm80 = [key for key in listed if key.startswith("flash_forward.sm80.")]
    assert len(sm80) == (count or 80)


def test_a_set_is_built_and_checked_without_an_install() -> None:
    """Its kernels that are in no pack as well; those that cannot run here are left out."""
    done = run("--where", "target == 'cpu' and dtype == f32", KERNELS="traced")
    assert done.exit_code == 0, done.output
    for family in ("flash_backward", "flash_forward"):
        assert f"set traced: 1 kernel of {family};" in done.output
    assert "flash_forward.cpu.f32-d64-r64-c128-trace  0/" in done.output
    if not torch.cuda.is_available():
        done = run(KERNELS="prog")
        assert done.exit_code == 2
        assert "none of 7 kernels runs here: " in done.output


def test_an_option_goes_before_the_variable(monkeypatch) -> None:
    monkeypatch.setenv(selection.VARIABLE, "nonsense")
    assert run("--kernel", KEY).exit_code == 0


def test_counting_does_not_overflow() -> None:
    info = runtime.kernels(FAMILY, "cpu", where="dtype == 'fp16'")[0]
    (case,), cpu = problem.cases(FAMILY), torch.device("cpu")
    q, k, v = problem.of_case(info, case, cpu, counting=True).tensors.values()
    assert torch.equal(q[0, :2, 0].flatten().double(), torch.arange(2.0 * q.shape[-1]).double())
    assert torch.equal(k, -v)
    long = problem.Case({"B": 1, "Sq": 2000, "Sk": 2000, "H": 1, "Hk": 1})
    with pytest.raises(ValueError, match="overflows fp16: at most"):
        problem.of_case(info, long, cpu, counting=True)
