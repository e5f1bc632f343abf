"""examples/causal_conv1d: causal-conv1d's kernels as a pack, of its own archive, and on the CPU."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from codegen.core import home
from codegen.core.expressions import layout_name
from codegen.core.manifest import Selection
from codegen.core.ptxas_rows import read_csv
from codegen.sources import archives
from codegen.space.expand import expand
from codegen.spec.load import load

from .pack_project import ROOT

pytestmark = pytest.mark.build

EXAMPLE = ROOT / "examples/causal_conv1d"
# Upstream's: 3 dtypes of x, 3 of weights and 3 widths, times 2, 8, 2, 32 and 2.
ALL = {"fwd": 54, "bwd": 216, "channellast_fwd": 54, "channellast_bwd": 864, "update": 54}
# CPU's, of three widths; and upstream's of width 4, whose sums are not in one order.
DEFAULT = {"fwd": 10, "bwd": 20, "channellast_fwd": 10, "channellast_bwd": 80, "update": 10}


def run(*command: str, **environment: str) -> str:
    path = os.pathsep.join(map(str, (EXAMPLE, ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=EXAMPLE, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.parametrize(("name", "sm80", "cpu"), [("all", ALL, 0), ("default", DEFAULT, 18)])
def test_the_sets_hold_what_upstream_instantiates(name, sm80, cpu) -> None:
    counts = dict.fromkeys((f"causal_conv1d_{family}.cpu" for family in sm80), cpu)
    counts |= {f"causal_conv1d_{family}.sm80": count for family, count in sm80.items()}
    said = run("codegen", "list", "--set", name).splitlines()[-1].split(", ")
    assert sorted(said) == sorted(f"{n} {kernels}" for kernels, n in counts.items() if n)


@pytest.mark.parametrize("name", ALL)
def test_calls_ask_for_each_of_these_kernels_and_for_no_other(name) -> None:
    (family,) = load([EXAMPLE / "kernel_specs"], only=f"causal_conv1d_{name}")
    takes = dict(family.generated_front.takes)
    (space,) = expand([family], Selection("all"))
    kernels = (c.parameters for t in space.targets for c in t.configurations)
    asked = set()
    bools = ("silu", "deterministic", "seq_idx", "dfinal_states", "cache_seqlens", "aligned")
    for width, length, dtype in itertools.product((2, 3, 4), (12, 128, 129), ("f32", "bf16")):
        for values in itertools.product((False, True), repeat=len(bools)):
            said = dict(zip(bools, values, strict=True))
            layouts = {layout_name("aligned", x, 16): said["aligned"] for x in ("x", "dy")}
            known = {"W": width, "L": length, "dtype": dtype, **said, **layouts}
            asked.add(tuple(rule.evaluate(known) for rule in takes.values()))
    assert asked == {tuple(map(parameters.get, takes)) for parameters in kernels}


def test_its_functions_and_their_gradients_are_right_on_the_cpu(tmp_path) -> None:
    """The other tests of the example need more kernels, and take longer to build them."""
    few = "gradcheck or goes_on or (compiled and True)"
    run("pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", few,
        KERNELMINT_CACHE_DIR=str(tmp_path))  # fmt: skip


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_a_kernel_of_the_archive_compiles_under_its_key(tmp_path) -> None:
    """As it is, with shims in the place of PyTorch's headers."""
    pins = yaml.safe_load((EXAMPLE / "kernel_specs/causal_conv1d/sm80.yaml").read_text())
    pin = pins["build"]["archives"]["upstream"]
    try:
        archives.folder(f"pypi:{pin['pypi']}=={pin['version']}", pin["sha256"])
    except archives.ArchiveError as error:
        pytest.skip(str(error))
    (tmp_path / "sources").symlink_to(home.cache_folder() / "sources")
    key = "causal_conv1d_channellast_bwd.sm80.bf16-f32-w4-silu-l64"
    run("kernelmint", "build", "--key", key, "--architecture", "80",
        KERNELMINT_CACHE_DIR=str(tmp_path))  # fmt: skip
    (table,) = tmp_path.rglob("ptxas.csv")
    (row,) = read_csv(table)
    assert (row.key, row.arch) == (key, "sm_80")
    assert row.kernel == "causal_conv1d_channellast_bwd_kernel"
