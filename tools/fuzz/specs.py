"""Specs: damaged real ones and random good ones, through all of codegen but the writing.

Each must be accepted, or refused with located problems, one a line, within the limit. With
`--compile`, accepted ones are compiled, and C++'s values compared with Python's.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from codegen import pipeline
from codegen.manifest import Selection
from codegen.space.expand import FamilySpace
from codegen.spec.problems import SpecError, UsageError
from codegen.tree import writer

from ..places import SPECS
from . import _spec_programs, _spec_texts
from ._spec_texts import Texts

_BATCH = 20  # specs of one program
_PROBLEM = re.compile(r"[^\n]*:\d+:\d+: [^\n]+")


class _TimeOutError(BaseException):
    """Not an Exception: nothing may take it for one of its own."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises _TimeOutError after so much time of this process, or 100 times that by the clock."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TimeOutError

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, 1), (signal.SIGALRM, signal.ITIMER_REAL, 100))
    before = [signal.signal(number, stop) for number, _, _ in timers]
    try:
        for _, timer, factor in timers:
            signal.setitimer(timer, seconds * factor)
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for (number, _, _), handler in zip(timers, before, strict=True):
            signal.signal(number, handler)


def _write(folder: Path, files: Texts) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode(errors="surrogatepass"))


def _try(specs: Path, limit: float) -> tuple[str, tuple[FamilySpace, ...]]:
    """accepted, refused, or what is wrong; and the spaces of an accepted spec."""
    try:
        with _limited(limit):
            tree = pipeline.build([specs], specs.parent / "generated", Selection())
    except SpecError as error:
        lines = [str(problem) for problem in error.problems]
        if wrong := [line for line in lines if not _PROBLEM.fullmatch(line)]:
            return f"not one problem a line, with its place: {wrong[0]!r}", ()
        return "refused", ()
    except UsageError:
        return "refused", ()
    except _TimeOutError:
        return f"took more than {limit} s", ()
    except Exception:
        return traceback.format_exc(), ()
    return "accepted", tree.spaces


def _compiled(folder: Path) -> list[str]:
    """What differs between C++ and Python for the specs in folder/specs."""
    tree = pipeline.build([folder / "specs"], folder / "generated", Selection())
    for space in tree.spaces:
        header = _spec_programs.header(space.targets[0].target)
        (folder / "specs" / space.family.name / "cpu.h").write_text(header)
    writer.write(folder / "generated", tree.files)
    try:
        printed = _spec_programs.run(folder, tree.spaces)
    except subprocess.CalledProcessError as error:
        return [error.stderr[:2000]]
    return list(_spec_programs.differences(printed, tree.spaces))


def _seeds() -> list[Texts]:
    """The files of the families there are."""
    return [
        {path.name: path.read_text() for path in sorted(family.parent.iterdir()) if path.is_file()}
        for family in sorted(SPECS.glob("**/family.yaml"))
    ]


def _damaged(rng: random.Random, seeds: Sequence[Texts]) -> tuple[str, Texts]:
    """A family's name and files; only YAML is damaged."""
    files = rng.choice(seeds)
    yaml = {name: text for name, text in files.items() if name.endswith(".yaml")}
    others = {name: "" for name in files if name not in yaml}
    (family,) = re.findall(r"^family: (\w+)", yaml["family.yaml"], re.MULTILINE)
    return family, {**others, **_spec_texts.mutant(rng, [yaml])}


@click.command()
@click.option("--count", default=1000, show_default=True, help="How many specs.")
@click.option("--seed", default=1, show_default=True, help="Of the random numbers.")
@click.option("--limit", default=2.0, show_default=True, help="Seconds for each, of CPU time.")
@click.option("--compile", "compiling", is_flag=True, help="Good specs alone, through C++.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="A folder that takes the specs that fail."
)
def main(count: int, seed: int, limit: float, compiling: bool, keep: Path | None) -> None:
    """Random and damaged specs: accepted and right, or refused with their place, in time."""
    seeds = _seeds()
    outcomes = {"accepted": 0, "refused": 0}
    failures = 0
    slowest = 0.0
    batch: dict[str, Texts] = {}

    def fail(case: str, files: Texts, what: str) -> None:
        nonlocal failures
        failures += 1
        click.echo(f"--- {case}: {what.rstrip()}")
        if keep is not None:
            _write(keep / case, files)

    def compile_batch(case: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            for family, files in batch.items():
                _write(Path(name) / "specs" / family, files)
            for difference in _compiled(Path(name)):
                fail(case, {f"{f}.{n}": t for f, fs in batch.items() for n, t in fs.items()},
                     difference)  # fmt: skip
                break
        batch.clear()

    for index in range(count):
        rng = random.Random(f"{seed} {index}")
        if compiling or rng.random() < 0.3:
            family = f"f{index}"
            files: Texts = {**_spec_texts.good(rng, family), "cpu.h": ""}
        else:
            family, files = _damaged(rng, seeds)
        with tempfile.TemporaryDirectory() as name:
            _write(Path(name) / "specs" / family, files)
            begin = time.process_time()
            outcome, _ = _try(Path(name) / "specs", limit)
            slowest = max(slowest, time.process_time() - begin)
        if outcome not in outcomes:
            fail(f"{seed}-{index}", files, outcome)
            continue
        outcomes[outcome] += 1
        if compiling and outcome == "accepted":
            batch[family] = files
        if len(batch) == _BATCH or (batch and index == count - 1):
            compile_batch(f"{seed}-{index}-batch")
    click.echo(
        f"{count} specs: {outcomes['accepted']} accepted, {outcomes['refused']} refused, "
        f"{failures} failures; the slowest took {slowest:.2f} s"
    )
    if failures:
        raise SystemExit(1)
