"""Upstream's own tests, on this pack: those of its archive that test multi_tensor_adam, unmodified,
with upstream's Python package, whose extension `amp_C` is this pack. Nothing of them is kept here.

    python upstream_tests.py [pytest's options]

It needs a GPU and expecttest, which PyTorch's own tests import. KERNELMINT_SOURCES names a folder
with the archive, for a machine without a network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from codegen.sources import archives

HERE = Path(__file__).resolve().parent
TESTS = "tests/L0/run_optimizers/test_adam.py"
AMP_C = """\
from apex_pack import (
    multi_tensor_adam, multi_tensor_adam_capturable, multi_tensor_adam_capturable_master
)
"""


def upstream() -> Path:
    """Returns upstream's archive, unpacked."""
    spec = yaml.safe_load((HERE / "kernel_specs/apex/sm80.yaml").read_text())
    archive = spec["build"]["archives"]["upstream"]
    return archives.folder(archive["url"], archive["sha256"])


def main(arguments: list[str]) -> int:
    """Runs them; returns pytest's exit status."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(upstream() / "apex", f"{work}/apex")
        shutil.copy(upstream() / TESTS, work)
        Path(work, "amp_C.py").write_text(AMP_C)
        places = os.pathsep.join([work, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": places}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        # The tests are skipped if apex cannot be imported.
        for run in ([sys.executable, "-c", "import apex"], [*command, Path(TESTS).name]):
            done = subprocess.run(run, cwd=work, env=environment, check=False)
            if done.returncode != 0:
                return done.returncode
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
