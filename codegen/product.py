"""Products of parameter values, pruned by rules; and why nothing is left, where nothing is.

A product is compiled into one generator expression whose conditions stand as far out as their names
allow, so that a rule prunes as soon as it can and costs no call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from codegen.expressions import ENVIRONMENT, EVALUATION_ERRORS, Expression, reason
from codegen.problems import Problem, SpecError
from codegen.spec import Choice, Number, ParameterValue, Rule, Target

Values = tuple[ParameterValue, ...]


def choice_values(target: Target, choice: Choice, most: int | None = None) -> list[Values]:
    """The configurations of a choice that the constraints and its own rules leave.

    `most` stops after so many. Raises SpecError where a rule has no value for one of them, and
    where none is left.
    """
    rules = (*target.constraints, *choice.prune)
    try:
        found = list(itertools.islice(_product(target, rules)(*choice.values), most))
    except EVALUATION_ERRORS:
        raise SpecError(_without_value(target, choice, rules)) from None
    if not found:
        raise SpecError(_nothing_left(target, choice, rules))
    return found


@lru_cache(maxsize=256)
def deriver(target: Target) -> Callable[..., tuple[Number, ...]]:
    """A function from a configuration's values to its derived values."""
    names = ", ".join(parameter.name for parameter in target.parameters)
    clauses = " ".join(f"for {d.name} in ({d.expression.python},)" for d in target.derived)
    head = "(" + "".join(f"{d.name}, " for d in target.derived) + ")"
    return _compiled(target, f"lambda {names}: [{head} {clauses or 'for _ in (0,)'}][0]")


@lru_cache(maxsize=256)
def _product(target: Target, rules: tuple[Rule, ...]) -> Callable[..., Iterator[Values]]:
    """A function from the values of each parameter to the configurations that all rules leave."""
    names = [parameter.name for parameter in target.parameters]
    derived = target.derived_expressions
    pending = list(rules)
    known: set[str] = set()
    clauses: list[str] = []
    for name in names or ["_"]:  # without parameters there is one configuration, ()
        clauses.append(f"for {name} in {f'_values_{name}' if names else '(0,)'}")
        known.add(name)
        ready = [rule for rule in pending if _rests_on(rule.that, derived) <= known]
        pending = [rule for rule in pending if rule not in ready]
        for rule in ready:
            for needed in _derived_for(rule.that, derived):
                if needed not in known:
                    clauses.append(f"for {needed} in ({derived[needed].python},)")
                    known.add(needed)
            clauses.append(f"if {rule.that.python}")
    head = "(" + "".join(f"{name}, " for name in names) + ")"
    arguments = ", ".join(f"_values_{name}" for name in names)
    return _compiled(target, f"lambda {arguments}: ({head} {' '.join(clauses)})")


def _compiled(target: Target, source: str) -> Callable[..., Any]:
    function: Callable[..., Any] = eval(compile(source, f"<{target.display}>", "eval"), ENVIRONMENT)
    return function


def _rests_on(expression: Expression, derived: Mapping[str, Expression]) -> frozenset[str]:
    """The parameters an expression rests on."""
    result: set[str] = set()
    for name in expression.names:
        result |= _rests_on(derived[name], derived) if name in derived else {name}
    return frozenset(result)


def _derived_for(expression: Expression, derived: Mapping[str, Expression]) -> list[str]:
    """The derived values an expression rests on, each after those that it needs itself."""
    result: dict[str, None] = {}
    for name in sorted(expression.names & derived.keys()):
        result.update(dict.fromkeys(_derived_for(derived[name], derived)))
        result[name] = None
    return list(result)


class _RuleAlone:
    """A rule over the values that a choice gives to the parameters it rests on."""

    def __init__(self, target: Target, choice: Choice, rule: Rule) -> None:
        self._rule = rule
        self._derived = target.derived_expressions
        needed = _rests_on(rule.that, self._derived)
        self.combinations: list[dict[str, Any]] = [{}]
        for parameter, axis in zip(target.parameters, choice.values, strict=True):
            if parameter.name in needed:
                self.combinations = [
                    {**given, parameter.name: value}
                    for given in self.combinations
                    for value in axis
                ]

    def holds(self, given: Mapping[str, Any]) -> bool:
        scope = dict(given)
        for name in _derived_for(self._rule.that, self._derived):
            scope[name] = self._derived[name].evaluate(scope)
        return bool(self._rule.that.evaluate(scope))


def _without_value(target: Target, choice: Choice, rules: Sequence[Rule]) -> list[Problem]:
    """Which rules cannot be evaluated, and for which values."""
    problems = []
    for rule in rules:
        alone = _RuleAlone(target, choice, rule)
        for given in alone.combinations:
            try:
                alone.holds(given)
            except EVALUATION_ERRORS as error:
                values = ", ".join(f"{name} = {value}" for name, value in given.items())
                message = f"'{rule.that.text}' has no value for {values}: {reason(error)}"
                problems.append(Problem(rule.location, message))
                break
    return problems


def _nothing_left(target: Target, choice: Choice, rules: Sequence[Rule]) -> list[Problem]:
    """Why a choice is empty: the rules that exclude all of it, or all of them together."""
    problems = []
    line = choice.location.line
    for rule in rules:
        alone = _RuleAlone(target, choice, rule)
        if any(map(alone.holds, alone.combinations)):
            continue
        what = "the configuration" if choice.strict else "everything that the product"
        message = f"'{rule.that.text}' excludes {what} on line {line}"
        message += ("" if choice.strict else " holds") + f": {rule.because}"
        problems.append(Problem(choice.location if choice.strict else rule.location, message))
    if not problems:
        message = "the constraints together leave nothing of this: no combination meets them all"
        problems.append(Problem(choice.location, message))
    return problems
