"""Every kernel that can run here, against its family's oracle."""

import subprocess
import sys

import pytest

import kernelmint

FAMILIES = [family for family in kernelmint.families() if family.startswith("causal_conv1d_")]


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_are_right(family: str) -> None:
    """On the cases of its tools.py."""
    if not all(info.built for info in kernelmint.kernels(family, "cpu")):
        pytest.skip("the package is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "kernelmint", "sanity-check", family],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
