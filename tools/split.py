"""A wheel of a pack in slices, split into a base and a wheel for each slice.

    kernelmint split WHEEL [--out DIR] [--store DIR] [--variants]

The base, NAME, is WHEEL without its slices; its extra `sm90` is the distribution NAME-sm90, and its
pack.json has the hash of that distribution's wheel. --store also lays the slices out as `kernelmint
fetch` looks for them, DIR/<sha256>/<wheel>. --variants writes wheels that PEP 817's installers
choose from instead: WHEEL with one slice each, and one without.

The wheels are held to the budgets of pyproject.toml, if there is one here (codegen/build/sizes.py).
WHEEL was built with `-C cmake.define.KERNELMINT_SLICES=ON`. One WHEEL gives the same bytes each
time.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from codegen.build.sizes import budgets_of, over_budget, parts_of
from codegen.core import as_json, packs, slices
from codegen.core.ptxas_rows import ReportError
from codegen.core.words import counted, display_path

_KEPT = ("Metadata-Version:", "Requires-Python:", "License", "Author", "Classifier:")
_WRITTEN = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "variant.json")
_PROVIDER = {
    "variant": {
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {
            "nvidia": {
                "requires": ["nvidia-variant-provider>=0.0.1"],
                "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
            }
        },
    }
}

Contents = dict[str, Callable[[], bytes]]  # a wheel's files, read when they are written


class _Wheel:
    """A wheel that is read. Raises ReportError if it is not whole, or has no slices."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
            self.infos = {info.filename: info for info in self._archive.infolist()}
            (metadata,) = (name for name in self.infos if name.endswith(".dist-info/METADATA"))
            self.name, self.version, *_, self.platform = path.stem.split("-")
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise ReportError(f"{display_path(path)}: not a whole wheel: {error}") from None
        self.info = metadata.partition("/")[0]
        self.date = self.infos[metadata].date_time
        self.packs = {
            name.rpartition("/")[0]: as_json.read(packs.PackJson, json.loads(self.read(name)))
            for name in self.infos
            if name.endswith(f"_pack/{packs.PACK_JSON}")
        }
        self.slices = sorted({part.name for pack in self.packs.values() for part in pack.slices})
        if not self.slices:
            raise ReportError(
                f"{display_path(path)}: no pack in it has slices: build it with "
                "-C cmake.define.KERNELMINT_SLICES=ON"
            )
        if vendored := next((name for name in self.infos if ".libs/" in name), None):
            raise ReportError(
                f"{display_path(path)}: {vendored} is found beside the libraries that need it: "
                "split the wheel before auditwheel repairs it"
            )
        if any(part.sha256 for pack in self.packs.values() for part in pack.slices):
            raise ReportError(f"{display_path(path)} was split before: split the whole wheel")

    def read(self, name: str) -> bytes:
        """Returns a file's content."""
        return self._archive.read(name)

    def files(self, folder: str = "") -> Contents:
        """Returns the files below a folder, all without one, but not RECORD."""
        return {
            name: partial(self.read, name)
            for name in self.infos
            if name.startswith(folder) and name != f"{self.info}/RECORD" and not name.endswith("/")
        }

    def folder_of(self, place: str, slice_name: str) -> str:
        """Returns the folder of a slice of the pack in `place`."""
        return f"{place}/{packs.SLICES}/{slice_name}/"

    def write(self, path: Path, contents: Contents, info: str) -> Path:
        """Writes a wheel, whose metadata is in the folder `info`."""
        partial = path.with_name(f".{path.name}")
        record = []
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(contents, key=lambda name: (name.startswith(f"{info}/"), name)):
                content = contents[name]()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                record.append(f"{name},sha256={digest.decode()},{len(content)}")
                self._add(archive, name, content)
            self._add(
                archive, f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
            )
        return partial.replace(path)

    def _add(self, archive: zipfile.ZipFile, name: str, content: bytes) -> None:
        entry = zipfile.ZipInfo(name, self.date)
        entry.compress_type = zipfile.ZIP_DEFLATED
        mode = 0o755 if name.endswith(".so") else 0o644
        entry.external_attr = (0o100000 | mode) << 16
        archive.writestr(entry, content)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Written:
    """A wheel that was written."""

    path: Path
    what: str  # base, or the slice's name

    @property
    def size(self) -> int:
        """Returns its bytes."""
        return self.path.stat().st_size


