"""Folders of YAML to families: every problem of every file at once, each with its place."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from codegen.manifest import Gradient
from codegen.spec import schema
from codegen.spec.checks import (
    check_dtype,
    check_file,
    check_identifier,
    load_alignment,
    load_derived,
    load_expression,
    load_parameters,
    load_rules,
    spec_name,
)
from codegen.spec.expressions import BOOL, DEVICE_FACTS, FUNCTIONS, INT, Expression, Kind
from codegen.spec.load_build import BuildLoader
from codegen.spec.load_target import TargetLoader
from codegen.spec.load_tuning import SHAPES, TUNED, load_shapes, load_tuned
from codegen.spec.model import (
    ChoiceRow,
    Dim,
    Family,
    Parameter,
    ParameterType,
    ParameterValue,
    RecordTensor,
    Role,
    Rule,
    Scalar,
    Target,
    Tensor,
    Trace,
    integers,
)
from codegen.spec.names import IDENTIFIER, MAX_NAME, SNAKE, enum_type, reserved
from codegen.spec.problems import Location, Problem, SpecError, TooManyProblemsError
from codegen.spec.source import Document
from codegen.words import did_you_mean, display_path

# runtime/include/registry.h
MAX_RANK = 8
MAX_SYMBOLS = 32
MAX_TENSORS = 32
MAX_SCALARS = 32

# Beside family.yaml: rows by which a front takes a kernel.
CHOICES = "choices.yaml"

# What is known of the device where any target may run.
_SHARED_FACTS = dict.fromkeys(DEVICE_FACTS[:1], INT)


def load(spec_dirs: Sequence[Path], only: str | None = None) -> tuple[Family, ...]:
    """All families of the folders, by name, or the `only` one. Raises SpecError with every problem
    there is."""
    problems: list[Problem] = []
    families: dict[str, Family] = {}
    places: dict[str, Location] = {}  # of their names
    for spec_dir in spec_dirs:
        place = Location(display_path(spec_dir), 1, 1)
        try:
            folders = _family_folders(spec_dir)
        except OSError as error:
            problems.append(Problem(place, f"no folder of specs: {error.strerror or error}"))
            continue
        if only is None:
            problems.extend(_unused(spec_dir, folders))
        for folder in folders:
            if only not in (None, folder.name):
                continue
            loader = _FamilyLoader(spec_dir, folder)
            family = loader.load()
            problems.extend(loader.problems)
            if family is None:
                continue
            if family.name in families:
                message = f"family '{family.name}' is also in {families[family.name].file}"
                problems.append(Problem(loader.family.locate("family"), message))
            else:
                families[family.name] = family
                places[family.name] = loader.family.locate("family")
        if not folders:
            message = "no families here: expected <family>/family.yaml (see kernelmint new)"
            problems.append(Problem(place, message))
    for name, family in families.items():
        in_place = f"{name}_out"
        if in_place in families and any(t.role is Role.OUTPUT for t in family.tensors):
            message = (
                f"family '{in_place}' is named as an operator of the family '{name}', the one that "
                "writes into tensors passed by name: rename one of them"
            )
            problems.append(Problem(places[in_place], message))
    if problems:
        raise SpecError(problems)
    return tuple(families[name] for name in sorted(families))


def _family_folders(spec_dir: Path) -> list[Path]:
    """The folders of families: those with specs in them, or one floor down, in a group's folder."""
    found = []
    for folder in _folders(spec_dir):
        members = [path for path in _folders(folder) if any(path.glob("*.y*ml"))]
        if members and not (folder / "family.yaml").exists():
            found += members
        elif any(folder.glob("*.y*ml")):
            found.append(folder)
    return found


def _shared_files(spec_dir: Path, folder: Path) -> list[Path]:
    """What the families of a group have in common: <target>.yaml in the group's folder."""
    return [] if folder.parent == spec_dir else sorted(folder.parent.glob("*.y*ml"))


