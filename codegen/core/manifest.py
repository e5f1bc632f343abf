"""manifest.json: the contents of a generated tree and their sources, for check, CMake, the reports
and the runtime. Its classes have its members; `text` writes it, and `read` reads it. Standard
library only."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from codegen.core import as_json
from codegen.core.architectures import of_code, of_target
from codegen.core.as_json import left_out, named
from codegen.core.staleness import VERSION

_HOLDERS = (dict, list, tuple)
_NESTED = ("families", "targets")
_WIDTH = 100  # characters

Value = bool | int | float | str


@dataclass(frozen=True)
class Selection:
    """A choice of configurations: a set's, filtered by an expression."""

    set_name: str = named("set", default="default")
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A condition with its reason."""

    that: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of configurations."""

    name: str
    type: str  # dtype, int, bool or enum
    token: str | None
    values: tuple[Value, ...] | None
    default: bool | int | str | None  # the value if it is left out; None: any of its values
    doc: str


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor argument; `dtype` is a dtype or the name of a dtype parameter."""

    name: str
    role: str  # input or output
    dims: tuple[str, ...]
    dtype: str
    packed: int | None = left_out(None)  # so many of the spec's elements lie in one of the tensor's
    optional: bool  # an input that may be None, or an output that the caller asks for
    mutated: bool  # an input that kernels change
    on_host: bool  # an input in the CPU's memory, whatever the target
    like: str = left_out("")  # the input whose order of dimensions in memory an output has
    extent: str = left_out("")  # the output that holds an output's true first extent
    length: str = left_out("")  # the number of tensors of a list: a symbol or an expression
    flat: bool = left_out(False)  # the one extent of a list's tensors is their number of elements
    doc: str

    @property
    def sizes(self) -> tuple[str, ...]:
        """Returns the texts whose values a call's tensor gives: its extents, or a list's length."""
        return (self.length,) if self.length else self.dims


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A number, or one of an enum's texts, that the caller passes."""

    name: str
    role: str  # scalar
    dtype: str
    default: str | None  # an expression; None: it must be passed
    values: tuple[str, ...] = left_out(())  # an enum's texts
    length: int = left_out(0)  # the number of a list's numbers
    doc: str


@dataclass(frozen=True, kw_only=True)
class RecordTensor:
    """A tensor of a trace's record, f32."""

    name: str
    shape: tuple[str, ...]  # expressions over parameters
    doc: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The record of kernels with `parameter`, which they write when they are asked to: a grid of
    records of f32."""

    parameter: str
    grid: tuple[str, ...]
    record: tuple[RecordTensor, ...]


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Options of compiling and linking beyond the header; codegen/sources/build_paths.py finds the
    files and folders that the entries name."""

    flags: tuple[str, ...] = ()  # words of a command line
    definitions: tuple[str, ...] = ()
    include: tuple[Mapping[str, str], ...] = ()
    libraries: tuple[str | Mapping[str, str], ...] = ()  # a string as -l takes it
    sources: tuple[Mapping[str, str], ...] = ()


_NO_BUILD = BuildSettings()


@dataclass(frozen=True, kw_only=True)
class Front:
    """A function that a family offers Python beyond its kernels, and the module that defines it; ""
    for a generated function."""

    module: str
    function: str
    takes: tuple[str, ...] = left_out(())  # parameters that it decides; some targets may lack them


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """A function that gives a family's gradients."""

    module: str  # name in imports
    function: str
    inputs: tuple[str, ...]  # inputs that have one
    outputs: tuple[str, ...]  # the outputs whose gradients it takes
    keeps: tuple[str, ...]  # optional outputs that it needs
    when: str = left_out("True")  # for which calls: an expression


@dataclass(frozen=True, kw_only=True)
class Passed:
    """The value that a family's gradient kernel is passed as one of its tensors."""

    what: str  # input, output or gradient (of an output) of the other, zeros, or nothing
    name: str = left_out("")  # the input's or output's
    contiguous: bool = left_out(False)  # passed as a contiguous tensor, whatever its layout
    shape: tuple[str, ...] = left_out(())  # extents of zeros: expressions over the other's sizes
    dtype: str = left_out("")  # dtype of zeros, or a dtype parameter of the other


