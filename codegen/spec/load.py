"""Folders of YAML to families: every problem of every file at once, each with its place."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from codegen.core import manifest
from codegen.core.expressions import COMPUTE_CAPABILITY, INT
from codegen.core.problems import Location, Problem, SpecError, TooManyProblemsError
from codegen.core.words import did_you_mean, display_path
from codegen.spec import schema
from codegen.spec.checks import load_condition_on_call
from codegen.spec.family import FamilyLoader
from codegen.spec.functions import check_reference
from codegen.spec.gradient import load_condition, load_gradient
from codegen.spec.model import (
    ChoiceRow,
    Family,
    ParameterValue,
    Role,
    Target,
)
from codegen.spec.schema import DeclaredGradient
from codegen.spec.source import Document
from codegen.spec.target import TargetLoader
from codegen.spec.tuning import SHAPES, TUNED, load_shapes, load_tuned

# Beside family.yaml: rows by which a front takes a kernel.
CHOICES = "choices.yaml"
_NEW = "; `kernelmint new FAMILY` starts one"


def load(spec_dirs: Sequence[Path], only: str | None = None) -> tuple[Family, ...]:
    """Returns all families of the folders, by name, or the `only` one. Raises SpecError with every
    problem."""
    problems: list[Problem] = []
    family_folders: list[tuple[Path, Path]] = []
    for spec_dir in spec_dirs:
        place = Location(display_path(spec_dir), 1, 1)
        try:
            folders = _family_folders(spec_dir)
        except OSError as error:
            message = f"no folder of specs: {error.strerror or error}{_NEW}"
            problems.append(Problem(place, message))
            continue
        if only is None:
            problems.extend(_unused(spec_dir, folders))
        family_folders += [(spec_dir, folder) for folder in folders]
        if not folders:
            message = f"no families here: expected <family>/family.yaml{_NEW}"
            problems.append(Problem(place, message))
    loaders: dict[str, _FolderLoader] = {}
    families: dict[str, Family] = {}

    def read(name: str | None) -> None:
        for spec_dir, folder in family_folders:
            if name not in (None, folder.name):
                continue
            loader = _FolderLoader(spec_dir, folder)
            family = loader.load()
            problems.extend(loader.problems)
            if family is None:
                continue
            if family.name in families:
                message = f"family '{family.name}' is also in {families[family.name].file}"
                problems.append(Problem(loader.family.locate("family"), message))
            else:
                families[family.name] = family
                loaders[family.name] = loader

    read(only)
    for name, loader in [*loaders.items()]:
        for other in [g.family for _, g in loader.gradients if isinstance(g, DeclaredGradient)]:
            if other not in families and only is not None:
                read(other)
        families[name] = loader.with_gradients(
            families, loaders, [f.name for _, f in family_folders]
        )
        problems.extend(loader.problems)
    fronts: dict[str, str] = {}
    for name, family in families.items():
        for i, (_, function) in enumerate(family.fronts):
            other = fronts.setdefault(function, name)
            if (other, i) != (name, [f for _, f in family.fronts].index(function)):
                whose = "listed twice" if other == name else f"also the front of {other}"
                place = loaders[name].family.locate("front", i)
                problems.append(Problem(place, f"'{function}' is {whose}: rename one"))
        in_place = f"{name}_out"
        if in_place in families and any(t.role is Role.OUTPUT for t in family.tensors):
            message = (
                f"family '{in_place}' is named as an operator of the family '{name}', the one that "
                "writes into tensors passed by name: rename one of them"
            )
            problems.append(Problem(loaders[in_place].family.locate("family"), message))
    if problems:
        raise SpecError(problems)
    return tuple(families[name] for name in sorted(families) if only in (None, name))


def _equated(tree: ast.expr) -> set[str]:
    """Returns the names that a condition holds equal to something: each call has one value of
    them."""
    match tree:
        case ast.BoolOp(op=ast.And(), values=values):
            return set().union(*map(_equated, values))
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return {side.id for side in (left, right) if isinstance(side, ast.Name)}
        case _:
            return set()


def _family_folders(spec_dir: Path) -> list[Path]:
    """Yields the folders of families: those with specs in them, or one floor down, in a group's
    folder."""
    folders = []
    for folder in _folders(spec_dir):
        members = [path for path in _folders(folder) if any(path.glob("*.y*ml"))]
        if members and not (folder / "family.yaml").exists():
            folders += members
        elif any(folder.glob("*.y*ml")):
            folders.append(folder)
    return folders


def _shared_files(spec_dir: Path, folder: Path) -> list[Path]:
    """Returns the files that the families of a group share: <target>.yaml in the group's folder."""
    return [] if folder.parent == spec_dir else sorted(folder.parent.glob("*.y*ml"))


def _unused(spec_dir: Path, folders: Sequence[Path]) -> list[Problem]:
    """Yields problems of groups' files that no family of the group has a target for."""
    targets = {folder.parent / path.name for folder in folders for path in folder.glob("*.y*ml")}
    shared = {path for folder in folders for path in _shared_files(spec_dir, folder)}
    message = "no family of this group has a target of this name"
    return [
        Problem(Location(display_path(path), 1, 1), f"{message}: add <family>/{path.name}")
        for path in sorted(shared - targets)
    ]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