def split(path: Path, out: Path) -> list[Written]:
    """Writes the wheels of the slices, and the base that names their hashes. Raises ReportError."""
    wheel = _Wheel(path)
    out.mkdir(parents=True, exist_ok=True)
    if (out / path.name).exists() and (out / path.name).samefile(path):
        raise ReportError(
            f"{display_path(path)}: the base would replace it: name another folder, --out DIR"
        )
    written = [Written(_write_slice(wheel, name, out), name) for name in wheel.slices]
    pins = {each.what: each.path for each in written}
    contents = wheel.files()
    for place, pack in wheel.packs.items():
        parts = []
        for part in pack.slices:
            for name in wheel.files(wheel.folder_of(place, part.name)):
                contents.pop(name)
            file = pins[part.name]
            parts.append(
                replace(
                    part, distribution=_distribution(wheel, part.name), wheel=file.name,
                    sha256=_sha256(file), size=file.stat().st_size,
                )
            )  # fmt: skip
        text = json.dumps(as_json.form(replace(pack, slices=tuple(parts))), indent=1) + "\n"
        contents[f"{place}/{packs.PACK_JSON}"] = text.encode
    metadata = f"{wheel.info}/METADATA"
    extras = [
        line
        for name in wheel.slices
        for line in (
            f"Provides-Extra: {name}",
            f'Requires-Dist: {_distribution(wheel, name)}=={wheel.version}; extra == "{name}"',
        )
    ]
    head, blank, body = wheel.read(metadata).decode().partition("\n\n")
    text = "\n".join([head, *extras]) + blank + body
    contents[metadata] = text.encode
    base = wheel.write(out / path.name, contents, wheel.info)
    return [Written(base, "base"), *written]


def _distribution(wheel: _Wheel, slice_name: str) -> str:
    return f"{wheel.name.replace('_', '-')}-{slice_name}"


def _write_slice(wheel: _Wheel, slice_name: str, out: Path) -> Path:
    name = f"{wheel.name}_{slice_name}"
    info = f"{name}-{wheel.version}.dist-info"
    contents: Contents = {}
    entries = [f"[{slices.GROUP}]"]
    for place, pack in wheel.packs.items():
        folder, own = wheel.folder_of(place, slice_name), f"{pack.name}_{slice_name}"
        for file, read in wheel.files(folder).items():
            contents[f"{own}/{file.removeprefix(folder)}"] = read
        entries.append(f"{pack.name}.{slice_name} = {own}")
    for file, read in wheel.files(f"{wheel.info}/").items():
        below = file.partition("/")[2]
        if below not in _WRITTEN:  # licences, lists of what was built in
            contents[f"{info}/{below}"] = read
    head = wheel.read(f"{wheel.info}/METADATA").decode().partition("\n\n")[0]
    base = wheel.name.replace("_", "-")
    kept = [line for line in head.split("\n") if line.startswith(_KEPT)]
    texts = {
        "METADATA": [
            *kept,
            f"Name: {_distribution(wheel, slice_name)}",
            f"Version: {wheel.version}",
            f"Summary: CUDA kernels of {base} for {slice_name}",
            f"Requires-Dist: {base}=={wheel.version}",
            "Description-Content-Type: text/markdown",
            "",
            f"CUDA kernels of {base}, which loads them on GPUs that {slice_name} names. Install "
            f"them with `pip install '{base}[{slice_name}]'`.",
        ],
        "WHEEL": [
            *("Wheel-Version: 1.0", "Generator: kernelmint", "Root-Is-Purelib: false"),
            *(f"Tag: py3-none-{platform}" for platform in wheel.platform.split(".")),
        ],
        "entry_points.txt": entries,
    }
    for file, lines in texts.items():
        contents[f"{info}/{file}"] = "\n".join([*lines, ""]).encode
    path = out / f"{name}-{wheel.version}-py3-none-{wheel.platform}.whl"
    return wheel.write(path, contents, info)


