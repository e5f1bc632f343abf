"""Specs as the rest of codegen sees them: checked, and frozen. codegen/spec/load.py makes them.

A part that the manifest has with the same members is the manifest's class. Rule, RecordTensor,
Trace and ChoiceRow stand in schema.py and manifest.py too: schema.py holds a file's texts before
they are checked, this module their expressions and places, and the manifest texts, which the
runtime reads without codegen's parser of specs.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from codegen.core import hardware, manifest
from codegen.core.architectures import Architecture, of_target
from codegen.core.dtypes import DTYPES
from codegen.core.expressions import (
    BOOL,
    DTYPE,
    FLOAT,
    INT,
    MAX_RESIDENT_BLOCKS,
    Expression,
    Kind,
    scalar_kind,
    scalar_kinds,
)
from codegen.core.manifest import DeclaredGradient, Gradient, Shard, SizeRange
from codegen.core.problems import Location
from codegen.core.words import did_you_mean
from codegen.spec.names import cpp_type_name, enum_type, taken

ParameterValue = bool | int | str
Number = bool | int | float


class ParameterType(str, enum.Enum):
    """The type of a parameter's values."""

    DTYPE = "dtype"
    INT = "int"
    BOOL = "bool"
    ENUM = "enum"

    @property
    def is_text(self) -> bool:
        """Returns whether a key holds the value itself."""
        return self in (ParameterType.DTYPE, ParameterType.ENUM)


class Role(enum.Enum):
    """The use of a tensor by a kernel."""

    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True)
class GeneratedFront:
    """A function that chooses a kernel by a call's arguments."""

    name: str
    takes: tuple[tuple[str, Expression], ...]  # parameters, over symbols and optional inputs
    flags: tuple[tuple[Parameter, ParameterValue | None], ...]  # callers pass them; defaults


@dataclass(frozen=True, kw_only=True)
class Parameter(manifest.Parameter):
    """A compile-time choice of a family or of one of its targets, with its place."""

    type: ParameterType
    values: tuple[ParameterValue, ...] | None
    option: str = ""  # the compiler option that it stands for, as the spec has it
    location: Location

    @property
    def kind(self) -> Kind:
        """Returns the parameter's kind in expressions."""
        if self.type is ParameterType.DTYPE:
            return DTYPE
        if self.type is ParameterType.ENUM:
            return Kind("text", tuple(map(str, self.values or ())))
        return BOOL if self.type is ParameterType.BOOL else INT

    @cached_property
    def _allowed(self) -> dict[object, None]:
        return dict.fromkeys(self.values or (DTYPES if self.type is ParameterType.DTYPE else ()))

    def check(self, value: object) -> str | None:
        """Returns why `value` is not a value of this parameter, or None."""
        if self.type is ParameterType.BOOL:
            fits = isinstance(value, bool)
        elif self.type is ParameterType.INT:
            fits = isinstance(value, int) and not isinstance(value, bool)
        else:
            fits = isinstance(value, str)
        if not fits:
            article = "an" if self.type in (ParameterType.INT, ParameterType.ENUM) else "a"
            return f"{value!r} is not {article} {self.type.value}"
        if self.type is ParameterType.INT and not -(2**31) < int(str(value)) < 2**31:
            return f"{value} does not fit into 32 bits"
        if self._allowed and value not in self._allowed:
            hint = did_you_mean(str(value), map(str, self._allowed))
            return f"'{value}' is not among the values of {self.name}{hint}"
        return None


@dataclass(frozen=True, eq=False)
class Rule:
    """A condition with its reason: parsed, and with the place that an error names."""

    that: Expression
    because: str
    location: Location


@dataclass(frozen=True)
class Derived:
    """A value computed from a configuration's parameters and the derived values above it."""

    name: str
    expression: Expression
    location: Location


class CompilerOption(NamedTuple):
    """A parameter that stands for an option of a target's compiler, and the option's flags: {} is
    the value; a bool's are given if it is true."""

    parameter: str
    flags: str


@dataclass(frozen=True)
class Dim:
    """One extent of a tensor: a symbol's, or an expression's."""

    expression: Expression
    symbol: str | None


