"""The number of compilers that may run at once, bounded by processors and by available memory.

    jobs.py [FOLDER]

prints one number. A compiler takes 2 GiB, or more if an earlier build measured more in FOLDER.
MAX_JOBS, if set, is taken as it is. Standard library only: it runs inside isolated build
environments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

# nvcc's greatest resident size for one of the largest attention kernels, with room to spare.
MIB_PER_JOB = 2048


def available_mib() -> int:
    """Returns the memory this process may still use, in MiB: the machine's, or less if a cgroup
    limits it."""
    meminfo = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    available = int(meminfo["MemAvailable"].split()[0]) // 1024
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            free = int(Path(limit).read_text()) - int(Path(usage).read_text())
        except (OSError, ValueError):  # no such cgroup, or no limit ("max")
            continue
        available = min(available, free // (1024 * 1024))
    return available


def jobs(mib_per_job: int = MIB_PER_JOB) -> int:
    """Returns the number of compilers to run at once, at least one. Raises ValueError if MAX_JOBS
    is not a number of jobs."""
    setting = os.environ.get("MAX_JOBS", "")
    if setting:
        if not setting.isdigit() or int(setting) < 1:
            raise ValueError(f"MAX_JOBS={setting!r}: expected a number of jobs, 1 or more")
        return int(setting)
    processors = len(os.sched_getaffinity(0))
    return max(1, min(processors, available_mib() // mib_per_job))


def measured_mib(folder: Path) -> int:
    """Returns the most memory that a compilation of an earlier build took, from the files of
    compile_logged.py; 0 without an earlier build."""
    return max((json.loads(p.read_text())["mib"] for p in folder.rglob("*.cost.json")), default=0)


def main(arguments: list[str]) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    options = parser.parse_args(arguments)
    try:
        print(jobs(max(MIB_PER_JOB, measured_mib(options.folder) if options.folder else 0)))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
