"""Products of parameter values, pruned by rules; and the reason for an empty product.

A product grows parameter by parameter. A rule is applied with the last parameter that it names, so
that it prunes as soon as it can; each such step is compiled into one Python function. The cost of a
step is known before it runs, which holds all products of a target within `Work`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any

from codegen.core.expressions import (
    BOOL,
    ENVIRONMENT,
    EVALUATION_ERRORS,
    FLOAT,
    INT64_MAX,
    MAX_FLOAT,
    Kind,
    reason,
)
from codegen.core.problems import Problem, SpecError
from codegen.spec.model import Derived, Family, Number, ParameterValue, Rule, SetPart, Target

Values = tuple[ParameterValue, ...]

# Limits of all products of one target together: some 2 seconds, and some 100 MB.
MAX_STEPS = 40_000_000
MAX_CONFIGURATIONS = 200_000
_COMBINATION = 16  # steps that one combination takes, besides its rules
_MAX_EXPLANATION = 200_000  # steps of the search for a rule that excludes all
_MAX_LOOPS = 8  # Python nests 20 blocks


@dataclass
class Work:
    """The steps and configurations that the products of a target have taken so far."""

    steps: int = 0
    configurations: int = 0

    @property
    def is_spent(self) -> bool:
        """Returns whether the products have taken more than the limit."""
        return self.steps > MAX_STEPS or self.configurations > MAX_CONFIGURATIONS

    def take(self, part: SetPart, combinations: int, size: int) -> None:
        """Raises SpecError if so many combinations, with rules of this size, are too many."""
        self.steps += combinations * (_COMBINATION + size)
        if self.is_spent:
            self._refuse(
                part,
                f"it tries {combinations:,} combinations or more at once, with rules of {size} "
                f"names and operations; the products of a target may take {MAX_STEPS:,} steps. "
                "List fewer values, name the parameters that rules prune by first, or split it "
                "into several products",
            )

    def keep(self, part: SetPart, configurations: int) -> None:
        """Raises SpecError if the sets come to hold too many configurations."""
        self.configurations += configurations
        if self.is_spent:
            self._refuse(
                part,
                f"the sets of this target hold {self.configurations:,} configurations; at most "
                f"{MAX_CONFIGURATIONS:,}. Prune more, or list fewer values",
            )

    @staticmethod
    def _refuse(part: SetPart, message: str) -> None:
        raise SpecError([Problem(part.location, message)])


def part_values(
    target: Target, part: SetPart, work: Work, without: Rule | None = None
) -> list[Values]:
    """Returns the configurations of a part that the constraints and its own rules leave, but for
    one rule.

    Raises SpecError if a rule has no value for a configuration, if the part is empty, and if the
    search would take more than `work` allows.
    """
    rules = tuple(rule for rule in (*target.constraints, *part.prune) if rule is not without)
    axes = dict(zip((p.name for p in target.parameters), part.values, strict=True))
    configurations: list[Any] = [()]
    for step in _steps(target, rules):
        combinations = len(configurations) * math.prod(len(axes[name]) for name in step.axes)
        work.take(part, combinations, step.size)
        try:
            configurations = step.run(configurations, *(axes[name] for name in step.axes))
        except EVALUATION_ERRORS as error:
            raise SpecError([step.without_value(target, error)]) from None
    if not configurations:
        raise SpecError(_nothing_left(target, part, rules))
    work.keep(part, len(configurations))
    return configurations


@lru_cache(maxsize=256)
def deriver(target: Target) -> Callable[..., tuple[Number, ...]]:
    """Returns a function from a configuration's values to its derived values and predictions.

    The function raises one of EVALUATION_ERRORS if a derived value does not exist, and for a launch
    beyond CUDA's bounds.
    """
    lines = [_assignment(derived) for derived in target.computed]
    for bound in target.launch_bounds:
        test = f"{bound.least} <= ({bound.expression.python}) <= {bound.most}"
        lines.append(f"if not {test}: raise _ArithmeticError")
    lines.append(f"return {_tuple([derived.name for derived in target.computed])}")
    return _compiled("derive", [parameter.name for parameter in target.parameters], lines)


@dataclass(frozen=True)
class _Step:
    """Some more parameters, and the rules that can be evaluated once they are known."""

    axes: tuple[str, ...]
    size: int  # the size of its rules and of the derived values they need
    run: Callable[..., list[Any]]
    sources: Mapping[int, Rule | Derived]  # by line of `run`

    def without_value(self, target: Target, error: Exception) -> Problem:
        """Returns the rule or derived value that has no value, and the configuration's values."""
        frame = _frame(error.__traceback__, self.run)
        source = self.sources[frame.tb_lineno]
        expression = source.that if isinstance(source, Rule) else source.expression
        rests_on = derivation(target).rests_on(expression.names)
        values = ", ".join(
            f"{p.name} = {frame.tb_frame.f_locals[p.name]}"
            for p in target.parameters
            if p.name in rests_on
        )
        message = f"'{expression.text}' has no value for {values}: {reason(error)}"
        return Problem(source.location, message)


