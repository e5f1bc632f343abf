"""manifest.json: what was generated, from what; for check, CMake, the reports and the runtime."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.emit import python_face
from codegen.emit.render import sha256
from codegen.space.expand import FamilySpace, Selection, TargetSpace
from codegen.spec import keys, short_form
from codegen.spec.model import (
    Build,
    Configuration,
    Parameter,
    Place,
    Rule,
    Target,
    Trace,
    TunedRow,
)
from codegen.staleness import VERSION

_ROWS = ("kernels", "tuned")  # lists of many items, a line each


@dataclass(frozen=True)
class Inputs:
    """What the manifest says about where a tree came from: hashes by path, relative to the tree."""

    selection: Selection
    spec_dirs: tuple[str, ...]
    spec_names: tuple[str, ...]  # what the folders are called, in the same order
    specs: tuple[tuple[str, str], ...]


def manifest(
    spaces: Sequence[FamilySpace],
    files: Mapping[str, str],
    places: Mapping[str, str],
    inputs: Inputs,
    fingerprints: Mapping[str, str],
) -> str:
    """The text of manifest.json: `places` is the file of each key, `fingerprints` by family."""
    entries = {
        "version": VERSION,
        "selection": {"set": inputs.selection.set_name, "where": inputs.selection.where},
        "spec_dirs": list(inputs.spec_dirs),
        "inputs": dict(inputs.specs),
        "outputs": {path: sha256(files[path]) for path in sorted(files)},
        "families": [
            _family_entry(space, places, fingerprints[space.family.name]) for space in spaces
        ],
    }
    return _text(entries, "\n") + "\n"


def _text(value: Any, line: str, rows: bool = False) -> str:
    """JSON, an indented line for each member; of `rows` one for each whole item, since there are
    many kernels and the encoder that indents is slow. `line` begins a line at the value's depth."""
    inner = line + " "
    if not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        items = [json.dumps(v, ensure_ascii=False) if rows else _text(v, inner) for v in value]
        return f"[{inner}{f',{inner}'.join(items)}{line}]"
    members = [
        f"{json.dumps(name)}: {_text(member, inner, rows=name in _ROWS)}"
        for name, member in value.items()
    ]
    return f"{{{inner}{f',{inner}'.join(members)}{line}}}"


def _family_entry(
    space: FamilySpace, places: Mapping[str, str], fingerprint: str
) -> dict[str, Any]:
    family = space.family
    arguments: dict[str, dict[str, Any]] = {}
    for tensor in family.tensors:
        arguments[tensor.name] = {
            "name": tensor.name,
            "role": tensor.role.value,
            "dims": [dim.expression.normal for dim in tensor.dims],
            "dtype": tensor.dtype,
            "optional": tensor.optional,
            "mutated": tensor.mutated,
            "on_host": tensor.on_host,
            "doc": tensor.doc,
        }
    for scalar in family.scalars:
        arguments[scalar.name] = {
            "name": scalar.name,
            "role": "scalar",
            "dtype": scalar.dtype,
            "default": None if scalar.default is None else scalar.default.normal,
            **({"values": list(scalar.values)} if scalar.values else {}),
            "doc": scalar.doc,
        }
    return {
        "name": family.name,
        "fingerprint": fingerprint,
        "folder": family.folder,
        "summary": family.summary,
        "operators": python_face.operators(family),
        "symbols": list(family.symbols),
        "arguments": [arguments[name] for name in family.argument_order],
        "parameters": [_parameter_entry(parameter) for parameter in family.parameters],
        "requires": [_rule_entry(rule) for rule in family.requires],
        "trace": None if family.trace is None else _trace_entry(family.trace),
        **_build_entry(family.build),
        "reference": family.reference,
        "gradient": None if family.gradient is None else vars(family.gradient),
        "fronts": [{"module": module, "function": name} for module, name in family.fronts],
        "choices": [{"when": row.when.normal, "take": dict(row.take)} for row in family.choices],
        "targets": [_target_entry(chosen, places) for chosen in space.targets],
    }


def _build_entry(build: Build) -> dict[str, Any]:
    """A family's `build`, of which its targets have all but the sources, or a target's; nothing
    where it says nothing. codegen/places.py finds its places."""
    if build == Build():
        return {}
    return {
        "build": {
            "flags": [word for flag in build.flags for word in shlex.split(flag)],
            "definitions": list(build.definitions),
            "include": [place.entry for place in build.include],
            "libraries": [
                entry.entry if isinstance(entry, Place) else entry for entry in build.libraries
            ],
            "sources": [place.entry for place in build.sources],
        }
    }


def _trace_entry(trace: Trace) -> dict[str, Any]:
    return {
        "parameter": trace.parameter,
        "grid": [extent.normal for extent in trace.grid],
        "record": [
            {
                "name": tensor.name,
                "shape": [extent.normal for extent in tensor.shape],
                "doc": tensor.doc,
            }
            for tensor in trace.record
        ],
    }


def _parameter_entry(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "type": parameter.type.value,
        "token": parameter.token,
        "values": None if parameter.values is None else list(parameter.values),
        "default": parameter.default,
        "doc": parameter.doc,
    }


def _rule_entry(rule: Rule) -> dict[str, str]:
    return {"that": rule.that.text, "because": rule.because}


def _restriction(configuration: Configuration) -> dict[str, Any]:
    """The shared memory that a block takes, in bytes, and the compute capabilities without that
    much; nothing where every one that the target runs on has it."""
    if not (not_on := configuration.not_on):
        return {}
    return {"shared_memory": configuration.shared_memory, "not_on": list(not_on)}


def _tuned_entry(target: Target, row: TunedRow) -> dict[str, Any]:
    return {
        "device": row.device,
        "parameters": dict(row.parameters),
        "range": [
            {"symbols": list(size.symbols), "least": size.least, "most": size.most}
            for size in row.ranges
        ],
        "take": row.take,
        "configuration": target.by_name(row.values),
        "milliseconds": row.milliseconds,
        "runner_up": row.runner_up,
        "runner_up_milliseconds": row.runner_up_milliseconds,
        "tie": row.tie,
    }


def _target_entry(chosen: TargetSpace, places: Mapping[str, str]) -> dict[str, Any]:
    target = chosen.target
    return {
        "name": target.name,
        "kind": "cuda" if target.is_cuda else "cpu",
        "capability": target.capability,
        "exact": target.exact_capability,
        "alignment": target.alignment and target.alignment.text,
        "spec": target.file,
        "parameters": [_parameter_entry(parameter) for parameter in target.own_parameters],
        "derived": list(target.derived_names),
        "constraints": [_rule_entry(rule) for rule in target.constraints],
        "requires": [_rule_entry(rule) for rule in target.requires],
        "budget": dict(target.budget),
        **_build_entry(target.build),
        **({"tuned": [_tuned_entry(target, row) for row in target.tuned]} if target.tuned else {}),
        "kernels": [
            {
                "key": c.key,
                **({"short": short_form.write(target, c.parameters)} if target.short else {}),
                "parameters": c.parameters,
                "derived": c.derived,
                "symbol": keys.symbol_fragment(target.family, target.name, c.type_name),
                "file": places[c.key],
                **_restriction(c),
            }
            for c in chosen.configurations
        ],
    }
