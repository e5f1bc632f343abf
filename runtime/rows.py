"""The rows that decide a family's kernels: those of choices.yaml, and those that were tuned."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from codegen.core.dtypes import SCALARS
from codegen.core.expressions import (
    BOOL,
    COMPUTE_CAPABILITY,
    EVALUATION_ERRORS,
    INT,
    Expression,
    layout_name,
    parse,
    reason,
    scalar_kinds,
)
from codegen.core.manifest import Scalar, SizeRange, TunedRow
from codegen.core.where import parameter_kind
from runtime import devices, manifest, packs, tensors
from runtime.errors import InvalidArgument

NOTHING: Mapping[str, Any] = MappingProxyType({})
Unmet = tuple[tuple[str, str], ...]  # targets, and the requirement that each does not meet


class Rows:
    """The rows of one family, and the names that their conditions use.

    Attributes:
        targets: the family's targets, of the highest compute capability first.
        choices: the rows of choices.yaml: (condition, values to take).
        memory: the questions that targets ask of how tensors lie in memory, by the name that
            `codegen.core.expressions.layout` reads: (name, place of the input, dimension).
    """

    def __init__(self, family: str) -> None:
        self._family = manifest.family(family)
        self.targets = sorted(self._family.targets, key=lambda target: -target.capability)
        of_call = dict.fromkeys(self._family.symbols, INT)
        of_call |= dict.fromkeys(self._family.optional_tensors, BOOL)
        self._kinds = {p.name: parameter_kind(p) for p in self._family.parameters}
        scalars = [scalar for scalar in self._family.scalars if not scalar.length]
        self._kinds |= {**of_call, **scalar_kinds(scalars)}
        self._kinds[COMPUTE_CAPABILITY] = INT
        self.choices = tuple((self._parsed(row.when), row.take) for row in self._family.choices)
        tuned = [row for target in self.targets for row in target.tuned]
        texts = dict.fromkeys(row.when for row in tuned if row.when is not None)
        self._conditions = {text: self._parsed(text) for text in texts}
        conditions = [*(when for when, _ in self.choices), *self._conditions.values()]
        named = {name for when in conditions for name in when.names}
        self._scalars = tuple(
            (s, None if s.default is None else parse(s.default, of_call), python_type(s))
            for s in scalars
            if s.name in named
        )
        defaults = {name for _, default, _ in self._scalars if default for name in default.names}
        ranges = {name for row in tuned for r in row.ranges for name in r.symbols}
        self.deciding = frozenset(named | defaults | ranges)
        required = (tensor for tensor in self._family.inputs if not tensor.optional)
        always = {dim for tensor in required for dim in tensor.sizes}
        self._sometimes = frozenset(s for s in self._family.symbols if s not in always)
        self._read_memory()

    def _parsed(self, text: str) -> Expression:
        return parse(text, self._kinds, "bool")

    def _read_memory(self) -> None:
        places = {
            layout_name("expanded", tensor.name, dim): (place, dim)
            for place, tensor in enumerate(self._family.inputs)
            for dim in range(len(tensor.dims))
            if not tensor.length
        }
        scope = dict.fromkeys(places, BOOL)
        self._requires = tuple(
            (target.name, parse(rule.that, scope, "bool"), f"requires {rule.that}: {rule.because}")
            for target in self._family.targets
            for rule in target.requires
            if "expanded(" in rule.that  # such a rule names nothing else
        )
        names = dict.fromkeys(name for _, rule, _ in self._requires for name in sorted(rule.names))
        self.memory = tuple((name, *places[name]) for name in names)

    def tuned(self, device: torch.device, parameters: Mapping[str, Any]) -> tuple[TunedRow, ...]:
        """Returns the rows that were tuned for this device, which has an index, and for these
        parameters."""
        return _tuned(self, device, tuple(parameters.items()))

    def values(
        self, device: torch.device, parameters: Mapping[str, Any], sizes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Returns the values that rows name: scalars that are left out have their defaults.

        Raises InvalidArgument for a scalar that no kernel takes.
        """
        if not self.choices and not self._conditions:
            return sizes  # ranges name no more
        values = {COMPUTE_CAPABILITY: devices.compute_capability(device), **parameters, **sizes}
        for scalar, default, python in self._scalars:
            name = scalar.name
            value = tensors.number(name, values.get(name), python, scalar.values, default is None)
            if value is None and default is not None:
                value = _value(default, values, name)
                value = scalar.values[value] if scalar.values else value
            values[name] = value
        return values

    def holding(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the rows of choices.yaml whose condition holds."""
        choices = enumerate(self.choices)
        return tuple([i for i, (when, _) in choices if _value(when, values, "choices.yaml")])

    def covering(self, rows: Sequence[TunedRow], values: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the tuned rows whose conditions hold, and whose ranges hold the sizes."""
        holds: dict[str | None, bool] = {None: True}  # many rows have the same condition
        covering = []
        for i, row in enumerate(rows):
            if row.when not in holds:
                holds[row.when] = self.holds(row, values)
            if holds[row.when] and all(r.least <= product(r, values) <= r.most for r in row.ranges):
                covering.append(i)
        return tuple(covering)

    def holds(self, row: TunedRow, values: Mapping[str, Any]) -> bool:
        """Returns whether a tuned row's condition holds. If not, its ranges may have no values."""
        if row.when is None:
            return True
        when = self._conditions[row.when]
        for name in when.names:
            if name not in values and name not in self._sometimes:
                raise _untold(name)
        return bool(_value(when, values, "a tuned row"))

    def unmet(self, sizes: Mapping[str, Any]) -> Unmet:
        """Returns the targets whose requirements of how tensors lie are not met, with the
        requirement."""
        expanded = {name: bool(sizes.get(name)) for name, _, _ in self.memory}
        if True not in expanded.values():
            return ()
        return tuple([(t, why) for t, rule, why in self._requires if not rule.evaluate(expanded)])


@functools.cache
def of(family: str) -> Rows:
    """Returns the rows of a family that is known to be there."""
    return Rows(family)


@functools.lru_cache(maxsize=1024)
def _tuned(
    rows: Rows, device: torch.device, parameters: tuple[tuple[str, Any], ...]
) -> tuple[TunedRow, ...]:
    tuned = [row for target in rows.targets for row in target.tuned]
    if not tuned or device.type not in ("cpu", "cuda"):
        return ()
    name, values = devices.name(device), dict(parameters)
    return tuple(row for row in tuned if row.device == name and suits(row, values))


for _kept in (of, _tuned):
    packs.when_changed(_kept.cache_clear)


def suits(row: TunedRow, parameters: Mapping[str, Any]) -> bool:
    """Returns whether a row was tuned for these parameters."""
    return all(parameters.get(name) == value for name, value in row.parameters.items())


def product(sizes: SizeRange, values: Mapping[str, Any]) -> Any:
    """Returns what a range is about. Raises InvalidArgument if a size is unknown."""
    try:
        return math.prod(map(values.__getitem__, sizes.symbols))
    except KeyError as error:
        raise _untold(f"the size {error.args[0]}") from None


def _untold(what: str) -> InvalidArgument:
    return InvalidArgument(f"a tuned row depends on {what}, which this front does not pass")


def python_type(scalar: Scalar) -> str:
    """Returns the type of a scalar as callers pass it: str, int, float or bool."""
    return "str" if scalar.values else SCALARS[scalar.dtype].python


def _value(expression: Expression, values: Mapping[str, Any], place: str) -> Any:
    try:
        return expression.evaluate(values)
    except EVALUATION_ERRORS as error:
        why = f"{expression.text} has no value: {reason(error)}"
        raise InvalidArgument(f"{place}: {why}") from None
