"""The files of a target: its launch, its table, its shards of kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from codegen.emit.cpp import comment, dtype_enumerator, is_wide, number, translate
from codegen.emit.cpp_names import (
    ConfigNames,
    TableNames,
    asks_device,
    evaluated,
    requirements,
    table_number,
)
from codegen.emit.render import render
from codegen.space.expand import TargetSpace
from codegen.spec.expressions import DTYPES, Expression
from codegen.spec.keys import tokens_of
from codegen.spec.model import (
    Configuration,
    Family,
    Launch,
    Parameter,
    ParameterType,
    ParameterValue,
    Target,
    Wgmma,
)
from codegen.spec.names import cpp_name, enum_type

# A file is named for what its kernels compute, which a spec's first parameters say, as in
# sm80_bf16_d128_causal_3.cu; the number tells apart the files over which such kernels are spread.
_NAMED_PARAMETERS = 3
_MOST_CHARACTERS = 64
# While nothing was measured: a file holds up to so many kernels, twice as many once a target would
# have more than this many files.
_MOST_KERNELS = 8
_MOST_FILES = 256
_MEASURED_SECONDS = 8  # that the kernels of a file may take, where its headers take less


@dataclass(frozen=True)
class Spread:
    """How a target's kernels are spread over files."""

    named: int  # leading parameters, whose values the kernels of a file share
    least_splits: int  # files are 2 to this power at least, where kernels are that many
    most_kernels: int  # of a file


def spread(target: Target, configurations: Sequence[Configuration]) -> Spread:
    """How so many kernels are spread: by what compiling them costs, where costs.yaml says it."""
    count, cost = len(configurations), target.cost
    if cost is not None:
        most = 1
        while 2 * most * cost.kernel_seconds <= max(cost.file_seconds, _MEASURED_SECONDS):
            most *= 2
    else:
        most = _MOST_KERNELS
        while count > most * _MOST_FILES:
            most *= 2
        if most == _MOST_KERNELS:
            return Spread(_NAMED_PARAMETERS, 3 if target.is_cuda else 1, most)
    named = _NAMED_PARAMETERS
    while named and most * len({c.values[:named] for c in configurations}) > count:
        named -= 1
    return Spread(named, 0, most)


