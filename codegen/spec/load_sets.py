"""The sets of a <target>.yaml: lists of configurations, products, includes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen.spec import schema
from codegen.spec.checks import load_rules
from codegen.spec.expressions import Kind
from codegen.spec.model import Choice, ConfigurationSet, Parameter, ParameterValue, Rule
from codegen.spec.names import SNAKE
from codegen.spec.problems import TooManyProblemsError, did_you_mean
from codegen.spec.source import Document

MAX_SETS = 256


class SetLoader:
    """Loads all sets of one target.

    `shared` are the family's parameters, `own` the target's; `constants` is what the rules of a
    product may name.
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

    def load(
        self, written: Mapping[str, list[schema.SetItem] | schema.Product]
    ) -> tuple[ConfigurationSet, ...]:
        """The sets, in the order they are written."""
        if "default" not in written:
            self.document.report(
                "the set 'default' is missing: it is what generated/ holds", "sets", key=True
            )
        if len(written) > MAX_SETS:
            self.document.report(f"{len(written)} sets; at most {MAX_SETS}", "sets", key=True)
            raise TooManyProblemsError
        sets = []
        for name, body in written.items():
            path = ("sets", name)
            if not SNAKE.match(name):
                self.document.report(
                    "a set's name is lower-case letters, digits and underscores", *path, key=True
                )
            choices: list[Choice | str] = []
            if isinstance(body, list):
                for i, item in enumerate(body):
                    choices += self._item(item, written, *path, i)
            else:
                choices += self._item(body, written, *path)
            if not choices:
                self.document.report(f"the set '{name}' is empty", *path, key=True)
            place = self.document.locate(*path, key=True)
            sets.append(ConfigurationSet(name, tuple(choices), place))
        self._check_includes(sets)
        return tuple(sets)

    def _item(
        self,
        item: schema.Product | dict[str, ParameterValue],
        sets: Mapping[str, object],
        *path: str | int,
    ) -> list[Choice | str]:
        if isinstance(item, dict):
            return [self._configuration(item, path)]
        choices: list[Choice | str] = []
        for i, included in enumerate(item.include or ()):
            if included in sets:
                choices.append(included)
            else:
                hint = did_you_mean(included, sets)
                self.document.report(f"unknown set '{included}'{hint}", *path, "include", i)
        if item.product is not None:
            prune = load_rules(self.document, item.prune, self.constants, *path, "prune")
            choices.append(self._product(item.product, prune, path))
        elif item.prune:
            self.document.report("'prune' goes with a 'product'", *path, "prune", key=True)
        return choices

    def _configuration(
        self, given: Mapping[str, ParameterValue], path: tuple[str | int, ...]
    ) -> Choice:
        """One configuration, or several, where parameters are left out that have no default."""
        self._check_names(given, path)
        axes: list[tuple[ParameterValue, ...]] = []
        for parameter in self.shared + self.own:
            if parameter.name in given:
                self._check_value(parameter, given[parameter.name], *path, parameter.name)
                axes.append((given[parameter.name],))
            else:
                axes.append(_left_out(parameter))
        self._check_complete(axes, path)
        strict = all(len(axis) == 1 for axis in axes)
        return Choice(tuple(axes), (), strict, self.document.locate(*path))

    def _product(
        self,
        given: Mapping[str, Sequence[ParameterValue]],
        prune: tuple[Rule, ...],
        path: tuple[str | int, ...],
    ) -> Choice:
        axes_path = (*path, "product")
        self._check_names(given, axes_path)
        axes: list[tuple[ParameterValue, ...]] = []
        for parameter in self.shared + self.own:
            if parameter.name not in given:
                axes.append(_left_out(parameter))
                continue
            axis = tuple(given[parameter.name])
            if not axis:
                self.document.report("a list of values is not empty", *axes_path, parameter.name)
            seen: set[ParameterValue] = set()
            for i, value in enumerate(axis):
                self._check_value(parameter, value, *axes_path, parameter.name, i)
                if value in seen:
                    self.document.report(
                        f"{value!r} is listed twice", *axes_path, parameter.name, i
                    )
                seen.add(value)
            axes.append(axis)
        self._check_complete(axes, path, given)
        return Choice(tuple(axes), prune, False, self.document.locate(*path))

    def _check_names(self, given: Mapping[str, object], path: tuple[str | int, ...]) -> None:
        known = [parameter.name for parameter in self.shared + self.own]
        for name in given:
            if name not in known:
                hint = did_you_mean(name, [other for other in known if other not in given])
                self.document.report(f"unknown parameter '{name}'{hint}", *path, name, key=True)

    def _check_value(self, parameter: Parameter, value: object, *path: str | int) -> None:
        if wrong := parameter.check(value):
            self.document.report(wrong, *path)

    def _check_complete(
        self,
        axes: Sequence[tuple[ParameterValue, ...]],
        path: tuple[str | int, ...],
        given: Mapping[str, object] | None = None,
    ) -> None:
        parameters = self.shared + self.own
        empty = [p.name for p, axis in zip(parameters, axes, strict=True) if not axis]
        missing = [name for name in empty if given is None or name not in given]
        if missing:
            self.document.report(f"no value for {', '.join(missing)}", *path)

    def _check_includes(self, sets: Sequence[ConfigurationSet]) -> None:
        included = {s.name: {c for c in s.choices if isinstance(c, str)} for s in sets}
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
    """Its default, else all it may be; nothing, where the spec does not say what that is."""
    if parameter.default is not None:
        return (parameter.default,)
    return parameter.values or ((False, True) if parameter.type == "bool" else ())