class _FolderLoader:
    """Loads the files of one family's folder."""

    def __init__(self, spec_dir: Path, folder: Path) -> None:
        self.spec_dir = spec_dir
        self.folder = folder
        self.family = Document(folder / "family.yaml")
        self.documents = [self.family]
        self.gradients: list[tuple[tuple[str | int, ...], schema.Gradient]] = []

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
        self.gradients = written.gradients
        with suppress(TooManyProblemsError):
            kinds = {document.path.stem != "cpu" for document, _ in targets}
            loader = FamilyLoader(self.family, self.spec_dir, self.folder)
            family = loader.load(written, kinds.pop() if len(kinds) == 1 else None)
            loaded = []
            for document, target in targets:
                with suppress(TooManyProblemsError):
                    if target is not None:
                        place = self.spec_dir, self.folder
                        loaded.append(TargetLoader(document, family, *place).load(target))
            if len(loaded) == len(targets):
                family = replace(family, generated_front=loader.front(written, family, loaded))
                if loader.reference is not None:
                    check_reference(self.family, loader.reference, family, loaded)
        if self.problems:
            return None
        order = sorted(loaded, key=lambda target: (target.capability, target.name))
        self._check_sources(order)
        order = [self._with_tuning(family, target) for target in order]
        self._check_tuning_files(order)
        family = replace(family, targets=tuple(order))
        with suppress(TooManyProblemsError):
            family = replace(family, choices=self._choices(family))
            self._check_front(family)
        return None if self.problems else family

    @property
    def differentiable(self) -> set[str]:
        """Returns the inputs that have gradients."""
        return {
            name
            for _, gradient in self.gradients
            for name in (
                gradient.returns if isinstance(gradient, DeclaredGradient) else gradient.inputs
            )
        }

    def with_gradients(
        self,
        families: Mapping[str, Family],
        loaders: Mapping[str, _FolderLoader],
        names: Sequence[str],
    ) -> Family:
        """Returns the family with the gradients that other families give; `names` are all families,
        `families` those without problems."""
        document, family = self.family, families[self.folder.name]
        functions = iter(family.gradients)
        gradients: list[manifest.Gradient | manifest.DeclaredGradient] = []
        with suppress(TooManyProblemsError):
            for place, written in self.gradients:
                when = load_condition(document, place, written, family)
                if not isinstance(written, DeclaredGradient):
                    gradients.append(replace(next(functions), when=when))
                elif written.family in families:
                    other, again = families[written.family], loaders[written.family].differentiable
                    gradient = load_gradient(document, place, written, family, other, again)
                    gradients.append(replace(gradient, when=when))
                elif written.family not in names:
                    hint = did_you_mean(written.family, names)
                    message = f"there is no family '{written.family}'{hint}"
                    document.report(message, *place, "family")
        return replace(family, gradients=tuple(gradients))

    def _check_sources(self, targets: Sequence[Target]) -> None:
        """Reports a source of two targets: one library holds the objects of all targets."""
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

    def _check_front(self, family: Family) -> None:
        """Reports parameters that calls depend on and that the generated front leaves open: it
        would take any kernel, which then refuses the call."""
        front = family.generated_front
        if front is None:
            return
        place = next(i for i, (module, _) in enumerate(family.fronts) if not module)
        decided = {name for name, _ in front.takes} | {flag.name for flag, _ in front.flags}
        decided |= {tensor.dtype for tensor in family.tensors if tensor.role is Role.INPUT}
        decided |= {name for row in family.choices for name, _ in row.take}
        for target in family.targets:
            names = {parameter.name for parameter in target.parameters}
            for rule in (*family.requires, *target.requires):
                fixed = rule.that.names if not front.takes else _equated(rule.that.tree)
                for name in sorted(fixed & names - decided):
                    decided.add(name)
                    message = (
                        f"the front does not decide '{name}', which `requires` names "
                        f"({rule.that.text}): say what it is for a call, takes: {{{name}: …}}, or "
                        f"let callers pass it, flags: {{{name}: null}}"
                    )
                    self.family.report(message, "front", place)

    def _with_tuning(self, family: Family, target: Target) -> Target:
        """Returns the target with the files beside its spec: tuned rows, and shapes to tune for."""
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
        names = {f"{target.name}{suffix}" for target in targets for suffix in (TUNED, SHAPES)}
        for path in sorted(self.folder.glob("*.yaml")):
            if path.name.endswith((TUNED, SHAPES)) and path.name not in names:
                message = f"the family has no target '{path.name.partition('.')[0]}'"
                self.family.add(Problem(Location(display_path(path), 1, 1), message))

    def _choices(self, family: Family) -> tuple[ChoiceRow, ...]:
        """Returns the rows of choices.yaml, if the family has one."""
        if not (self.folder / CHOICES).is_file():
            return ()
        document = Document(self.folder / CHOICES)
        self.documents.append(document)
        written: schema.ChoicesFile | None = schema.validate(document, schema.ChoicesFile)
        also = {COMPUTE_CAPABILITY: INT, **{p.name: p.kind for p in family.parameters}}
        rows = []
        for i, row in enumerate(written.choices if written else ()):
            when = load_condition_on_call(document, row.when, family, also, "choices", i, "when")
            for name, value in row.take.items():
                self._check_choice(document, family, i, name, value)
            rows.append(ChoiceRow(when, tuple(row.take.items())))
        return tuple(rows)

    def _check_choice(
        self, document: Document, family: Family, row: int, name: str, value: ParameterValue
    ) -> None:
        place = ("choices", row, "take", name)
        parameters = {p.name: p for target in family.targets for p in target.parameters}
        if name not in parameters:
            message = f"no target has a parameter '{name}'{did_you_mean(name, parameters)}"
            document.report(message, *place, key=True)
        elif wrong := parameters[name].check(value):
            document.report(wrong, *place)
