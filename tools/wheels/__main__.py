"""The command `kernelmint verify WHEEL`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from codegen.core.ptxas_rows import ReportError
from codegen.core.words import counted, display_path

from . import attestation, rebuild
from .comparison import Comparison, compare
from .wheel import Wheel

_MOST = 20  # kernels, files or reasons of a list


def _settings(
    context: click.Context, option: click.Parameter, words: tuple[str, ...]
) -> dict[str, str]:
    """Returns settings by name. Raises click.BadParameter."""
    for word in words:
        if not word.partition("=")[2]:
            raise click.BadParameter(f"got {word!r}, expected NAME=VALUE", context, option)
    return dict(word.split("=", 1) for word in words)


_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("verify", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("wheel", type=_PATH)
@click.option(
    "--source", metavar="DIR|SDIST|URL",
    help="A checkout, a source distribution, or a git repository's address. Default: the source "
    "distribution beside the wheel, else the current folder.",
)  # fmt: skip
@click.option("--against", type=_PATH, help="Compare with this wheel, without building.")
@click.option(
    "-C", "settings", multiple=True, callback=_settings, metavar="NAME=VALUE",
    help="A further setting of the build, as pip's.",
)  # fmt: skip
@click.option(
    "--build-isolation/--no-build-isolation", "isolated", default=None,
    help="Build in an environment of the recorded packages, or in this one.",
)  # fmt: skip
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Put the built wheel there.",
)  # fmt: skip
@click.option(
    "--attestation", "attested", type=_PATH, metavar="FILE",
    help="Check who published the wheel, without building: an attestation, or the index's "
    "provenance of it.",
)  # fmt: skip
@click.option(
    "--publisher", metavar="OWNER/NAME/WORKFLOW.yml", help="Who has to have published it."
)
@click.option("--offline", is_flag=True, help="Fetch no newer trust root of sigstore.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(
    wheel: Path,
    source: str | None,
    against: Path | None,
    settings: dict[str, str],
    isolated: bool | None,
    keep: Path | None,
    attested: Path | None,
    publisher: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Builds WHEEL again from the sources that it names, and says which kernels differ, and why.

    The build takes the revision, SOURCE_DATE_EPOCH, packages, architectures and flags that the
    wheel records, and the compilers of this machine. It runs code of the sources. Exits with 1 if
    code or files differ.

    \b
    Examples:
      kernelmint verify dist/my_kernels-1.0-py3-none-any.whl
      kernelmint verify downloaded.whl --source https://example.org/my_kernels.git
      kernelmint verify downloaded.whl --attestation FILE --publisher me/my_kernels/wheels.yml
    """
    if (attested is None) != (publisher is None):
        raise click.UsageError("an attestation is checked with both --attestation and --publisher")
    try:
        if attested is not None and publisher is not None:
            _check_publisher(wheel, attested, publisher, offline, as_json)
            return
        with TemporaryDirectory(prefix="kernelmint-verify-") as folder:
            checked, work = Wheel(wheel), Path(folder)
            if against is not None:
                other, beside = against, display_path(against)
            else:
                sources = rebuild.sources_of(checked, source, work)
                click.echo(f"building {checked.name} from {sources.description}", err=True)
                other = rebuild.built(checked, sources, work, settings, isolated)
                beside = f"the build of {sources.description}"
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    other = Path(shutil.move(other, keep / other.name))
            second = Wheel(other)
            if (checked.name, checked.version) != (second.name, second.version):
                raise ReportError(
                    f"{wheel.name} is {checked.name} {checked.version}, but {beside} is "
                    f"{second.name} {second.version}: name its sources with --source"
                )
            comparison = compare(checked, second, work / rebuild.BUILD)
    except ReportError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({**asdict(comparison), "is_same": comparison.is_same}, indent=1))
    else:
        click.echo("\n".join(_lines(wheel.name, beside, comparison)))
    sys.exit(not comparison.is_same)


def _check_publisher(
    wheel: Path, attested: Path, publisher: str, offline: bool, as_json: bool
) -> None:
    commit = attestation.commit_of(wheel, attested, publisher, offline)
    revision = Wheel(wheel).build.revision
    if commit and revision and commit != revision:
        raise ReportError(
            f"{wheel.name}: {publisher} published it at {commit}, but its bill of materials names "
            f"the revision {revision}"
        )
    if as_json:
        click.echo(json.dumps({"publisher": publisher, "commit": commit, "revision": revision}))
    else:
        click.echo(f"{wheel.name}: published by {publisher}{f' at {commit}' if commit else ''}")


def _lines(name: str, beside: str, of: Comparison) -> Iterator[str]:
    """Yields the lines of a comparison."""
    if of.is_identical:
        yield f"{name}: the same bytes as {beside} ({counted(of.kernels, 'kernel')} of GPUs)"
        return
    yield f"{name}: {'the same code as' if of.is_same else 'differs from'} {beside}"
    yield f"device code: {len(of.differing_kernels):,} of {counted(of.kernels, 'kernel')} differ"
    yield from _limited([f"{k.name} [{k.arch}]: {k.difference}" for k in of.differing_kernels])
    yield f"host code: {len(of.differing_libraries)} of {of.libraries} libraries differ"
    for library in of.differing_libraries:
        held = f" (holds the kernels of {library.target})" if library.target else ""
        yield f"  {library.name}: {' '.join(library.sections)}{held}"
        differing = [f"  {f.name}: {f.difference}" for f in library.differing_functions]
        yield f"    {len(differing):,} of {counted(library.functions, 'function')} differ"
        yield from _limited(differing)
        if library.compilers is not None:
            yield f"    compiled by {' -> '.join('; '.join(names) for names in library.compilers)}"
    yield f"other files: {len(of.files)} differ"
    yield from _limited([f"{file}: {how}" for file, how in of.files.items()])
    if of.records:
        yield f"records of the build that differ: {', '.join(of.records)}"
    if of.reasons:
        yield "why (in the wheel -> in the other):"
        yield from _limited(
            [
                f"{reason}{f'  ({_code(reason.decides)})' if reason.decides else ''}"
                for reason in of.reasons
            ]
        )
    for code in of.unexplained:
        yield (
            f"{code} code differs, but no recorded source, compiler or flag: the build is not "
            "reproducible, or the wheel is not what its records say"
        )


def _limited(lines: list[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:_MOST])
    if lines[_MOST:]:
        yield f"  and {len(lines) - _MOST:,} more (--json lists them)"


def _code(decides: tuple[str, ...]) -> str:
    return f"decides {' and '.join(decides)} code"


if __name__ == "__main__":
    main()
