"""Specs to configurations: sets, their products, and the selection from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.core.expressions import EVALUATION_ERRORS, Kind, reason
from codegen.core.manifest import Selection
from codegen.core.problems import Location, Problem, SpecError, UsageError
from codegen.core.where import Where, usage_error
from codegen.core.words import did_you_mean
from codegen.space.product import Values, Work, deriver, part_values
from codegen.spec.keys import key_prefix, tokens_of
from codegen.spec.model import Configuration, ConfigurationSet, Family, Rule, SetPart, Target


@dataclass(frozen=True)
class TargetSpace:
    """The configurations chosen of one target, in spec order."""

    target: Target
    configurations: tuple[Configuration, ...]


@dataclass(frozen=True)
class FamilySpace:
    """The configurations chosen of one family."""

    family: Family
    targets: tuple[TargetSpace, ...]


_Filter = Callable[[Target, Configuration], bool]


def _filter(text: str, targets: Sequence[Target]) -> _Filter:
    """Returns the filter of --where."""
    scopes = {
        target: {
            **{parameter.name: parameter.kind for parameter in target.parameters},
            **{derived.name: derived.expression.kind for derived in target.computed},
            "family": Kind("text", (target.family,)),
            "target": Kind("text", (target.name,)),
        }
        for target in targets
    }
    where = Where(text, scopes, usage_error(text))

    def matches(target: Target, configuration: Configuration) -> bool:
        place = {"family": target.family, "target": target.name}
        return where.matches(target, configuration.key, {**place, **configuration.everything})

    return matches


def expand(families: Sequence[Family], selection: Selection) -> tuple[FamilySpace, ...]:
    """Returns the selected configurations; families and targets without any are left out.

    Raises SpecError for problems in the sets, UsageError if nothing is selected.
    """
    targets = [target for family in families for target in family.targets]
    if not any(s.name == selection.set_name for target in targets for s in target.sets):
        set_names = dict.fromkeys(s.name for target in targets for s in target.sets)
        hint = did_you_mean(selection.set_name, set_names)
        raise UsageError(f"no target has a set '{selection.set_name}'{hint}")
    where = None if selection.where is None else _filter(selection.where, targets)
    problems: list[Problem] = []
    products = {target: _products(target, problems) for target in targets}
    problems += [problem for target in targets for problem in _unknown_rows(target)]
    if problems:
        raise SpecError(problems)
    spaces = []
    for family in families:
        chosen = []
        for target in family.targets:
            try:
                configurations = _selected(target, products[target], selection.set_name, where)
            except SpecError as error:
                problems.extend(error.problems)
                continue
            if configurations:
                chosen.append(TargetSpace(target, configurations))
        if chosen:
            spaces.append(FamilySpace(family, tuple(chosen)))
    if problems:
        raise SpecError(problems)
    if not spaces:
        raise UsageError(
            f"no configuration of the set '{selection.set_name}' matches --where "
            f'"{selection.where}"'
        )
    return tuple(spaces)


def _unknown_rows(target: Target) -> Iterator[Problem]:
    """Yields problems of rows of <target>.tuned.yaml whose kernel cannot be built, or which no set
    holds."""
    for row in target.tuned:
        if reasons := exclusions(target, row.values):
            yield Problem(row.location, f"{row.take} is excluded by {'; '.join(reasons)}")
        elif not sets_holding(target, row.values):
            yield Problem(
                row.location,
                f"no set of {target.display} holds {row.take}: add it to one (a pack holds "
                "`default`; kernels of other sets are built on demand), or remove this row",
            )


def exclusions(target: Target, values: Values) -> list[str]:
    """Returns the reasons that exclude a configuration, each with its place; empty for a valid
    one."""
    scope: dict[str, Any] = target.by_name(values)
    result = []
    for parameter in target.parameters:
        if wrong := parameter.check(scope[parameter.name]):
            result.append(f"{parameter.location}: {wrong}")
    for derived in target.computed:
        try:
            scope[derived.name] = derived.expression.evaluate(scope)
        except (*EVALUATION_ERRORS, NameError) as error:
            result.append(f"{derived.location}: {derived.name} has no value: {reason(error)}")
    for rule in target.constraints:
        try:
            holds, note = bool(rule.that.evaluate(scope)), ""
        except (*EVALUATION_ERRORS, NameError) as error:
            holds, note = False, f" (it has no value: {reason(error)})"
        if not holds:
            result.append(f"{rule.location}: {rule.that.text}: {rule.because}{note}")
    return result


def configured(target: Target, values: Values) -> Configuration:
    """Returns the configuration of these values, which is valid."""
    (configuration,) = _configurations(target, [values])
    return configuration


def sets_holding(target: Target, values: Values) -> list[str]:
    """Returns the names of the target's sets that hold this valid configuration."""
    scope = configured(target, values).everything
    holding = {
        part
        for s in target.sets
        for part in s.own_parts
        if _covers(part, values) and all(r.that.evaluate(scope) for r in part.prune)
    }
    return [s.name for s in target.sets if holding.intersection(parts(target, s))]