def _frame(traceback: TracebackType | None, function: Callable[..., Any]) -> TracebackType:
    """Returns the innermost frame of `function` in a traceback."""
    frames = []
    while traceback is not None:
        if traceback.tb_frame.f_code is function.__code__:
            frames.append(traceback)
        traceback = traceback.tb_next
    return frames[-1]


@lru_cache(maxsize=256)
def _steps(target: Target, rules: tuple[Rule, ...]) -> tuple[_Step, ...]:
    """Returns the steps from nothing to the configurations that all rules leave."""
    names = [parameter.name for parameter in target.parameters]
    derivation_ = derivation(target)
    names_so_far: list[str] = []
    steps: list[_Step] = []
    pending = [(rule, derivation_.rests_on(rule.that.names)) for rule in rules]
    axes: list[str] = []
    for name in names or [""]:  # without parameters there is one configuration, ()
        axes += [name] if names else []
        reached = {*names_so_far, *axes}
        ready = [rule for rule, rests_on in pending if rests_on <= reached]
        is_last = not names or name == names[-1]
        if not ready and not is_last and len(axes) < _MAX_LOOPS:
            continue
        pending = [entry for entry in pending if not entry[1] <= reached]
        needed: list[tuple[list[Derived], Rule]] = []
        for rule in ready:
            derived = [d for d in derivation_.needed_for(rule.that.names) if d.name not in reached]
            reached.update(d.name for d in derived)
            needed.append((derived, rule))
        computed = [d.name for derived, _ in needed for d in derived]
        result = names if is_last else [*names_so_far, *axes, *computed]
        steps.append(_step(names_so_far, axes, needed, result))
        names_so_far, axes = result, []
    return tuple(steps)


def _step(
    names_so_far: Sequence[str],
    axes: Sequence[str],
    rules: Sequence[tuple[Sequence[Derived], Rule]],
    result: Sequence[str],
) -> _Step:
    lines = ["_found = []", "_add = _found.append"]
    loops = [f"for {_tuple(names_so_far) if names_so_far else '_'} in _known:"]
    loops += [f"for {name} in _values_{name}:" for name in axes]
    lines += [" " * depth + loop for depth, loop in enumerate(loops)]
    indent = " " * len(loops)
    sources: dict[int, Rule | Derived] = {}
    size = 0
    for derived, rule in rules:
        for value in derived:
            lines.append(indent + _assignment(value))
            sources[len(lines) + 1] = value  # line 1 is the signature
            size += value.expression.size
        lines.append(f"{indent}if not ({rule.that.python}): continue")
        sources[len(lines) + 1] = rule
        size += rule.that.size
    lines += [f"{indent}_add({_tuple(result)})", "return _found"]
    arguments = ["_known", *(f"_values_{name}" for name in axes)]
    return _Step(tuple(axes), size, _compiled("step", arguments, lines), sources)


def _assignment(derived: Derived) -> str:
    """Returns Python that computes a derived value and refuses a value that C++ does not have."""
    name, expression = derived.name, derived.expression
    if expression.kind == BOOL:
        return f"{name} = {expression.python}"
    most = repr(MAX_FLOAT) if expression.kind == FLOAT else INT64_MAX
    return f"{name} = {expression.python}; -{most} <= {name} <= {most} or _in_range({name})"


