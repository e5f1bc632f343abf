"""examples/flash_attn: flash-attn's kernels as a pack, of its own archive."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import yaml

from codegen.core import home
from codegen.core.manifest import Selection
from codegen.core.ptxas_rows import read_csv
from codegen.sources import archives
from codegen.space.expand import expand
from codegen.spec.load import load

from .pack_project import ROOT

pytestmark = pytest.mark.build

EXAMPLE = ROOT / "examples/flash_attn"
# Main kernels of upstream's 72 files, without the 92 that its binding never launches: those that
# cap scores and are compiled for dropout.
ALL = {"append": 432, "backward": 692, "forward": 582, "split": 496}


@pytest.fixture(scope="module")
def upstream() -> Path:
    pins = yaml.safe_load((EXAMPLE / "kernel_specs/flash_attn/sm80.yaml").read_text())
    pin = pins["build"]["archives"]["upstream"]
    try:
        return archives.folder(f"pypi:{pin['pypi']}=={pin['version']}", pin["sha256"])
    except archives.ArchiveError as error:
        pytest.skip(str(error))


def run(*command: str | Path, **environment: str) -> str:
    path = os.pathsep.join(map(str, (EXAMPLE, ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=EXAMPLE, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "count"),
    [("all", ALL), ("default", dict.fromkeys(ALL, 16)), ("smallest", dict.fromkeys(ALL, 1))],
)
def test_the_sets_hold_what_upstream_instantiates(name, count) -> None:
    said = run("codegen", "list", "--set", name).splitlines()[-1]
    assert said == ", ".join(f"{n} flash_attn_{family}.sm80" for family, n in count.items())


@pytest.mark.parametrize("name", ALL)
def test_calls_ask_for_each_of_these_kernels_and_for_no_other(name) -> None:
    (family,) = load([EXAMPLE / "kernel_specs"], only=f"flash_attn_{name}")
    takes = dict(family.generated_front.takes)
    (space,) = expand([family], Selection("all"))
    kernels = (c.parameters for t in space.targets for c in t.configurations)
    absent = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens"), False)
    asked = set()
    for head_dim, (left, right), slopes, cap, (p, probabilities), splits, (sq, sk) in product(
        (24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256),
        ((-1, -1), (-1, 0), (20, 0), (20, 3), (-1, 5)), (False, True), (0.0, 5.0),
        ((0.0, False), (0.1, False), (0.1, True)), (1, 3), ((128, 256), (70, 130)),
    ):  # fmt: skip
        if cap and p:
            continue  # which is refused
        known = {
            "D": head_dim, "window_left": left, "window_right": right, "alibi_slopes": slopes,
            "softcap": cap, "p_dropout": p, "s_dmask": probabilities, "num_splits": splits,
            "Sq": sq, "Sk": sk, "max_seqlen_k": sk, **absent,
        }  # fmt: skip
        asked.add(tuple(rule.evaluate(known) for rule in takes.values()))
    assert asked == {tuple(map(parameters.get, takes)) for parameters in kernels}


def test_its_functions_are_upstreams_and_ask_for_kernels_that_fit(upstream) -> None:
    run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_on_cpu.py")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_a_kernel_of_the_archive_compiles_under_its_key(upstream, tmp_path) -> None:
    """As it is, with shims in the place of PyTorch's headers."""
    (tmp_path / "sources").symlink_to(home.cache_folder() / "sources")
    specs = EXAMPLE / "kernel_specs/flash_attn/flash_attn_forward"
    where = "family == flash_attn_forward"  # not its gradient's, which its folder brings along
    options = (specs, "--set", "smallest", "--architecture", "80", "--where", where)
    run("kernelmint", "build", *options, KERNELMINT_CACHE_DIR=str(tmp_path))
    (table,) = tmp_path.rglob("ptxas.csv")
    (row,) = read_csv(table)
    assert (row.key, row.kernel, row.arch) == (
        "flash_attn_forward.sm80.bf16-d32-ek-emn-m128-n128-w4", "flash_attn_forward", "sm_80",
    )  # fmt: skip
    assert not row.spilled
    # By this word in a kernel's name nvcc decides how to compile it; upstream's names have it.
    assert "cutlass" in row.symbol