@dataclass(frozen=True)
class Tensor:
    """A tensor argument; `dtype` is a dtype or the name of a dtype parameter, and `dims` are those
    in memory."""

    name: str
    role: Role
    dims: tuple[Dim, ...]
    dtype: str
    packed: int | None  # so many elements of the spec's last extent lie in one of the tensor's
    optional: bool  # an input that may be None, or an output that the caller asks for
    mutated: bool  # an input that the kernel changes
    on_host: bool  # it is in the CPU's memory, whatever the target
    strides: str  # a value of the enum Strides, runtime/include/registry.h
    alignment: Expression | None  # bytes, over the family's constants; None: the target's
    fill: Number | None  # the value of an output's elements before the kernel runs
    like: str  # the input whose order of dimensions in memory an output has; "": in order
    extent: str  # the output that holds the true first extent of an output; "": the first is it
    length: Dim | None  # the number of tensors of a list; None: it is no list
    flat: bool  # the one extent of a list's tensors is the number of their elements
    doc: str


@dataclass(frozen=True)
class RecordTensor:
    """A tensor of a trace's record, f32; its extents are parsed, since C++ is made of them."""

    name: str
    shape: tuple[Expression, ...]  # over the family's parameters
    doc: str


@dataclass(frozen=True)
class Trace:
    """The record of kernels built with `parameter`, which they write if they are asked to: a grid
    of records. Its extents are parsed, and its size and its rule are derived here."""

    parameter: str
    grid: tuple[Expression, ...]  # over symbols and the family's parameters
    record: tuple[RecordTensor, ...]  # one after another
    floats: Expression  # the record's size
    is_whole: Rule  # a traced configuration's record has elements; a constraint of each target


@dataclass(frozen=True)
class Scalar:
    """A number, or one of an enum's texts, that the caller passes, and must pass without a
    default."""

    name: str
    dtype: str
    default: Expression | None  # an enum's: its place among the values
    values: tuple[str, ...]  # an enum's texts
    of_gradient: bool  # an argument of the gradients only: kernels do not have it
    length: int  # the number of a list's numbers; 0: it is no list
    doc: str

    @property
    def kind(self) -> Kind:
        """Returns the scalar's kind in expressions."""
        return scalar_kind(self)


def integers(scalars: Iterable[Scalar]) -> dict[str, Kind]:
    """Returns the scalars that are integers or bools, as expressions have them."""
    return scalar_kinds(scalar for scalar in scalars if scalar.kind in (INT, BOOL))


@dataclass(frozen=True)
class Feature:
    """A piece of a short form: a word for a bool, or words and a {} for each of some ints."""

    pattern: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class ShortForm:
    """Another way to write a configuration: the values in parentheses, then the features."""

    values: tuple[str, ...]
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class Bound:
    """CUDA's bounds of a launch, whatever the device."""

    expression: Expression
    least: int
    most: int
    because: str
    location: Location


@dataclass(frozen=True)
class Workspace:
    """Scratch memory of a target; `dtype` is a dtype or the name of a dtype parameter."""

    name: str
    dtype: str
    elements: Expression  # 0 if it is not needed
    fill: Number | None  # the value of its elements before the kernel runs
    note: str  # shape, condition and contents, on one line


@dataclass(frozen=True)
class Launch:
    """A generated CUDA launch."""

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_memory: Expression
    cluster: tuple[Expression, ...]  # none: no clusters
    dependent: Expression
    cooperative: Expression
    bounds: tuple[Bound, ...]  # bounds that a configuration decides

    @property
    def asks_occupancy(self) -> bool:
        """Returns whether the grid names the number of blocks that a device holds at once."""
        return any(MAX_RESIDENT_BLOCKS in extent.names for extent in self.grid)


@dataclass(frozen=True)
class Needs:
    """The needs of a thread block of a CUDA kernel, if a configuration decides them: those of
    `launch`, else the derived values `threads` and `smem_bytes`."""

    threads: Expression | None
    shared_memory: Expression | None  # bytes, dynamic


