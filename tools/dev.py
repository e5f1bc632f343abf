"""The loop of a kernel's author: edit, build the kernels of the last run, run again.

    kernelmint dev [--specs DIR]... COMMAND [ARGUMENT]...

Runs a command, such as `python bench.py` or `pytest kernel_specs/rms_norm`, with every kernel of
the specs built on demand as they are now (KERNELMINT_BUILD=always). Then waits for an edit below
the folders of specs, builds the kernels that the last run resolved, prints changes of registers,
spills and the run's time, and runs it again, until it is interrupted.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import runtime
from codegen.core.words import counted, display_path
from runtime import manifest, packs
from runtime.manifest import Resources
from runtime.ondemand import kernels as on_demand

from .slim import read_keys

_INTERVAL = 0.2  # seconds between two looks at the files
_IGNORED = {"__pycache__", ".pytest_cache"}


def changes(now: Resources | None, before: Resources | None) -> str:
    """Returns changed figures in words: ``28 registers (was 24), 0 bytes spilled``."""
    if now is None:  # on the CPU
        return "built"
    was = before or now
    parts = (
        (now.registers, was.registers, "registers"),
        (now.spills, was.spills, "bytes spilled"),
    )
    return ", ".join(
        f"{value} {what}" + (f" (was {then})" if value != then else "")
        for value, then, what in parts
    )


def build(keys: Sequence[str]) -> dict[str, Resources | None]:
    """Builds kernels as their specs are now; returns ptxas's figures of each. Raises BuildError."""
    return {k: manifest.resources(pack).get(k) for k, pack in on_demand.build(keys).items()}


def state(folders: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """Returns time and size of each file below the folders."""
    return {str(path): entry for folder in folders for path, entry in _files(folder)}


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for root, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in _IGNORED]
        for name in files:
            path = Path(root, name)
            try:
                status = path.stat()
            except OSError:  # an editor's own file, gone meanwhile
                continue
            yield path, (status.st_mtime_ns, status.st_size)


def wait(folders: Sequence[Path], built: dict[str, tuple[int, int]]) -> list[str]:
    """Waits until files have changed and then stay unchanged; returns the changed ones."""
    before = built
    while True:
        time.sleep(_INTERVAL)
        now = state(folders)
        if now != built and now == before:
            return sorted(
                path for path in now.keys() | built.keys() if now.get(path) != built.get(path)
            )
        before = now


class Session:
    """A command, with the kernels and the time of its last run."""

    def __init__(self, command: Sequence[str], folders: Sequence[Path]) -> None:
        self.command = command
        self.folders = folders
        self.keys: list[str] = []
        self.figures: dict[str, Resources | None] = {}
        self.seconds: float | None = None

    def run(self) -> None:
        """Runs the command, and prints its time."""
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder, "used.yaml")
            environment = {
                **os.environ, "KERNELMINT_BUILD": "always", "KERNELMINT_RECORD": str(record)
            }  # fmt: skip
            begin = time.perf_counter()
            try:
                status = subprocess.run(self.command, env=environment, check=False).returncode
            except OSError as error:
                raise click.ClickException(f"{self.command[0]}: {error.strerror}") from None
            seconds = time.perf_counter() - begin
            if record.exists():
                self.keys = [k for k in read_keys(record) if packs.owner(k.partition(".")[0])]
        was = "" if self.seconds is None else f" (was {self.seconds:.2f})"
        ended = f"exit status {status}, " if status else ""
        click.secho(
            f"kernelmint: {ended}{seconds:.2f} s{was}, {counted(len(self.keys), 'kernel')}",
            dim=True,
        )
        self.seconds = seconds

    def build(self) -> bool:
        """Builds the kernels of the last run, and prints the changes; returns whether they
        compile."""
        try:
            built = build(self.keys)
        except (runtime.BuildError, runtime.KernelNotFound, runtime.TargetUnavailable) as error:
            click.echo(str(error))
            return False
        for key, figures in built.items():
            click.echo(f"  {key}: {changes(figures, self.figures.get(key))}")
        self.figures = built
        return True


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True}
)
@click.option(
    "--specs", multiple=True, type=click.Path(path_type=Path), default=[Path("kernel_specs")],
    show_default=True, metavar="DIR", help="A folder of specs; may be repeated.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(specs: tuple[Path, ...], command: tuple[str, ...]) -> None:
    """Runs COMMAND, and again after each edit of specs and headers.

    \b
    Examples:
      kernelmint dev python try_it.py
    """
    try:
        for folder in specs:
            runtime.load(folder)
    except runtime.InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    except (runtime.BuildError, runtime.PackError) as error:
        raise click.ClickException(str(error)) from None
    session = Session(command, specs)
    files = state(specs)
    session.run()
    session.build()
    try:
        while True:
            changed = wait(specs, files)
            files = state(specs)
            shown = ", ".join(display_path(Path(path)) for path in changed[:3])
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            click.secho(f"kernelmint: {shown}{more} changed", dim=True)
            if session.build():
                session.run()
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
