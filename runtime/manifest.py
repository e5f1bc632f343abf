"""What was generated and what ptxas made of it: the data files of packs."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codegen.packs import Pack, PackError
from codegen.spec.expressions import Kind, scalar_kind
from codegen.spec.where import parameter_kind
from runtime import packs
from runtime.errors import BuildError

REBUILD = "pip install ."
_TUNED = (
    "device", "parameters", "take", "configuration", "milliseconds", "runner_up",
    "runner_up_milliseconds", "tie",
)  # fmt: skip
REGENERATE = f"kernelmint regenerate && {REBUILD}"


@dataclass(frozen=True)
class Kernel:
    """A configuration that was generated."""

    key: str
    short: str | None  # another way to write it, for targets whose spec has one
    parameters: dict[str, Any]
    derived: dict[str, Any]
    pack: Pack  # which lists it, and holds it where it was built for its target
    shared_memory: int = 0  # bytes of a block, where some architecture of its target has fewer
    not_on: tuple[int, ...] = ()  # those compute capabilities, for which it is not compiled


@dataclass(frozen=True)
class Parameter:
    """A parameter of configurations: its name, and what it is in an expression."""

    name: str
    kind: Kind
    default: bool | int | str | None  # what leaving it out means; None: any of its values


@dataclass(frozen=True)
class SizeRange:
    """A range of a symbol, or of a product of symbols; both ends belong to it."""

    symbols: tuple[str, ...]
    least: int
    most: int


@dataclass(frozen=True)
class TunedRow:
    """A row of <target>.tuned.yaml: on this device, for these sizes, the fastest kernel."""

    device: str
    parameters: dict[str, Any]  # what the caller asks for
    ranges: tuple[SizeRange, ...]
    take: str  # a key, which the pack may not hold
    configuration: dict[str, Any]  # its parameters
    milliseconds: float
    runner_up: str | None
    runner_up_milliseconds: float | None
    tie: bool


@dataclass(frozen=True)
class Target:
    """A way to compute a family, and what it was generated for."""

    name: str
    is_cuda: bool
    capability: int  # 80 for 8.0; 0 for the CPU
    exact: bool
    parameters: tuple[Parameter, ...]  # its own, beside the family's
    kernels: tuple[Kernel, ...]
    tuned: tuple[TunedRow, ...]


@dataclass(frozen=True)
class Argument:
    """An argument of a family: role input, output or scalar."""

    name: str
    role: str
    dims: tuple[str, ...]
    dtype: str
    optional: bool  # an input that may be None, or an output that the caller asks for
    mutated: bool  # an input that kernels change
    on_host: bool  # an input in the CPU's memory, whatever the target
    default: str | None  # a scalar's, an expression; None: it must be passed
    values: tuple[str, ...]  # of an enum

    @property
    def kind(self) -> Kind:
        """What a scalar is in an expression."""
        return scalar_kind(self.dtype, self.values)


@dataclass(frozen=True)
class Trace:
    """What kernels with `parameter` write where they are asked to: a grid of records of f32."""

    parameter: str
    record: dict[str, tuple[str, ...]]  # each tensor's shape, expressions over parameters


@dataclass(frozen=True)
class Gradient:
    """What gives a family's gradients: a function, and what it takes."""

    module: str
    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    keeps: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """A row of choices.yaml: where its condition holds, kernels with these values come first."""

    when: str
    take: dict[str, Any]


@dataclass(frozen=True)
class Family:
    """What is computed: arguments, parameters that all targets share, targets in dispatch order."""

    name: str
    pack: Pack
    summary: str
    symbols: tuple[str, ...]
    arguments: tuple[Argument, ...]
    parameters: tuple[Parameter, ...]  # shared by all targets
    targets: tuple[Target, ...]
    trace: Trace | None
    choices: tuple[Choice, ...]
    folder: str  # of its spec, as its author has it: "kernel_specs/hstu/block_sparse"
    reference: str | None  # "reference.py:attention", within the folder
    gradient: Gradient | None

    @property
    def optional_tensors(self) -> tuple[str, ...]:
        """What may be absent at a call; in expressions, a name that is true where it is there."""
        return tuple(a.name for a in self.arguments if a.optional)

    def target(self, name: str) -> Target:
        """The target of that name, which is known to be there."""
        return next(target for target in self.targets if target.name == name)


@dataclass(frozen=True)
class Resources:
    """What ptxas gave a kernel: registers a thread, bytes spilled; the most over architectures."""

    registers: int
    spills: int


def _parameter(data: dict[str, Any]) -> Parameter:
    return Parameter(data["name"], parameter_kind(data), data["default"])


def _target(pack: Pack, data: dict[str, Any]) -> Target:
    return Target(
        name=data["name"],
        is_cuda=data["kind"] == "cuda",
        capability=data["capability"] or 0,
        exact=bool(data["exact"]),
        parameters=tuple(_parameter(p) for p in data["parameters"]),
        kernels=tuple(
            Kernel(
                *(k["key"], k.get("short"), k["parameters"], k["derived"], pack),
                shared_memory=k.get("shared_memory", 0),
                not_on=tuple(k.get("not_on", ())),
            )
            for k in data["kernels"]
        ),
        tuned=tuple(_tuned_row(row) for row in data.get("tuned", ())),
    )


