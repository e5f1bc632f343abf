"""What packs cost `import runtime`: `python -m tools.bench_import`.

Makes installed packs of two families each in a temporary folder, as a wheel would install them, and
imports the runtime beside none of them, one and fifty, in processes of its own and in turns. The
time is that of the import alone, after `import torch`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from codegen import packs

COUNTS = (0, 1, 50)
REPEATS = 11
PROBE = """
import time, torch
start = time.perf_counter()
import runtime
print(1e3 * (time.perf_counter() - start), len(runtime.families()))
"""


def install_copies(site: Path, count: int) -> None:
    """Installs `count` packs into the folder, each with two families named anew."""
    own = next(pack for pack in packs.installed()[0] if len(pack.families) > 1)
    record = json.loads((own.folder / packs.PACK_JSON).read_text(encoding="utf-8"))
    for number in range(count):
        name = f"copy_{number}"
        families = {f"{family}_{number}": family for family in own.families[:2]}
        copy = record | {
            "name": name,
            "generated": {new: record["generated"][old] for new, old in families.items()},
            "operators": {
                new: [text.replace(old, new, 1) for text in record["operators"][old]]
                for new, old in families.items()
            },
            "fronts": [],
        }
        (site / name / "_pack").mkdir(parents=True)
        (site / name / "_pack" / packs.PACK_JSON).write_text(json.dumps(copy), encoding="utf-8")
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{packs.GROUP}]\n{name} = {name}._pack\n")


def imported(site: Path) -> tuple[float, int]:
    """Milliseconds of `import runtime` beside a folder's packs, and how many families it saw."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    # An installed package has its bytecode.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    output = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    milliseconds, families = output.split()
    return float(milliseconds), int(families)


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        sites = {count: Path(folder, str(count)) for count in COUNTS}
        for count, site in sites.items():
            site.mkdir()
            install_copies(site, count)
        for site in sites.values():  # what is compiled and read once
            imported(site)
        times: dict[int, list[float]] = {count: [] for count in COUNTS}
        families: dict[int, int] = {}
        for _ in range(REPEATS):
            for count, site in sites.items():
                milliseconds, families[count] = imported(site)
                times[count].append(milliseconds)
    print(f"import runtime after import torch, milliseconds; median of {REPEATS} (least to most)")
    for count, found in times.items():
        print(
            f"  {count:3} packs more ({families[count]:3} families)"
            f"{statistics.median(found):>8.1f} ({min(found):.1f} to {max(found):.1f})"
        )


if __name__ == "__main__":
    main()
