"""What was generated and what ptxas made of it: the data files installed beside the extension."""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.spec.expressions import BOOL, DTYPE, INT, Kind
from runtime import _native

FOLDER = Path(str(_native.__file__)).parent / "_generated"
REBUILD = "pip install ."
REGENERATE = f"kernelmint regenerate && {REBUILD}"


@dataclass(frozen=True)
class Kernel:
    """A configuration that was generated."""

    key: str
    short: str | None  # another way to write it, for targets whose spec has one
    parameters: dict[str, Any]
    derived: dict[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A parameter of configurations: its name, and what it is in an expression."""

    name: str
    kind: Kind
    default: bool | int | str | None  # what leaving it out means; None: any of its values


@dataclass(frozen=True)
class Target:
    """A way to compute a family, and what it was generated for."""

    name: str
    is_cuda: bool
    capability: int  # 80 for 8.0; 0 for the CPU
    exact: bool
    parameters: tuple[Parameter, ...]  # its own, beside the family's
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Argument:
    """An argument of a family: role input, output or scalar."""

    name: str
    role: str
    dims: tuple[str, ...]
    dtype: str
    optional: bool


@dataclass(frozen=True)
class Trace:
    """What kernels with `parameter` write where they are asked to: a grid of records of f32."""

    parameter: str
    record: dict[str, tuple[str, ...]]  # each tensor's shape, expressions over parameters


@dataclass(frozen=True)
class Choice:
    """A row of choices.yaml: where its condition holds, kernels with these values come first."""

    when: str
    take: dict[str, Any]


@dataclass(frozen=True)
class Front:
    """What a family offers Python beyond its kernels: a function, and the module it is in."""

    module: str
    function: str


@dataclass(frozen=True)
class Family:
    """What is computed: arguments, parameters that all targets share, targets in dispatch order."""

    name: str
    summary: str
    symbols: tuple[str, ...]
    arguments: tuple[Argument, ...]
    parameters: tuple[Parameter, ...]  # shared by all targets
    targets: tuple[Target, ...]
    trace: Trace | None
    front: Front | None
    choices: tuple[Choice, ...]
    folder: str  # of its spec, as its author has it

    def target(self, name: str) -> Target:
        """The target of that name, which is known to be there."""
        return next(target for target in self.targets if target.name == name)


@dataclass(frozen=True)
class Manifest:
    """All families, and the fingerprint that the extension must carry too."""

    fingerprint: str
    families: dict[str, Family]


@dataclass(frozen=True)
class Resources:
    """What ptxas gave a kernel: registers a thread, bytes spilled; the most over architectures."""

    registers: int
    spills: int


def _parameter(data: dict[str, Any]) -> Parameter:
    kinds = {"dtype": DTYPE, "bool": BOOL, "int": INT}
    kind = kinds.get(data["type"]) or Kind("text", tuple(data["values"] or ()))
    return Parameter(data["name"], kind, data["default"])


def _target(data: dict[str, Any]) -> Target:
    return Target(
        name=data["name"],
        is_cuda=data["kind"] == "cuda",
        capability=data["capability"] or 0,
        exact=bool(data["exact"]),
        parameters=tuple(_parameter(p) for p in data["parameters"]),
        kernels=tuple(
            Kernel(k["key"], k.get("short"), k["parameters"], k["derived"]) for k in data["kernels"]
        ),
    )


def _trace(data: dict[str, Any]) -> Trace:
    return Trace(data["parameter"], {t["name"]: tuple(t["shape"]) for t in data["record"]})


def _family(data: dict[str, Any]) -> Family:
    return Family(
        name=data["name"],
        summary=data["summary"],
        symbols=tuple(data["symbols"]),
        arguments=tuple(
            Argument(
                name=a["name"],
                role=a["role"],
                dims=tuple(str(d) for d in a.get("dims", ())),
                dtype=a["dtype"],
                optional=bool(a.get("optional", False)),
            )
            for a in data["arguments"]
        ),
        parameters=tuple(_parameter(p) for p in data["parameters"]),
        targets=tuple(_target(t) for t in data["targets"]),
        trace=None if data["trace"] is None else _trace(data["trace"]),
        front=None if data["front"] is None else Front(**data["front"]),
        choices=tuple(Choice(row["when"], row["take"]) for row in data["choices"]),
        folder=Path(data["targets"][0]["spec"]).parent.as_posix(),
    )


@functools.cache
def build() -> dict[str, Any]:
    """The installed build.json: what the extension is made of, by `settings` and `sources`.

    ImportError where the extension is another build's.
    """
    path = FOLDER / "build.json"
    with _readable(path, "record of its build"):
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = data["fingerprint"], data["settings"], data["sources"].items()
    if data["fingerprint"] != _native.build_fingerprint:
        raise ImportError(
            f"runtime's extension {_native.__file__} is of the build {_native.build_fingerprint} "
            f"(its sources, compilers and flags), but {path} is of {data['fingerprint']}: run "
            f"`{REBUILD}`"
        )
    return data


def changed_sources(checkout: Path) -> list[str]:
    """The C++ and CMake files of a checkout that are not what the extension was built of."""
    return [
        name
        for name, digest in build()["sources"].items()
        if not (checkout / name).is_file()
        or hashlib.sha256((checkout / name).read_bytes()).hexdigest() != digest
    ]


def check_checkout(package: Path) -> None:
    """ImportError where the checkout that `package` lies in is not what the extension was built of.

    For the source tree's `runtime` beside an installed extension.
    """
    installed = f"the extension installed as {_native.__file__}"
    generated = package.parent / "generated/manifest.json"
    with _readable(generated, "manifest"):
        fingerprint = json.loads(generated.read_text(encoding="utf-8"))["fingerprint"]
    changed = changed_sources(package.parent)
    if fingerprint != _native.fingerprint:
        what = f"{generated} is {fingerprint}, {installed} was built from {_native.fingerprint}"
    elif changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        what = f"{package.parent / changed[0]}{more} changed since {installed} was built"
    else:
        return
    raise ImportError(f"{what}: run `make build` (or `{REBUILD}`) in {package.parent}")


@functools.cache
def load() -> Manifest:
    """The installed manifest.json.

    Raises ImportError where it is damaged, and where the extension was built from another one.
    """
    build()
    path = FOLDER / "manifest.json"
    with _readable(path, "manifest"):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["fingerprint"] != _native.fingerprint:
            raise ImportError(
                f"runtime's extension {_native.__file__} was built from the generated code "
                f"{_native.fingerprint}, but {path} is {data['fingerprint']}: run `{REBUILD}`"
            )
        families = [_family(f) for f in data["families"]]
        return Manifest(data["fingerprint"], {f.name: f for f in families})


@contextlib.contextmanager
def _readable(path: Path, what: str) -> Iterator[None]:
    """Raises ImportError where the file at `path` is absent, or not what a build writes there."""
    try:
        yield
    except FileNotFoundError:
        raise ImportError(
            f"runtime's extension has no {what} beside it ({path}): run `{REBUILD}`"
        ) from None
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise ImportError(
            f"the {what} {path} is damaged ({type(error).__name__}: {error}): run `{REBUILD}`"
        ) from None


def fronts() -> dict[str, str]:
    """The families' public functions by name, and the module of each."""
    found = (family.front for family in load().families.values())
    return {front.function: front.module for front in found if front is not None}


@functools.cache
def resources() -> dict[str, Resources]:
    """The installed ptxas.csv, by key; empty where the build had no CUDA."""
    path = FOLDER / "ptxas.csv"
    found: dict[str, Resources] = {}
    if not path.exists():
        return found
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["used_registers"]:
                continue
            registers = int(row["used_registers"])
            spills = int(row["spill_stores"] or 0) + int(row["spill_loads"] or 0)
            most = found.get(row["kernel_config"], Resources(0, 0))
            found[row["kernel_config"]] = Resources(
                max(registers, most.registers), max(spills, most.spills)
            )
    return found
