"""Checks that family.yaml and <target>.yaml share: names, parameters, tokens, expressions,
files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from codegen.core.dtypes import DTYPES, TABLE
from codegen.core.expressions import (
    BOOL,
    DEVICE_FACTS,
    DTYPE,
    FUNCTIONS,
    INT,
    Expression,
    ExpressionError,
    Kind,
    names_of,
    parse,
    syntax,
)
from codegen.core.problems import Problem, TooManyProblemsError
from codegen.core.staleness import specs_folder
from codegen.core.words import did_you_mean, display_path
from codegen.spec import keys, schema
from codegen.spec.compiler_options import check_option
from codegen.spec.model import Derived, Family, Number, Parameter, ParameterType, Rule, Scalar
from codegen.spec.names import FILE, IDENTIFIER, MAX_NAME, TOKEN, reserved
from codegen.spec.source import Document

MAX_PARAMETERS = 64
MAX_ALIGNMENT = 1024  # bytes
MAX_DERIVED = 256


def spec_name(spec_dir: Path, path: Path) -> str:
    """Returns <spec folder>/[<group>/]<family>/<file>: the same from wherever codegen runs."""
    return f"{specs_folder(spec_dir).name}/{path.relative_to(spec_dir).as_posix()}"


def check_file(document: Document, folder: Path, text: str, *path: str | int) -> bool:
    """Returns whether `text` (up to a colon) names a file within the family's folder; reports other
    texts. The file may be a link, as it is where a build system lays out its sources."""
    name = text.partition(":")[0]
    file = folder / name
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        document.report(f"'{name}' must lie in the family's folder, {display_path(folder)}", *path)
    elif not FILE.match(name):
        message = f"'{name}' is quoted in C++: a file's name is letters, digits and _ + . - /"
        document.report(message, *path)
    elif not os.path.isfile(file):
        near = did_you_mean(name, [p.name for p in sorted(folder.iterdir()) if p.is_file()])
        document.report(f"there is no file {display_path(file)}{near}", *path)
    else:
        return True
    return False


def check_identifier(document: Document, name: str, what: str, *path: str | int) -> None:
    """Reports a name that C++, the expression language or --where has another meaning for."""
    if not IDENTIFIER.match(name):
        document.report(f"'{name}' cannot be the name of {what}", *path, key=True)
    elif name in FUNCTIONS:
        document.report(f"'{name}' is a function of the expression language", *path, key=True)
    elif name in ("family", "target"):
        document.report(f"'{name}' is reserved in --where", *path, key=True)
    elif why := reserved(name):
        document.report(f"'{name}' {why}: choose another", *path, key=True)


def load_parameters(
    document: Document, written: Mapping[str, schema.Parameter], of_target: bool
) -> tuple[Parameter, ...]:
    """Returns the parameters of a file, a target's or a family's, in its order."""
    parameters = []
    if len(written) > MAX_PARAMETERS:
        message = f"{len(written)} parameters; at most {MAX_PARAMETERS}, the family's included"
        document.report(message, "parameters", key=True)
        raise TooManyProblemsError
    for name, entry in written.items():
        path = ("parameters", name)
        check_identifier(document, name, "a parameter", *path)
        if name in schema.SET_KEYS:
            message = f"'{name}' is reserved in sets: choose another"
            document.report(message, *path, key=True)
        token = entry.token
        if entry.type in ("dtype", "enum"):
            if token is not None:
                message = f"the value of a {entry.type} is in the key without a token"
                document.report(message, *path, "token", key=True)
        elif token is None:
            token = name.lower().replace("_", "")
        if token is not None and not (TOKEN.match(token) and len(token) <= MAX_NAME):
            message = f"'{token}' cannot be a token: a lower-case letter, then letters and digits"
            document.report(message, *path, "token")
        if entry.type == "bool" and token == keys.NO_TOKENS:
            message = f"'{token}' is the key without tokens: give it another token"
            document.report(message, *path, key=True)
        if entry.type == "enum" and entry.values is None:
            document.report("an enum lists its values", *path)
        values = None if entry.values is None else tuple(entry.values)
        doc, place = " ".join(entry.doc.split()), document.locate(*path, key=True)
        kind = ParameterType(entry.type)
        parameter = Parameter(
            name=name, type=kind, token=token, values=values, default=entry.default, doc=doc,
            option=entry.option or "", location=place,
        )  # fmt: skip
        if entry.default is not None and (wrong := parameter.check(entry.default)):
            document.report(wrong, *path, "default")
        any_value = replace(parameter, values=None)
        seen: set[object] = set()
        for i, value in enumerate(values or ()):
            if wrong := any_value.check(value):
                document.report(wrong, *path, "values", i)
            elif value in seen:
                document.report(f"{value!r} is listed twice", *path, "values", i)
            elif entry.type == "enum" and not (
                TOKEN.match(str(value)) and len(str(value)) <= MAX_NAME
            ):
                message = f"'{value}' cannot be a value: a lower-case letter, then letters, digits"
                document.report(message, *path, "values", i)
            seen.add(value)
        if parameter.option:
            check_option(document, parameter, of_target)
        parameters.append(parameter)
    return tuple(parameters)


def check_tokens(
    document: Document, parameters: Sequence[Parameter], own: Sequence[Parameter]
) -> None:
    """Refuses tokens that could be read as another parameter's, so that keys parse exactly."""
    for i, later in enumerate(parameters):
        for earlier in parameters[:i]:
            if shared := confusable(earlier, later):
                path = ("parameters", later.name)
                message = (
                    f"'{shared}' in a key could be {earlier.name} or {later.name}: "
                    "give one of them another token"
                )
                if later in own:
                    document.report(message, *path, key=True)
                elif not any(message == problem.message for problem in document.problems):
                    document.add(Problem(later.location, message))


