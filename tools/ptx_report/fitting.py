"""A prediction of registers from the kernels that ptxas compiled: least squares over terms that a
person names. Kernels that spill do not count: their registers are the limit's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codegen.core.expressions import EVALUATION_ERRORS, Expression, ExpressionError, Kind, parse
from codegen.core.ptxas_rows import ReportError, Row

from .report import Report, kind_of

_HUNDREDTHS = 100  # the grid of coefficients, as specs have no floats where they need integers
_SMALL = 1e-9  # a smaller pivot means that a term is a sum of others


@dataclass(frozen=True)
class Fit:
    """A prediction, as `predict:` takes it, and how far it is off."""

    expression: str
    rows: int
    average: float
    most: float
    left_out: float  # the average for a row that took no part in the fit

    def __str__(self) -> str:
        return (
            f"registers: {self.expression}\n{self.rows} rows without spills: {self.average:.1f} "
            f"off on average, {self.most:.0f} at most; a row that is left out of the fit is "
            f"{self.left_out:.1f} off on average"
        )


def fit(report: Report, terms: Sequence[str]) -> Fit:
    """Returns the fit of the registers of our kernels to 1 and these terms: expressions over
    parameters and derived values. Raises ReportError."""
    rows = [
        row
        for row in report.rows
        if row.kind in ("kernel", "object")
        and report.parameters(row)
        and row.used_registers is not None
        and not row.spilled
    ]
    least = 2 * (len(terms) + 1)
    if len(rows) < least:
        raise ReportError(
            f"--fit: {len(rows)} kernels of ours without spills; {len(terms)} terms need {least}"
        )
    points = [(1.0, *(_value(report, row, term) for term in terms)) for row in rows]
    registers = [float(row.used_registers or 0) for row in rows]
    exact = _solved(points, registers)
    hundredths = [round(_HUNDREDTHS * coefficient) for coefficient in exact]
    errors = [
        abs(sum(c * x for c, x in zip(hundredths, point, strict=True)) // _HUNDREDTHS - printed)
        for point, printed in zip(points, registers, strict=True)
    ]
    left_out = []
    for i, (point, printed) in enumerate(zip(points, registers, strict=True)):
        others = _solved(points[:i] + points[i + 1 :], registers[:i] + registers[i + 1 :])
        left_out.append(abs(sum(c * x for c, x in zip(others, point, strict=True)) - printed))
    constant, *factors = hundredths
    products = [f" + {c} * ({term})" for c, term in zip(factors, terms, strict=True)]
    return Fit(
        f"({constant}{''.join(products)}) // {_HUNDREDTHS}",
        len(rows),
        sum(errors) / len(errors),
        max(errors),
        sum(left_out) / len(left_out),
    )


def _value(report: Report, row: Row, term: str) -> float:
    values = {**report.parameters(row), **report.derived(row)}
    scope: dict[str, Kind] = {name: kind_of(value) for name, value in values.items()}
    try:
        expression: Expression = parse(term, scope)
        return float(expression.evaluate(values))
    except ExpressionError as error:
        problems = "; ".join(message for _, message in error.problems)
        raise ReportError(f"--fit '{term}', of {row.kernel_config}: {problems}") from None
    except EVALUATION_ERRORS as error:
        raise ReportError(f"--fit '{term}' has no value for {row.kernel_config}: {error}") from None


def _solved(points: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Returns the coefficients of least squares, by Gauss's elimination of the normal equations.
    Raises ReportError if the terms do not decide them."""
    size = range(len(points[0]))
    matrix = [
        [
            *(sum(point[i] * point[j] for point in points) for j in size),
            sum(point[i] * value for point, value in zip(points, values, strict=True)),
        ]
        for i in size
    ]
    scale = max(abs(cell) for line in matrix for cell in line[:-1])
    for i in size:
        pivot = max(range(i, len(matrix)), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < _SMALL * scale:
            raise ReportError("--fit: the terms are not independent in these kernels: name fewer")
        for k in size:
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][-1] / matrix[i][i] for i in size]
