"""Upstream's own tests, on this pack: fetched from its repository at one commit, and run unmodified
but for the name of the module that they import. None of them is kept here.

    python upstream_tests.py [--from REPOSITORY] [pytest's options]

REPOSITORY: a clone, or a folder that has that commit's folder `test`, for a machine without a
network; else upstream's address.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UPSTREAM = "https://github.com/rusty1s/pytorch_scatter"
COMMIT = "140d3ad677aae615767412873b90982cbf97d35d"  # tag 2.1.2


def main(arguments: list[str]) -> int:
    """Runs them; returns pytest's exit status."""
    origin = UPSTREAM
    if arguments[:1] == ["--from"]:
        origin, arguments = str(Path(arguments[1]).resolve()), arguments[2:]
    with tempfile.TemporaryDirectory() as work:
        if Path(origin, "test").is_dir() and not Path(origin, ".git").exists():
            shutil.copytree(Path(origin, "test"), f"{work}/upstream/test")
        else:
            subprocess.run(["git", "clone", "-q", "-n", origin, "upstream"], cwd=work, check=True)
            checkout = ["git", "checkout", "-q", COMMIT, "--", "test"]
            subprocess.run(checkout, cwd=f"{work}/upstream", check=True)
        for path in Path(work, "upstream/test").rglob("*.py"):
            path.write_text(re.sub(r"\btorch_scatter\b", "scatter_pack", path.read_text()))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return subprocess.run([*command, "test"], cwd=f"{work}/upstream", check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
