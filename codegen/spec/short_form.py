"""A target's short form of its configurations, exactly, both ways.

    short   = "(" value {"," value} ")" ":" [feature {"+" feature}]
    value   = a dtype, an enum's value or an integer
    feature = a word, or words and integers joined by "_"

The target's `short` lists these parameters in their order. A word is there if its
bool is true; a feature with integers always is. Written, dtypes are in capitals, features in
the spec's order, and spaces follow commas and the colon; read, neither case, nor spaces, nor the
order of features matters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from codegen.core.dtypes import DTYPES
from codegen.core.words import did_you_mean
from codegen.spec import schema
from codegen.spec.keys import KeyFormatError
from codegen.spec.model import Feature, Parameter, ParameterType, ParameterValue, ShortForm, Target
from codegen.spec.source import Document

NUMBER = "{}"
_PIECE = re.compile(r"[a-z][a-z0-9]*$")
_INT = re.compile(r"(0|-?[1-9][0-9]{0,9})$")


def is_short(text: str) -> bool:
    """Returns whether a text is meant as a short form: no key opens with a parenthesis."""
    return text.lstrip().startswith("(")


def write(target: Target, configuration: Mapping[str, ParameterValue]) -> str | None:
    """Returns the short form of a configuration; None if the target has none."""
    if target.short is None:
        return None
    dtypes = {
        parameter.name for parameter in target.parameters if parameter.type is ParameterType.DTYPE
    }
    head = []
    for name in target.short.values:
        text = str(configuration[name])
        head.append(text.upper() if name in dtypes else text)
    features = []
    for feature in target.short.features:
        if NUMBER in feature.pattern:
            numbers = (configuration[name] for name in feature.parameters)
            features.append(feature.pattern.format(*numbers))
        elif configuration[feature.parameters[0]]:
            features.append(feature.pattern)
    return f"({', '.join(head)}): {'+'.join(features)}".rstrip()


def parse(target: Target, text: str) -> tuple[ParameterValue, ...]:
    """Returns the configuration that a short form stands for. Raises KeyFormatError."""
    form = target.short
    if form is None:
        raise KeyFormatError(f"{target.family}.{target.name} has no short form")
    plain = "".join(text.lower().split())
    match = re.fullmatch(r"\(([^()]*)\)(?::(.*))?", plain)
    if match is None:
        raise KeyFormatError(f"a short form is ({', '.join(form.values)}): feature+feature")
    cells, words = (
        piece.split(mark) if piece else [] for piece, mark in ((match[1], ","), (match[2], "+"))
    )
    if len(cells) != len(form.values):
        raise KeyFormatError(
            f"got {len(cells)} values in the parentheses, expected {', '.join(form.values)}"
        )
    by_name = {parameter.name: parameter for parameter in target.parameters}
    values: dict[str, ParameterValue] = {}
    for name, cell in zip(form.values, cells, strict=True):
        values[name] = _value(by_name[name], cell)
    for feature in form.features:
        if NUMBER not in feature.pattern:
            values[feature.parameters[0]] = False
    seen: set[str] = set()
    for word in words:
        feature, numbers = _feature(form, word)
        if feature.pattern in seen:
            raise KeyFormatError(f"'{word}': {feature.pattern} is given twice")
        seen.add(feature.pattern)
        values.update(zip(feature.parameters, numbers or [True], strict=True))
    missing = [f.pattern for f in form.features if f.parameters[0] not in values]
    if missing:
        raise KeyFormatError(f"it lacks {', '.join(missing)}")
    return tuple(values[parameter.name] for parameter in target.parameters)


def _value(parameter: Parameter, cell: str) -> ParameterValue:
    if parameter.type is ParameterType.INT:
        if not _INT.match(cell):
            raise KeyFormatError(f"got '{cell}', expected {parameter.name}, an integer")
        return int(cell)
    texts = [str(value) for value in parameter.values or DTYPES]
    if cell not in texts:
        raise KeyFormatError(f"got '{cell}', expected {parameter.name} ({', '.join(texts)})")
    return cell


def _feature(form: ShortForm, word: str) -> tuple[Feature, list[int]]:
    """Returns the feature that a word stands for, and its numbers."""
    pieces = word.split("_")
    for feature in form.features:
        expected = feature.pattern.split("_")
        if len(expected) == len(pieces) and all(
            _INT.match(piece) if e == NUMBER else e == piece
            for e, piece in zip(expected, pieces, strict=True)
        ):
            return feature, [int(p) for e, p in zip(expected, pieces, strict=True) if e == NUMBER]
    raise KeyFormatError(
        f"unknown feature '{word}'{did_you_mean(word, [f.pattern for f in form.features])}"
    )


def load(
    document: Document, written: schema.ShortForm | None, parameters: Sequence[Parameter]
) -> ShortForm | None:
    """Returns a target's `short`; problems go to the document."""
    if written is None:
        return None
    kinds = {parameter.name: parameter.type for parameter in parameters}
    features = []
    for i, name in enumerate(written.values):
        if kinds.get(name) is ParameterType.BOOL:
            document.report(f"'{name}' is a bool: it is a feature", "short", "values", i)
    for pattern, named in written.features.items():
        path = ("short", "features", pattern)
        names = (named,) if isinstance(named, str) else tuple(named)
        holes = pattern.count(NUMBER)
        if not all(piece == NUMBER or _PIECE.match(piece) for piece in pattern.split("_")):
            message = "a feature is lower-case words, or {} for an integer, joined by _"
            document.report(message, *path, key=True)
        elif isinstance(named, str) != (holes == 0) or holes not in (0, len(names)):
            document.report(f"{holes} {{}} stand for {len(names)} parameters", *path, key=True)
        kind = ParameterType.INT if holes else ParameterType.BOOL
        for name in names:
            if kinds.get(name, kind) != kind:
                document.report(f"'{name}' is not {'an int' if holes else 'a bool'}", *path)
        features.append(Feature(pattern, names))
    count = Counter(written.values)
    count.update(name for feature in features for name in feature.parameters)
    for name in count:
        if name not in kinds:
            hint = did_you_mean(name, kinds)
            document.report(f"unknown parameter '{name}'{hint}", "short", key=True)
    if wrong := [name for name in kinds if count[name] != 1]:
        document.report(
            f"each parameter is named exactly once; look at {', '.join(wrong)}", "short", key=True
        )
    return ShortForm(tuple(written.values), tuple(features))