@dataclass(frozen=True)
class Wgmma:
    """The wgmma products that a kernel uses: their N, and the dtype of their operands."""

    dtype: str  # bf16, fp16, or a dtype parameter
    products: tuple[tuple[str, tuple[Expression, ...]], ...]  # by the wrapper that makes them


@dataclass(frozen=True)
class BuildPath:
    """A file or folder that a build reads: of a folder of specs, a Python package or an archive."""

    entry: Mapping[str, str]  # the manifest's entry, which codegen/sources/build_paths.py finds
    location: Location

    @property
    def specs(self) -> str | None:
        """Returns the name of the folder of specs that `path` is relative to; None for packages and
        archives."""
        return self.entry.get("specs")

    @property
    def path(self) -> str:
        """Returns the path, relative to that folder, or within the package or archive."""
        return self.entry["path"]

    @property
    def is_excerpt(self) -> bool:
        """Returns whether the path is a folder of a header that is written of definitions of a
        file."""
        return "excerpt" in self.entry


@dataclass(frozen=True)
class BuildSettings:
    """Options of compiling and linking beyond the header."""

    flags: tuple[str, ...] = ()  # command lines of a compiler: an option each, with its value
    definitions: tuple[str, ...] = ()  # NAME, or NAME=value
    include: tuple[BuildPath, ...] = ()
    libraries: tuple[BuildPath | str, ...] = ()  # a str as -l takes it
    sources: tuple[BuildPath, ...] = ()
    archives: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # shared members

    def __add__(self, other: BuildSettings) -> BuildSettings:
        """Returns these settings, followed by the other's."""
        return BuildSettings(
            self.flags + other.flags,
            self.definitions + other.definitions,
            self.include + other.include,
            self.libraries + other.libraries,
            self.sources + other.sources,
            {**self.archives, **other.archives},
        )

    @property
    def paths(self) -> tuple[BuildPath, ...]:
        """Returns all files and folders that the settings name."""
        libraries = (entry for entry in self.libraries if isinstance(entry, BuildPath))
        return (*self.include, *libraries, *self.sources)


@dataclass(frozen=True, eq=False)
class SetPart:
    """Part of a set: values of each parameter, in spec order, and rules of its own.

    `strict`: a configuration that was written out, which the constraints may not exclude.
    """

    values: tuple[tuple[ParameterValue, ...], ...]
    prune: tuple[Rule, ...]
    strict: bool
    location: Location


@dataclass(frozen=True, eq=False)
class ConfigurationSet:
    """A named set of configurations."""

    name: str
    parts: tuple[SetPart | str, ...]  # a str includes another set
    location: Location

    @property
    def own_parts(self) -> Iterator[SetPart]:
        """Returns the parts that are written in this set itself."""
        return (part for part in self.parts if isinstance(part, SetPart))


class Configuration(NamedTuple):
    """One kernel to be: its key, its parameters and its derived values.

    There may be 100,000 of them: names are put to the values when they are asked for.
    """

    target: Target
    key: str
    tokens: str  # the last part of the key
    values: tuple[ParameterValue, ...]
    numbers: tuple[Number, ...]  # derived values, then predictions

    @property
    def parameters(self) -> dict[str, ParameterValue]:
        """Returns the parameters' values by name, in the order of the key."""
        return dict(zip(self.target.parameter_names, self.values, strict=True))

    @property
    def derived(self) -> dict[str, Number]:
        """Returns the derived values by name, in spec order."""
        return dict(zip(self.target.derived_names, self.numbers, strict=False))  # then predictions

    @property
    def predicted(self) -> dict[str, Number]:
        """Returns the figures that ptxas is expected to print, by name: registers, shared_bytes."""
        names = self.target.predicted_names
        return dict(zip(names, self.numbers[len(self.numbers) - len(names) :], strict=True))

    @property
    def everything(self) -> dict[str, Number | str]:
        """Returns parameters, derived values and predictions by name."""
        return {**self.parameters, **self.derived, **self.predicted}

    @property
    def flags(self) -> tuple[str, ...]:
        """Returns the words of the flags that its compiler options stand for."""
        values = self.parameters
        texts = (
            option.flags.format(values[option.parameter])
            for option in self.target.options
            if values[option.parameter] is not False
        )
        return tuple(word for text in texts for word in shlex.split(text))

    @property
    def threads(self) -> int:
        """Returns the threads of a block; 0 if a call decides them, or the block's shared
        memory."""
        needs = self.target.needs
        if needs.threads is None or needs.shared_memory is None:
            return 0
        return int(needs.threads.evaluate(self.everything))

    @property
    def shared_memory(self) -> int:
        """Returns the bytes of dynamic shared memory of a block, as far as they are known before a
        call."""
        need = self.target.needs.shared_memory
        return 0 if need is None else int(need.evaluate(self.everything))

    @property
    def not_on(self) -> tuple[int, ...]:
        """Returns the known compute capabilities that its target runs on and that cannot launch
        it."""
        needed = self.shared_memory
        return tuple(
            capability
            for capability in self.target.capabilities
            if needed > hardware.LIMITS[capability].shared_memory_block
        )

    @property
    def type_name(self) -> str:
        """Returns the name of its C++ type, within the target's namespace."""
        return cpp_type_name(self.tokens, self.target.taken_names)