def variants(path: Path, out: Path) -> list[Written]:
    """Writes a wheel with each slice, labelled after it, and the one without: PEP 817's null
    variant. Raises ReportError."""
    wheel = _Wheel(path)
    out.mkdir(parents=True, exist_ok=True)
    everything = wheel.files()
    written = []
    for chosen in (None, *wheel.slices):
        contents = dict(everything)
        for place in wheel.packs:
            for name in wheel.slices:
                if name != chosen:
                    for file in wheel.files(wheel.folder_of(place, name)):
                        contents.pop(file)
        label = chosen or "null"
        description = _variant_json(chosen, label)
        contents[f"{wheel.info}/variant.json"] = description.encode
        file_name = f"{path.stem}-{label}.whl"
        written.append(Written(wheel.write(out / file_name, contents, wheel.info), label))
    return written


def _variant_json(slice_name: str | None, label: str) -> str:
    """Returns the variant.json of a wheel with a slice. Raises ReportError without variantlib."""
    try:
        api: Any = importlib.import_module("variantlib.api")
        models: Any = importlib.import_module("variantlib.models.variant")
        pyproject: Any = importlib.import_module("variantlib.pyproject_toml")
        write = api.make_variant_dist_info
    except (ImportError, AttributeError):
        raise ReportError(
            "--variants: variantlib writes variant.json: pip install 'variantlib>=0.2,<0.3'"
        ) from None
    properties = []
    if slice_name is not None:
        capability = slice_name.removeprefix("sm")
        properties = [models.VariantProperty("nvidia", "sm_arch", f"{capability}_real")]
    description = models.VariantDescription(properties, label)
    info = pyproject.VariantPyProjectToml(_PROVIDER)
    return str(write(description, variant_info=info, expand_aot_plugin_properties=False))


def lay_out(written: Mapping[str, Path], store: Path) -> None:
    """Copies wheels into a store, each by its hash."""
    for sha256, path in written.items():
        folder = store / sha256
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{path.name}"
        partial.write_bytes(path.read_bytes())
        partial.replace(folder / path.name)


def _lines(whole: Path, written: list[Written]) -> Iterator[str]:
    width = max(len(each.path.name) for each in written)
    for each in written:
        yield f"{each.path.name:<{width}}  {each.what:<6} {each.size:>12,} bytes"
    size = whole.stat().st_size
    yield f"{display_path(whole)}: {size:,} bytes; now {counted(len(written), 'wheel')}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("wheel", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("dist"), show_default=True,
    metavar="DIR", help="The folder of the wheels.",
)  # fmt: skip
@click.option(
    "--store", type=click.Path(path_type=Path), metavar="DIR",
    help="Also lay the slices out as a store, from which `kernelmint fetch` takes them.",
)  # fmt: skip
@click.option(
    "--variants", "as_variants", is_flag=True,
    help="Write PEP 817's variants instead (experimental): the base with one slice each.",
)  # fmt: skip
def main(wheel: Path, out: Path, store: Path | None, as_variants: bool) -> None:
    """Splits WHEEL, a pack in slices, into a base and a wheel for each slice.

    \b
    Examples:
      kernelmint split whole/my_kernels-1.0-py3-none-linux_x86_64.whl --store store
    """
    if as_variants and store is not None:
        raise click.UsageError("--store holds slices, and --variants writes none: pass one of them")
    try:
        if as_variants:
            written = variants(wheel, out)
        else:
            written = split(wheel, out)
            if store is not None:
                lay_out({_sha256(each.path): each.path for each in written[1:]}, store)
        limits = budgets_of(Path("pyproject.toml"))
        over = [
            line
            for each in written
            for line in over_budget(each.path, parts_of(each.path), limits)
            if limits.limits
        ]
    except (OSError, ValueError, ReportError) as error:
        raise click.ClickException(str(error)) from None
    click.echo("\n".join(_lines(wheel, written)))
    if over:
        raise click.ClickException("\n".join(over))


if __name__ == "__main__":
    main()