def hash_of(key: str) -> int:
    """A stable number, by which a kernel finds its file."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def split(
    configurations: Sequence[Configuration], most: int, least_splits: int
) -> Iterable[tuple[int, int, list[Configuration]]]:
    """The kernels in parts of at most `most`: how often each was split, its number, its kernels.

    A part that holds too many is split by the next bit of its keys' hashes, and no other: a kernel
    more touches one file, or splits it in two. Numbers are the parts' lowest bits, so no two are
    alike.
    """
    hashed = [(hash_of(c.key), c) for c in configurations]
    parts = [(0, 0, hashed)]
    while parts:
        splits, number, part = parts.pop()
        if splits >= least_splits and len(part) <= most:
            yield splits, number, [c for _, c in part]
            continue
        for bit in (1, 0):  # the lower number comes off the stack first
            rest = [entry for entry in part if entry[0] >> splits & 1 == bit]
            if rest:
                parts.append((splits + 1, number | bit << splits, rest))


@dataclass(frozen=True)
class _Member:
    declaration: str
    comment: str


def args(target: Target) -> str:
    """<target>_args.h: the family's Args and the target's workspace."""
    members = [
        _Member(f"{_pointer(part.dtype)} {part.name};", comment(part.note))
        for part in target.workspace
    ]
    return render("target_args.h", target.file, target=target, members=members)


def _pointer(dtype: str) -> str:
    return f"{dtype if dtype in DTYPES else 'void'}*"  # void: a dtype parameter's


def _args_type(target: Target) -> str:
    """The type of what a kernel of the target is given, within namespace kernelmint."""
    return f"{target.family}::{target.name}::Args" if target.workspace else f"{target.family}::Args"


def _args_header(target: Target) -> str:
    return f"{target.family}/{f'{target.name}_' if target.workspace else ''}args.h"


def _traced_args_type(target: Target) -> str:
    return f"{target.family}::TracedArgs<kernelmint::{_args_type(target)}>"


def _is_traced(family: Family, configuration: Configuration) -> bool:
    return family.trace is not None and bool(configuration.parameters[family.trace.parameter])


def launch(family: Family, target: Target, spec: Launch) -> str:
    """<target>_launch.cuh: the launch that the spec describes."""
    tensors = {tensor.name for tensor in family.tensors}
    names = ConfigNames(target.parameters, target.derived_expressions, family.sizes, tensors)

    def extents(expressions: Sequence[Expression]) -> str:
        return f"{{{', '.join(translate(expression, names) for expression in expressions)}}}"

    fields = [("grid", extents(spec.grid)), ("block", extents(spec.block))]
    if spec.shared_memory.text != "0":
        fields.append(("shared_memory", translate(spec.shared_memory, names)))
    if spec.cluster:
        fields.append(("cluster", extents(spec.cluster)))
    if spec.dependent.text != "false":
        fields.append(("dependent", translate(spec.dependent, names)))
    return render(
        "launch.cuh",
        target.file,
        family=target.family,
        header=target.header,
        kernel=target.kernel,
        fields=fields,
    )


def wgmma(chosen: TargetSpace, spec: Wgmma) -> str:
    """<target>_wgmma.cuh: ptx::Wgmma for the products of the chosen configurations."""
    target = chosen.target
    wrappers: dict[tuple[str, int], set[str]] = {}  # by (dtype, N)
    for configuration in chosen.configurations:
        values = configuration.everything
        dtype = str(values.get(spec.dtype, spec.dtype))
        for wrapper, columns in spec.products:
            for n in columns:
                wrappers.setdefault((dtype, n.evaluate(values)), set()).add(wrapper)
    return render(
        "wgmma.cuh",
        target.file,
        products=[(dtype, n, wrappers[dtype, n]) for dtype, n in sorted(wrappers)],
    )


class _TableRow(NamedTuple):
    restriction: str
    key: str
    type_name: str
    parameters: str


@dataclass(frozen=True)
class _WorkspaceRow:
    name: str
    dtype_parameter: int | None
    dtype: str | None  # where it is no parameter's
    elements: str
    zeroed: bool
    note: str
    pointer: str


def table(family: Family, chosen: TargetSpace) -> str:
    """<target>_table.cpp: the kernels and where their code is."""
    target = chosen.target
    by_name = {parameter.name: parameter for parameter in target.parameters}
    seen: dict[tuple[str, ParameterValue], str] = {}

    def row(configuration: Configuration) -> str:
        texts = []
        for entry in zip(target.parameter_names, configuration.values, strict=True):
            text = seen.get(entry)
            if text is None:
                text = seen[entry] = str(table_number(by_name[entry[0]], entry[1]))
            texts.append(text)
        return ", ".join(texts)

    names = TableNames(family, target)
    dtypes = target.parameter_names
    workspace = [
        _WorkspaceRow(
            part.name,
            dtypes.index(part.dtype) if part.dtype in dtypes else None,
            None if part.dtype in dtypes else dtype_enumerator(part.dtype),
            evaluated(part.elements, names, "std::int64_t"),
            part.zeroed,
            part.note,
            _pointer(part.dtype),
        )
        for part in target.workspace
    ]
    return render(
        "table.cpp",
        target.file,
        family=target.family,
        target=target,
        is_cuda=target.is_cuda,
        alignment=(
            evaluated(target.alignment, names, "std::int64_t") if target.alignment else "nullptr"
        ),
        num_parameters=len(target.parameters),
        rows=[_TableRow(c.restriction, c.key, c.type_name, row(c)) for c in chosen.configurations],
        workspace=workspace,
        args_type=_args_type(target),
        args_header=_args_header(target),
        traced_args_type=_traced_args_type(target),
        trace_rank=len(family.trace.grid) if family.trace else 0,
        has_traced=any(_is_traced(family, c) for c in chosen.configurations),
        requirements=requirements(target.requires, names),
        asks_device=asks_device(
            [
                *(rule.that for rule in target.requires),
                *(part.elements for part in target.workspace),
            ]
        ),
    )


class _ShardConfiguration(NamedTuple):
    key: str
    type_name: str
    args_type: str
    members: list[str]


def shards(family: Family, chosen: TargetSpace) -> Iterable[tuple[str, str, list[Configuration]]]:
    """Path, text and configurations of each shard that holds any."""
    target = chosen.target
    members = _member_writer(target)
    header = target.header if target.launch is None else f"{target.family}/{target.name}_launch.cuh"
    args_type, traced_args_type = _args_type(target), _traced_args_type(target)
    for name, held in _named_shards(chosen):
        path = f"{target.family}/{target.name}_{name}.{'cu' if target.is_cuda else 'cpp'}"
        configurations = [
            _ShardConfiguration(
                c.key,
                c.type_name,
                traced_args_type if _is_traced(family, c) else args_type,
                members(c),
            )
            for c in held
        ]
        has_traced = any(_is_traced(family, c) for c in held)
        text = render(
            "shard.cu",
            target.file,
            includes=[
                _args_header(target),
                *([f"{target.family}/trace.h"] if has_traced else []),
                header,
            ],
            family=target.family,
            target=target.name,
            isa="cuda" if target.is_cuda else "KERNELMINT_ISA",
            configurations=configurations,
        )
        yield path, text, held


def _named_shards(chosen: TargetSpace) -> Iterable[tuple[str, list[Configuration]]]:
    """What each file is named for, and its kernels, of which there is at least one."""
    target = chosen.target
    how = spread(target, chosen.configurations)
    named = _NAMED_PARAMETERS if target.shards is not None else how.named
    tokens = tokens_of(target.parameters[:named])
    # What cannot run on some architectures lies apart: those leave its files out.
    groups: dict[tuple[str, tuple[ParameterValue, ...]], list[Configuration]] = {}
    for configuration in chosen.configurations:
        group_of = configuration.restriction, configuration.values[:named]
        groups.setdefault(group_of, []).append(configuration)
    for (restriction, values), group in groups.items():
        name = f"{tokens(values)}_".replace("-", "_") if named else ""
        name += f"{restriction}_" if restriction else ""
        if len(name) > _MOST_CHARACTERS:
            digest = hashlib.sha256(name[:-1].encode()).hexdigest()[:8]
            name = f"{name[: _MOST_CHARACTERS - 9]}_{digest}_"
        if target.shards is not None:
            buckets: dict[int, list[Configuration]] = {}
            for configuration in group:
                number = hash_of(configuration.key) % target.shards
                buckets.setdefault(number, []).append(configuration)
            parts = [(target.shards, *bucket) for bucket in sorted(buckets.items())]
        else:
            parts = [
                (1 << splits, number, held)
                for splits, number, held in split(group, how.most_kernels, how.least_splits)
            ]
            parts.sort(key=lambda part: part[1])
        for count, number, held in parts:
            yield f"{name}{number:0{len(str(count - 1))}}", held


def _member_writer(target: Target) -> Callable[[Configuration], list[str]]:
    """A function from a configuration to the members of its C++ type; texts are made once."""
    by_name = {parameter.name: parameter for parameter in target.parameters}
    seen: dict[tuple[str, Any], str] = {}

    def members(configuration: Configuration) -> list[str]:
        result = []
        for entry in zip(target.parameter_names, configuration.values, strict=True):
            text = seen.get(entry)
            if text is None:
                text = seen[entry] = _parameter_member(by_name[entry[0]], entry[1])
            result.append(text)
        for constant in zip(target.derived_names, configuration.numbers, strict=True):
            text = seen.get(constant)
            if text is None:
                text = seen[constant] = _constant(*constant)
            result.append(text)
        return result

    return members


def _parameter_member(parameter: Parameter, value: ParameterValue) -> str:
    if not isinstance(value, str):
        return _constant(parameter.name, value)
    if parameter.type is ParameterType.DTYPE:
        return f"using {parameter.name} = {value};"
    values = ", ".join(cpp_name(str(known)) for known in parameter.values or ())
    kind = enum_type(parameter.name)
    return (
        f"enum class {kind} {{ {values} }};\n"
        f"  static constexpr {kind} {parameter.name} = {kind}::{cpp_name(value)};"
    )


def _constant(name: str, value: bool | int | float) -> str:
    written = number(value)
    if isinstance(value, bool):
        kind = "bool"
    elif isinstance(value, int):
        kind = "std::int64_t" if is_wide(value) else "int"
    else:
        kind = "double"
    return f"static constexpr {kind} {name} = {written.text};"
