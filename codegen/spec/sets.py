"""The sets of a <target>.yaml: lists of configurations, products, steps, includes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen.core.expressions import Kind
from codegen.core.problems import TooManyProblemsError
from codegen.core.words import did_you_mean
from codegen.spec import schema
from codegen.spec.checks import load_rules
from codegen.spec.model import (
    ConfigurationSet,
    Parameter,
    ParameterType,
    ParameterValue,
    Rule,
    SetPart,
)
from codegen.spec.names import SNAKE
from codegen.spec.source import Document

MAX_SETS = 256
MAX_PARTS = 20_000

_Axes = Mapping[str, tuple[ParameterValue, ...]]


class SetLoader:
    """Loads all sets of one target.

    `shared` are the family's parameters, `own` the target's; the rules of a product may name
    `constants`.
    """

    def __init__(
        self,
        document: Document,
        shared: tuple[Parameter, ...],
        own: tuple[Parameter, ...],
        constants: Mapping[str, Kind],
    ) -> None:
        self.document = document
        self.shared = shared
        self.own = own
        self.constants = constants
        self._above: dict[str, ConfigurationSet] = {}
        self._count = 0

    def load(
        self, written: Mapping[str, list[schema.SetItem] | schema.SetPart]
    ) -> tuple[ConfigurationSet, ...]:
        """Returns the sets, in the order they are written."""
        if "default" not in written:
            self.document.report(
                "the set 'default' is missing: generated/ holds its kernels", "sets", key=True
            )
        if len(written) > MAX_SETS:
            self.document.report(f"{len(written)} sets; at most {MAX_SETS}", "sets", key=True)
            raise TooManyProblemsError
        sets: list[ConfigurationSet] = []
        for name, body in written.items():
            path = ("sets", name)
            if not SNAKE.match(name):
                self.document.report(
                    "a set's name is lower-case letters, digits and underscores", *path, key=True
                )
            self._above = {s.name: s for s in sets}
            parts = self._items(body, {}, written, path)
            if not parts:
                self.document.report(f"the set '{name}' is empty", *path, key=True)
            self._count += len(parts)
            if self._count > MAX_PARTS:
                message = f"the sets hold more than {MAX_PARTS:,} configurations and products"
                self.document.report(message, *path, key=True)
                raise TooManyProblemsError
            place = self.document.locate(*path, key=True)
            sets.append(ConfigurationSet(name, tuple(parts), place))
        self._check_includes(sets)
        return tuple(sets)

    def _items(
        self,
        body: Sequence[schema.SetItem] | schema.SetPart | Mapping[str, ParameterValue],
        base: _Axes,
        sets: Mapping[str, object],
        path: tuple[str | int, ...],
    ) -> list[SetPart | str]:
        """Returns the parts of one body of a set: a list, a mapping of parts, or a
        configuration."""
        if isinstance(body, schema.SetPart):
            return self._part(body, base, sets, path)
        if isinstance(body, Mapping):
            return [self._configuration({**base, **self._values(body, path)}, path)]
        return [c for i, item in enumerate(body) for c in self._items(item, base, sets, (*path, i))]

    def _part(
        self,
        part: schema.SetPart,
        base: _Axes,
        sets: Mapping[str, object],
        path: tuple[str | int, ...],
    ) -> list[SetPart | str]:
        parts: list[SetPart | str] = []
        if part.base is not None:
            base = {**base, **self._axes(part.base, (*path, "base"))}
            if part.over is not None:
                message = "'over' takes the values of another set's configurations, not of a 'base'"
                self.document.report(message, *path, "base", key=True)
        for i, included in enumerate(part.include or ()):
            if included in sets:
                parts.append(included)
            else:
                hint = did_you_mean(included, sets)
                self.document.report(f"unknown set '{included}'{hint}", *path, "include", i)
        if part.configurations is not None:
            parts += self._items(part.configurations, base, sets, (*path, "configurations"))
        step = base
        for i, changed in enumerate(part.steps or ()):
            step = {**step, **self._values(changed, (*path, "steps", i))}
            parts.append(self._configuration(step, (*path, "steps", i)))
        if part.product is None:
            for key in ("prune", "over"):
                if key in part.model_fields_set:
                    self.document.report(f"'{key}' needs a 'product'", *path, key, key=True)
            return parts
        axes = self._axes(part.product, (*path, "product"))
        prune = load_rules(self.document, part.prune, self.constants, *path, "prune")
        if part.over is None:
            return [*parts, self._set_part({**base, **axes}, prune, False, path)]
        return parts + [
            self._set_part({**self._named(other), **axes}, (*other.prune, *prune), False, path)
            for other in self._parts_above(part.over, path)
        ]

    def _configuration(self, axes: _Axes, path: tuple[str | int, ...]) -> SetPart:
        """Returns one configuration, or several, if parameters without a default are left out."""
        return self._set_part(axes, (), True, path)

    def _set_part(
        self, axes: _Axes, prune: tuple[Rule, ...], written: bool, path: tuple[str | int, ...]
    ) -> SetPart:
        values = tuple(axes.get(p.name) or _left_out(p) for p in self.shared + self.own)
        missing = [
            p.name
            for p, axis in zip(self.shared + self.own, values, strict=True)
            if not axis and p.name not in axes
        ]
        if missing:
            self.document.report(f"no value for {', '.join(missing)}", *path)
        strict = written and all(len(axis) == 1 for axis in values)
        return SetPart(values, prune, strict, self.document.locate(*path))

    def _named(self, part: SetPart) -> dict[str, tuple[ParameterValue, ...]]:
        names = [parameter.name for parameter in self.shared + self.own]
        return dict(zip(names, part.values, strict=True))

    def _parts_above(self, name: str, path: tuple[str | int, ...]) -> list[SetPart]:
        """Returns the parts of a set that stands above, included sets' parts among them."""
        result: list[SetPart] = []
        pending: list[SetPart | str] = [name]
        seen: set[str] = set()
        while pending:
            part = pending.pop()
            if not isinstance(part, str):
                result.append(part)
            elif part not in self._above:
                hint = did_you_mean(part, self._above)
                message = f"there is no set '{part}' above this one{hint}"
                self.document.report(message, *path, "over")
            elif part not in seen:
                seen.add(part)
                pending += reversed(self._above[part].parts)
        return result

    def _values(
        self, written: Mapping[str, ParameterValue], path: tuple[str | int, ...]
    ) -> dict[str, tuple[ParameterValue, ...]]:
        """Returns a configuration as axes of one value."""
        self._check_names(written, path)
        for parameter in self.shared + self.own:
            if parameter.name in written:
                self._check_value(parameter, written[parameter.name], *path, parameter.name)
        return {name: (value,) for name, value in written.items()}

    def _axes(
        self, written: Mapping[str, Sequence[ParameterValue]], path: tuple[str | int, ...]
    ) -> dict[str, tuple[ParameterValue, ...]]:
        """Returns the axes of a base or a product."""
        self._check_names(written, path)
        for parameter in self.shared + self.own:
            axis = written.get(parameter.name)
            if axis is None:
                continue
            if not axis:
                self.document.report("a list of values is not empty", *path, parameter.name)
            seen: set[ParameterValue] = set()
            for i, value in enumerate(axis):
                self._check_value(parameter, value, *path, parameter.name, i)
                if value in seen:
                    self.document.report(f"{value!r} is listed twice", *path, parameter.name, i)
                seen.add(value)
        return {name: tuple(axis) for name, axis in written.items()}

    def _check_names(self, written: Mapping[str, object], path: tuple[str | int, ...]) -> None:
        names = [parameter.name for parameter in self.shared + self.own]
        for name in written:
            if name not in names:
                hint = did_you_mean(name, [other for other in names if other not in written])
                self.document.report(f"unknown parameter '{name}'{hint}", *path, name, key=True)

    def _check_value(self, parameter: Parameter, value: object, *path: str | int) -> None:
        if wrong := parameter.check(value):
            self.document.report(wrong, *path)

    def _check_includes(self, sets: Sequence[ConfigurationSet]) -> None:
        included = {s.name: {c for c in s.parts if isinstance(c, str)} for s in sets}
        for s in sets:
            reached: set[str] = set()
            frontier = set(included[s.name])
            while frontier:
                reached |= frontier
                frontier = set().union(*(included[name] for name in frontier)) - reached
            if s.name in reached:
                message = f"the set '{s.name}' includes itself"
                self.document.report(message, "sets", s.name, key=True)


def _left_out(parameter: Parameter) -> tuple[ParameterValue, ...]:
    """Returns the parameter's default, else all its values; empty, if the spec does not list
    them."""
    if parameter.default is not None:
        return (parameter.default,)
    return parameter.values or ((False, True) if parameter.type is ParameterType.BOOL else ())