def _tuple(names: Sequence[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names) + ")"


def _compiled(name: str, arguments: Sequence[str], lines: Sequence[str]) -> Callable[..., Any]:
    source = f"def {name}({', '.join(arguments)}):\n" + "".join(f" {line}\n" for line in lines)
    scope = {**ENVIRONMENT, "_ArithmeticError": ArithmeticError}
    exec(compile(source, f"<{name}>", "exec"), scope)
    function: Callable[..., Any] = scope[name]
    return function


class Derivation:
    """The parameters and derived values that derived values rest on; each rests on parameters and
    on derived values above it."""

    def __init__(self, derived_values: Sequence[Derived]) -> None:
        self._derived = derived_values
        self._parameters: dict[str, frozenset[str]] = {}  # derived value -> parameters
        self._values: dict[str, frozenset[str]] = {}  # derived value -> derived values and itself
        for derived in derived_values:
            names = derived.expression.names
            self._parameters[derived.name] = self.rests_on(names)
            above = (self._values[name] for name in names if name in self._values)
            self._values[derived.name] = frozenset({derived.name}).union(*above)

    def kind(self, name: str) -> Kind:
        """Returns the kind of a derived value."""
        return next(d.expression.kind for d in self._derived if d.name == name)

    def rests_on(self, names: frozenset[str]) -> frozenset[str]:
        """Returns the parameters that an expression of these names rests on."""
        return frozenset().union(*(self._parameters.get(name, {name}) for name in names))

    def needed_for(self, names: frozenset[str]) -> list[Derived]:
        """Returns the derived values that an expression of these names needs, in the order in which
        they need each other."""
        needed = frozenset().union(*(self._values.get(name, ()) for name in names))
        return [derived for derived in self._derived if derived.name in needed]


@lru_cache(maxsize=256)
def derivation(of: Target | Family) -> Derivation:
    """Returns the derivation of a target's derived values and predictions, or of the derived values
    that all targets of a family share."""
    return Derivation(of.computed if isinstance(of, Target) else of.derived)


def _ever_holds(target: Target, part: SetPart, rule: Rule, most: int) -> tuple[bool, int]:
    """Returns whether a rule holds for some of the values that a part gives to the parameters it
    rests on, and the steps of the search. Returns (True, 0) for a search of more than `most`
    steps."""
    derived_values = derivation(target).needed_for(rule.that.names)
    needed = derivation(target).rests_on(rule.that.names)
    named = zip(target.parameters, part.values, strict=True)
    axes = {parameter.name: axis for parameter, axis in named if parameter.name in needed}
    size = rule.that.size + sum(derived.expression.size for derived in derived_values)
    steps = math.prod(map(len, axes.values())) * (_COMBINATION + size)
    if steps > most:
        return True, 0
    for values in itertools.product(*axes.values()):
        scope: dict[str, Any] = dict(zip(axes, values, strict=True))
        try:
            for derived in derived_values:
                scope[derived.name] = derived.expression.evaluate(scope)
            if rule.that.evaluate(scope):
                return True, steps
        except EVALUATION_ERRORS:
            continue  # for values that another rule excludes
    return False, steps


def _nothing_left(target: Target, part: SetPart, rules: Sequence[Rule]) -> list[Problem]:
    """Returns why a part is empty: the rules that exclude all of it, or all of them together."""
    problems = []
    line = part.location.line
    left = _MAX_EXPLANATION
    for rule in rules:
        holds, steps = _ever_holds(target, part, rule, left)
        left -= steps
        if holds:
            continue
        what = "the configuration" if part.strict else "everything that the product"
        message = f"'{rule.that.text}' excludes {what} on line {line}"
        message += ("" if part.strict else " holds") + f": {rule.because}"
        problems.append(Problem(part.location if part.strict else rule.location, message))
    if not problems:
        message = "the constraints together leave nothing of this: no combination meets them all"
        problems.append(Problem(part.location, message))
    return problems
