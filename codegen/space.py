"""Specs to configurations: products, constraints with their reasons, sets, filters.

A product is compiled into one list comprehension whose conditions stand as far out as their names
allow, so that a constraint prunes as soon as it can and costs no call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from codegen.expressions import (
    ENVIRONMENT,
    EVALUATION_ERRORS,
    Expression,
    ExpressionError,
    Kind,
    parse,
)
from codegen.keys import key_prefix, tokens_of
from codegen.problems import Problem, SpecError, UsageError, did_you_mean
from codegen.spec import Choice, ConfigurationSet, Family, ParameterValue, Rule, Target

Values = tuple[ParameterValue, ...]
Number = bool | int | float


@dataclass(frozen=True)
class Configuration:
    """One kernel to be: its key, its parameters and derived values, in spec order."""

    key: str
    tokens: str
    values: Values
    derived: tuple[Number, ...]


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


@dataclass(frozen=True)
class Selection:
    """Which configurations: a set's, filtered by an expression."""

    set_name: str = "default"
    where: str | None = None

    def arguments(self) -> str:
        """The same, on a command line."""
        text = f" --set {self.set_name}" if self.set_name != "default" else ""
        return text + (f' --where "{self.where}"' if self.where is not None else "")


def expand(families: Sequence[Family], selection: Selection) -> tuple[FamilySpace, ...]:
    """The selected configurations; families and targets with none are left out.

    Raises SpecError for what is wrong in the sets, UsageError where nothing is selected.
    """
    targets = [target for family in families for target in family.targets]
    if not any(s.name == selection.set_name for target in targets for s in target.sets):
        known = dict.fromkeys(s.name for target in targets for s in target.sets)
        raise UsageError(
            f"no target has a set '{selection.set_name}'{did_you_mean(selection.set_name, known)}"
        )
    accepts = _Where(selection.where, targets) if selection.where is not None else None
    problems: list[Problem] = []
    spaces = []
    for family in families:
        chosen = []
        for target in family.targets:
            found = _find_set(target, selection.set_name)
            if found is None:
                continue
            try:
                configurations = tuple(_configurations(target, _set_values(target, found)))
            except SpecError as error:
                problems.extend(error.problems)
                continue
            if accepts is not None:
                configurations = tuple(c for c in configurations if accepts(target, c))
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


def sets_holding(target: Target, values: Values) -> list[str]:
    """The names of the target's sets that hold this configuration."""
    return [s.name for s in target.sets if values in _set_values(target, s)]


def violated(target: Target, values: Values) -> list[tuple[Rule, str]]:
    """The constraints that exclude a configuration, each with a word where it has no value."""
    scope: dict[str, Any] = dict(zip((p.name for p in target.parameters), values, strict=True))
    for name, expression in target.derived:
        try:
            scope[name] = expression.evaluate(scope)
        except (*EVALUATION_ERRORS, NameError):
            continue  # a constraint that uses it reports it
    result = []
    for rule in target.constraints:
        try:
            if not rule.that.evaluate(scope):
                result.append((rule, ""))
        except (*EVALUATION_ERRORS, NameError) as error:
            result.append((rule, f"it has no value: {error}"))
    return result


def _find_set(target: Target, name: str) -> ConfigurationSet | None:
    return next((s for s in target.sets if s.name == name), None)


def _set_values(target: Target, chosen: ConfigurationSet) -> dict[Values, None]:
    """A set's configurations in the order they are written; includes come where they stand."""
    result: dict[Values, None] = {}
    written: dict[Values, Choice] = {}
    problems: list[Problem] = []
    for choice in chosen.choices:
        if isinstance(choice, str):
            included = _find_set(target, choice)
            assert included is not None, "checked when the spec was loaded"
            result.update(_set_values(target, included))
            continue
        try:
            found = _choice_values(target, choice)
        except SpecError as error:
            problems.extend(error.problems)
            continue
        for values in found:
            if choice.strict and values in written:
                line = written[values].location.line
                key = key_prefix(target) + tokens_of(target.parameters)(values)
                message = f"{key} is listed twice: first on line {line}"
                problems.append(Problem(choice.location, message))
            if choice.strict:
                written.setdefault(values, choice)
            result[values] = None
    if problems:
        raise SpecError(problems)
    return result


