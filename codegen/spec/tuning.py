"""<target>.tuned.yaml and <target>.shapes.yaml: a tuner's results, and the calls that it
measures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from codegen.core.expressions import (
    DEVICE_FACTS,
    EVALUATION_ERRORS,
    INT,
    INT64_MAX,
    Expression,
    known_where,
    reason,
)
from codegen.core.manifest import SizeRange
from codegen.core.words import did_you_mean
from codegen.spec import schema
from codegen.spec.checks import load_condition_on_call, load_expression
from codegen.spec.keys import KeyFormatError, key_prefix, parse_tokens
from codegen.spec.model import (
    Family,
    Number,
    ParameterValue,
    Role,
    Shape,
    Shapes,
    Target,
    TunedRow,
)
from codegen.spec.source import Document

TUNED = ".tuned.yaml"
SHAPES = ".shapes.yaml"
MAX_SHAPES = 10_000

_Steps = tuple["str | int", ...]


def load_tuned(document: Document, family: Family, target: Target) -> tuple[TunedRow, ...]:
    """Returns the rows of a file; problems go to the document."""
    written: schema.TunedFile | None = schema.validate(document, schema.TunedFile)
    rows = []
    for i, row in enumerate(written.tuned if written else ()):
        place: _Steps = ("tuned", i)
        values = _parse_key(document, target, row.take, *place, "take")
        if row.runner_up is not None:
            _parse_key(document, target, row.runner_up, *place, "runner_up")
        configuration = values and target.by_name(values)
        for name, value in row.parameters.items():
            if not _check_parameter(document, target, name, value, *place, "parameters", name):
                continue
            if configuration and configuration[name] != value:
                message = f"{name} is {configuration[name]} in {row.take}, not {value}"
                document.report(message, *place, "parameters", name)
        _check_sizes(document, family, row.sizes, *place, "sizes")
        ranges = _ranges(document, family, row.range, *place, "range")
        _load_when(document, family, row.when, row.parameters, ranges, place, (*place, "range"))
        if not values:
            continue
        rows.append(
            TunedRow(
                device=row.device,
                parameters=row.parameters,
                when=row.when,
                ranges=ranges,
                take=row.take,
                configuration=target.by_name(values),
                milliseconds=row.milliseconds,
                runner_up=row.runner_up,
                runner_up_milliseconds=row.runner_up_milliseconds,
                tie=row.tie,
                location=document.locate(*place, "take"),
            )
        )
    return tuple(rows)


def _parse_key(
    document: Document, target: Target, key: str, *place: str | int
) -> tuple[ParameterValue, ...]:
    """Returns the values that a key of the target stands for; empty for a text that is not a
    key."""
    prefix = key_prefix(target)
    if not key.startswith(prefix):
        document.report(f"'{key}' is not a key of this target: expected {prefix}…", *place)
        return ()
    try:
        return parse_tokens(target.parameters, key.removeprefix(prefix))
    except KeyFormatError as error:
        document.report(f"'{key}' is not a valid key: {error}", *place)
        return ()


def _check_parameter(
    document: Document, target: Target, name: str, value: ParameterValue, *place: str | int
) -> bool:
    parameters = {parameter.name: parameter for parameter in target.parameters}
    if name not in parameters:
        message = f"the target has no parameter '{name}'{did_you_mean(name, parameters)}"
        document.report(message, *place, key=True)
    elif wrong := parameters[name].check(value):
        document.report(wrong, *place)
    else:
        return True
    return False


def _check_sizes(
    document: Document, family: Family, sizes: Mapping[str, object], *place: str | int
) -> None:
    for name in sizes:
        if name not in family.symbols:
            hint = did_you_mean(name, family.symbols)
            document.report(f"the family has no symbol '{name}'{hint}", *place, name, key=True)


def _check_given(
    document: Document, family: Family, passed: Sequence[str], *place: str | int
) -> None:
    optional = [t.name for t in family.tensors if t.role is Role.INPUT and t.optional]
    for i, name in enumerate(passed):
        if name not in optional:
            message = f"the family has no optional input '{name}'{did_you_mean(name, optional)}"
            document.report(message, *place, i)


def _ranges(
    document: Document, family: Family, written: Mapping[str, Sequence[int]], *place: str | int
) -> tuple[SizeRange, ...]:
    ranges = []
    for text, (least, most) in written.items():
        symbols = tuple(part.strip() for part in text.split("*"))
        for name in symbols:
            if name not in family.symbols:
                hint = did_you_mean(name, family.symbols)
                message = f"'{name}' is not a symbol{hint}: expected one, or a product of some"
                document.report(message, *place, text, key=True)
        if not 0 <= least <= most <= INT64_MAX:
            message = f"got [{least}, {most}], expected the least value, then the greatest"
            document.report(message, *place, text)
        ranges.append(SizeRange(symbols, least, most))
    return tuple(ranges)


def _load_when(
    document: Document,
    family: Family,
    text: str | None,
    parameters: Container[str],
    ranges: Sequence[SizeRange],
    group: _Steps,
    place: _Steps,
) -> Expression | None:
    """Returns the condition of a row or a group of points. If it holds, the symbols of ranges have
    values, even those that only optional inputs name."""
    scope, when = family.call_scope, None
    if text is not None:
        also = {p.name: p.kind for p in family.parameters if p.name in parameters}
        when = load_condition_on_call(document, text, family, also, *group, "when")
        scope = known_where(when, scope)
    for size_range in ranges:
        for name in size_range.symbols:
            if name in scope and (inputs := scope[name].given):
                message = (
                    f"'{name}' is known only if {' or '.join(inputs)} is passed: say so, as in"
                )
                document.report(f"{message} 'when: {inputs[0]}'", *place, size_range.text, key=True)
    return when


def load_shapes(document: Document, family: Family, target: Target) -> Shapes | None:
    """Returns the shapes of a file, or None; problems go to the document."""
    written: schema.ShapesFile | None = schema.validate(document, schema.ShapesFile)
    if written is None:
        return None
    shapes: list[Shape] = []
    for i, group in enumerate(written.shapes):
        place: _Steps = ("shapes", i)
        for name, values in group.parameters.items():
            for value in values:
                _check_parameter(document, target, name, value, *place, "parameters", name)
        _check_scalars(document, family, group.scalars, *place, "scalars")
        _check_sizes(document, family, group.sizes, *place, "sizes")
        _check_given(document, family, group.given, *place, "given")
        for j, point in enumerate(group.points):
            _check_sizes(document, family, point.sizes, *place, "points", j, "sizes")
            at = (*place, "points", j)
            ranges = _ranges(document, family, point.range, *at, "range")
            when = _load_when(
                document, family, group.when, group.parameters, ranges, place, (*at, "range")
            )
            if document.problems:
                continue
            texts = {
                **{name: (text, (*place, "sizes", name)) for name, text in group.sizes.items()},
                **{
                    name: (text, (*place, "points", j, "sizes", name))
                    for name, text in point.sizes.items()
                },
            }
            for combination in itertools.product(*group.parameters.values()):
                parameters = dict(zip(group.parameters, combination, strict=True))
                sizes = _sizes(document, family, target, texts, parameters, group.given, at)
                shape = Shape(
                    tuple(parameters.items()), sizes, tuple(group.scalars.items()), ranges,
                    tuple(group.given), group.when,
                )  # fmt: skip
                _check_condition(document, family, shape, when, *at)
                _check_within(document, dict(sizes), ranges, *at, "range")
                shapes.append(shape)
                if len(shapes) > MAX_SHAPES:
                    document.report(f"more than {MAX_SHAPES:,} shapes", *place)
                    return None
                if document.problems:
                    break
    scope = {
        **{parameter.name: parameter.kind for parameter in target.parameters},
        **{value.name: value.expression.kind for value in target.computed},
        **dict.fromkeys((*family.symbols, *DEVICE_FACTS), INT),
    }
    cost, estimate = written.cost, None
    if cost is not None:
        place = ("cost", "estimate")
        estimate = load_expression(document, cost.estimate, scope, "number", *place)
    if document.problems:
        return None
    return Shapes(tuple(shapes), estimate, cost.within if cost else 1.0)


def call_values(shape: Shape, family: Family, names: Container[str]) -> dict[str, Any]:
    """Returns the values of a shape's call, for a condition on calls that names `names`. Raises one
    of EVALUATION_ERRORS if a scalar's default has no value."""
    call: dict[str, Any] = {
        **{tensor.name: tensor.name in shape.given for tensor in family.tensors if tensor.optional},
        **dict(shape.parameters),
        **dict(shape.sizes),
        **dict(shape.scalars),
    }
    for scalar in family.scalars:
        if scalar.name in names and scalar.name not in call and scalar.default is not None:
            value = scalar.default.evaluate(call)
            call[scalar.name] = scalar.values[int(value)] if scalar.values else value
    return call