@dataclass(frozen=True, kw_only=True)
class TunedRow(manifest.TunedRow):
    """A row of <target>.tuned.yaml, with its place."""

    configuration: Mapping[str, ParameterValue]
    location: Location

    @property
    def values(self) -> tuple[ParameterValue, ...]:
        """Returns the values that the row's key stands for, in the order of the spec."""
        return tuple(self.configuration.values())


@dataclass(frozen=True)
class Shape:
    """A point that a tuner measures: a call's sizes, scalars and optional inputs for some
    parameters; and the calls it stands for."""

    parameters: tuple[tuple[str, ParameterValue], ...]
    sizes: tuple[tuple[str, int], ...]  # all symbols but those of optional inputs that are left out
    scalars: tuple[tuple[str, Number], ...]
    ranges: tuple[SizeRange, ...]
    given: tuple[str, ...] = ()  # optional inputs
    when: str | None = None  # a condition on the calls, beside their sizes

    @property
    def call(self) -> dict[str, Number | str]:
        """Returns the call that is measured, as people are shown it."""
        return {
            **dict(self.parameters),
            **dict(self.sizes),
            **dict(self.scalars),
            **dict.fromkeys(self.given, True),
        }


@dataclass(frozen=True)
class Shapes:
    """A <target>.shapes.yaml."""

    shapes: tuple[Shape, ...]
    cost: Expression | None  # an estimate of the time, in any unit
    within: float  # configurations that cost more than so many times the least are left out