def _choice_values(target: Target, choice: Choice) -> list[Values]:
    rules = (*target.constraints, *choice.prune)
    try:
        found: list[Values] = _product(target, rules)(*choice.values)
    except EVALUATION_ERRORS:
        raise SpecError(_without_value(target, choice, rules)) from None
    if not found:
        raise SpecError(_nothing_left(target, choice, rules))
    return found


@lru_cache(maxsize=256)
def _product(target: Target, rules: tuple[Rule, ...]) -> Any:
    """A function from the values of each parameter to the configurations that all rules leave."""
    names = [parameter.name for parameter in target.parameters]
    derived = dict(target.derived)
    pending = list(rules)
    known: set[str] = set()
    clauses: list[str] = []
    for name in names or ["_"]:  # without parameters there is one configuration, ()
        clauses.append(f"for {name} in {f'_values_{name}' if names else '(0,)'}")
        known.add(name)
        ready = [rule for rule in pending if _needs(rule.that, derived) <= known]
        pending = [rule for rule in pending if rule not in ready]
        for rule in ready:
            for needed in _derived_for(rule.that, derived):
                if needed not in known:
                    clauses.append(f"for {needed} in ({derived[needed].python},)")
                    known.add(needed)
            clauses.append(f"if {rule.that.python}")
    head = "(" + "".join(f"{name}, " for name in names) + ")"
    arguments = ", ".join(f"_values_{name}" for name in names)
    source = f"lambda {arguments}: [{head} {' '.join(clauses)}]"
    return eval(compile(source, f"<{target.display}>", "eval"), ENVIRONMENT)


def _needs(expression: Expression, derived: dict[str, Expression]) -> frozenset[str]:
    """The parameters an expression rests on."""
    result: set[str] = set()
    for name in expression.names:
        result |= _needs(derived[name], derived) if name in derived else {name}
    return frozenset(result)


def _derived_for(expression: Expression, derived: dict[str, Expression]) -> list[str]:
    """The derived values an expression rests on, each after those that it needs itself."""
    result: dict[str, None] = {}
    for name in sorted(expression.names & derived.keys()):
        result.update(dict.fromkeys(_derived_for(derived[name], derived)))
        result[name] = None
    return list(result)


def _configurations(target: Target, values: Iterable[Values]) -> Iterator[Configuration]:
    prefix = key_prefix(target)
    tokens = tokens_of(target.parameters)
    derive = _derive(target)
    for configuration in values:
        text = tokens(configuration)
        try:
            derived = derive(*configuration)
        except EVALUATION_ERRORS as error:
            place = target.constraints[0].location if target.constraints else None
            message = f"a derived value of {prefix}{text} has no value: {error}"
            location = target.sets[0].location if place is None else place
            raise SpecError([Problem(location, message)]) from None
        yield Configuration(prefix + text, text, configuration, derived)


@lru_cache(maxsize=256)
def _derive(target: Target) -> Any:
    """A function from a configuration's values to its derived values."""
    names = ", ".join(parameter.name for parameter in target.parameters)
    clauses = " ".join(f"for {name} in ({e.python},)" for name, e in target.derived)
    head = "(" + "".join(f"{name}, " for name, _ in target.derived) + ")"
    source = f"lambda {names}: [{head} {clauses or 'for _ in (0,)'}][0]"
    return eval(compile(source, f"<{target.display}>", "eval"), ENVIRONMENT)


def _combinations(target: Target, choice: Choice, names: Sequence[str]) -> list[Values]:
    """Every combination of the choice's values of some parameters."""
    axes = [choice.values[i] for i, p in enumerate(target.parameters) if p.name in names]
    result: list[Values] = [()]
    for axis in axes:
        result = [(*values, value) for values in result for value in axis]
    return result


