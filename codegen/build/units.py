"""Generated files of a CUDA target that are compiled together, chosen by the cost of including
headers.

    units.py MANIFEST FAMILY TARGET FOLDER --jobs N -- COMMAND ...

prints nothing; or, if the manifest names more files than N compilers take at once, and their
headers cost more than their kernels do, a CMake list of fewer files that include them,
FOLDER/<family>/<target>/<number>.cu, and a note on stderr. COMMAND is nvcc's, without the options
of the spec's `build:` and without a file. Measurements are kept beside FOLDER's files, until the
command or the list of headers changes. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is run by its path

from codegen.core import manifest

# Including headers so few times costs less than measuring their cost.
_FEW = 4
# Seconds of processor time that nvcc takes to list headers: CUDA's own 0.2, CuTe's with CUB's 2.6.
# Compiling them takes some seven times as long.
_LIGHT = 0.7


def _await(process: subprocess.Popen[bytes], until: float | None = None) -> float | None:
    """Returns the processor time of a process and its children; None if it fails or runs for
    longer."""
    while True:
        pid, status, usage = os.wait4(process.pid, 0 if until is None else os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime if status == 0 else None
        if until is not None and time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            until = None
        time.sleep(0.05)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, so that it ends with all processes that it
    started."""
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True)


def compile_times(command: Sequence[str], file: Path, folder: Path) -> list[float] | None:
    """Returns the seconds of processor time that a generated file's headers and the file take to
    compile; None if compiling fails, or if the file takes more than twice as long: its kernels cost
    most."""
    headers = folder / "headers.cu"
    lines = [line for line in file.read_text().splitlines() if line.startswith("#include ")]
    headers.write_text("\n".join([*lines, ""]))
    begin = time.monotonic()
    running = [
        _start([*command, "-c", str(source), "-o", str(folder / f"{number}.o")])
        for number, source in enumerate((headers, file))
    ]
    of_headers = _await(running[0])
    now = time.monotonic()
    of_file = _await(running[1], 2 * now - begin if of_headers else now)
    return [of_headers, of_file] if of_headers and of_file else None


def number_of_units(files: int, seconds: Sequence[float]) -> int:
    """Returns the number of files to compile in place of `files`: a power of two, at which the
    kernels of a file cost about as much as its headers; `files`, if the power of two would be at
    least half of it."""
    of_headers, of_file = seconds
    units = 1
    while 2 * units * of_headers <= files * max(0.0, of_file - of_headers):
        units *= 2
    return units if 2 * units <= files else files


def in_units(files: Sequence[str], units: int) -> dict[int, list[str]]:
    """Returns the files by unit. A unit's number is the lowest bits of its kernels' hashes, so a
    file that is split stays in its unit, and no other unit changes."""
    by_unit: dict[int, list[str]] = {}
    for file in files:
        by_unit.setdefault(int(Path(file).stem.rpartition("_")[2]) % units, []).append(file)
    return by_unit


def _measured(command: Sequence[str], file: Path, folder: Path) -> list[float] | None:
    """Returns `compile_times`, measured now or before; None also if headers are light."""
    before = os.times()
    listed = subprocess.run([*command, "-M", str(file)], capture_output=True, check=False)
    after = os.times()
    spent = sum(after[2:4]) - sum(before[2:4])
    if listed.returncode or spent < _LIGHT:
        return None
    _, _, headers = listed.stdout.decode(errors="surrogateescape").partition(":")
    of = [*command, *sorted(set(headers.split()) - {"\\", str(file)})]
    digest = hashlib.sha256("\0".join(of).encode(errors="surrogateescape")).hexdigest()
    kept = folder / "measured.json"
    if kept.exists() and (measurement := json.loads(kept.read_text()))["of"] == digest:
        return measurement["seconds"]  # type: ignore[no-any-return]  # JSON has no types
    work = folder / "measuring"
    work.mkdir(parents=True, exist_ok=True)
    seconds = compile_times(command, file, work)
    shutil.rmtree(work)
    kept.write_text(json.dumps({"of": digest, "seconds": seconds}))
    return seconds


def _write(folder: Path, units: dict[int, list[str]]) -> list[Path]:
    """Writes the files of units and removes all others; a file with the right content stays
    untouched."""
    written = {
        folder / f"{number}.cu": "".join(f'#include "{file}"\n' for file in files)
        for number, files in sorted(units.items())
    }
    for path in set(folder.glob("*.cu")) - set(written):
        path.unlink()
    for path, text in written.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return [*written]


def main(arguments: list[str]) -> None:
    """Runs the command."""
    split = arguments.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("manifest", type=Path)
    parser.add_argument("family")
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, required=True)
    options = parser.parse_args(arguments[:split])
    (family,) = (f for f in manifest.read(options.manifest).families if f.name == options.family)
    target = family.target(options.target)
    files = sorted({kernel.file for kernel in target.kernels})
    if not files:
        return
    definitions = [f"-D{definition}" for definition in target.build.definitions]
    command = [*arguments[split + 1 :], *target.build.flags, *definitions]
    folder = options.folder / options.family / options.target
    first = options.manifest.parent / files[0]
    # Files that are compiled all at once take no longer than one, which measuring does.
    is_many = len(files) > max(_FEW, options.jobs)
    seconds = _measured(command, first, folder) if is_many else None
    units = number_of_units(len(files), seconds) if seconds else len(files)
    if seconds is None or units == len(files):
        _write(folder, {})
        return
    written = _write(folder, in_units(files, units))
    print(";".join(map(str, written)), end="")
    print(
        f"{options.family}.{options.target}: headers take {seconds[0]:.1f} s of the "
        f"{seconds[1]:.1f} s of a file, so {len(files)} files are compiled as {len(written)} "
        f"(`files: {units}` in its spec would spare the measuring)",
        file=sys.stderr,
        end="",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
