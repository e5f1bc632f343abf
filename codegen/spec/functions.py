"""Functions that a spec names in Python files beside it. The files are read, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from codegen.core.expressions import DEVICE_FACTS
from codegen.core.words import did_you_mean, display_path
from codegen.spec.model import Family, Role, Target
from codegen.spec.source import Document


def check_function(
    document: Document, file: Path, function: str, *path: str | int
) -> ast.arguments | None:
    """Returns the parameters of a function at the top level of `file`, and reports an absent one.
    Returns None if the file does not show them, since the name is imported, assigned or
    decorated."""
    if not function.isidentifier():
        got = f"{file.name}:{function}" if function else file.name
        document.report(f"got '{got}', expected file.py:function", *path)
        return None
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        document.report(f"{display_path(file)}{line} is not Python: {error}", *path)
        return None
    bound = [(name, node) for node in _statements(tree.body) for name in _names(node)]
    if not any(name in (function, "*", "__getattr__") for name, _ in bound):
        functions = [node.name for _, node in bound if isinstance(node, ast.FunctionDef)]
        hint = did_you_mean(function, functions)
        document.report(f"there is no function '{function}' in {display_path(file)}{hint}", *path)
    nodes = [node for name, node in bound if name == function]
    node = nodes[0] if len(nodes) == 1 else None
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        return node.args
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that bind a module's names, also within conditions and `try`."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for _, inner in ast.iter_fields(node):
                if isinstance(inner, list):
                    yield from _statements(part for part in inner if isinstance(part, ast.stmt))
                    for part in inner:
                        if isinstance(part, ast.ExceptHandler):
                            yield from _statements(part.body)


def _names(node: ast.stmt) -> Iterator[str]:
    """Returns the names that a statement binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.Assign() | ast.AnnAssign():
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id


def check_reference(
    document: Document, parameters: ast.arguments, family: Family, targets: Iterable[Target]
) -> None:
    """Reports parameters of the reference that a call by name does not give, and inputs that it
    does not take. The spec's defaults stand in for scalars that a call leaves out. A reference that
    takes `*` is called by the family's own tools."""
    if parameters.vararg is not None:
        return
    place, name = ("reference",), (family.reference or "").partition(":")[2]
    by_name = [parameter.arg for parameter in (*parameters.args, *parameters.kwonlyargs)]
    for parameter in parameters.posonlyargs:
        document.report(f"{name} takes '{parameter.arg}' only by its place: drop the `/`", *place)
    inputs = {tensor.name: tensor for tensor in family.tensors if tensor.role is Role.INPUT}
    for tensor in inputs.values():
        if tensor.name not in by_name and not tensor.optional and parameters.kwarg is None:
            hint = did_you_mean(tensor.name, by_name)
            message = f"{name} has no parameter '{tensor.name}', as the family's input is named"
            document.report(message + hint, *place)
    positional = [p.arg for p in parameters.args]
    needed = positional[: len(positional) - len(parameters.defaults)]
    defaults = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    needed += [parameter.arg for parameter, default in defaults if default is None]
    passed = {
        *(tensor.name for tensor in inputs.values() if not tensor.optional),
        *(
            scalar.name
            for scalar in family.scalars
            if not (scalar.default and scalar.default.names & {*DEVICE_FACTS})
        ),
        *(parameter.name for parameter in family.parameters),
        *(value.name for value in family.derived),
        *(parameter.name for target in targets for parameter in target.own_parameters),
        *(value.name for target in targets for value in target.derived),
    }
    for parameter_name in needed:
        if parameter_name in inputs and inputs[parameter_name].optional:
            message = (
                f"{name} needs '{parameter_name}', which a call may leave out: give it a default"
            )
            document.report(message, *place)
        elif parameter_name not in passed:
            hint = did_you_mean(parameter_name, passed, list_few=False)
            message = f"{name} needs '{parameter_name}', which no call gives: give it a default"
            document.report(message + hint, *place)
