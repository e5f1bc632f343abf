"""The files of a target: its launch, its table, its shards of kernels."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence

from codegen.core.dtypes import DTYPES
from codegen.core.expressions import Expression
from codegen.emit.cpp import comment, dtype_enumerator, filling, is_wide, number, translate
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
from codegen.spec import keys
from codegen.spec.model import (
    Configuration,
    Family,
    Launch,
    Parameter,
    ParameterType,
    ParameterValue,
    Target,
    Wgmma,
    Workspace,
)
from codegen.spec.names import cpp_name, enum_type

# Neither the cost of including nor that of a kernel is known when files are written. So many
# files keep a machine's processors busy, and headers are compiled that often, or half as often
# again, whatever they cost; a spec that knows says `files`. Beyond the square of it, files and
# kernels of a file grow alike.
_FILES = 16


def most_kernels(count: int, files: int | None) -> int:
    """Returns the number of kernels that a file may hold, for about `files` files (None: by the
    number of kernels): a power of two, so that few changes of a set change it."""
    files = files or max(_FILES, math.isqrt(count))
    most = 1
    while most * files < count:
        most *= 2
    return most


def hash_of(key: str) -> int:
    """Returns a stable number, by which a kernel finds its file."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def split(
    configurations: Sequence[Configuration], most: int
) -> Iterable[tuple[int, int, list[Configuration]]]:
    """Splits the kernels into parts of at most `most`: how often each was split, its number, its
    kernels.

    A part that holds too many is split by the next bit of its keys' hashes, and no other: one more
    kernel touches one file, or splits it in two. Numbers are the parts' lowest bits, so no two are
    alike.
    """
    hashed = [(hash_of(c.key), c) for c in configurations]
    parts = [(0, 0, hashed)]
    while parts:
        splits, number, part = parts.pop()
        if len(part) <= most:
            yield splits, number, [c for _, c in part]
            continue
        for bit in (1, 0):  # the lower number comes off the stack first
            rest = [entry for entry in part if entry[0] >> splits & 1 == bit]
            if rest:
                parts.append((splits + 1, number | bit << splits, rest))


def args(target: Target) -> str:
    """Returns <target>_args.h: the family's Args and the target's workspace."""
    return render("target_args.h", target.file, target=target, pointer=_pointer, comment=comment)


def _pointer(part: Workspace) -> str:
    return f"{part.dtype if part.dtype in DTYPES else 'void'}*"  # void: a dtype parameter's


def _args_type(target: Target) -> str:
    """Returns the type of the arguments that a kernel of the target takes, within namespace
    kernelmint."""
    return f"{target.family}::{target.name}::Args" if target.workspace else f"{target.family}::Args"


def _args_header(target: Target) -> str:
    return f"{target.family}/{f'{target.name}_' if target.workspace else ''}args.h"


def _traced_args_type(target: Target) -> str:
    return f"{target.family}::TracedArgs<kernelmint::{_args_type(target)}>"


def _is_traced(family: Family, configuration: Configuration) -> bool:
    return family.trace is not None and bool(configuration.parameters[family.trace.parameter])


def launch(family: Family, target: Target, spec: Launch) -> str:
    """Returns <target>_launch.cuh: the launch that the spec describes."""
    tensors = {tensor.name for tensor in family.tensors}
    names = ConfigNames(target.parameters, target.derived_expressions, family.sizes, tensors)

    def extents(expressions: Sequence[Expression]) -> str:
        return f"{{{', '.join(translate(expression, names) for expression in expressions)}}}"

    fields = [("block", extents(spec.block))]
    if spec.shared_memory.text != "0":
        fields.append(("shared_memory", translate(spec.shared_memory, names)))
    if spec.cluster:
        fields.append(("cluster", extents(spec.cluster)))
    for key, condition in (("dependent", spec.dependent), ("cooperative", spec.cooperative)):
        if condition.text != "false":
            fields.append((key, translate(condition, names)))
    return render(
        "launch.cuh",
        target.file,
        family=target.family,
        header=target.header,
        kernel=target.kernel,
        grid=extents(spec.grid),
        fields=fields,
        asks_occupancy=spec.asks_occupancy,
    )


def wgmma(chosen: TargetSpace, spec: Wgmma) -> str:
    """Returns <target>_wgmma.cuh: ptx::Wgmma for the products of the chosen configurations."""
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