def confusable(a: Parameter, b: Parameter) -> str | None:
    """Returns a piece of a key that both parameters could have written, if it makes keys ambiguous;
    else None.

    Two parameters that always stand in the key (dtypes, enums) are told apart by their place.
    """
    if a.type.is_text and b.type.is_text:
        return None
    if a.type is b.type is ParameterType.INT:
        long, short = sorted((a.token or "", b.token or ""), key=len, reverse=True)
        rest = long[len(short) :]
        if long.startswith(short) and (rest in ("", "m") or rest.removeprefix("m").isdigit()):
            return long + "1"
        return None
    if b.type is ParameterType.INT or a.type.is_text:
        a, b = b, a
    # Now a is an int or a bool, and the texts of b can be listed.
    pieces = [b.token or ""] if b.type is ParameterType.BOOL else list(map(str, b.values or DTYPES))
    return next((piece for piece in pieces if _may_write(a, piece)), None)


def _may_write(parameter: Parameter, piece: str) -> bool:
    token = parameter.token or ""
    if parameter.type is ParameterType.BOOL:
        return piece == token
    rest = piece[len(token) :].removeprefix("m")
    return piece.startswith(token) and rest.isdigit()


def load_derived(
    document: Document,
    written: Mapping[str, str],
    kinds: Mapping[str, Kind],
    meanings: Mapping[str, str],
    above: int = 0,
    *,
    key: str = "derived",
) -> tuple[Derived, ...]:
    """Returns the derived values of a file, or its predictions, in its order.

    Args:
        kinds: the names they may use.
        meanings: the meanings of names in `kinds`, and of other names that cannot be taken: "a
            symbol".
        above: the number of the family's, if the file is a target's.
        key: where they stand in the file.
    """
    if above + len(written) > MAX_DERIVED:
        message = f"{above + len(written)} derived values; at most {MAX_DERIVED}"
        document.report(message, key, key=True)
        raise TooManyProblemsError
    scope = dict(kinds)
    derived = []
    for i, (name, text) in enumerate(written.items()):
        path = (key, name)
        early = {later: INT for later in [*written][i:] if later not in scope}
        for used in _names(text) & early.keys():
            message = f"'{used}' is defined below: move it above '{name}'"
            if used == name:
                message = f"'{name}' is defined on this line: it cannot use itself"
            document.report(message, *path)
        if name in meanings:
            document.report(f"'{name}' is already {meanings[name]}", *path, key=True)
        else:
            check_identifier(document, name, "a derived value", *path)
        expression = load_expression(document, text, {**early, **scope}, "number", *path)
        derived.append(Derived(name, expression, document.locate(*path)))
        scope[name] = expression.kind
    return tuple(derived)