@dataclass(frozen=True, kw_only=True)
class DeclaredGradient:
    """A family of the same pack whose kernels give a family's gradients."""

    family: str
    inputs: tuple[str, ...]  # inputs that have one
    outputs: tuple[str, ...]  # whose gradients are passed
    keeps: tuple[str, ...]  # optional outputs that are passed
    tensors: tuple[Passed, ...]  # in the order of its inputs
    scalars: tuple[str | None, ...]  # in its order: expressions; None leaves one to its default
    parameters: Mapping[str, str]  # the kernel's: expressions
    returns: Mapping[str, str]  # by input: its output, or its tensor that is changed in place
    requires: tuple[Rule, ...] = left_out(())  # conditions of a call that is differentiated
    when: str = left_out("True")  # for which calls: an expression


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Several gradients; a call has the first whose condition holds and that has a gradient of
    every input that requires grad."""

    cases: tuple[Gradient | DeclaredGradient, ...]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Symbols along which a call falls apart, if the condition holds."""

    along: tuple[str, ...]
    when: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A row of choices.yaml: if its condition holds, kernels with these values come first."""

    when: str
    take: Mapping[str, Value]


@dataclass(frozen=True)
class SizeRange:
    """A range of a symbol, or of a product of symbols; both ends belong to it."""

    symbols: tuple[str, ...]
    least: int
    most: int

    @property
    def text(self) -> str:
        """Returns the range's symbols, as they are written."""
        return " * ".join(self.symbols)


@dataclass(frozen=True, kw_only=True)
class TunedRow:
    """A row of <target>.tuned.yaml: on this device, for these calls, the fastest kernel."""

    device: str
    parameters: Mapping[str, Value]  # the parameters that a caller asks for
    when: str | None = left_out(None)  # a condition on calls, beside their sizes
    ranges: tuple[SizeRange, ...] = named("range")
    take: str  # a key, which the pack may not hold
    configuration: Mapping[str, Value]  # the kernel's parameters
    milliseconds: float
    runner_up: str | None
    runner_up_milliseconds: float | None
    tie: bool


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A configuration that was generated."""

    key: str
    short: str | None = left_out(None)  # another way to write it, for targets whose spec has one
    parameters: Mapping[str, Value]
    derived: Mapping[str, Value]
    symbol: str  # a part of all its mangled names
    file: str
    # Threads of a block, if `launch` says so and no derived values do; 0 if a call decides them.
    threads: int = left_out(0)
    shared_memory: int = left_out(0)  # bytes; also if some architecture of its target has fewer
    flags: tuple[str, ...] = left_out(())  # words of its compiler options, after its target's
    predicted: Mapping[str, Value] | None = left_out(None)  # figures that ptxas should print


@dataclass(frozen=True, kw_only=True)
class ArchitectureBudget:
    """Limits that hold for one architecture, in place of the target's of the same names."""

    architecture: str  # sm90, sm90a
    limits: Mapping[str, int]


def budget_on(
    budget: Mapping[str, int], budgets: Iterable[ArchitectureBudget], code: str | None
) -> dict[str, int]:
    """Returns the limits of kernels compiled for an architecture: `sm_90`, or `90`."""
    compiled = of_code(code or "")
    return dict(budget) | {
        name: most
        for own in budgets
        if compiled is not None and of_target(own.architecture) == compiled
        for name, most in own.limits.items()
    }