@dataclass(frozen=True, eq=False)
class Target:
    """The computation of a family on one target."""

    family: str
    name: str
    header: str  # path in includes: relative to the spec folder
    kernel: str | None
    shared_parameters: tuple[Parameter, ...]  # the family's
    own_parameters: tuple[Parameter, ...]
    options: tuple[CompilerOption, ...]
    derived: tuple[Derived, ...]  # the family's first
    predicted: tuple[Derived, ...]  # registers and shared_bytes, which constraints may name
    constraints: tuple[Rule, ...]  # also limits; conditions of the hardware, wgmma and a trace
    workspace: tuple[Workspace, ...]
    launch: Launch | None
    needs: Needs
    wgmma: Wgmma | None
    requires: tuple[Rule, ...]
    alignment: Expression | None  # bytes, over constants; None: the element's size
    files: int | None  # about how many hold the kernels; None: as many as suit their number
    sets: tuple[ConfigurationSet, ...]
    short: ShortForm | None
    budget: tuple[tuple[str, int], ...]
    architecture_budgets: tuple[manifest.ArchitectureBudget, ...]
    build: BuildSettings  # the family's, its sources excepted, then the target's
    file: str  # <spec folder>/<folder>/<target>.yaml, for headers of generated files
    display: str  # the same file, as people reach it
    tuned: tuple[TunedRow, ...] = ()
    shapes: Shapes | None = None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Returns all parameters, in the order of the key."""
        return self.shared_parameters + self.own_parameters

    @property
    def derived_expressions(self) -> dict[str, Expression]:
        """Returns the derived values, by name."""
        return {derived.name: derived.expression for derived in self.derived}

    def by_name(self, values: Sequence[ParameterValue]) -> dict[str, ParameterValue]:
        """Returns a configuration's values, which stand in spec order, by the names of the
        parameters."""
        return dict(zip(self.parameter_names, values, strict=True))

    @cached_property
    def parameter_names(self) -> tuple[str, ...]:
        """Returns the parameters' names, in the order of the key."""
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def derived_names(self) -> tuple[str, ...]:
        """Returns the derived values' names."""
        return tuple(derived.name for derived in self.derived)

    @cached_property
    def predicted_names(self) -> tuple[str, ...]:
        """Returns the names of the predictions."""
        return tuple(predicted.name for predicted in self.predicted)

    @property
    def computed(self) -> tuple[Derived, ...]:
        """Returns the derived values and the predictions, in the order of their computation."""
        return self.derived + self.predicted

    @cached_property
    def taken_names(self) -> frozenset[str]:
        """Returns the names that no configuration's C++ type may have."""
        names = self.parameter_names
        return taken((*names, *self.derived_names, *map(enum_type, names)))

    @property
    def launch_bounds(self) -> tuple[Bound, ...]:
        """Returns the bounds of a configuration's launch, if the spec has one."""
        return () if self.launch is None else self.launch.bounds

    def budget_on(self, code: str | None) -> dict[str, int]:
        """Returns the limits of its kernels compiled for an architecture: `sm_90`, or `90`."""
        return manifest.budget_on(dict(self.budget), self.architecture_budgets, code)

    @property
    def is_cuda(self) -> bool:
        """Returns whether nvcc compiles the target."""
        return self.name != "cpu"

    @cached_property
    def architecture(self) -> Architecture | None:
        """Returns the architecture that a CUDA target is named after; None for the CPU."""
        return of_target(self.name)

    @property
    def capability(self) -> int:
        """Returns the least compute capability, 80 for 8.0; 0 for the CPU."""
        return self.architecture.capability if self.architecture else 0

    @cached_property
    def capabilities(self) -> tuple[int, ...]:
        """Returns the known compute capabilities that the target runs on; none for the CPU."""
        return hardware.capabilities(self.architecture) if self.architecture else ()


@dataclass(frozen=True)
class ChoiceRow:
    """A row of choices.yaml: if its condition holds, kernels with these values come first. The
    condition is parsed, since a tuner evaluates it."""

    when: Expression
    take: tuple[tuple[str, ParameterValue], ...]


@dataclass(frozen=True, eq=False)
class Family:
    """A computation, and the targets it runs on."""

    name: str
    summary: str
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    argument_order: tuple[str, ...]
    symbols: tuple[str, ...]
    element_symbols: tuple[str, ...]  # extents of lists' tensors, at each place of the lists
    call_scope: Mapping[str, Kind]  # symbols, and optional tensors: true if they are passed
    parameters: tuple[Parameter, ...]
    derived: tuple[Derived, ...]  # shared by every target
    constraints: tuple[Rule, ...]  # conditions of its tensors' alignments and its trace
    requires: tuple[Rule, ...]
    trace: Trace | None
    build: BuildSettings
    reference: str | None
    gradients: tuple[Gradient | DeclaredGradient, ...]
    shards: tuple[Shard, ...]
    operations: Expression | str | None  # or "module:function"
    # Modules, as they are imported, and a function of each; "": generated, in the family's face.
    fronts: tuple[tuple[str, str], ...]
    generated_front: GeneratedFront | None
    choices: tuple[ChoiceRow, ...]
    targets: tuple[Target, ...]
    folder: str  # relative to the spec folder: <family>, or <group>/<family>
    file: str

    @property
    def sizes(self) -> dict[str, Kind]:
        """Returns the names that the size of a workspace or a launch may use, beside constants:
        symbols, optional tensors, and the kernels' scalars other than floats."""
        scalars = (s for s in self.scalars if s.kind != FLOAT and not s.of_gradient)
        return {**self.call_scope, **scalar_kinds(scalars)}