def _tuned_row(data: dict[str, Any]) -> TunedRow:
    ranges = tuple(SizeRange(tuple(r["symbols"]), r["least"], r["most"]) for r in data["range"])
    return TunedRow(**{name: data[name] for name in _TUNED}, ranges=ranges)


def _trace(data: dict[str, Any]) -> Trace:
    return Trace(data["parameter"], {t["name"]: tuple(t["shape"]) for t in data["record"]})


def _family(pack: Pack, data: dict[str, Any]) -> Family:
    return Family(
        name=data["name"],
        pack=pack,
        summary=data["summary"],
        symbols=tuple(data["symbols"]),
        arguments=tuple(
            Argument(
                name=a["name"],
                role=a["role"],
                dims=tuple(str(d) for d in a.get("dims", ())),
                dtype=a["dtype"],
                optional=bool(a.get("optional", False)),
                mutated=bool(a.get("mutated", False)),
                on_host=bool(a.get("on_host", False)),
                default=a.get("default"),
                values=tuple(a.get("values", ())),
            )
            for a in data["arguments"]
        ),
        parameters=tuple(_parameter(p) for p in data["parameters"]),
        targets=tuple(_target(pack, t) for t in data["targets"]),
        trace=None if data["trace"] is None else _trace(data["trace"]),
        choices=tuple(Choice(row["when"], row["take"]) for row in data["choices"]),
        folder=Path(data["targets"][0]["spec"]).parent.as_posix(),
        reference=data["reference"],
        gradient=Gradient(**data["gradient"]) if data["gradient"] else None,
    )


def check_checkout(package: Path) -> None:
    """ImportError where the checkout that `package` lies in is not what was installed from it.

    For the source tree's `runtime` beside an installed extension.
    """
    checkout = package.parent
    (pack,) = (pack for pack in packs.all_packs() if pack.name == "kernelmint")
    generated = checkout / "generated/manifest.json"
    with _readable(pack, generated):
        data = json.loads(generated.read_text(encoding="utf-8"))
        fingerprints = {family["name"]: family["fingerprint"] for family in data["families"]}
    changed = packs.changed_sources(pack, checkout)
    if fingerprints != pack.generated:
        what = f"{generated} is not what {pack} was built from"
    elif changed:
        what = f"{packs.first_of(changed, checkout)} changed since {pack} was built"
    else:
        return
    raise ImportError(f"{what}: run `make build` (or `{REBUILD}`) in {checkout}")


@functools.cache
def _families(pack: Pack) -> dict[str, Family]:
    path = pack.manifest
    with _readable(pack, path):
        data = json.loads(path.read_text(encoding="utf-8"))
        for family in data["families"]:
            expected = pack.generated.get(family["name"])
            if family["fingerprint"] != expected:
                raise PackError(
                    f"{pack}: {path} is of the generated code {family['fingerprint']} of "
                    f"{family['name']}, but the pack was built from {expected}: reinstall it"
                )
        return {f["name"]: _family(pack, f) for f in data["families"]}


def families() -> Iterator[Family]:
    """The families of all usable packs."""
    return map(family, packs.families())


def family(name: str) -> Family:
    """The family of that name, which is known to be there: its pack's kernels, and those that were
    built by themselves."""
    pack = packs.owner(name)
    assert pack is not None
    return _merged(name, pack, packs.parts(name))


def of_pack(pack: Pack, name: str) -> Family:
    """A family as a pack's manifest has it."""
    return _families(pack)[name]


@functools.lru_cache(maxsize=256)
def _merged(name: str, pack: Pack, parts: tuple[Pack, ...]) -> Family:
    found = _families(pack)[name]
    targets = {target.name: target for target in found.targets}
    for part in parts:
        for target in _families(part)[name].targets:
            known = targets.get(target.name, target)
            kernels = {kernel.key: kernel for kernel in (*known.kernels, *target.kernels)}
            targets[target.name] = replace(known, kernels=tuple(kernels.values()))
    return replace(found, targets=tuple(targets.values()))


def check_same_family(name: str, known: Pack, new: Pack) -> None:
    """BuildError where two packs disagree about a family: what it takes, returns and traces."""
    for what in ("arguments", "symbols", "parameters", "trace"):
        if getattr(_families(known)[name], what) != getattr(_families(new)[name], what):
            raise BuildError(
                f"the {what} of {name} are not those of {known}: rebuild that pack, or start "
                "Python anew where it is of a folder that was loaded"
            )


@contextlib.contextmanager
def _readable(pack: Pack, path: Path) -> Iterator[None]:
    """Raises PackError where the file at `path` is absent, or not what a build writes there."""
    try:
        yield
    except FileNotFoundError:
        raise PackError(f"{pack}: there is no {path}: reinstall it") from None
    except PackError:
        raise
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise PackError(
            f"{pack}: {path} is damaged ({type(error).__name__}: {error}): reinstall it"
        ) from None


@functools.cache
def resources(pack: Pack) -> dict[str, Resources]:
    """A pack's ptxas.csv, by key; empty where it has no CUDA kernels."""
    path = pack.ptxas
    found: dict[str, Resources] = {}
    if not path.exists():
        return found
    with _readable(pack, path), path.open(newline="", encoding="utf-8") as file:
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
