"""The package, as installed, whatever its families are; what each computes is tested beside its
spec."""

from pathlib import Path

import kernelmint
import pytest

import ${name}

SPECS = Path(__file__).parents[1] / "kernel_specs"
FAMILIES = sorted(path.parent.name for path in SPECS.rglob("family.yaml"))


def test_the_package_has_the_functions_that_it_names() -> None:
% if not bare:
    assert ${name}.__all__
% endif
    assert all(callable(getattr(${name}, function)) for function in ${name}.__all__)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pack_holds_the_kernels_of_each_family(family: str) -> None:
    # If it does not: kernelmint regenerate, then pip install -e .
    assert family in kernelmint.families()
    assert any(info.built for info in kernelmint.kernels(family))
