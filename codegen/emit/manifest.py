"""The contents of manifest.json, from the configurations that are generated."""

from __future__ import annotations

import dataclasses
import enum
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from codegen.core import manifest as form
from codegen.core.expressions import Expression
from codegen.core.manifest import Manifest, Selection
from codegen.emit import python_face, scalars
from codegen.emit.render import sha256
from codegen.space.expand import FamilySpace, TargetSpace
from codegen.spec import keys, short_form
from codegen.spec.model import (
    BuildPath,
    BuildSettings,
    Configuration,
    Rule,
    Tensor,
    Trace,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """The origin of a tree in its manifest: hashes by path, relative to the tree."""

    selection: Selection
    spec_dirs: tuple[str, ...]
    spec_names: tuple[str, ...]  # the folders' names, in the same order
    specs: tuple[tuple[str, str], ...]


def described(
    spaces: Sequence[FamilySpace],
    files: Mapping[str, str],
    file_of: Mapping[str, str],
    inputs: Inputs,
    fingerprints: Mapping[str, str],
) -> Manifest:
    """Returns the manifest; `file_of` has the file of each key, `fingerprints` those of the
    families."""
    return Manifest(
        selection=inputs.selection,
        spec_dirs=inputs.spec_dirs,
        inputs=dict(inputs.specs),
        outputs={path: sha256(files[path]) for path in sorted(files)},
        families=tuple(
            _family(space, file_of, fingerprints[space.family.name]) for space in spaces
        ),
    )


def _family(space: FamilySpace, file_of: Mapping[str, str], fingerprint: str) -> form.Family:
    family, front = space.family, space.family.generated_front
    taken = tuple(name for name, _ in front.takes) if front else ()
    arguments = {t.name: _tensor(t) for t in family.tensors} | {
        s.name: scalars.in_manifest(s) for s in family.scalars
    }
    return _like(
        form.Family,
        family,
        fingerprint=fingerprint,
        operators=tuple(python_face.operators(family)),
        arguments=tuple(arguments[name] for name in family.argument_order),
        requires=tuple(map(_rule, family.requires)),
        trace=None if family.trace is None else _trace(family.trace),
        build=_build_settings(family.build),
        fronts=tuple(
            form.Front(module=m, function=f, takes=taken if not m else ()) for m, f in family.fronts
        ),
        gradient=form.Gradients(cases=family.gradients)
        if len(family.gradients) > 1
        else next(iter(family.gradients), None),
        choices=tuple(
            form.Choice(when=row.when.normal, take=dict(row.take)) for row in family.choices
        ),
        targets=tuple(_target(chosen, file_of) for chosen in space.targets),
    )


def _like(kind: type[T], of: Any, /, **others: Any) -> T:
    """Makes the manifest's record of a part of the model: its members of the same names,
    expressions as texts; `others` are the members that differ."""
    names = {field.name for field in dataclasses.fields(cast("Any", kind))} - others.keys()
    return kind(**{name: _in_manifest(getattr(of, name)) for name in names}, **others)


def _in_manifest(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_in_manifest, value))
    if isinstance(value, Expression):
        return value.normal
    return value.value if isinstance(value, enum.Enum) else value


def _tensor(tensor: Tensor) -> form.Tensor | form.Scalar:
    return _like(
        form.Tensor,
        tensor,
        dims=tuple(dim.expression.normal for dim in tensor.dims),
        length=tensor.length.expression.normal if tensor.length else "",
    )


def _build_settings(build: BuildSettings) -> form.BuildSettings:
    """Returns the `build` of a family or of a target; a target's repeats its family's except the
    sources."""
    return form.BuildSettings(
        flags=tuple(word for flag in build.flags for word in shlex.split(flag)),
        definitions=build.definitions,
        include=tuple(path.entry for path in build.include),
        libraries=tuple(
            entry.entry if isinstance(entry, BuildPath) else entry for entry in build.libraries
        ),
        sources=tuple(path.entry for path in build.sources),
    )


def _trace(trace: Trace) -> form.Trace:
    record = tuple(_like(form.RecordTensor, tensor) for tensor in trace.record)
    return _like(form.Trace, trace, record=record)


def _rule(rule: Rule) -> form.Rule:
    return form.Rule(that=rule.that.text, because=rule.because)


def _target(chosen: TargetSpace, file_of: Mapping[str, str]) -> form.Target:
    target = chosen.target
    return _like(
        form.Target,
        target,
        kind="cuda" if target.is_cuda else "cpu",
        alignment=None if target.alignment is None else target.alignment.text,
        spec=target.file,
        parameters=target.own_parameters,
        derived=target.derived_names,
        constraints=tuple(map(_rule, target.constraints)),
        requires=tuple(map(_rule, target.requires)),
        budget=dict(target.budget),
        build=_build_settings(target.build),
        kernels=tuple(_kernel(c, file_of[c.key]) for c in chosen.configurations),
    )


def _kernel(configuration: Configuration, file: str) -> form.Kernel:
    target, parameters = configuration.target, configuration.parameters
    is_of_launch = target.launch and not {"threads", "smem_bytes"} <= set(target.derived_names)
    return form.Kernel(
        key=configuration.key,
        short=short_form.write(target, parameters) if target.short else None,
        parameters=parameters,
        derived=configuration.derived,
        symbol=keys.symbol_fragment(target.family, target.name, configuration.type_name),
        file=file,
        threads=configuration.threads if is_of_launch else 0,
        shared_memory=configuration.shared_memory if configuration.not_on or is_of_launch else 0,
        flags=configuration.flags,
        predicted=configuration.predicted or None,
    )