def _unused(spec_dir: Path, folders: Sequence[Path]) -> list[Problem]:
    """Files of groups that no family of theirs has a target for."""
    targets = {folder.parent / path.name for folder in folders for path in folder.glob("*.y*ml")}
    shared = {path for folder in folders for path in _shared_files(spec_dir, folder)}
    message = "no family of this group has a target of this name"
    return [
        Problem(Location(display_path(path), 1, 1), f"{message}: add <family>/{path.name}")
        for path in sorted(shared - targets)
    ]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


class _FamilyLoader:
    """Loads one folder."""

    def __init__(self, spec_dir: Path, folder: Path) -> None:
        self.spec_dir = spec_dir
        self.folder = folder
        self.family = Document(folder / "family.yaml")
        self.documents = [self.family]
        self.constraints: tuple[Rule, ...] = ()

    @property
    def problems(self) -> list[Problem]:
        return [problem for document in self.documents for problem in document.problems]

    def load(self) -> Family | None:
        written: schema.FamilyFile | None = schema.validate(self.family, schema.FamilyFile)
        targets = []
        shared = {path.name: path for path in _shared_files(self.spec_dir, self.folder)}
        for path in sorted(self.folder.glob("*.y*ml")):
            if path.name in ("family.yaml", CHOICES) or path.name.endswith((TUNED, SHAPES)):
                continue
            document = Document(path, shared.get(path.name))
            self.documents.append(document)
            if path.suffix != ".yaml":
                document.report(f"spec files end in .yaml: rename it to {path.stem}.yaml")
            targets.append((document, schema.validate(document, schema.TargetFile)))
        if not targets:
            self.family.report("no target: add cpu.yaml or smNN.yaml beside this file")
        if written is None:
            return None
        with suppress(TooManyProblemsError):
            kinds = {document.path.stem != "cpu" for document, _ in targets}
            family = self._family(written, kinds.pop() if len(kinds) == 1 else None)
            loaded = []
            for document, target in targets:
                with suppress(TooManyProblemsError):
                    if target is not None:
                        loaded.append(self._target(document, family, target))
        if self.problems:
            return None
        order = sorted(loaded, key=lambda target: (target.capability, target.name))
        self._check_sources(order)
        order = [self._with_tuning(family, target) for target in order]
        self._check_tuning_files(order)
        family = replace(family, targets=tuple(order))
        with suppress(TooManyProblemsError):
            family = replace(family, choices=self._choices(family))
        return None if self.problems else family

    def _check_sources(self, targets: Sequence[Target]) -> None:
        """One library holds what all targets compile: no source may be of two of them."""
        owners: dict[str, Target] = {}
        for target in targets:
            for source in target.build.sources:
                other = owners.setdefault(source.path, target)
                if other is not target:
                    message = (
                        f"'{source.path}' is also a source of {other.name}, and both are linked "
                        "into one library: name it in family.yaml"
                    )
                    self.family.add(Problem(source.location, message))

    def _with_tuning(self, family: Family, target: Target) -> Target:
        """The target with what lies beside its spec: rows that were tuned, shapes to tune for."""
        for suffix in (TUNED, SHAPES):
            path = self.folder / f"{target.name}{suffix}"
            if not path.is_file():
                continue
            document = Document(path)
            self.documents.append(document)
            with suppress(TooManyProblemsError):
                if suffix == TUNED:
                    target = replace(target, tuned=load_tuned(document, family, target))
                else:
                    target = replace(target, shapes=load_shapes(document, family, target))
        return target

    def _check_tuning_files(self, targets: Sequence[Target]) -> None:
        """Reports files of targets that the family does not have."""
        known = {f"{target.name}{suffix}" for target in targets for suffix in (TUNED, SHAPES)}
        for path in sorted(self.folder.glob("*.yaml")):
            if path.name.endswith((TUNED, SHAPES)) and path.name not in known:
                message = f"the family has no target '{path.name.partition('.')[0]}'"
                self.family.add(Problem(Location(display_path(path), 1, 1), message))

    def _choices(self, family: Family) -> tuple[ChoiceRow, ...]:
        """The rows of choices.yaml, if the family has one."""
        if not (self.folder / CHOICES).is_file():
            return ()
        document = Document(self.folder / CHOICES)
        self.documents.append(document)
        written: schema.ChoicesFile | None = schema.validate(document, schema.ChoicesFile)
        scope = {
            **{parameter.name: parameter.kind for parameter in family.parameters},
            **family.call_scope,
            **{scalar.name: scalar.kind for scalar in family.scalars},
        }
        rows = []
        for i, row in enumerate(written.choices if written else ()):
            when = load_expression(document, row.when, scope, "bool", "choices", i, "when")
            for name, value in row.take.items():
                self._check_choice(document, family, i, name, value)
            rows.append(ChoiceRow(when, tuple(row.take.items())))
        return tuple(rows)

    def _check_choice(
        self, document: Document, family: Family, row: int, name: str, value: ParameterValue
    ) -> None:
        place = ("choices", row, "take", name)
        known = {p.name: p for target in family.targets for p in target.parameters}
        if name not in known:
            message = f"no target has a parameter '{name}'{did_you_mean(name, known)}"
            document.report(message, *place, key=True)
        elif wrong := known[name].check(value):
            document.report(wrong, *place)

    def _target(self, document: Document, family: Family, written: schema.TargetFile) -> Target:
        return TargetLoader(document, family, self.spec_dir, self.folder).load(written)

    def _family(self, written: schema.FamilyFile, is_cuda: bool | None) -> Family:
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
        group = self.folder.relative_to(self.spec_dir).parent.name
        if group and not SNAKE.match(group):
            document.report(
                f"the folder '{group}' of a group of families is quoted in C++: name it in "
                "lower-case letters and digits, joined by single underscores",
                "family",
            )
        parameters = load_parameters(document, written.parameters)
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        symbols = self._symbols(written, {*kinds, *written.derived})
        meanings = {
            **dict.fromkeys(kinds, "a parameter"),
            **dict.fromkeys(symbols, "a symbol"),
            **dict.fromkeys(written.arguments, "an argument"),
        }
        derived = load_derived(document, written.derived, kinds, meanings)
        constants = {**kinds, **{value.name: value.expression.kind for value in derived}}
        call_scope = {**symbols, **_optional_tensors(written)}
        scope = {**constants, **call_scope}
        tensors, scalars = self._arguments(written, constants, scope)
        numbers = {**scope, **_SHARED_FACTS, **{scalar.name: scalar.kind for scalar in scalars}}
        trace = self._trace(written, parameters, kinds, {**scope, **integers(scalars)})
        if written.reference is not None:
            check_file(document, self.folder, written.reference, "reference")
        file = spec_name(self.spec_dir, document.path)
        # of a single one, the place of `front` itself
        fronts = [self._function(file, text, "front", i) for i, text in enumerate(written.front)]
        return Family(
            name=written.family,
            summary=" ".join(written.summary.split()),
            tensors=tensors,
            scalars=scalars,
            argument_order=tuple(written.arguments),
            symbols=tuple(symbols),
            call_scope=call_scope,
            parameters=parameters,
            derived=derived,
            constraints=(*self.constraints, *((trace.is_whole,) if trace else ())),
            requires=load_rules(document, written.requires, numbers, "requires"),
            trace=trace,
            build=BuildLoader(document, self.spec_dir, self.folder).load(written.build, is_cuda),
            reference=written.reference,
            gradient=self._gradient(file, written, tensors),
            fronts=tuple(fronts),
            choices=(),
            targets=(),
            folder=self.folder.relative_to(self.spec_dir).as_posix(),
            file=file,
        )

    def _trace(
        self,
        written: schema.FamilyFile,
        parameters: Sequence[Parameter],
        kinds: Mapping[str, Kind],
        scope: Mapping[str, Kind],
    ) -> Trace | None:
        if written.trace is None:
            return None
        trace, document, problems = written.trace, self.family, len(self.family.problems)
        named = {parameter.name: parameter for parameter in parameters}
        parameter = named.get(trace.parameter)
        if parameter is None:
            hint = did_you_mean(trace.parameter, named)
            message = f"the family has no parameter '{trace.parameter}'{hint}"
            document.report(message, "trace", "parameter")
        elif parameter.type is not ParameterType.BOOL or parameter.default is not False:
            message = f"'{trace.parameter}' must be a bool whose default is false"
            document.report(message, "trace", "parameter")
        if "trace" in {*written.arguments, *scope} - kinds.keys():
            message = "args.trace is where the records go: no argument and no symbol may be 'trace'"
            document.report(message, "trace", key=True)
        if len(trace.grid) >= MAX_RANK:
            message = f"{len(trace.grid)} extents; at most {MAX_RANK - 1}, one is the record's"
            document.report(message, "trace", "grid")
        grid = tuple(
            load_expression(document, text, scope, "int", "trace", "grid", i)
            for i, text in enumerate(trace.grid)
        )
        record = []
        for name, tensor in trace.record.items():
            place = ("trace", "record", name)
            if name in kinds:
                document.report(f"'{name}' is also a parameter's name", *place, key=True)
            else:
                check_identifier(document, name, "a tensor of the record", *place)
            shape = [
                load_expression(document, text, kinds, "int", *place, "shape", i)
                for i, text in enumerate(tensor.shape)
            ]
            record.append(RecordTensor(name, tuple(shape), " ".join(tensor.doc.split())))
        if len(document.problems) > problems:
            return None
        shapes = [[extent.operand for extent in tensor.shape] for tensor in record]
        sizes = " + ".join(" * ".join(shape) for shape in shapes)
        floats = load_expression(document, sizes, kinds, "int", "trace", "record")
        extents = dict.fromkeys(extent for shape in shapes for extent in shape)
        whole = " and ".join(f"{extent} >= 1" for extent in extents)
        text = f"not {trace.parameter} or {whole}"
        is_whole = Rule(
            load_expression(document, text, kinds, "bool", "trace", "record"),
            "each tensor of a trace's record has at least one element",
            document.locate("trace", "record", key=True),
        )
        return Trace(trace.parameter, grid, tuple(record), floats, is_whole)

    def _function(self, file: str, text: str, *place: str | int) -> tuple[str, str]:
        """The module, as it is imported, and the function of it that a text such as
        front.py:function names."""
        check_file(self.family, self.folder, text, *place)
        name, _, function = text.partition(":")
        module = name.removesuffix(".py").split("/")
        if not name.endswith(".py") or not all(n.isidentifier() for n in (*module, function)):
            self.family.report(f"got '{text}', expected file.py:function", *place)
        return ".".join((*PurePosixPath(file).parent.parts, *module)), function

    def _gradient(
        self, file: str, written: schema.FamilyFile, tensors: Sequence[Tensor]
    ) -> Gradient | None:
        gradient = written.gradient
        if gradient is None:
            return None
        if changed := [tensor.name for tensor in tensors if tensor.mutated]:
            message = f"{', '.join(changed)} changes in place: such a family has no gradient"
            self.family.report(message, "gradient", key=True)
        inputs = [t.name for t in tensors if t.role is Role.INPUT]
        outputs = [t.name for t in tensors if t.role is Role.OUTPUT]
        optional = [t.name for t in tensors if t.role is Role.OUTPUT and t.optional]
        for member, names, known, what in (
            ("inputs", gradient.inputs, inputs, "an input"),
            ("outputs", gradient.outputs, outputs, "an output"),
            ("keeps", gradient.keeps, optional, "an optional output"),
        ):
            for i, name in enumerate(names):
                if name not in known:
                    message = f"'{name}' is not {what}{did_you_mean(name, known)}"
                    self.family.report(message, "gradient", member, i)
        module, function = self._function(file, gradient.function, "gradient", "function")
        return Gradient(
            module=module,
            function=function,
            inputs=tuple(gradient.inputs),
            outputs=tuple(gradient.outputs),
            keeps=tuple(gradient.keeps),
        )

    def _symbols(self, written: schema.FamilyFile, constants: Container[str]) -> dict[str, Kind]:
        """The symbols that inputs bind: bare names among their extents, in order. What optional
        inputs alone bind is known only if one of them is passed."""
        symbols: dict[str, Kind] = {}
        for name, argument in written.arguments.items():
            if not isinstance(argument, schema.TensorInput):
                continue
            for i, dim in enumerate(argument.tensor):
                symbol = dim.strip()
                if not symbol.isidentifier() or symbol in constants:
                    continue
                if symbol in symbols:
                    given = symbols[symbol].given
                    if given and name not in given:
                        more = (*given, name) if argument.optional else ()
                        symbols[symbol] = replace(INT, given=more)
                    continue
                path = ("arguments", name, "tensor", i)
                if symbol in FUNCTIONS or not IDENTIFIER.match(symbol):
                    self.family.report(f"'{symbol}' cannot be a symbol", *path)
                elif why := reserved(symbol):
                    self.family.report(f"symbol '{symbol}' {why}: choose another", *path)
                elif symbol in written.arguments:
                    self.family.report(f"symbol '{symbol}' is also an argument's name", *path)
                symbols[symbol] = replace(INT, given=(name,)) if argument.optional else INT
        if len(symbols) > MAX_SYMBOLS:
            self.family.report(f"{len(symbols)} symbols; at most {MAX_SYMBOLS}", "arguments")
        return symbols

    def _arguments(
        self, written: schema.FamilyFile, kinds: Mapping[str, Kind], scope: Mapping[str, Kind]
    ) -> tuple[tuple[Tensor, ...], tuple[Scalar, ...]]:
        tensors: list[Tensor] = []
        scalars: list[Scalar] = []
        for name, argument in written.arguments.items():
            self._check_argument_name(name, kinds)
            if isinstance(argument, schema.ScalarInput):
                scalars.append(self._scalar(name, argument, {**scope, **_SHARED_FACTS}))
        for name, argument in written.arguments.items():
            if not isinstance(argument, schema.ScalarInput):
                tensors.append(self._tensor(name, argument, kinds, scope, scalars))
        place = ("arguments",)
        for scalar in scalars:
            if scalar.values and enum_type(scalar.name) in {*written.arguments, *scope}:
                message = f"'{enum_type(scalar.name)}' is the C++ type of '{scalar.name}'"
                self.family.report(message, *place, scalar.name, key=True)
        inputs = [tensor for tensor in tensors if tensor.role is Role.INPUT]
        if all(tensor.optional or tensor.on_host for tensor in inputs):
            message = (
                "a family has at least one argument of kind 'tensor:' that is not optional and not "
                "on the host"
            )
            self.family.report(message, *place, key=True)
        if not any(tensor.role is Role.OUTPUT or tensor.mutated for tensor in tensors):
            message = (
                "a family has at least one argument of kind 'output:', or a 'tensor:' with "
                "'mutated: true'"
            )
            self.family.report(message, *place, key=True)
        for earlier, tensor in pairwise(inputs):
            if earlier.optional and not tensor.optional:
                message = (
                    f"'{tensor.name}' stands behind the optional '{earlier.name}': in Python, what "
                    "may be left out comes last"
                )
                self.family.report(message, *place, tensor.name, key=True)
        if len(tensors) > MAX_TENSORS:
            self.family.report(f"{len(tensors)} tensors; at most {MAX_TENSORS}", *place, key=True)
        if len(scalars) > MAX_SCALARS:
            self.family.report(f"{len(scalars)} scalars; at most {MAX_SCALARS}", *place, key=True)
        flags = {
            f"return_{tensor.name}"
            for tensor in tensors
            if tensor.role is Role.OUTPUT and tensor.optional
        }
        for name in written.arguments:
            if name in flags:
                message = f"'{name}' is what asks for the optional output"
                self.family.report(message, *place, name, key=True)
        return tuple(tensors), tuple(scalars)

    def _check_argument_name(self, name: str, kinds: Mapping[str, Kind]) -> None:
        path = ("arguments", name)
        if not IDENTIFIER.match(name):
            self.family.report(f"'{name}' cannot be an argument's name", *path, key=True)
        elif why := reserved(name):
            self.family.report(f"argument '{name}' {why}: choose another", *path, key=True)
        elif name in kinds:
            self.family.report(f"'{name}' is also a parameter's name", *path, key=True)

    def _scalar(self, name: str, written: schema.ScalarInput, scope: Mapping[str, Kind]) -> Scalar:
        default, values = None, tuple(written.values or ())
        if written.scalar == "enum":
            default = self._enum(name, written, values)
        elif written.values is not None:
            message = f"only an enum has values, not a scalar of {written.scalar}"
            self.family.report(message, "arguments", name, "values", key=True)
        elif written.default is not None:
            expects = {"f32": "number", "f64": "number", "bool": "bool"}.get(written.scalar, "int")
            path = ("arguments", name, "default")
            default = load_expression(self.family, written.default, scope, expects, *path)
        return Scalar(name, written.scalar, default, values, " ".join(written.doc.split()))

    def _enum(
        self, name: str, written: schema.ScalarInput, values: tuple[str, ...]
    ) -> Expression | None:
        """The default of an enum, as the place of the value; reports what its values may not be."""
        document, path = self.family, ("arguments", name)
        if not values:
            document.report("an enum lists its values", *path)
        for i, value in enumerate(values):
            if not SNAKE.match(value) or len(value) > MAX_NAME:
                message = (
                    f"'{value}' cannot be a value: lower-case letters and digits, joined by single "
                    "underscores"
                )
                document.report(message, *path, "values", i)
            elif value in values[:i]:
                document.report(f"'{value}' is listed twice", *path, "values", i)
        if written.default is None:
            return None
        if written.default not in values:
            hint = did_you_mean(written.default, values)
            message = f"'{written.default}' is not among the values of {name}{hint}"
            document.report(message, *path, "default")
            return None
        place = ast.Constant(values.index(written.default), col_offset=0)
        return Expression(written.default, place, INT)

    def _tensor(
        self,
        name: str,
        written: schema.TensorInput | schema.TensorOutput,
        kinds: Mapping[str, Kind],
        scope: Mapping[str, Kind],
        scalars: Sequence[Scalar],
    ) -> Tensor:
        match written:
            case schema.TensorInput(tensor=texts):
                role, key = Role.INPUT, "tensor"
                own = {s: INT for s, kind in scope.items() if name in kind.given}
                known = {**scope, **own}  # if it is passed, and its shape is looked at
            case schema.TensorOutput(output=texts):
                role, key = Role.OUTPUT, "output"
                known = {**scope, **integers(scalars)}
        path = ("arguments", name)
        if len(texts) > MAX_RANK:
            self.family.report(f"{len(texts)} extents; at most {MAX_RANK}", *path, key)
        check_dtype(self.family, written.dtype, kinds, *path, "dtype")
        dims = []
        for i, text in enumerate(texts):
            expression = load_expression(self.family, text, known, "int", *path, key, i)
            self._check_extent(name, expression, scalars)
            is_symbol = expression.text not in kinds and scope.get(expression.text) == INT
            dims.append(Dim(expression, expression.text if is_symbol else None))
        if written.contiguous and written.strided:
            message = "a tensor is contiguous or has strides, not both"
            self.family.report(message, *path, "strided", key=True)
        strides = "contiguous" if written.contiguous else "any" if written.strided else "rows"
        alignment, rules = load_alignment(self.family, written.alignment, kinds, *path, "alignment")
        self.constraints += rules
        return Tensor(
            name,
            role,
            tuple(dims),
            written.dtype,
            written.optional,
            isinstance(written, schema.TensorInput) and written.mutated,
            isinstance(written, schema.TensorInput) and written.device == "host",
            strides,
            alignment,
            " ".join(written.doc.split()),
        )

    def _check_extent(self, name: str, extent: Expression, scalars: Sequence[Scalar]) -> None:
        """Reports scalars that an output's extent may not name: torch.compile asks for the extent
        if there is no device."""
        for scalar in scalars:
            facts = scalar.default.names & {*DEVICE_FACTS} if scalar.default else ()
            if facts and scalar.name in extent.names:
                message = (
                    f"'{', '.join(facts)}' is a fact about the device, but an extent of the output "
                    f"'{name}' depends on '{scalar.name}': torch.compile needs it without a device"
                )
                self.family.report(message, "arguments", scalar.name, "default")


def _optional_tensors(written: schema.FamilyFile) -> dict[str, Kind]:
    """What expressions may ask for: whether a tensor that may be left out is there."""
    return {
        name: BOOL
        for name, argument in written.arguments.items()
        if not isinstance(argument, schema.ScalarInput) and argument.optional
    }
