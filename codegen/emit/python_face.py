"""generated/python/<family>.py, the class's signature; and the operator's."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from codegen.core import expressions
from codegen.core.dtypes import DTYPES, TABLE
from codegen.core.expressions import BOOL, Expression
from codegen.emit import scalars
from codegen.spec.model import (
    Family,
    Parameter,
    ParameterType,
    ParameterValue,
    Role,
    Scalar,
    Tensor,
    Trace,
)


def class_name(family: str) -> str:
    """Returns the class's name: FlashForward for flash_forward."""
    return "".join(word.capitalize() for word in family.split("_"))


def values(family: Family) -> dict[str, Any]:
    """Returns the values that family.py.mako is rendered with."""
    inputs = [tensor for tensor in family.tensors if tensor.role is Role.INPUT]
    outputs = [tensor for tensor in family.tensors if tensor.role is Role.OUTPUT]
    required = [tensor for tensor in outputs if not tensor.optional]
    optional = [tensor for tensor in outputs if tensor.optional]
    returns_any = _returned(len(required))
    overloads = []
    if optional:
        returns_any = "torch.Tensor | tuple[torch.Tensor, ...]"
        if not required:
            returns_any += " | None"
    if len(optional) == 1:
        flag = f"return_{optional[0].name}"
        overloads = [
            (_returned(len(required)), [f"{flag}: Literal[False] = False"]),
            (_returned(len(outputs)), [f"{flag}: Literal[True]"]),
            (returns_any, [f"{flag}: bool"]),
        ]
    names = [tensor.name for tensor in inputs]
    has_enum = any(scalars.annotation(s).startswith("Literal[") for s in family.scalars)
    return {
        "title": _docstring(f"{family.name}: {family.summary}"),
        "family": family.name,
        "class_name": class_name(family.name),
        "summary": _docstring(family.summary),
        "lines": [_docstring(line) for line in _argument_lines(family)],
        "typing": [
            *(["Literal"] if overloads or has_enum else []),
            *(["overload"] if overloads else []),
        ],
        "has_lists": any(t.length for t in inputs) or any(s.length for s in family.scalars),
        "overloads": overloads,
        "positional": [
            f"{t.name}: "
            + ("Sequence[torch.Tensor]" if t.length else "torch.Tensor")
            + (" | None = None" if t.optional else "")
            for t in inputs
        ],
        "keywords": [_keyword(scalar) for scalar in family.scalars],
        "plain_flags": [f"return_{tensor.name}: bool = False" for tensor in optional],
        "out": "out" if outputs else None,
        "has_keywords": bool(family.scalars or outputs),
        "returns_any": returns_any,
        "call_summary": _docstring(_call_summary(inputs, outputs)),
        "inputs": _tuple(names),
        "scalars": _tuple([scalar.name for scalar in family.scalars]),
        "requested": _tuple([f"return_{tensor.name}" for tensor in optional]),
        "front": _front(family),
        "trace_lines": [_docstring(line) for line in _trace_lines(family.trace)],
    }


def _front(family: Family) -> dict[str, Any] | None:
    """Returns the parts of the generated front that differ from a kernel's call."""
    front = family.generated_front
    if front is None:
        return None
    rules = {name: _decided(value, family.scalars) for name, value in front.takes}
    trees = [ast.parse(text, mode="eval").body for text in rules.values()]
    names = sorted({name for tree in trees for name in expressions.names_of(tree)})
    taken = ", ".join(f'"{name}": {text}' for name, text in rules.items())
    flags = [
        f"{p.name}: {_FLAGS.get(p.type, p.type.value)}"
        f"{' | None' if d is None else ''} = {_flag_default(p, d)}"
        for p, d in front.flags
    ]
    # Scalars follow the tensors by position; none without a default may follow one with a default.
    has_default = any(t.optional for t in family.tensors if t.role is Role.INPUT)
    required = [scalar.default is None for scalar in family.scalars]
    positional = 0
    while positional < len(required) and not (has_default and required[positional]):
        has_default = not required[positional]
        positional += 1
    outputs = [tensor for tensor in family.tensors if tensor.role is Role.OUTPUT]
    lines = [f"{p.name}: {p.doc or 'a parameter of the kernel'}" for p, _ in front.flags]
    bounded = ", ".join(tensor.name for tensor in outputs if tensor.extent)
    if bounded:
        lines.append(f"sliced: whether to wait for the kernel and cut {bounded} to their extents")
    nodes = (node for tree in trees for node in ast.walk(tree))
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    return {
        "name": front.name,
        "rule": f"lambda {', '.join(names)}: {{{taken}}}" if front.takes else "",
        "functions": [_CALLED[name] for name in sorted(called & _CALLED.keys())],
        "positional_scalars": positional,
        "has_keywords": bool(family.scalars[positional:] or flags or outputs),
        "defaults": "{" + ", ".join(f'"{p.name}": {d!r}' for p, d in front.flags) + "}",
        "flags": flags,
        "passed": _tuple([p.name for p, _ in front.flags]),
        "bounded": bounded,
        "lines": list(map(_docstring, lines)),
    }


_FLAGS = {ParameterType.ENUM: "str", ParameterType.DTYPE: "torch.dtype"}


def _flag_default(parameter: Parameter, default: ParameterValue | None) -> str:
    """Returns the default of a front's flag in its signature."""
    if default is None or parameter.type is not ParameterType.DTYPE:
        return repr(default)
    return f"torch.{TABLE[DTYPES.index(str(default))].torch}"


