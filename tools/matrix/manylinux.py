"""The oldest Linux that a wheel may be installed on: auditwheel reads the versions of the symbols
that each library of a wheel needs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys

from . import compilers, pythons
from .results import Outcome
from .work import AbsentError, Work, tool


def check_manylinux(policy: str, work: Work) -> Outcome:
    """Checks that the wheel which this machine's compiler makes, or that of CXX, is one of a policy
    such as 2_28, and calls its kernels."""
    wheel = pythons.build(f"3.{sys.version_info.minor}", work)
    tag = f"manylinux_{policy}_{platform.machine()}"
    auditwheel = (sys.executable, "-m", "auditwheel")
    shown = " ".join(work.run(*auditwheel, "show", wheel).split())
    found = re.search(r'following platform tag: "(\S+)"', shown)
    assert found, work.log
    if _glibc(found[1]) > _glibc(tag):
        raise AbsentError(
            f"the compiler of this machine, with {' '.join(platform.libc_ver())}, makes wheels of "
            f"{found[1]}; those of {tag} are made in the image of that name"
        )
    path = {"PATH": os.pathsep.join([str(tool("patchelf").parent), os.environ["PATH"]])}
    repaired = work.folder / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    work.run(
        *(*auditwheel, "repair", "--plat", tag, "--wheel-dir", repaired, wheel), environment=path
    )
    (wheel,) = repaired.iterdir()
    return Outcome(
        "run", f"symbols of {found[1]}; {wheel.name}; {compilers.sanity_check(work, wheel)}"
    )


def _glibc(tag: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", tag.partition("manylinux_")[2])[:2]]
