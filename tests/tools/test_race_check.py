"""tools.race_check: the calls with which it checks every CUDA family."""

import pytest
import torch
from click.testing import CliRunner

import runtime
from tools import problem, race_check

CUDA_FAMILIES = sorted({info.family for info in runtime.kernels() if info.is_cuda})


def on_cpu(family):
    """One CPU kernel for each dtype and mode of the family: it takes what the CUDA kernels do."""
    found = {}
    for info in runtime.kernels(family, "cpu"):
        if info.available and not info.parameters.get("trace"):
            p = info.parameters
            found.setdefault((p.get("dtype"), p.get("mode"), p.get("causal")), info)
    return list(found.values())


@pytest.mark.parametrize("family", CUDA_FAMILIES)
def test_every_cuda_family_takes_its_cases(family) -> None:
    kernels = on_cpu(family)
    assert kernels
    for info in kernels:
        for case in problem.cases_of(info, "RACE_CASES"):
            made = problem.of_case(info, case, torch.device("cpu"))
            outputs = runtime.kernel(info.key)(**made.tensors, **made.scalars)
            for output in outputs if isinstance(outputs, tuple) else (outputs,):
                # -inf is the logarithm of a row that sees no key
                right = output.isfinite() | (output == -torch.inf)
                assert not output.is_floating_point() or bool(right.all())


def test_a_family_without_cases_gets_extents_for_every_open_symbol(monkeypatch) -> None:
    monkeypatch.setattr(problem, "hook", lambda family, name, default=None: default)
    extents = [case.sizes for case in problem.cases("block_sparse")]
    assert [set(e) for e in extents] == [{"B", "T", "H"}] * 3
    assert [e["T"] for e in extents] == [1, 7, 130]
    jagged = next(info for info in runtime.kernels("hstu_bsa", "cpu"))
    with pytest.raises(ValueError, match="no random input can be made of 'x_offsets'"):
        problem.of_case(jagged, problem.cases("hstu_bsa")[0], torch.device("cpu"))


def test_a_case_that_a_checker_is_wrong_about_is_not_run_under_it(monkeypatch) -> None:
    key = next(info.key for info in runtime.kernels("block_sparse", "cpu") if info.available)
    made = []
    case = problem.Case({"B": 1, "T": 3, "H": 1}, without=("racecheck",))
    monkeypatch.setattr(race_check, "cases_of", lambda *_: (case,))

    def on_cpu(info, case, device):
        made.append(case)
        return problem.of_case(info, case, torch.device("cpu"))

    monkeypatch.setattr(race_check, "of_case", on_cpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    kernels = [info for info in runtime.kernels("block_sparse", "cpu") if info.key == key]
    race_check.run_kernels(kernels, ("racecheck",))
    assert made == []
    for checkers in (("memcheck",), race_check.CHECKERS):
        made.clear()
        race_check.run_kernels(kernels, checkers)
        assert made == [case]


def test_an_unknown_family_is_a_usage_error() -> None:
    result = CliRunner().invoke(race_check.main, ["--family", "flash_foward"])
    assert result.exit_code == 2
    assert "flash_forward" in result.output


@pytest.mark.gpu
@pytest.mark.parametrize("family", CUDA_FAMILIES)
def test_every_cuda_kernel_runs_its_cases(family, capsys) -> None:
    kernels = [info for info in race_check.chosen([family], None, None) if info.available]
    race_check.run_kernels(kernels)
    assert capsys.readouterr().out.split() == [info.key for info in kernels]
    assert torch.cuda.is_available()
