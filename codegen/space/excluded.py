"""The combinations that each rule of a target leaves out of the products that its sets write."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from codegen.core.expressions import EVALUATION_ERRORS
from codegen.core.problems import SpecError
from codegen.space.expand import TargetSpace, parts
from codegen.space.product import Work, derivation, part_values
from codegen.spec.model import Rule, SetPart, Target

_MOST = 2_000_000  # combinations of a rule's own parameters


@dataclass(frozen=True)
class Excluded:
    """The combinations of parameters that a rule leaves out of a set's products.

    Attributes:
        rule: a constraint, or a `prune` of a product.
        count: the combinations for which the rule does not hold; None if they are too many to try.
        alone: those that no other rule leaves out; None if another rule has no value without this
            one, or leaves too many.
    """

    rule: Rule
    count: int | None
    alone: int | None


@dataclass(frozen=True)
class Products:
    """The combinations that a set's products write, those that its rules leave, and what each rule
    leaves out, most first. Configurations that are written out are no combinations."""

    target: Target
    combinations: int
    left: int
    excluded: tuple[Excluded, ...]


def products(space: TargetSpace, set_name: str) -> Products:
    """Returns what the rules leave of a set's products. Raises SpecError."""
    target, combinations, left = space.target, 0, 0
    counts: dict[Rule, list[tuple[int | None, int | None]]] = defaultdict(list)
    chosen = next(s for s in target.sets if s.name == set_name)
    for part in parts(target, chosen):
        if part.strict:
            continue
        kept = len(part_values(target, part, Work()))
        combinations += math.prod(map(len, part.values))
        left += kept
        for rule in (*target.constraints, *part.prune):
            counts[rule].append((_count(target, part, rule), _alone(target, part, rule, kept)))
    excluded = [
        Excluded(rule, *map(_sum, zip(*each, strict=True))) for rule, each in counts.items()
    ]
    excluded.sort(key=lambda one: math.inf if one.count is None else one.count, reverse=True)
    return Products(target, combinations, left, tuple(excluded))


def _sum(counts: Iterable[int | None]) -> int | None:
    result = 0
    for count in counts:
        if count is None:
            return None
        result += count
    return result


def _count(target: Target, part: SetPart, rule: Rule) -> int | None:
    """Returns for how many combinations a rule does not hold, or has no value."""
    derived_values = derivation(target).needed_for(rule.that.names)
    needed = derivation(target).rests_on(rule.that.names)
    axes = {p.name: axis for p, axis in zip(target.parameters, part.values, strict=True)}
    own = {name: axis for name, axis in axes.items() if name in needed}
    if math.prod(map(len, own.values())) > _MOST:
        return None
    count = 0
    for values in itertools.product(*own.values()):
        scope: dict[str, Any] = dict(zip(own, values, strict=True))
        try:
            for derived in derived_values:
                scope[derived.name] = derived.expression.evaluate(scope)
            count += not rule.that.evaluate(scope)
        except EVALUATION_ERRORS:
            count += 1
    return count * math.prod(len(axis) for name, axis in axes.items() if name not in own)


def _alone(target: Target, part: SetPart, rule: Rule, left: int) -> int | None:
    """Returns how many more combinations there were without a rule."""
    try:
        return len(part_values(target, part, Work(), without=rule)) - left
    except SpecError:
        return None
