"""A filter: one expression over configurations whose names differ from target to target."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

from codegen.manifest import Family, Parameter, Target
from codegen.spec.expressions import BOOL, DTYPE, ENVIRONMENT, FLOAT, INT, Kind, parse

Scope = TypeVar("Scope", bound=Hashable)


def parameter_kind(parameter: Parameter) -> Kind:
    """What a parameter of a manifest is in an expression."""
    kinds = {"dtype": DTYPE, "bool": BOOL, "int": INT}
    return kinds.get(parameter.type) or Kind("text", tuple(map(str, parameter.values or ())))


def manifest_scope(family: Family, target: Target) -> dict[str, Kind]:
    """The names that configurations of a manifest's target have; its derived values if it has any
    kernel."""
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
    nothing, unless it is not reached. Raises ExpressionError for an invalid expression, or
    that no target knows a name of.
    """

    def __init__(self, text: str, scopes: Mapping[Scope, Mapping[str, Kind]]) -> None:
        everywhere: dict[str, Kind] = {}
        for scope in scopes.values():
            for name, kind in scope.items():
                values = (*(everywhere.get(name, kind).values or ()), *(kind.values or ()))
                everywhere[name] = Kind("text", tuple(dict.fromkeys(values))) if values else kind
        self._code: dict[Scope, Any] = {}
        for key, scope in scopes.items():
            numbers = {name: kind for name, kind in scope.items() if kind.is_number}
            expression = parse(text, {**everywhere, **numbers}, "bool")
            self._code[key] = compile(expression.python, "<where>", "eval")

    def matches(self, scope: Scope, values: Mapping[str, Any]) -> bool:
        """Whether these values, of the target that `scope` names, match.

        Raises one of EVALUATION_ERRORS if the expression has no value for them.
        """
        try:
            return bool(eval(self._code[scope], ENVIRONMENT, dict(values)))
        except NameError:
            return False
