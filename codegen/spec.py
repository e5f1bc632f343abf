"""Specs as the rest of codegen sees them: loaded, checked, and frozen.

`load` turns folders of YAML into families. Every problem of every file comes at once, in one
SpecError, each with file, line and column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from codegen import schema
from codegen.expressions import (
    BOOL,
    DTYPE,
    FUNCTIONS,
    INT,
    Expression,
    ExpressionError,
    Kind,
    parse,
)
from codegen.names import CPP_KEYWORDS, IDENTIFIER, SNAKE, TARGET, TOKEN, reserved
from codegen.problems import Location, Problem, SpecError, did_you_mean, display_path
from codegen.schema import DTYPES
from codegen.source import Document

# runtime/include/registry.h
MAX_RANK = 8
MAX_SYMBOLS = 32
MAX_TENSORS = 32
MAX_SCALARS = 32

ParameterValue = bool | int | str


@dataclass(frozen=True)
class Parameter:
    """A compile-time choice of a family or of one of its targets."""

    name: str
    type: str
    token: str | None
    values: tuple[ParameterValue, ...] | None
    doc: str
    location: Location

    @property
    def kind(self) -> Kind:
        """What it is in an expression."""
        if self.type == "dtype":
            return DTYPE
        if self.type == "enum":
            return Kind("text", tuple(map(str, self.values or ())))
        return BOOL if self.type == "bool" else INT

    def check(self, value: object) -> str | None:
        """What is wrong with `value` as a value of this parameter, or None."""
        if self.type == "bool":
            fits = isinstance(value, bool)
        elif self.type == "int":
            fits = isinstance(value, int) and not isinstance(value, bool)
        else:
            fits = isinstance(value, str)
        if not fits:
            article = "an" if self.type in ("int", "enum") else "a"
            return f"{value!r} is not {article} {self.type}"
        if self.type == "int" and not -(2**31) < int(str(value)) < 2**31:
            return f"{value} does not fit into 32 bits"
        known = self.values or (DTYPES if self.type == "dtype" else None)
        if known is not None and value not in known:
            hint = did_you_mean(str(value), map(str, known))
            return f"'{value}' is not among the values of {self.name}{hint}"
        return None


@dataclass(frozen=True, eq=False)
class Rule:
    """A condition with its reason."""

    that: Expression
    because: str
    location: Location


@dataclass(frozen=True)
class Dim:
    """One extent of a tensor: a symbol's, or an expression's."""

    expression: Expression
    symbol: str | None


@dataclass(frozen=True)
class Tensor:
    """A tensor argument; `dtype` is a dtype or the name of a dtype parameter."""

    name: str
    role: str  # input, output, workspace
    dims: tuple[Dim, ...]
    dtype: str
    optional: bool
    doc: str


@dataclass(frozen=True)
class Scalar:
    """A number the caller passes; without a default it must be passed."""

    name: str
    dtype: str
    default: Expression | None
    doc: str


@dataclass(frozen=True)
class Launch:
    """A generated CUDA launch."""

    grid: tuple[Expression, ...]
    block: Expression
    shared_memory: Expression


@dataclass(frozen=True, eq=False)
class Choice:
    """Part of a set: values of each parameter, in spec order, and rules of its own.

    `strict`: a configuration somebody wrote, which the constraints may not exclude.
    """

    values: tuple[tuple[ParameterValue, ...], ...]
    prune: tuple[Rule, ...]
    strict: bool
    location: Location


@dataclass(frozen=True, eq=False)
class ConfigurationSet:
    """A named set of configurations."""

    name: str
    choices: tuple[Choice | str, ...]  # a str includes another set
    location: Location


@dataclass(frozen=True, eq=False)
class Target:
    """How a family is computed on one target."""

    family: str
    name: str
    header: str
    kernel: str | None
    shared_parameters: tuple[Parameter, ...]  # the family's
    own_parameters: tuple[Parameter, ...]
    derived: tuple[tuple[str, Expression], ...]
    constraints: tuple[Rule, ...]  # limits among them
    limits: tuple[tuple[str, int], ...]
    launch: Launch | None
    requires: tuple[Rule, ...]
    alignment: int
    sets: tuple[ConfigurationSet, ...]
    budget: tuple[tuple[str, int], ...]
    shards: int | None
    file: str  # <spec folder>/<family>/<target>.yaml, for headers of generated files
    display: str  # the same file, as people reach it

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, in the order of the key."""
        return self.shared_parameters + self.own_parameters

    @property
    def is_cuda(self) -> bool:
        """Whether nvcc compiles it."""
        return self.name != "cpu"

    @property
    def capability(self) -> int:
        """The least compute capability, 80 for 8.0; 0 for the CPU."""
        return int(self.name[2:].rstrip("a")) if self.is_cuda else 0

    @property
    def exact_capability(self) -> bool:
        """Whether it runs on that capability alone."""
        return self.is_cuda and self.name.endswith("a")