def _decided(value: Expression, scalars: Sequence[Scalar]) -> str:
    """Returns a parameter's value in Python, by scalars that are None if they are left out."""
    defaults = {
        scalar.name: ast.Constant(scalar.values[int(scalar.default.normal)])
        if scalar.values
        else ast.parse(scalar.default.python, mode="eval").body
        for scalar in scalars
        if scalar.default is not None
    }
    text = ast.unparse(_Defaults(defaults).visit(ast.parse(value.python, mode="eval")))
    is_plain = isinstance(value.tree, ast.Name) or value.kind != BOOL
    return text if is_plain else f"True if {text} else False"  # traced sizes compare to no bool


class _Defaults(ast.NodeTransformer):
    """Rewrites `alpha` to `alpha if alpha is not None else <its default>`."""

    def __init__(self, defaults: dict[str, ast.expr]) -> None:
        self.defaults = defaults

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.defaults:
            return node
        is_given = ast.Compare(node, [ast.IsNot()], [ast.Constant(None)])
        return ast.IfExp(is_given, node, self.defaults[node.id])


# Where functions that expressions call are found; Python has the others.
_CALLED = {
    "ceil_div": "ceil_div",
    "is_pow2": "is_pow2",
    "log2": "log2",
    "next_pow2": "next_pow2",
    "_power": "power as _power",
    "_integer_power": "integer_power as _integer_power",
}


def _returned(count: int) -> str:
    if count < 2:
        return "torch.Tensor" if count else "None"
    return f"tuple[{', '.join(['torch.Tensor'] * count)}]"


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _keyword(scalar: Scalar) -> str:
    default = "" if scalar.default is None else " | None = None"
    return f"{scalar.name}: {scalars.annotation(scalar)}{default}"


def _docstring(text: str) -> str:
    """Returns text within a docstring."""
    return re.sub(r'"(?="|$)', r"\"", text.replace("\\", r"\\"))


def _argument_lines(family: Family) -> list[str]:
    lines = []
    for tensor in family.tensors:
        shape = ", ".join(dim.expression.text for dim in tensor.dims)
        if tensor.role is Role.OUTPUT:
            note = "" if tensor.fill is None else f", filled with {tensor.fill:g}"
            note += f", its first extent in {tensor.extent}" if tensor.extent else ""
            note = (
                f" (output{f', with return_{tensor.name}=True' if tensor.optional else ''}{note})"
            )
        else:
            notes = ["changed in place"] * tensor.mutated + ["optional"] * tensor.optional
            notes += ["on the CPU"] * tensor.on_host
            notes += [f"of any shape, {shape} elements"] * tensor.flat
            note = f" ({', '.join(notes)})" if notes else ""
        doc = f": {tensor.doc}" if tensor.doc else ""
        packed = f", {tensor.packed} elements in each" if tensor.packed else ""
        count = f"{tensor.length.expression.text} of " if tensor.length else ""
        lines.append(f"{tensor.name}: {count}[{shape}], {tensor.dtype}{packed}{note}{doc}")
    lines += map(scalars.described, family.scalars)
    lines += [f"Requires {rule.that.text}: {rule.because}." for rule in family.requires]
    return lines


def _trace_lines(trace: Trace | None) -> list[str]:
    """Returns the lines on a traced kernel's record in its method's docstring."""
    if trace is None:
        return []
    shape = ", ".join([*(extent.text for extent in trace.grid), "*shape"])
    lines = [f"The tensors of the trace, f32, each of [{shape}]:"]
    for tensor in trace.record:
        shape = ", ".join(extent.text for extent in tensor.shape)
        lines.append(f"{tensor.name}: [{shape}]" + (f": {tensor.doc}" if tensor.doc else ""))
    return lines


def _call_summary(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    changed = ", ".join(tensor.name for tensor in inputs if tensor.mutated)
    names = [f"{t.name} (if asked for)" if t.optional else t.name for t in outputs]
    text = "Runs the kernel" + (f", which changes {changed} in place" if changed else "")
    if names:
        text += f"; returns {', '.join(names)}. `out` takes the outputs' memory"
    return f"{text}."


def operators(family: Family) -> list[str]:
    """Returns the torch.library schemas of the family's operators: the operator that returns its
    outputs, and, if the family has one, the operator that writes into tensors which are passed by
    name."""
    inputs = [tensor for tensor in family.tensors if tensor.role is Role.INPUT]
    outputs = [tensor for tensor in family.tensors if tensor.role is Role.OUTPUT]
    written = [*(tensor for tensor in inputs if tensor.mutated), *outputs]
    letters = {t.name: ascii_lowercase[i % 26] + str(i // 26 or "") for i, t in enumerate(written)}

    def argument(tensor: Tensor) -> str:
        kind = f"Tensor({letters[tensor.name]}!)" if tensor.name in letters else "Tensor"
        kind += "[]" if tensor.length else ""
        return f"{kind}? {tensor.name}=None" if tensor.optional else f"{kind} {tensor.name}"

    positional = ["str key", *map(argument, inputs)]
    flags = [f"bool return_{tensor.name}=False" for tensor in outputs if tensor.optional]
    count = len(outputs)
    returns = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    numbers = list(map(scalars.in_schema, family.scalars))
    keywords = [*numbers, *flags]
    functional = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    schemas = [f"{family.name}({functional}) -> {returns}"]
    if outputs:
        in_place = ", ".join([*positional, "*", *map(argument, outputs), *numbers])
        schemas.append(f"{family.name}_out({in_place}) -> ()")
    return schemas
