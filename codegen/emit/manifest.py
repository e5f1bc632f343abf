"""What manifest.json says of what is generated."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codegen import manifest as form
from codegen.emit import python_face, scalars
from codegen.emit.render import sha256
from codegen.manifest import Manifest, Selection
from codegen.space.expand import FamilySpace, TargetSpace
from codegen.spec import keys, short_form
from codegen.spec.model import (
    BuildPath,
    BuildSettings,
    Configuration,
    Parameter,
    Rule,
    Tensor,
    Trace,
)


@dataclass(frozen=True)
class Inputs:
    """What the manifest says about where a tree came from: hashes by path, relative to the tree."""

    selection: Selection
    spec_dirs: tuple[str, ...]
    spec_names: tuple[str, ...]  # what the folders are called, in the same order
    specs: tuple[tuple[str, str], ...]


def described(
    spaces: Sequence[FamilySpace],
    files: Mapping[str, str],
    file_of: Mapping[str, str],
    inputs: Inputs,
    fingerprints: Mapping[str, str],
) -> Manifest:
    """The manifest: `file_of` is that of each key, `fingerprints` by family."""
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
    return form.Family(
        name=family.name,
        fingerprint=fingerprint,
        folder=family.folder,
        summary=family.summary,
        operators=tuple(python_face.operators(family)),
        symbols=family.symbols,
        arguments=tuple(arguments[name] for name in family.argument_order),
        parameters=tuple(map(_parameter, family.parameters)),
        requires=tuple(map(_rule, family.requires)),
        trace=None if family.trace is None else _trace(family.trace),
        build=_build_settings(family.build),
        reference=family.reference,
        gradient=family.gradient,
        shards=family.shards,
        operations=family.operations.normal if family.operations else None,
        fronts=tuple(
            form.Front(module=m, function=f, takes=taken if not m else ()) for m, f in family.fronts
        ),
        choices=tuple(
            form.Choice(when=row.when.normal, take=dict(row.take)) for row in family.choices
        ),
        targets=tuple(_target(chosen, file_of) for chosen in space.targets),
    )


def _tensor(tensor: Tensor) -> form.Tensor | form.Scalar:
    return form.Tensor(
        name=tensor.name,
        role=tensor.role.value,
        dims=tuple(dim.expression.normal for dim in tensor.dims),
        dtype=tensor.dtype,
        optional=tensor.optional,
        mutated=tensor.mutated,
        on_host=tensor.on_host,
        doc=tensor.doc,
    )


def _build_settings(build: BuildSettings) -> form.BuildSettings:
    """A family's `build`, of which its targets have all but the sources, or a target's."""
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
    return form.Trace(
        parameter=trace.parameter,
        grid=tuple(extent.normal for extent in trace.grid),
        record=tuple(
            form.RecordTensor(
                name=tensor.name,
                shape=tuple(extent.normal for extent in tensor.shape),
                doc=tensor.doc,
            )
            for tensor in trace.record
        ),
    )


def _parameter(parameter: Parameter) -> form.Parameter:
    return form.Parameter(
        name=parameter.name,
        type=parameter.type.value,
        token=parameter.token,
        values=parameter.values,
        default=parameter.default,
        doc=parameter.doc,
    )


def _rule(rule: Rule) -> form.Rule:
    return form.Rule(that=rule.that.text, because=rule.because)


def _target(chosen: TargetSpace, file_of: Mapping[str, str]) -> form.Target:
    target = chosen.target
    return form.Target(
        name=target.name,
        kind="cuda" if target.is_cuda else "cpu",
        capability=target.capability,
        alignment=None if target.alignment is None else target.alignment.text,
        spec=target.file,
        parameters=tuple(map(_parameter, target.own_parameters)),
        derived=target.derived_names,
        constraints=tuple(map(_rule, target.constraints)),
        requires=tuple(map(_rule, target.requires)),
        budget=dict(target.budget),
        build=_build_settings(target.build),
        tuned=target.tuned,
        kernels=tuple(_kernel(c, file_of[c.key]) for c in chosen.configurations),
    )


def _kernel(configuration: Configuration, file: str) -> form.Kernel:
    target, parameters = configuration.target, configuration.parameters
    return form.Kernel(
        key=configuration.key,
        short=short_form.write(target, parameters) if target.short else None,
        parameters=parameters,
        derived=configuration.derived,
        symbol=keys.symbol_fragment(target.family, target.name, configuration.type_name),
        file=file,
        shared_memory=configuration.shared_memory if configuration.not_on else 0,
    )
