"""Folders of YAML to families: every problem of every file at once, each with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from codegen import schema
from codegen.checks import (
    check_file,
    load_expression,
    load_parameters,
    load_rules,
    spec_name,
)
from codegen.expressions import DTYPE, FUNCTIONS, INT, Kind
from codegen.load_target import TargetLoader
from codegen.names import IDENTIFIER, SNAKE, reserved
from codegen.problems import Location, Problem, SpecError, did_you_mean, display_path
from codegen.schema import DTYPES
from codegen.source import Document
from codegen.spec import Dim, Family, Scalar, Tensor

# runtime/include/registry.h
MAX_RANK = 8
MAX_SYMBOLS = 32
MAX_TENSORS = 32
MAX_SCALARS = 32


def load(spec_dirs: Sequence[Path]) -> tuple[Family, ...]:
    """All families of the folders, by name. Raises SpecError with every problem there is."""
    problems: list[Problem] = []
    families: dict[str, Family] = {}
    for spec_dir in spec_dirs:
        place = Location(display_path(spec_dir), 1, 1)
        try:
            folders = sorted(path for path in spec_dir.iterdir() if path.is_dir())
        except OSError as error:
            problems.append(Problem(place, f"no folder of specs: {error.strerror or error}"))
            continue
        found = False
        for folder in folders:
            if not any(folder.glob("*.y*ml")):
                continue
            found = True
            loader = _FamilyLoader(folder)
            family = loader.load()
            problems.extend(loader.problems)
            if family is None:
                continue
            if family.name in families:
                message = f"family '{family.name}' is also in {families[family.name].file}"
                problems.append(Problem(loader.family.locate("family"), message))
            families.setdefault(family.name, family)
        if not found:
            message = "no families here: expected <family>/family.yaml (see codegen new)"
            problems.append(Problem(place, message))
    if problems:
        raise SpecError(problems)
    return tuple(families[name] for name in sorted(families))


class _FamilyLoader:
    """Loads one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.family = Document(folder / "family.yaml")
        self.documents = [self.family]

    @property
    def problems(self) -> list[Problem]:
        return [problem for document in self.documents for problem in document.problems]

    def load(self) -> Family | None:
        written: schema.FamilyFile | None = schema.validate(self.family, schema.FamilyFile)
        targets = []
        for path in sorted(self.folder.glob("*.y*ml")):
            if path.name == "family.yaml":
                continue
            document = Document(path)
            self.documents.append(document)
            if path.suffix != ".yaml":
                document.report(f"spec files end in .yaml: rename it to {path.stem}.yaml")
            targets.append((document, schema.validate(document, schema.TargetFile)))
        if written is None:
            return None
        family = self._family(written)
        loaded = [
            TargetLoader(document, family, self.folder).load(target)
            for document, target in targets
            if target is not None
        ]
        if not targets:
            self.family.report("no target: add cpu.yaml or smNN.yaml beside this file")
        if self.problems:
            return None
        order = sorted(loaded, key=lambda target: (target.capability, target.name))
        return replace(family, targets=tuple(order))

    def _family(self, written: schema.FamilyFile) -> Family:
        document = self.family
        if written.family != self.folder.name:
            document.report(
                f"family '{written.family}' must be named as its folder, '{self.folder.name}'",
                "family",
            )
        elif not SNAKE.match(written.family):
            document.report(
                "a family's name is lower-case letters and digits, joined by single underscores",
                "family",
            )
        elif why := reserved(written.family):
            document.report(f"'{written.family}' {why}: choose another name", "family")
        parameters = load_parameters(document, written.parameters)
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        symbols = self._symbols(written, kinds)
        scope = {**kinds, **dict.fromkeys(symbols, INT)}
        tensors, scalars = self._arguments(written, kinds, scope)
        if written.reference is not None:
            check_file(document, self.folder, written.reference, "reference")
        return Family(
            name=written.family,
            summary=" ".join(written.summary.split()),
            tensors=tensors,
            scalars=scalars,
            argument_order=tuple(written.arguments),
            symbols=symbols,
            parameters=parameters,
            requires=load_rules(document, written.requires, scope, "requires"),
            reference=written.reference,
            targets=(),
            file=spec_name(document.path),
        )

    def _symbols(self, written: schema.FamilyFile, kinds: Mapping[str, Kind]) -> tuple[str, ...]:
        """The symbols that inputs bind: bare names among their extents, in order."""
        symbols: dict[str, None] = {}
        for name, argument in written.arguments.items():
            if not isinstance(argument, schema.TensorInput):
                continue
            for i, dim in enumerate(argument.tensor):
                symbol = dim.strip()
                if not symbol.isidentifier() or symbol in kinds or symbol in symbols:
                    continue
                if symbol in FUNCTIONS or not IDENTIFIER.match(symbol):
                    self.family.report(
                        f"'{symbol}' cannot be a symbol", "arguments", name, "tensor", i
                    )
                elif why := reserved(symbol):
                    self.family.report(
                        f"symbol '{symbol}' {why}: choose another", "arguments", name, "tensor", i
                    )
                elif symbol in written.arguments:
                    self.family.report(
                        f"symbol '{symbol}' is also an argument's name",
                        "arguments",
                        name,
                        "tensor",
                        i,
                    )
                symbols[symbol] = None
        if len(symbols) > MAX_SYMBOLS:
            self.family.report(f"{len(symbols)} symbols; at most {MAX_SYMBOLS}", "arguments")
        return tuple(symbols)

    def _arguments(
        self, written: schema.FamilyFile, kinds: Mapping[str, Kind], scope: Mapping[str, Kind]
    ) -> tuple[tuple[Tensor, ...], tuple[Scalar, ...]]:
        document = self.family
        tensors: list[Tensor] = []
        scalars: list[Scalar] = []
        for name, argument in written.arguments.items():
            path = ("arguments", name)
            if not IDENTIFIER.match(name):
                document.report(f"'{name}' cannot be an argument's name", *path, key=True)
            elif why := reserved(name):
                document.report(f"argument '{name}' {why}: choose another", *path, key=True)
            elif name in kinds:
                document.report(f"'{name}' is also a parameter's name", *path, key=True)
            if isinstance(argument, schema.ScalarInput):
                expects = {"f32": "number", "f64": "number", "bool": "bool"}
                scalars.append(
                    Scalar(
                        name,
                        argument.scalar,
                        argument.default
                        if argument.default is None
                        else load_expression(
                            document,
                            argument.default,
                            scope,
                            expects.get(argument.scalar, "int"),
                            *path,
                            "default",
                        ),
                        argument.doc,
                    )
                )
                continue
            if isinstance(argument, schema.TensorInput):
                role, role_key, dims = "input", "tensor", argument.tensor
            elif isinstance(argument, schema.TensorOutput):
                role, role_key, dims = "output", "output", argument.output
            else:
                role, role_key, dims = "workspace", "workspace", argument.workspace
            if len(dims) > MAX_RANK:
                document.report(f"{len(dims)} extents; at most {MAX_RANK}", *path, role_key)
            dtypes = [n for n, kind in kinds.items() if kind == DTYPE]
            if argument.dtype not in DTYPES and argument.dtype not in dtypes:
                hint = did_you_mean(argument.dtype, [*dtypes, *DTYPES])
                document.report(
                    f"'{argument.dtype}' is neither a dtype nor a dtype parameter{hint}",
                    *path,
                    "dtype",
                )
            tensors.append(
                Tensor(
                    name,
                    role,
                    tuple(
                        _dim(document, dim, scope, kinds, *path, role_key, i)
                        for i, dim in enumerate(dims)
                    ),
                    argument.dtype,
                    isinstance(argument, schema.TensorOutput) and argument.optional,
                    " ".join(argument.doc.split()),
                )
            )
        for role, word in (("input", "tensor"), ("output", "output")):
            if not any(tensor.role == role for tensor in tensors):
                document.report(
                    f"a family has at least one argument of kind '{word}:'", "arguments", key=True
                )
        for found, most, what in (
            (tensors, MAX_TENSORS, "tensors"),
            (scalars, MAX_SCALARS, "scalars"),
        ):
            if len(found) > most:
                document.report(f"{len(found)} {what}; at most {most}", "arguments", key=True)
        returned = {f"return_{t.name}" for t in tensors if t.optional}
        for name in returned & set(written.arguments):
            document.report(
                f"'{name}' is what asks for the optional output", "arguments", name, key=True
            )
        return tuple(tensors), tuple(scalars)


def _dim(
    document: Document,
    text: str,
    scope: Mapping[str, Kind],
    parameters: Mapping[str, Kind],
    *path: str | int,
) -> Dim:
    expression = load_expression(document, text, scope, "int", *path)
    is_symbol = text.strip() in scope and text.strip() not in parameters
    return Dim(expression, text.strip() if is_symbol else None)
