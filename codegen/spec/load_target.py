"""<target>.yaml to a Target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from codegen.spec import schema, short_form
from codegen.spec.checks import (
    MAX_PARAMETERS,
    check_dtype,
    check_file,
    check_identifier,
    check_tokens,
    load_expression,
    load_parameters,
    load_rules,
    spec_name,
)
from codegen.spec.expressions import BOOL, INT, Expression, ExpressionError, Kind, parse
from codegen.spec.load_build import BuildLoader
from codegen.spec.load_sets import SetLoader
from codegen.spec.model import (
    Derived,
    Family,
    Launch,
    Parameter,
    ParameterType,
    Rule,
    Target,
    Wgmma,
    Workspace,
)
from codegen.spec.names import CPP_KEYWORDS, IDENTIFIER, TARGET, enum_type
from codegen.spec.problems import TooManyProblemsError, did_you_mean
from codegen.spec.source import Document

MAX_DERIVED = 256
MAX_WORKSPACES = 32  # runtime/include/registry.h
WGMMA_DTYPES = ("bf16", "fp16")


class TargetLoader:
    """Loads one <target>.yaml."""

    def __init__(self, document: Document, family: Family, spec_dir: Path, folder: Path) -> None:
        self.document = document
        self.family = family
        self.spec_dir = spec_dir
        self.folder = folder

    def load(self, written: schema.TargetFile) -> Target:
        """The target; what is wrong goes to the document."""
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
        own = load_parameters(document, written.parameters)
        shared = [parameter.name for parameter in family.parameters]
        for name in written.parameters:
            if name in shared or name in family.symbols:
                what = "parameter" if name in shared else "symbol"
                message = f"'{name}' is also a {what} of the family"
                document.report(message, "parameters", name, key=True)
        parameters = family.parameters + own
        if len(parameters) > MAX_PARAMETERS:
            message = (
                f"{len(parameters)} parameters, the family's included; at most {MAX_PARAMETERS}"
            )
            document.report(message, "parameters", key=True)
            raise TooManyProblemsError
        check_tokens(document, parameters, own)
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        derived = self._derived(written, kinds)
        constants = {**kinds, **{value.name: value.expression.kind for value in derived}}
        for parameter in parameters:
            if parameter.type is ParameterType.ENUM and enum_type(parameter.name) in constants:
                message = f"'{enum_type(parameter.name)}' is the C++ type of '{parameter.name}'"
                document.report(f"{message}: rename one of them")
        everything = {**constants, **dict.fromkeys(family.symbols, INT)}
        constraints = load_rules(document, written.constraints, constants, "constraints")
        wgmma, wgmma_rules = self._wgmma(written, parameters, constants)
        header, kernel = self._kernel(written)
        alignment = written.alignment or 1
        if alignment & (alignment - 1):
            document.report("an alignment is a power of two", "alignment")
        budget = written.budget.model_dump(exclude_none=True) if written.budget else {}
        build = BuildLoader(document, self.spec_dir, self.folder)
        return Target(
            family=family.name,
            name=written.target,
            header=f"{family.folder}/{header}",
            kernel=kernel,
            shared_parameters=family.parameters,
            own_parameters=own,
            derived=derived,
            constraints=(
                *constraints,
                *self._limits(written, constants),
                *wgmma_rules,
                *((family.trace.is_whole,) if family.trace else ()),
            ),
            workspace=self._workspace(written, everything),
            launch=self._launch(written, constants, everything),
            wgmma=wgmma,
            requires=load_rules(document, written.requires, everything, "requires"),
            alignment=alignment,
            sets=SetLoader(document, family.parameters, own, constants).load(written.sets),
            short=short_form.load(document, written.short, parameters),
            budget=tuple(budget.items()),
            shards=written.shards,
            build=replace(family.build, sources=())
            + build.load(written.build, written.target != "cpu"),
            file=spec_name(self.spec_dir, document.path),
            display=document.name,
        )

    def _kernel(self, written: schema.TargetFile) -> tuple[str, str | None]:
        header, colon, kernel = written.kernel.partition(":")
        check_file(self.document, self.folder, header, "kernel")
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
    ) -> tuple[Derived, ...]:
        scope = dict(kinds)
        derived = []
        if len(written.derived) > MAX_DERIVED:
            message = f"{len(written.derived)} derived values; at most {MAX_DERIVED}"
            self.document.report(message, "derived", key=True)
            raise TooManyProblemsError
        for name, text in written.derived.items():
            path = ("derived", name)
            if name in scope or name in self.family.symbols:
                self.document.report(
                    f"'{name}' is already a parameter, a symbol or a derived value", *path, key=True
                )
            else:
                check_identifier(self.document, name, "a derived value", *path)
            expression = load_expression(self.document, text, scope, "number", *path)
            derived.append(Derived(name, expression, self.document.locate(*path)))
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
            try:
                that = parse(f"{name} <= {most}", constants)
            except ExpressionError:
                continue  # a name that is none was reported where it is defined
            because = f"{name} is at most {most} on {written.target}"
            place = self.document.locate("limits", name, key=True)
            rules.append(Rule(that, because, place))
        return tuple(rules)

    def _workspace(
        self, written: schema.TargetFile, everything: Mapping[str, Kind]
    ) -> tuple[Workspace, ...]:
        document, family = self.document, self.family
        integers = {
            scalar.name: BOOL if scalar.dtype == "bool" else INT
            for scalar in family.scalars
            if scalar.dtype in ("i32", "i64", "bool")
        }
        scope = {**everything, **integers}
        parts = []
        for name, part in written.workspace.items():
            path, problems = ("workspace", name), len(document.problems)
            if name in scope or name in family.argument_order:
                document.report(f"'{name}' already has a meaning in this spec", *path, key=True)
            else:
                check_identifier(document, name, "a workspace", *path)
            check_dtype(document, part.dtype, scope, *path, "dtype")
            extents = [
                load_expression(document, text, scope, "int", *path, "shape", i).text
                for i, text in enumerate(part.shape)
            ]
            elements = " * ".join(f"({extent})" for extent in extents)
            note = f"[{', '.join(extents)}] {part.dtype}"
            if part.when is not None:
                when = load_expression(document, part.when, scope, "bool", *path, "when").text
                elements = f"({elements}) if ({when}) else 0"
                note += f", when {when}"
            note += f": {part.doc}" if part.doc else ""
            if len(document.problems) == problems:
                whole = load_expression(document, elements, scope, "int", *path, "shape")
                parts.append(Workspace(name, part.dtype, whole, note))
        if len(written.workspace) > MAX_WORKSPACES:
            message = f"{len(written.workspace)} workspaces; at most {MAX_WORKSPACES}"
            document.report(message, "workspace", key=True)
        return tuple(parts)

    def _wgmma(
        self,
        written: schema.TargetFile,
        parameters: tuple[Parameter, ...],
        constants: Mapping[str, Kind],
    ) -> tuple[Wgmma | None, tuple[Rule, ...]]:
        """The products a kernel uses, and what the instruction takes, as constraints."""
        if written.wgmma is None:
            return None, ()
        document, dtype = self.document, written.wgmma.dtype
        if written.target != "sm90a":
            document.report("only sm90a has wgmma", "wgmma", key=True)
        dtypes = [
            parameter.name for parameter in parameters if parameter.type is ParameterType.DTYPE
        ]
        if dtype not in (*WGMMA_DTYPES, *dtypes):
            hint = did_you_mean(dtype, [*dtypes, *WGMMA_DTYPES])
            document.report(f"'{dtype}' is not a dtype of wgmma{hint}", "wgmma", "dtype")
        rules = []
        if dtype in dtypes:
            that = parse(f"{dtype} in [{', '.join(WGMMA_DTYPES)}]", constants)
            because = f"wgmma multiplies {' or '.join(WGMMA_DTYPES)}"
            rules.append(Rule(that, because, document.locate("wgmma", "dtype")))

        def columns(where: str, texts: Sequence[str]) -> tuple[Expression, ...]:
            loaded = []
            for i, text in enumerate(texts):
                n = load_expression(document, text, constants, "int", "wgmma", where, i)
                loaded.append(n)
                if n.kind == INT:
                    that = parse(
                        f"({n.normal}) % 8 == 0 and 8 <= ({n.normal}) and ({n.normal}) <= 256",
                        constants,
                    )
                    because = "wgmma has 8 to 256 columns, a multiple of 8"
                    rules.append(Rule(that, because, document.locate("wgmma", where, i)))
            return tuple(loaded)

        wgmma = Wgmma(
            dtype,
            columns("shared", written.wgmma.shared),
            columns("registers", written.wgmma.registers),
        )
        return wgmma, tuple(rules)

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
                load_expression(document, text, everything, "int", "launch", "grid", i)
                for i, text in enumerate(launch.grid)
            ),
            load_expression(document, launch.block, constants, "int", "launch", "block"),
            load_expression(
                document, launch.shared_memory, constants, "int", "launch", "shared_memory"
            ),
            document.locate("launch", key=True),
        )