@dataclass(frozen=True, kw_only=True)
class Target:
    """A way to compute a family, and the kernels that were generated for it."""

    name: str
    kind: str  # cuda or cpu
    capability: int  # 80 for 8.0; 0 for the CPU
    alignment: str | None
    spec: str
    parameters: tuple[Parameter, ...]  # the target's, beside the family's
    derived: tuple[str, ...]
    constraints: tuple[Rule, ...]
    requires: tuple[Rule, ...]
    budget: Mapping[str, int]
    architecture_budgets: tuple[ArchitectureBudget, ...] = left_out(())
    build: BuildSettings = left_out(_NO_BUILD)  # noqa: RUF009 - a field
    tuned: tuple[TunedRow, ...] = left_out(())
    kernels: tuple[Kernel, ...]

    def budget_on(self, code: str | None) -> dict[str, int]:
        """Returns the limits of its kernels compiled for an architecture: `sm_90`, or `90`."""
        return budget_on(self.budget, self.architecture_budgets, code)

    @property
    def is_cuda(self) -> bool:
        """Returns whether the target takes CUDA tensors."""
        return self.kind == "cuda"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of kernels: arguments, parameters that all targets share, targets in dispatch
    order."""

    name: str
    fingerprint: str
    folder: str  # the spec's, within the folder of specs: "hstu/block_sparse"
    summary: str
    operators: tuple[str, ...]  # torch.library schemas
    symbols: tuple[str, ...]
    arguments: tuple[Tensor | Scalar, ...]
    parameters: tuple[Parameter, ...]  # shared by all targets
    requires: tuple[Rule, ...]
    trace: Trace | None
    build: BuildSettings = left_out(_NO_BUILD)  # noqa: RUF009 - a field
    reference: str | None  # "reference.py:f" within the folder, "../reference.py:f" in its group's
    gradient: Gradient | DeclaredGradient | Gradients | None
    shards: tuple[Shard, ...] = left_out(())
    operations: str | None = left_out(None)  # an expression, or "module:function"
    fronts: tuple[Front, ...]
    choices: tuple[Choice, ...]
    targets: tuple[Target, ...]

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Returns the arguments that are tensors."""
        return tuple(a for a in self.arguments if isinstance(a, Tensor))

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Returns the tensors that are read."""
        return tuple(t for t in self.tensors if t.role == "input")

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """Returns the tensors that are returned."""
        return tuple(t for t in self.tensors if t.role == "output")

    @cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        """Returns the scalar arguments."""
        return tuple(a for a in self.arguments if isinstance(a, Scalar))

    @property
    def gradients(self) -> tuple[Gradient | DeclaredGradient, ...]:
        """Returns the sources of the family's gradients, in their order."""
        if isinstance(self.gradient, Gradients):
            return self.gradient.cases
        return () if self.gradient is None else (self.gradient,)

    @cached_property
    def likes(self) -> dict[int, int]:
        """Returns, by place, the tensors that lie in memory as another tensor does, and that
        tensor's place."""
        places = {tensor.name: place for place, tensor in enumerate(self.tensors)}
        return {places[t.name]: places[t.like] for t in self.tensors if t.like}

    @property
    def optional_tensors(self) -> tuple[str, ...]:
        """Returns the tensors that a call may leave out; in expressions, a tensor's name is true if
        it is passed."""
        return tuple(t.name for t in self.tensors if t.optional)

    @property
    def spec_folder(self) -> str:
        """Returns the folder of the family's spec, as its author has it:
        "kernel_specs/hstu/block_sparse"."""
        return PurePosixPath(self.targets[0].spec).parent.as_posix()

    @cached_property
    def _taken(self) -> frozenset[str]:
        return frozenset(name for front in self.fronts for name in front.takes)

    def asked_of(self, parameters: Container[str], values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values that a call asks of a target with these parameters: without open ones,
        and without those that a front's rule decides for other targets."""
        return {
            name: value
            for name, value in values.items()
            if value is not None and (name in parameters or name not in self._taken)
        }

    def target(self, name: str) -> Target:
        """Returns the target of that name, which the family has."""
        return next(target for target in self.targets if target.name == name)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest. Specs and outputs are named relative to the tree, each with the hash of its
    contents."""

    version: int = VERSION
    selection: Selection
    spec_dirs: tuple[str, ...]
    inputs: dict[str, str]
    outputs: dict[str, str]
    families: tuple[Family, ...]

    @property
    def kernels(self) -> Iterator[tuple[Family, Target, Kernel]]:
        """Yields each generated kernel with its family and target."""
        for family in self.families:
            for target in family.targets:
                for kernel in target.kernels:
                    yield family, target, kernel

    @property
    def files(self) -> dict[str, str]:
        """Returns the file that instantiates each key."""
        return {kernel.key: kernel.file for _, _, kernel in self.kernels}


def read(path: Path) -> Manifest:
    """Reads the manifest in a file. Raises OSError, or ValueError for a text that is not a manifest
    of this version."""
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> Manifest:
    """Parses the text of a manifest. Raises ValueError."""
    return as_json.read(Manifest, _parsed(text))


class LazyFamilies:
    """The families of a manifest, each of which is read when it is first asked for.

    Raises OSError or ValueError, also later: for a family that is not what codegen writes.
    """

    def __init__(self, path: Path) -> None:
        families = _parsed(path.read_text(encoding="utf-8"))["families"]
        self._unread = {str(entry["name"]): (i, entry) for i, entry in enumerate(families)}
        self.fingerprints = {name: e["fingerprint"] for name, (_, e) in self._unread.items()}
        self._read: dict[str, Family] = {}

    def __getitem__(self, name: str) -> Family:
        """Returns the family of that name."""
        if name not in self._read:
            place, entry = self._unread[name]
            try:
                self._read[name] = as_json.read(Family, entry)
            except as_json.FormError as error:
                raise error.within(place).within("families") from None
        return self._read[name]


def _parsed(text: str) -> Any:
    data = as_json.parse(text)
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise ValueError(f"got version {version!a:.20}, expected {VERSION}")
    return data


def text(manifest: Manifest) -> str:
    """Returns the text of manifest.json."""
    return _text(as_json.form(manifest), "\n") + "\n"


def _text(value: Any, line: str, is_nested: bool = False) -> str:
    """Returns JSON. Containers of plain values are on one line if they fit; else an object has a
    line for each member, and a list for each item, which is whole unless it is a family or a
    target. `line` begins a line at the value's depth."""
    if not isinstance(value, _HOLDERS):
        return _line(value)
    members = value.values() if isinstance(value, dict) else value
    is_plain = not any(isinstance(member, _HOLDERS) for member in members)
    if is_plain and len(whole := _line(value)) <= _WIDTH:
        return whole
    inner = line + " "
    if isinstance(value, dict):
        items = [f"{_line(n)}: {_text(m, inner, n in _NESTED)}" for n, m in value.items()]
    else:
        items = [_text(item, inner) if is_nested else _line(item) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}{inner}{f',{inner}'.join(items)}{line}{closing}"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