def _holds(target: Target, rule: Rule, names: Sequence[str], values: Values) -> bool:
    """Whether a rule holds; `names` are the parameters it rests on, in spec order."""
    scope: dict[str, Any] = dict(zip(names, values, strict=True))
    derived = dict(target.derived)
    for name in _derived_for(rule.that, derived):
        scope[name] = derived[name].evaluate(scope)
    return bool(rule.that.evaluate(scope))


def _rests_on(target: Target, rule: Rule) -> list[str]:
    needed = _needs(rule.that, dict(target.derived))
    return [p.name for p in target.parameters if p.name in needed]


def _without_value(target: Target, choice: Choice, rules: Sequence[Rule]) -> list[Problem]:
    """Which rules cannot be evaluated, and for which values."""
    problems = []
    for rule in rules:
        names = _rests_on(target, rule)
        for values in _combinations(target, choice, names):
            try:
                _holds(target, rule, names, values)
            except EVALUATION_ERRORS as error:
                given = ", ".join(f"{n} = {v}" for n, v in zip(names, values, strict=True))
                message = f"'{rule.that.text}' has no value for {given}: {error}"
                problems.append(Problem(rule.location, message))
                break
    return problems


def _nothing_left(target: Target, choice: Choice, rules: Sequence[Rule]) -> list[Problem]:
    """Why a choice is empty: the rules that exclude all of it, or all of them together."""
    problems = []
    for rule in rules:
        names = _rests_on(target, rule)
        if not any(_holds(target, rule, names, v) for v in _combinations(target, choice, names)):
            where = (
                f"the configuration on line {choice.location.line}"
                if choice.strict
                else f"everything that the product on line {choice.location.line} holds"
            )
            message = f"'{rule.that.text}' excludes {where}: {rule.because}"
            problems.append(Problem(choice.location if choice.strict else rule.location, message))
    if not problems:
        message = "the constraints together leave nothing of this: no combination meets them all"
        problems.append(Problem(choice.location, message))
    return problems


class _Where:
    """A filter over configurations: parameters, derived values, `family` and `target`.

    A name that only other targets have matches nothing, unless it is not reached.
    """

    def __init__(self, text: str, targets: Sequence[Target]) -> None:
        self._text = text
        self._code: dict[Target, Any] = {}
        texts: dict[str, dict[str, None]] = {
            "family": dict.fromkeys(target.family for target in targets),
            "target": dict.fromkeys(target.name for target in targets),
        }
        numbers: dict[Target, dict[str, Kind]] = {target: {} for target in targets}
        for target in targets:
            for parameter in target.parameters:
                if parameter.kind.is_number:
                    numbers[target][parameter.name] = parameter.kind
                else:
                    values = dict.fromkeys(parameter.kind.values or ())
                    texts.setdefault(parameter.name, {}).update(values)
            numbers[target] |= {name: expression.kind for name, expression in target.derived}
        everywhere = {name: kind for scope in numbers.values() for name, kind in scope.items()}
        everywhere |= {name: Kind("text", tuple(values)) for name, values in texts.items()}
        for target in targets:
            try:
                expression = parse(text, {**everywhere, **numbers[target]}, "bool")
            except ExpressionError as error:
                raise UsageError(f'--where "{text}": {error}') from None
            self._code[target] = compile(expression.python, "--where", "eval")

    def __call__(self, target: Target, configuration: Configuration) -> bool:
        scope: dict[str, Any] = {"family": target.family, "target": target.name}
        for parameter, value in zip(target.parameters, configuration.values, strict=True):
            scope[parameter.name] = value
        for (name, _), number in zip(target.derived, configuration.derived, strict=True):
            scope[name] = number
        try:
            return bool(eval(self._code[target], ENVIRONMENT, scope))
        except NameError:
            return False
        except EVALUATION_ERRORS as error:
            raise UsageError(
                f'--where "{self._text}" has no value for {configuration.key}: {error}'
            ) from None