@dataclass(frozen=True, eq=False)
class Family:
    """What is computed, and the targets it is computed on."""

    name: str
    summary: str
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    argument_order: tuple[str, ...]
    symbols: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    requires: tuple[Rule, ...]
    reference: str | None
    targets: tuple[Target, ...]
    file: str


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
            _TargetLoader(document, family, self.folder).load(target)
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
        parameters = _parameters(document, written.parameters)
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        symbols = self._symbols(written, kinds)
        scope = {**kinds, **dict.fromkeys(symbols, INT)}
        tensors, scalars = self._arguments(written, kinds, scope)
        if written.reference is not None:
            _existing_file(document, self.folder, written.reference, "reference")
        return Family(
            name=written.family,
            summary=" ".join(written.summary.split()),
            tensors=tensors,
            scalars=scalars,
            argument_order=tuple(written.arguments),
            symbols=symbols,
            parameters=parameters,
            requires=_rules(document, written.requires, scope, "requires"),
            reference=written.reference,
            targets=(),
            file=_short(document.path),
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
                        else _expression(
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


class _TargetLoader:
    """Loads one <target>.yaml."""

    def __init__(self, document: Document, family: Family, folder: Path) -> None:
        self.document = document
        self.family = family
        self.folder = folder

    def load(self, written: schema.TargetFile) -> Target:
        document, family = self.document, self.family
        if not TARGET.match(written.target):
            document.report(
                f"target '{written.target}' is none: cpu, or the least architecture it needs, "
                "such as sm80 or sm90a",
                "target",
            )
        elif written.target != document.path.stem:
            document.report(
                f"target '{written.target}' must be named as its file, {document.path.name}",
                "target",
            )
        own = _parameters(document, written.parameters)
        for parameter in own:
            if any(parameter.name == other.name for other in family.parameters):
                document.report(
                    f"'{parameter.name}' is also a parameter of the family",
                    "parameters",
                    parameter.name,
                    key=True,
                )
            if parameter.name in family.symbols:
                document.report(
                    f"'{parameter.name}' is also a symbol of the family",
                    "parameters",
                    parameter.name,
                    key=True,
                )
        parameters = family.parameters + own
        _check_tokens(document, parameters, own)
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        derived = self._derived(written, kinds)
        constants = {**kinds, **{name: expression.kind for name, expression in derived}}
        everything = {**constants, **dict.fromkeys(family.symbols, INT)}
        constraints = _rules(document, written.constraints, constants, "constraints")
        target = Target(
            family=family.name,
            name=written.target,
            header="",
            kernel=None,
            shared_parameters=family.parameters,
            own_parameters=own,
            derived=derived,
            constraints=constraints + self._limits(written, constants),
            limits=tuple(written.limits.items()),
            launch=self._launch(written, constants, everything),
            requires=_rules(document, written.requires, everything, "requires"),
            alignment=written.alignment or 1,
            sets=self._sets(written, parameters, constants),
            budget=tuple(written.budget.model_dump(exclude_none=True).items())
            if written.budget
            else (),
            shards=written.shards,
            file=_short(document.path),
            display=document.name,
        )
        if target.alignment & (target.alignment - 1):
            document.report("an alignment is a power of two", "alignment")
        header, kernel = self._kernel(written)
        return replace(target, header=header, kernel=kernel)

    def _kernel(self, written: schema.TargetFile) -> tuple[str, str | None]:
        header, colon, kernel = written.kernel.partition(":")
        _existing_file(self.document, self.folder, header, "kernel")
        if colon and (not IDENTIFIER.match(kernel) or kernel in CPP_KEYWORDS):
            self.document.report(
                f"'{kernel}' cannot be a kernel's name", "kernel", offset=len(header) + 1
            )
        if written.launch is not None:
            if written.target == "cpu":
                self.document.report(
                    "a cpu target's header brings its own launch<Config, Isa>", "launch", key=True
                )
            if not kernel:
                self.document.report(
                    f"which kernel is launched: write {header}:<name of the __global__ template>",
                    "kernel",
                )
        return header, kernel or None

    def _derived(
        self, written: schema.TargetFile, kinds: Mapping[str, Kind]
    ) -> tuple[tuple[str, Expression], ...]:
        scope = dict(kinds)
        derived = []
        for name, text in written.derived.items():
            path = ("derived", name)
            if name in scope or name in self.family.symbols:
                self.document.report(
                    f"'{name}' is already a parameter, a symbol or a derived value", *path, key=True
                )
            else:
                _check_identifier(self.document, name, "a derived value", *path)
            expression = _expression(self.document, text, scope, "number", *path)
            derived.append((name, expression))
            scope[name] = expression.kind
        return tuple(derived)

    def _limits(
        self, written: schema.TargetFile, constants: Mapping[str, Kind]
    ) -> tuple[Rule, ...]:
        rules = []
        for name, most in written.limits.items():
            if name not in constants or not constants[name].is_number:
                hint = did_you_mean(name, [n for n, kind in constants.items() if kind.is_number])
                self.document.report(
                    f"unknown derived value '{name}'{hint}", "limits", name, key=True
                )
                continue
            rules.append(
                Rule(
                    parse(f"{name} <= {most}", constants),
                    f"{name} is at most {most} on {written.target}",
                    self.document.locate("limits", name, key=True),
                )
            )
        return tuple(rules)

    def _launch(
        self,
        written: schema.TargetFile,
        constants: Mapping[str, Kind],
        everything: Mapping[str, Kind],
    ) -> Launch | None:
        if written.launch is None:
            return None
        launch, document = written.launch, self.document
        return Launch(
            tuple(
                _expression(document, text, everything, "int", "launch", "grid", i)
                for i, text in enumerate(launch.grid)
            ),
            _expression(document, launch.block, constants, "int", "launch", "block"),
            _expression(
                document, launch.shared_memory, constants, "int", "launch", "shared_memory"
            ),
        )

    def _sets(
        self,
        written: schema.TargetFile,
        parameters: tuple[Parameter, ...],
        constants: Mapping[str, Kind],
    ) -> tuple[ConfigurationSet, ...]:
        document = self.document
        if "default" not in written.sets:
            document.report(
                "the set 'default' is missing: it is what generated/ holds", "sets", key=True
            )
        sets = []
        for name, body in written.sets.items():
            path: tuple[str | int, ...] = ("sets", name)
            if not SNAKE.match(name):
                document.report(
                    "a set's name is lower-case letters, digits and underscores", *path, key=True
                )
            choices: list[Choice | str] = []
            if isinstance(body, list):
                for i, item in enumerate(body):
                    choices += self._choices(item, written, parameters, constants, *path, i)
            else:
                choices += self._choices(body, written, parameters, constants, *path)
            if not choices:
                document.report(f"the set '{name}' is empty", *path, key=True)
            sets.append(ConfigurationSet(name, tuple(choices), document.locate(*path, key=True)))
        self._check_includes(sets)
        return tuple(sets)

    def _choices(
        self,
        item: schema.Product | dict[str, ParameterValue],
        written: schema.TargetFile,
        parameters: tuple[Parameter, ...],
        constants: Mapping[str, Kind],
        *path: str | int,
    ) -> list[Choice | str]:
        document = self.document
        if isinstance(item, dict):
            given = {name: [value] for name, value in item.items()}
            return [self._choice(given, (), parameters, True, path, path)]
        choices: list[Choice | str] = []
        for i, included in enumerate(item.include or ()):
            if included not in written.sets:
                hint = did_you_mean(included, written.sets)
                document.report(f"unknown set '{included}'{hint}", *path, "include", i)
            else:
                choices.append(included)
        if item.product is not None:
            prune = _rules(document, item.prune, constants, *path, "prune")
            choices.append(
                self._choice(item.product, prune, parameters, False, path, (*path, "product"))
            )
        elif item.prune:
            document.report("'prune' goes with a 'product'", *path, "prune", key=True)
        return choices

    def _choice(
        self,
        given: Mapping[str, Sequence[ParameterValue]],
        prune: tuple[Rule, ...],
        parameters: tuple[Parameter, ...],
        strict: bool,
        path: tuple[str | int, ...],
        axes: tuple[str | int, ...],
    ) -> Choice:
        document = self.document
        known = {parameter.name: parameter for parameter in parameters}
        for name, values in given.items():
            if name not in known:
                hint = did_you_mean(name, [n for n in known if n not in given])
                document.report(f"unknown parameter '{name}'{hint}", *axes, name, key=True)
                continue
            if not values:
                document.report(f"{name} has no values here", *axes, name)
            for i, value in enumerate(values):
                place = (*axes, name) if strict else (*axes, name, i)
                if wrong := known[name].check(value):
                    document.report(wrong, *place)
                elif value in values[:i]:
                    document.report(f"{value!r} is listed twice", *place)
        complete = []
        shared = {parameter.name for parameter in self.family.parameters}
        for parameter in parameters:
            default: Sequence[ParameterValue] = ()
            if not strict or parameter.name in shared:
                default = parameter.values or ((False, True) if parameter.type == "bool" else ())
            if parameter.name not in given and not default:
                document.report(f"'{parameter.name}' has no value here", *path)
            complete.append(tuple(given.get(parameter.name, default)))
        exact = strict and all(len(values) == 1 for values in complete)
        return Choice(tuple(complete), prune, exact, document.locate(*path))

    def _check_includes(self, sets: Sequence[ConfigurationSet]) -> None:
        included = {s.name: [c for c in s.choices if isinstance(c, str)] for s in sets}
        for s in sets:
            reached, frontier = set(), list(included[s.name])
            while frontier:
                name = frontier.pop()
                if name == s.name:
                    self.document.report(
                        f"the set '{s.name}' includes itself", "sets", s.name, key=True
                    )
                    break
                if name not in reached:
                    reached.add(name)
                    frontier += included.get(name, [])


def _short(path: Path) -> str:
    """<spec folder>/<family>/<file>: the same from wherever codegen runs."""
    return "/".join(path.resolve().parts[-3:])


def _existing_file(document: Document, folder: Path, text: str, *path: str | int) -> None:
    """Checks that `text` (up to a colon) names a file within the family's folder."""
    name = text.partition(":")[0]
    file = folder / name
    try:
        inside = bool(name) and file.resolve().is_relative_to(folder.resolve())
        exists = file.is_file()
    except (OSError, ValueError):
        inside = exists = False
    if not inside or Path(name).is_absolute() or ".." in Path(name).parts:
        document.report(f"'{name}' must lie in the family's folder, {display_path(folder)}", *path)
    elif not exists:
        near = did_you_mean(name, [p.name for p in sorted(folder.iterdir()) if p.is_file()])
        document.report(f"there is no file {display_path(file)}{near}", *path)


def _check_identifier(document: Document, name: str, what: str, *path: str | int) -> None:
    if not IDENTIFIER.match(name):
        document.report(f"'{name}' cannot be the name of {what}", *path, key=True)
    elif name in FUNCTIONS:
        document.report(f"'{name}' is a function of the expression language", *path, key=True)
    elif name in ("family", "target"):
        document.report(f"'{name}' has a meaning of its own in --where", *path, key=True)
    elif why := reserved(name):
        document.report(f"'{name}' {why}: choose another", *path, key=True)


def _parameters(
    document: Document, written: Mapping[str, schema.Parameter]
) -> tuple[Parameter, ...]:
    parameters = []
    for name, entry in written.items():
        path = ("parameters", name)
        _check_identifier(document, name, "a parameter", *path)
        token = entry.token
        if entry.type in ("dtype", "enum"):
            if token is not None:
                document.report(
                    f"a {entry.type}'s value stands in the key without a token",
                    *path,
                    "token",
                    key=True,
                )
        elif token is None:
            token = name.lower().replace("_", "")
        if token is not None and not TOKEN.match(token):
            document.report(
                f"'{token}' cannot be a token: a lower-case letter, then letters and digits",
                *path,
                "token",
            )
        if entry.type == "enum" and entry.values is None:
            document.report("an enum lists its values", *path)
        values = None if entry.values is None else tuple(entry.values)
        parameter = Parameter(
            name,
            entry.type,
            token,
            values,
            " ".join(entry.doc.split()),
            document.locate(*path, key=True),
        )
        plain = Parameter(name, entry.type, token, None, "", parameter.location)
        for i, value in enumerate(values or ()):
            if wrong := plain.check(value):
                document.report(wrong, *path, "values", i)
            elif value in (values or ())[:i]:
                document.report(f"{value!r} is listed twice", *path, "values", i)
            elif entry.type == "enum" and not TOKEN.match(str(value)):
                document.report(
                    f"'{value}' cannot be a value: a lower-case letter, then letters and digits",
                    *path,
                    "values",
                    i,
                )
        parameters.append(parameter)
    return tuple(parameters)


def _check_tokens(
    document: Document, parameters: Sequence[Parameter], own: Sequence[Parameter]
) -> None:
    """Refuses tokens that could be read as another parameter's, so that keys parse exactly."""
    for i, later in enumerate(parameters):
        for earlier in parameters[:i]:
            if shared := _confusable(earlier, later):
                path = ("parameters", later.name)
                message = (
                    f"'{shared}' in a key could be {earlier.name} or {later.name}: "
                    "give one of them another token"
                )
                if later in own:
                    document.report(message, *path, key=True)
                elif not any(message == problem.message for problem in document.problems):
                    document.problems.append(Problem(later.location, message))


def _confusable(a: Parameter, b: Parameter) -> str | None:
    """A piece of a key that both parameters could have written, if there is one that matters.

    Two parameters that always stand in the key (dtypes, enums) are told apart by their place.
    """
    if a.type in ("dtype", "enum") and b.type in ("dtype", "enum"):
        return None
    if a.type == b.type == "int":
        long, short = sorted((a.token or "", b.token or ""), key=len, reverse=True)
        rest = long[len(short) :]
        if long.startswith(short) and (rest == "" or rest.isdigit() or rest == "m"):
            return long + "1"
        return None
    if b.type == "int" or a.type in ("dtype", "enum"):
        a, b = b, a
    # Now a is an int or a bool, and what b writes can be listed.
    pieces = [b.token or ""] if b.type == "bool" else list(map(str, b.values or DTYPES))
    return next((piece for piece in pieces if _may_write(a, piece)), None)


def _may_write(parameter: Parameter, piece: str) -> bool:
    token = parameter.token or ""
    if parameter.type == "bool":
        return piece == token
    rest = piece[len(token) :].removeprefix("m")
    return piece.startswith(token) and rest.isdigit()


def _expression(
    document: Document, text: str, scope: Mapping[str, Kind], expects: str, *path: str | int
) -> Expression:
    try:
        return parse(text, scope, expects)
    except ExpressionError as error:
        for offset, message in error.problems:
            document.report(message, *path, offset=offset)
        kinds: dict[str, Kind] = {"bool": BOOL}
        return Expression(text, parse("0", {}).tree, kinds.get(expects, INT))


def _rules(
    document: Document,
    written: Iterable[schema.Rule],
    scope: Mapping[str, Kind],
    *path: str | int,
) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            _expression(document, rule.that, scope, "bool", *path, i, "that"),
            " ".join(rule.because.split()),
            document.locate(*path, i),
        )
        for i, rule in enumerate(written)
    )


def _dim(
    document: Document,
    text: str,
    scope: Mapping[str, Kind],
    parameters: Mapping[str, Kind],
    *path: str | int,
) -> Dim:
    expression = _expression(document, text, scope, "int", *path)
    is_symbol = text.strip() in scope and text.strip() not in parameters
    return Dim(expression, text.strip() if is_symbol else None)
