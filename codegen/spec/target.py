"""<target>.yaml to a Target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from codegen.core import hardware
from codegen.core.architectures import of_target
from codegen.core.expressions import (
    BOOL,
    DEVICE_FACTS,
    INT,
    MAX_RESIDENT_BLOCKS,
    Expression,
    ExpressionError,
    Kind,
    known_where,
    layout_name,
    parse,
    scalar_kinds,
)
from codegen.core.manifest import ArchitectureBudget
from codegen.core.problems import TooManyProblemsError
from codegen.core.words import did_you_mean
from codegen.spec import compiler_options, schema, short_form
from codegen.spec.build_settings import BuildLoader
from codegen.spec.checks import (
    MAX_PARAMETERS,
    check_dtype,
    check_file,
    check_fill,
    check_identifier,
    check_tokens,
    load_alignment,
    load_derived,
    load_expression,
    load_parameters,
    load_rules,
    spec_name,
)
from codegen.spec.model import (
    Bound,
    Derived,
    Family,
    Launch,
    Needs,
    Parameter,
    ParameterType,
    Role,
    Rule,
    Target,
    Wgmma,
    Workspace,
)
from codegen.spec.names import CPP_KEYWORDS, IDENTIFIER, enum_type
from codegen.spec.sets import SetLoader
from codegen.spec.source import Document

MAX_WORKSPACES = 32  # runtime/include/registry.h
WGMMA_DTYPES = ("bf16", "fp16")


def _limits(written: schema.Limits) -> dict[str, int]:
    return written.model_dump(exclude_none=True, exclude={"architectures"})


class TargetLoader:
    """Loads one <target>.yaml."""

    def __init__(self, document: Document, family: Family, spec_dir: Path, folder: Path) -> None:
        self.document = document
        self.family = family
        self.spec_dir = spec_dir
        self.folder = folder

    def load(self, written: schema.TargetFile) -> Target:
        """Returns the target; problems go to the document."""
        document, family = self.document, self.family
        self._check_name(written)
        own, parameters = self._parameters(written)
        derived, constants = self._derived(written, parameters)
        predicted = self._predicted(written, constants, len(derived))
        # Code has no predictions, so only rules that are checked when generating name them.
        known = {**constants, **{value.name: value.expression.kind for value in predicted}}
        facts = DEVICE_FACTS if written.target != "cpu" else DEVICE_FACTS[:1]
        sizes = {**constants, **family.sizes, **dict.fromkeys(facts, INT)}
        scalars = scalar_kinds(family.scalars)
        constraints = load_rules(document, written.constraints, known, "constraints")
        wgmma, wgmma_rules = self._wgmma(written, parameters, constants)
        header, kernel = self._kernel(written)
        alignment, alignment_rules = load_alignment(
            document, written.alignment, constants, "alignment"
        )
        build = BuildLoader(document, self.spec_dir, self.folder)
        launch = self._launch(written, constants, sizes)
        needs = self._needs(written, launch, constants, sizes)
        return Target(
            family=family.name,
            name=written.target,
            header=f"{family.folder}/{header}",
            kernel=kernel,
            shared_parameters=family.parameters,
            own_parameters=own,
            options=compiler_options.resolved(document, parameters, written.target != "cpu"),
            derived=derived,
            predicted=predicted,
            constraints=(
                *constraints,
                *self._limits(written, known),
                *self._hardware(written, needs, constants),
                *wgmma_rules,
                *alignment_rules,
                *family.constraints,
            ),
            workspace=self._workspace(written, parameters, sizes),
            launch=launch,
            needs=needs,
            wgmma=wgmma,
            requires=self._requires(written, {**sizes, **scalars}),
            alignment=alignment,
            files=written.files,
            sets=SetLoader(document, family.parameters, own, known).load(written.sets),
            short=short_form.load(document, written.short, parameters),
            budget=tuple(_limits(written.budget).items()) if written.budget else (),
            architecture_budgets=self._architecture_budgets(written),
            build=replace(family.build, sources=())
            + build.load(written.build, written.target != "cpu", family.build),
            file=spec_name(self.spec_dir, document.path),
            display=document.name,
        )

    def _architecture_budgets(self, written: schema.TargetFile) -> tuple[ArchitectureBudget, ...]:
        target, own = written.target, of_target(written.target)
        budgets = written.budget.architectures if written.budget else {}
        for name in budgets:
            named = of_target(name)
            fits = named and own and own.suits(named.capability)
            if not (fits and own and named and named == own.on(named.capability)):
                expected = f"an architecture that {target} is compiled for, such as {target}"
                message = f"got '{name}', expected {expected if own else 'none, of the CPU'}"
                self.document.report(message, "budget", "architectures", name, key=True)
        return tuple(
            ArchitectureBudget(architecture=name, limits=_limits(limits))
            for name, limits in budgets.items()
        )

    def _requires(self, written: schema.TargetFile, scope: Mapping[str, Kind]) -> tuple[Rule, ...]:
        expanded = {
            layout_name("expanded", tensor.name, i): BOOL
            for tensor in self.family.tensors
            if tensor.role is Role.INPUT
            for i in range(len(tensor.dims))
            if not tensor.length
        }
        rules = load_rules(self.document, written.requires, {**scope, **expanded}, "requires")
        for i, rule in enumerate(rules):
            if not rule.that.names.isdisjoint(expanded) and rule.that.names - expanded.keys():
                self.document.report(
                    "a rule that asks how tensors lie decides whether a front takes this target: "
                    "it names nothing else",
                    *("requires", i, "that"),
                )
        return rules

    def _check_name(self, written: schema.TargetFile) -> None:
        if written.target != "cpu" and not of_target(written.target):
            self.document.report(
                f"unknown target '{written.target}': expected cpu or a minimum architecture "
                "such as sm80, sm90a or sm100f",
                "target",
            )
        elif written.target != self.document.path.stem:
            self.document.report(
                f"target '{written.target}' must be named as its file, {self.document.path.name}",
                "target",
            )

    def _meanings(self) -> dict[str, str]:
        """Returns the meanings of the family's names, which no target may give another meaning."""
        family = self.family
        return {
            **dict.fromkeys((parameter.name for parameter in family.parameters), "a parameter"),
            **dict.fromkeys((value.name for value in family.derived), "a derived value"),
            **dict.fromkeys(family.call_scope, "an optional tensor"),
            **dict.fromkeys(family.symbols, "a symbol"),
            **dict.fromkeys((scalar.name for scalar in family.scalars), "a scalar"),
        }

    def _parameters(
        self, written: schema.TargetFile
    ) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
        """Returns the target's own parameters; and all, the family's before them."""
        document, family, meanings = self.document, self.family, self._meanings()
        own = load_parameters(document, written.parameters, of_target=True)
        for name in written.parameters:
            if name in meanings:
                message = f"'{name}' is also {meanings[name]} of the family"
                document.report(message, "parameters", name, key=True)
        parameters = family.parameters + own
        if len(parameters) > MAX_PARAMETERS:
            message = (
                f"{len(parameters)} parameters, the family's included; at most {MAX_PARAMETERS}"
            )
            document.report(message, "parameters", key=True)
            raise TooManyProblemsError
        check_tokens(document, parameters, own)
        return own, parameters

    def _derived(
        self, written: schema.TargetFile, parameters: Sequence[Parameter]
    ) -> tuple[tuple[Derived, ...], dict[str, Kind]]:
        """Returns derived values, the family's before the target's; and the kinds of all
        constants."""
        document, family = self.document, self.family
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        shared_kinds = {value.name: value.expression.kind for value in family.derived}
        derived = family.derived + load_derived(
            document,
            written.derived,
            {**kinds, **shared_kinds},
            {**self._meanings(), **dict.fromkeys(written.parameters, "a parameter")},
            len(family.derived),
        )
        constants = {**kinds, **{value.name: value.expression.kind for value in derived}}
        for parameter in parameters:
            if parameter.type is ParameterType.ENUM and enum_type(parameter.name) in constants:
                message = f"'{enum_type(parameter.name)}' is the C++ type of '{parameter.name}'"
                document.report(f"{message}: rename one of them")
        return derived, constants

    def _predicted(
        self, written: schema.TargetFile, constants: Mapping[str, Kind], derived: int
    ) -> tuple[Derived, ...]:
        """Returns the predictions; `derived` is the number of derived values before them."""
        if written.predict is None:
            return ()
        texts = written.predict.model_dump(exclude_none=True)
        if written.target == "cpu":
            self.document.report("ptxas compiles no kernel of cpu", "predict", key=True)
        own = {**self._meanings(), **dict.fromkeys(written.parameters, "a parameter")}
        meanings = {**dict.fromkeys(constants, "a derived value"), **own}
        predicted = load_derived(self.document, texts, constants, meanings, derived, key="predict")
        for value in predicted:
            if value.expression.kind != INT:
                message = f"{value.name} is an integer: divide by //"
                self.document.report(message, "predict", value.name)
        return predicted

    def _kernel(self, written: schema.TargetFile) -> tuple[str, str | None]:
        header, colon, kernel = written.kernel.partition(":")
        check_file(self.document, self.folder, header, "kernel")
        if colon and (not IDENTIFIER.match(kernel) or kernel in CPP_KEYWORDS):
            self.document.report(
                f"'{kernel}' cannot be a kernel's name", "kernel", offset=len(header) + 1
            )
        if written.launch is not None:
            if lists := [tensor.name for tensor in self.family.tensors if tensor.length]:
                message = (
                    f"the tensors of {', '.join(lists)} are known to the host: the header brings "
                    "its own launch<Config, Isa>"
                )
                self.document.report(message, "launch", key=True)
            if written.target == "cpu":
                self.document.report(
                    "a cpu target's header brings its own launch<Config, Isa>", "launch", key=True
                )
            if not kernel:
                self.document.report(
                    f"no kernel to launch: write {header}:<name of the __global__ template>",
                    "kernel",
                )
        return header, kernel or None

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
                continue  # a wrong name was reported where it is defined
            because = f"{name} is at most {most} on {written.target}"
            place = self.document.locate("limits", name, key=True)
            rules.append(Rule(that, because, place))
        return tuple(rules)

    def _needs(
        self,
        written: schema.TargetFile,
        launch: Launch | None,
        constants: Mapping[str, Kind],
        sizes: Mapping[str, Kind],
    ) -> Needs:
        if written.target == "cpu" or self.document.problems:
            return Needs(None, None)
        if launch is None:
            needs = {
                name: parse(name, constants)
                for name in ("threads", "smem_bytes")
                if constants.get(name) == INT
            }
            return Needs(needs.get("threads"), needs.get("smem_bytes"))
        block = parse(" * ".join(extent.operand for extent in launch.block), sizes, "int")
        decided = (
            need if need.names <= constants.keys() else None
            for need in (block, launch.shared_memory)
        )  # fmt: skip
        return Needs(*decided)

    def _hardware(
        self, written: schema.TargetFile, needs: Needs, constants: Mapping[str, Kind]
    ) -> Iterator[Rule]:
        """Returns limits of the target's architectures, as constraints."""
        place = self.document.locate("launch" if written.launch else "derived", key=True)
        if needs.threads is not None:
            that = parse(f"{needs.threads.operand} <= {hardware.THREADS}", constants)
            yield Rule(that, f"a thread block has at most {hardware.THREADS:,} threads", place)
        named = of_target(written.target)
        if needs.shared_memory is not None and named:
            capabilities = hardware.capabilities(named)
            most = max((hardware.LIMITS[c].shared_memory_block for c in capabilities), default=None)
            if most is not None:
                best = next(
                    c for c in capabilities if hardware.LIMITS[c].shared_memory_block == most
                )
                because = (
                    f"a thread block of compute capability {hardware.shown(best)} has at most "
                    f"{most:,} bytes of shared memory"
                )
                if not named.suffix:
                    because += f", and none from {hardware.shown(named.capability)} on has more"
                that = parse(f"{needs.shared_memory.operand} <= {most}", constants)
                yield Rule(that, because, place)

    def _workspace(
        self,
        written: schema.TargetFile,
        parameters: Sequence[Parameter],
        scope: Mapping[str, Kind],
    ) -> tuple[Workspace, ...]:
        document, family = self.document, self.family
        parts = []
        for name, part in written.workspace.items():
            path, problems = ("workspace", name), len(document.problems)
            if name in scope or name in family.argument_order:
                document.report(f"'{name}' already has a meaning in this spec", *path, key=True)
            else:
                check_identifier(document, name, "a workspace", *path)
            check_dtype(document, part.dtype, scope, *path, "dtype")
            when, inside = None, scope
            if part.when is not None:
                when = load_expression(document, part.when, scope, "bool", *path, "when")
                inside = known_where(when, scope)
            extents = [
                load_expression(document, text, inside, "int", *path, "shape", i).text
                for i, text in enumerate(part.shape)
            ]
            elements = " * ".join(f"({extent})" for extent in extents)
            if len(extents) > 1:  # two negative extents give no memory
                least = f"min({', '.join(extents)})"
                elements = f"{elements} if {least} >= 0 else {least}"
            check_fill(document, part.fill, part.dtype, parameters, *path)
            note = f"[{', '.join(extents)}] {part.dtype}"
            note += "" if part.fill is None else f", filled with {part.fill:g}"
            if when is not None:
                elements = f"({elements}) if ({when.text}) else 0"
                note += f", when {when.text}"
            note += f": {part.doc}" if part.doc else ""
            if len(document.problems) == problems:
                whole = load_expression(document, elements, scope, "int", *path, "shape")
                parts.append(Workspace(name, part.dtype, whole, part.fill, note))
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
        """Returns the products a kernel uses, and the instruction's limits, as constraints."""
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
            tuple(
                (wrapper, columns(wrapper, getattr(written.wgmma, wrapper)))
                for wrapper in schema.Wgmma.model_fields
                if wrapper != "dtype"
            ),
        )
        return wgmma, tuple(rules)

    def _launch(
        self,
        written: schema.TargetFile,
        constants: Mapping[str, Kind],
        sizes: Mapping[str, Kind],
    ) -> Launch | None:
        if written.launch is None:
            return None
        launch, document = written.launch, self.document
        bounds: list[Bound] = []

        def bound(
            expression: Expression, least: int, most: int, because: str, *place: str | int
        ) -> None:
            if expression.names <= constants.keys():
                location = document.locate("launch", *place)
                bounds.append(Bound(expression, least, most, because, location))

        def extents(key: str, texts: Sequence[str], most: Sequence[int]) -> tuple[Expression, ...]:
            unit = "threads" if key == "block" else "blocks"
            scope = {**sizes, MAX_RESIDENT_BLOCKS: INT} if key == "grid" else sizes
            loaded = []
            for i, text in enumerate(texts):
                extent = load_expression(document, text, scope, "int", "launch", key, i)
                because = f"a {key} has 1 to {most[i]} {unit} along {'xyz'[i]}"
                bound(extent, 1, most[i], because, key, i)
                loaded.append(extent)
            if key != "grid" and len(loaded) > 1 and len(document.problems) == problems:
                text = " * ".join(extent.operand for extent in loaded)
                product = load_expression(document, text, sizes, "int", "launch", key)
                bound(product, 1, most[0], f"a {key} has 1 to {most[0]} {unit}", key)
            return tuple(loaded)

        problems = len(document.problems)
        grid = extents("grid", launch.grid, (2**31 - 1, 65535, 65535))
        block = extents("block", launch.block, (1024, 1024, 64))
        place = "launch", "shared_memory"
        memory = load_expression(document, launch.shared_memory, sizes, "int", *place)
        bound(memory, 0, 2**31 - 1, "shared memory is 0 to 2^31 - 1 bytes", "shared_memory")
        cluster = extents("cluster", launch.cluster, (8, 8, 8))
        dependent, cooperative = (
            load_expression(document, getattr(launch, key), sizes, "bool", "launch", key)
            for key in ("dependent", "cooperative")
        )
        named = of_target(written.target)
        if named and named.capability < 90:
            for key in sorted({"cluster", "dependent"} & launch.model_fields_set):
                message = f"'{key}' needs compute capability 9.0: a target sm90, sm90a or later"
                document.report(message, "launch", key, key=True)
        return Launch(grid, block, memory, cluster, dependent, cooperative, tuple(bounds))