def pruned(target: Target, values: Values) -> list[tuple[str, Rule]]:
    """Returns the rules that keep this configuration out of a product, each with its set."""
    scope = configured(target, values).everything
    return [
        (s.name, rule)
        for s in target.sets
        for part in s.own_parts
        if _covers(part, values)
        for rule in part.prune
        if not rule.that.evaluate(scope)
    ]


def _covers(part: SetPart, values: Values) -> bool:
    return all(value in axis for value, axis in zip(values, part.values, strict=True))


def parts(target: Target, chosen: ConfigurationSet) -> list[SetPart]:
    """Returns a set's parts in the order they are written; the parts of an included set come in its
    place.

    A set that is included again adds nothing. The loader checked that includes end.
    """
    sets = {s.name: s for s in target.sets}
    result: list[SetPart] = []
    seen = {chosen.name}
    pending = list(reversed(chosen.parts))
    while pending:
        part = pending.pop()
        if not isinstance(part, str):
            result.append(part)
        elif part not in seen:
            seen.add(part)
            pending += reversed(sets[part].parts)
    return result


_Products = Mapping[SetPart, Sequence[Values]]


def _selected(
    target: Target,
    products: _Products,
    set_name: str,
    where: _Filter | None,
) -> tuple[Configuration, ...]:
    chosen = next((s for s in target.sets if s.name == set_name), None)
    if chosen is None:
        return ()
    values = dict.fromkeys(v for part in parts(target, chosen) for v in products[part])
    configurations = _configurations(target, values)
    if where is None:
        return tuple(configurations)
    return tuple(c for c in configurations if where(target, c))


def _products(target: Target, problems: list[Problem]) -> _Products:
    """Returns the configurations of each part of a target's sets.

    Adds the problems of all sets to `problems`: an empty part, a configuration that is listed
    twice.
    """
    work = Work()
    products: dict[SetPart, list[Values]] = {}
    for s in target.sets:
        first_place: dict[Values, Location] = {}
        for part in s.own_parts:
            try:
                products[part] = part_values(target, part, work)
            except SpecError as error:
                problems.extend(error.problems)
                if work.is_spent:
                    return products
                continue
            if not part.strict:
                continue
            (values,) = products[part]
            if values in first_place:
                key = key_prefix(target) + tokens_of(target.parameters)(values)
                message = f"{key} is listed twice: first on line {first_place[values].line}"
                problems.append(Problem(part.location, message))
            first_place.setdefault(values, part.location)
    return products


def _configurations(target: Target, values: Iterable[Values]) -> Iterator[Configuration]:
    prefix = key_prefix(target)
    tokens = tokens_of(target.parameters)
    derive = deriver(target)
    for configuration in values:
        text = tokens(configuration)
        try:
            derived = derive(*configuration)
        except EVALUATION_ERRORS:
            raise SpecError([_underivable(target, configuration, prefix + text)]) from None
        yield Configuration(target, prefix + text, text, configuration, derived)


def _underivable(target: Target, values: Values, key: str) -> Problem:
    """Returns the first derived value that a configuration does not have, or the bound that its
    launch exceeds."""
    scope: dict[str, Any] = target.by_name(values)
    for derived in target.computed:
        try:
            scope[derived.name] = derived.expression.evaluate(scope)
        except EVALUATION_ERRORS as error:
            message = f"'{derived.expression.text}' has no value for {key}: {reason(error)}"
            return Problem(derived.location, message)
    for bound in target.launch_bounds:
        value = bound.expression.evaluate(scope)
        if not bound.least <= value <= bound.most:
            message = f"'{bound.expression.text}' is {value} for {key}: {bound.because}"
            return Problem(bound.location, message)
    raise AssertionError(f"{key} has all its derived values")
