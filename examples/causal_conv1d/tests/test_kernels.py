"""Every kernel that can run here, against its family's oracle."""

import subprocess
import sys

import pytest

import kernelmint

FAMILIES = [family for family in kernelmint.families() if family.startswith("causal_conv1d_")]


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_are_right(family: str) -> None:
    """Upstream's kernel of channellast_bwd is not, of what is padding: README.md."""
    if not all(info.built for info in kernelmint.kernels(family, "cpu")):
        pytest.skip("the package is not installed")
    padded = "" if family != "causal_conv1d_channellast_bwd" else "target == 'cpu'"
    command = [sys.executable, "-m", "kernelmint", "sanity-check", family]
    done = subprocess.run(
        [*command, *(["--where", padded] if padded else [])],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
