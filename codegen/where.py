"""The filter --where over configurations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codegen.expressions import ENVIRONMENT, EVALUATION_ERRORS, ExpressionError, Kind, parse, reason
from codegen.problems import UsageError
from codegen.spec import Configuration, Target


class Where:
    """An expression over parameters, derived values, `family` and `target`.

    A name that only other targets have matches nothing, unless it is not reached. Raises UsageError
    for an expression that is none, or that no target knows a name of.
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
            numbers[target] |= {d.name: d.expression.kind for d in target.derived}
        everywhere = {name: kind for scope in numbers.values() for name, kind in scope.items()}
        everywhere |= {name: Kind("text", tuple(values)) for name, values in texts.items()}
        for target in targets:
            try:
                expression = parse(text, {**everywhere, **numbers[target]}, "bool")
            except ExpressionError as error:
                raise UsageError(f'--where "{text}": {error}') from None
            self._code[target] = compile(expression.python, "--where", "eval")

    def __call__(self, target: Target, configuration: Configuration) -> bool:
        """Whether the configuration matches."""
        scope: dict[str, Any] = {"family": target.family, "target": target.name}
        for parameter, value in zip(target.parameters, configuration.values, strict=True):
            scope[parameter.name] = value
        for derived, number in zip(target.derived, configuration.derived, strict=True):
            scope[derived.name] = number
        try:
            return bool(eval(self._code[target], ENVIRONMENT, scope))
        except NameError:
            return False
        except EVALUATION_ERRORS as error:
            message = (
                f'--where "{self._text}" has no value for {configuration.key}: {reason(error)}'
            )
            raise UsageError(message) from None
