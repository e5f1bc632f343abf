"""Builds on demand that are killed at random moments, on one cache: the kernel is then built, and
computes what its header says."""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import scaffold

FAMILY = "fuzzed_add"
_MOST_SECONDS = 2.5  # until a process is killed; a build takes about as long
_ALPHA = "splat(args_.alpha)"
BUILD = f"""
import sys, torch, runtime
runtime.load(sys.argv[1])
kernel = runtime.kernel("{FAMILY}.cpu.f32-n4096")
x, y = torch.randn(2, 3, 1000)
z = torch.full_like(x, float("nan"))
kernel(x, y, alpha=0.5, out=z)
sys.exit(not torch.allclose(z, int(sys.argv[2]) * 0.5 * x + y, rtol=1e-5, atol=1e-4))
"""


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    specs = tmp_path_factory.mktemp("killed") / "kernel_specs"
    scaffold.create(FAMILY, specs)
    return specs / FAMILY


KILLS = st.lists(st.tuples(st.floats(0, _MOST_SECONDS), st.booleans()), min_size=1, max_size=4)


@pytest.mark.build
@settings(
    max_examples=max(1, settings.default.max_examples // 100),
    suppress_health_check=list(HealthCheck),
)
@given(st.integers(2, 1000), KILLS)
def test_builds_that_are_killed(family, factor, kills):
    """Alone, or with their compilers."""
    header = family / "cpu.h"
    text = header.with_suffix(".orig")
    if not text.exists():
        text.write_text(header.read_text())
    header.write_text(text.read_text().replace(_ALPHA, f"splat({factor} * args_.alpha)"))
    command = [sys.executable, "-c", BUILD, str(family), str(factor)]
    environment = {**os.environ, "KERNELMINT_CACHE_DIR": str(family.parents[1] / "cache")}

    def start():
        return subprocess.Popen(command, env=environment, start_new_session=True)

    for seconds, with_compilers in kills:
        child = start()
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            (os.killpg if with_compilers else os.kill)(child.pid, signal.SIGKILL)
            child.wait()
    assert start().wait() == 0