def _check_condition(
    document: Document, family: Family, shape: Shape, when: Expression | None, *point: str | int
) -> None:
    """Reports a point that the condition of its group excludes."""
    if document.problems or when is None:
        return
    try:
        holds = when.evaluate(call_values(shape, family, when.names))
    except EVALUATION_ERRORS as error:
        document.report(f"{when.text} has no value at this point: {reason(error)}", *point)
    else:
        if not holds:
            document.report(
                f"the group is of calls with {when.text}, which does not hold at this point", *point
            )


def _check_within(
    document: Document, sizes: Mapping[str, int], ranges: Sequence[SizeRange], *place: str | int
) -> None:
    """Reports a point outside of the ranges that it stands for."""
    if document.problems:
        return
    for size_range in ranges:
        value = math.prod(sizes[name] for name in size_range.symbols)
        if not size_range.least <= value <= size_range.most:
            bounds = f"[{size_range.least}, {size_range.most}]"
            message = f"{size_range.text} is {value} at this point, not in {bounds}"
            document.report(message, *place, size_range.text)


def _check_scalars(
    document: Document, family: Family, scalars: Mapping[str, Number], *place: str | int
) -> None:
    family_scalars = {scalar.name: scalar for scalar in family.scalars}
    for name in scalars:
        if name not in family_scalars:
            hint = did_you_mean(name, family_scalars)
            document.report(f"the family has no scalar '{name}'{hint}", *place, name, key=True)
    for name, scalar in family_scalars.items():
        if scalar.default is None and name not in scalars:
            document.report(f"the scalar '{name}' has no default: name its value", *place)