def table(family: Family, chosen: TargetSpace) -> str:
    """Returns <target>_table.cpp: the kernels and the places of their code."""
    target = chosen.target
    by_name = {parameter.name: parameter for parameter in target.parameters}

    @functools.cache
    def number_of(name: str, value: ParameterValue) -> str:
        return str(table_number(by_name[name], value))

    def parameters_of(kernel: Configuration) -> str:
        return ", ".join(map(number_of, target.parameter_names, kernel.values))

    names = TableNames(family, target)
    expressions = [
        *(rule.that for rule in target.requires),
        *(p.elements for p in target.workspace),
    ]
    return render(
        "table.cpp",
        target.file,
        family=target.family,
        target=target,
        kernels=chosen.configurations,
        parameters_of=parameters_of,
        value=lambda expression: evaluated(expression, names, "std::int64_t"),
        dtype_enumerator=dtype_enumerator,
        filling=filling,
        pointer=_pointer,
        args_type=_args_type(target),
        args_header=_args_header(target),
        traced_args_type=_traced_args_type(target),
        trace_rank=len(family.trace.grid) if family.trace else 0,
        has_traced=any(_is_traced(family, c) for c in chosen.configurations),
        requirements=requirements(target.requires, names),
        asks_device=asks_device(expressions),
    )


def shards(family: Family, chosen: TargetSpace) -> Iterable[tuple[str, str, list[Configuration]]]:
    """Yields path, text and configurations of each shard that holds any."""
    target = chosen.target
    header = target.header if target.launch is None else f"{target.family}/{target.name}_launch.cuh"
    members, plain, traced = _member_writer(target), _args_type(target), _traced_args_type(target)
    for name, held in _named(chosen):
        has_traced = any(_is_traced(family, c) for c in held)
        text = render(
            "shard.cu",
            target.file,
            includes=[
                _args_header(target),
                *([f"{target.family}/trace.h"] if has_traced else []),
                header,
            ],
            target=target,
            isa="cuda" if target.is_cuda else "KERNELMINT_ISA",
            configurations=held,
            args_type=lambda c: traced if _is_traced(family, c) else plain,
            members=members,
        )
        path = f"{target.family}/{target.name}_{name}.{'cu' if target.is_cuda else 'cpp'}"
        yield path, text, held


def _named(chosen: TargetSpace) -> Iterable[tuple[str, list[Configuration]]]:
    """Yields what names each file, and its kernels, of which there is at least one. Kernels of
    different compiler options share no file."""
    most = most_kernels(len(chosen.configurations), chosen.target.files)
    groups: dict[str, list[Configuration]] = {}
    for configuration in chosen.configurations:
        groups.setdefault(options_of(configuration), []).append(configuration)
    for options, configurations in groups.items():
        parts = sorted(split(configurations, most), key=lambda part: part[1])
        for splits, bits, held in parts:
            number = f"{bits:0{len(str((1 << splits) - 1))}}"
            yield f"{options}_{number}" if options else number, held


def options_of(configuration: Configuration) -> str:
    """Returns the name of the values that a configuration's compiler options have; "" if its target
    has no options."""
    target, values = configuration.target, configuration.parameters
    if not target.options:
        return ""
    by_name = {parameter.name: parameter for parameter in target.parameters}
    named = (keys.token_of(by_name[name], values[name]) for name, _ in target.options)
    return "_".join(filter(None, named)) or keys.NO_TOKENS


def _member_writer(target: Target) -> Callable[[Configuration], list[str]]:
    """Returns a function from a configuration to the members of its C++ type; texts are made
    once."""
    by_name = {parameter.name: parameter for parameter in target.parameters}
    constant = functools.cache(_constant)

    @functools.cache
    def parameter(name: str, value: ParameterValue) -> str:
        return _parameter_member(by_name[name], value)

    def members(configuration: Configuration) -> list[str]:
        return [
            *map(parameter, target.parameter_names, configuration.values),
            *map(constant, target.derived_names, configuration.numbers),  # without predictions
        ]

    return members


def _parameter_member(parameter: Parameter, value: ParameterValue) -> str:
    if not isinstance(value, str):
        return _constant(parameter.name, value)
    if parameter.type is ParameterType.DTYPE:
        return f"using {parameter.name} = {value};"
    values = ", ".join(cpp_name(str(value_)) for value_ in parameter.values or ())
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
