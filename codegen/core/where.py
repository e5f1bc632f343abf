"""A filter: one expression over configurations whose names differ from target to target."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from codegen.core.expressions import (
    BOOL,
    DTYPE,
    ENVIRONMENT,
    EVALUATION_ERRORS,
    FLOAT,
    INT,
    ExpressionError,
    Kind,
    parse,
    reason,
)
from codegen.core.manifest import Family, Parameter, Target
from codegen.core.problems import UsageError

Scope = TypeVar("Scope", bound=Hashable)


def parameter_kind(parameter: Parameter) -> Kind:
    """Returns the kind of a manifest's parameter in expressions."""
    kinds = {"dtype": DTYPE, "bool": BOOL, "int": INT}
    return kinds.get(parameter.type) or Kind("text", tuple(map(str, parameter.values or ())))


def manifest_scope(family: Family, target: Target) -> dict[str, Kind]:
    """Returns the names that configurations of a manifest's target have; its derived values if it
    has any kernel."""
    kinds = {bool: BOOL, int: INT, float: FLOAT}
    derived = target.kernels[0].derived if target.kernels else {}
    return {
        **{p.name: parameter_kind(p) for p in (*family.parameters, *target.parameters)},
        **{name: kinds[type(value)] for name, value in derived.items()},
        "family": Kind("text", (family.name,)),
        "target": Kind("text", (target.name,)),
    }


class Where(Generic[Scope]):
    """An expression over parameters, derived values, `family` and `target`.

    `scopes` are the names that each target has. A name that only other targets have matches
    nothing, unless it is not reached. `refuse` makes an error of a problem: at once for a malformed
    expression or a name that no target has; at the kernel for which the expression has no value.
    """

    def __init__(
        self,
        text: str,
        scopes: Mapping[Scope, Mapping[str, Kind]],
        refuse: Callable[[str], Exception],
    ) -> None:
        everywhere: dict[str, Kind] = {}
        for scope in scopes.values():
            for name, kind in scope.items():
                values = (*(everywhere.get(name, kind).values or ()), *(kind.values or ()))
                everywhere[name] = Kind("text", tuple(dict.fromkeys(values))) if values else kind
        self._refuse = refuse
        self._code: dict[Scope, Any] = {}
        try:
            for key, scope in scopes.items():
                numbers = {name: kind for name, kind in scope.items() if kind.is_number}
                expression = parse(text, {**everywhere, **numbers}, "bool")
                self._code[key] = compile(expression.python, "<where>", "eval")
        except ExpressionError as error:
            raise refuse(f": {error}") from None

    def matches(self, scope: Scope, key: str, values: Mapping[str, Any]) -> bool:
        """Returns whether the values of `key`, of the target that `scope` names, match."""
        try:
            return bool(eval(self._code[scope], ENVIRONMENT, dict(values)))
        except NameError:
            return False
        except EVALUATION_ERRORS as error:
            raise self._refuse(f" has no value for {key}: {reason(error)}") from None


def usage_error(text: str) -> Callable[[str], UsageError]:
    """Returns a function that makes the error which refuses `--where "text"`."""
    return lambda what: UsageError(f'--where "{text}"{what}')


def of_manifests(
    text: str, targets: Iterable[tuple[Family, Target]], refuse: Callable[[str], Exception]
) -> Callable[[str, Mapping[str, Any]], bool]:
    """Returns a filter of keys with their parameters and derived values; the targets come from
    manifests."""
    where = Where(text, {(f.name, t.name): manifest_scope(f, t) for f, t in targets}, refuse)

    def matches(key: str, values: Mapping[str, Any]) -> bool:
        family, target, _ = key.split(".", 2)
        return where.matches((family, target), key, {**values, "family": family, "target": target})

    return matches