def _sizes(
    document: Document,
    family: Family,
    target: Target,
    texts: Mapping[str, tuple[str, _Steps]],
    parameters: Mapping[str, ParameterValue],
    passed: Sequence[str],
    point: _Steps,
) -> tuple[tuple[str, int], ...]:
    """Returns the value of each symbol; texts are expressions over parameters and other symbols. A
    symbol that only left-out optional inputs name has no value."""
    kinds = {p.name: p.kind for p in target.parameters if p.name in parameters}
    scope = {**kinds, **dict.fromkeys(family.symbols, INT)}
    values: dict[str, ParameterValue] = dict(parameters)
    needed = {
        name
        for name in family.symbols
        if not (of := family.call_scope[name].given) or any(tensor in passed for tensor in of)
    }
    missing = [name for name in family.symbols if name in needed and name not in texts]
    if missing:
        document.report(f"no size given for {', '.join(missing)}", *point)
        return ()
    expressions = {
        name: load_expression(document, text, scope, "int", *place)
        for name, (text, place) in texts.items()
    }
    if document.problems:
        return ()
    waiting = dict(expressions)
    while waiting:
        ready = [name for name, e in waiting.items() if e.names <= values.keys()]
        if not ready:
            document.report(f"{', '.join(waiting)} depend on each other", *point)
            return ()
        for name in ready:
            try:
                values[name] = int(waiting.pop(name).evaluate(values))
            except EVALUATION_ERRORS as error:
                document.report(f"'{name}' has no value: {reason(error)}", *texts[name][1])
                return ()
            if int(values[name]) < 1:
                document.report(f"'{name}' is {values[name]}, expected at least 1", *texts[name][1])
    return tuple((name, int(values[name])) for name in family.symbols if name in values)