def _names(text: str) -> set[str]:
    """Returns the names that an expression uses; empty for an invalid expression."""
    try:
        return set(names_of(syntax(text)))
    except ExpressionError:
        return set()


def load_expression(
    document: Document, text: str, scope: Mapping[str, Kind], expects: str | Kind, *path: str | int
) -> Expression:
    """Returns the expression at `path`; a stand-in if problems were reported."""
    try:
        return parse(text, scope, expects)
    except ExpressionError as error:
        for offset, message in error.problems:
            document.report(message, *path, offset=offset)
        return Expression(text, parse("0", {}).tree, BOOL if expects == "bool" else INT)


def load_condition_on_call(
    document: Document,
    text: str,
    family: Family,
    also: Mapping[str, Kind],
    *path: str | int,
) -> Expression:
    """Returns the condition at `path` on a call: over symbols, scalars, the names in `also`, and
    optional tensors, which are true if they are passed."""
    scope = {
        **also,
        **family.call_scope,
        **{s.name: s.kind for s in family.scalars if not s.length},
    }
    when = load_expression(document, text, scope, "bool", *path)
    check_defaults(document, when, family.scalars, *path)
    return when


def check_defaults(
    document: Document, expression: Expression, scalars: Iterable[Scalar], *path: str | int
) -> None:
    """Reports the scalars that an expression names whose defaults only a kernel's call knows."""
    for scalar in scalars:
        facts = scalar.default.names & {*DEVICE_FACTS} if scalar.default else ()
        if facts and scalar.name in expression.names:
            message = f"the default of '{scalar.name}' is a fact about the device"
            document.report(f"{message}, which is not known here", *path)


def load_alignment(
    document: Document, text: str | None, constants: Mapping[str, Kind], *path: str | int
) -> tuple[Expression | None, tuple[Rule, ...]]:
    """Returns the alignment at `path`, and the constraint that it be valid, if it depends on
    parameters."""
    if text is None:
        return None, ()
    problems = len(document.problems)
    alignment = load_expression(document, text, constants, "int", *path)
    if len(document.problems) > problems:
        return None, ()
    because = f"an alignment is a power of two, at most {MAX_ALIGNMENT}"
    that = f"is_pow2({alignment.normal}) and ({alignment.normal}) <= {MAX_ALIGNMENT}"
    rule = Rule(parse(that, constants, "bool"), because, document.locate(*path))
    if alignment.names:
        return alignment, (rule,)
    if not rule.that.evaluate({}):
        document.report(because, *path)
    return alignment, ()


def check_dtype(
    document: Document, dtype: str, kinds: Mapping[str, Kind], *path: str | int
) -> None:
    """Reports a text that is neither a dtype nor the name of a dtype parameter."""
    names = [*(parameter for parameter, kind in kinds.items() if kind == DTYPE), *DTYPES]
    if dtype not in names:
        message = f"'{dtype}' is neither a dtype nor a dtype parameter{did_you_mean(dtype, names)}"
        document.report(message, *path)


def check_fill(
    document: Document,
    fill: Number | None,
    dtype: str,
    parameters: Iterable[Parameter],
    *path: str | int,
) -> None:
    """Reports a value that elements of a dtype, or one of a dtype parameter's values, do not
    have."""
    named = {parameter.name: parameter.values for parameter in parameters}
    for name in named.get(dtype, (dtype,)) or DTYPES:
        row = next((row for row in TABLE if row.name == name), None)
        if fill is None or row is None or row.holds(fill):
            continue
        hint = f"; '{dtype}' may be {name}" if name != dtype else ""
        document.report(f"an element of {name} is not {fill:g}{hint}", *path, "fill")
        return


def load_rules(
    document: Document,
    written: Iterable[schema.Rule],
    scope: Mapping[str, Kind],
    *path: str | int,
) -> tuple[Rule, ...]:
    """Returns the rules of the list at `path`."""
    return tuple(
        Rule(
            load_expression(document, rule.that, scope, "bool", *path, i, "that"),
            " ".join(rule.because.split()),
            document.locate(*path, i),
        )
        for i, rule in enumerate(written)
    )
