"""Which kernel a family's front takes: one chooser, by the rows of the family's choices.yaml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from codegen.spec.expressions import BOOL, EVALUATION_ERRORS, INT, Expression, parse, reason
from runtime import catalog, devices, manifest
from runtime.catalog import KernelInfo
from runtime.errors import InvalidArgument, KernelNotFound, text
from runtime.handle import Kernel
from runtime.handle import traced_as_constant as traced_as_constant

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_chosen: dict[tuple[object, ...], Kernel] = {}


def choose(
    family: str,
    device: torch.device,
    wanted: Mapping[str, Any],
    facts: Mapping[str, Any] = _NOTHING,
    target: str | None = None,
) -> Kernel:
    """The kernel of `family` that suits a call on `device`; kept for the process.

    It has the parameters `wanted`, where a value of None leaves one open. Of the rows of the
    family's choices.yaml whose condition holds, the first that a kernel fits decides: its values
    count for what is open, where a target has that parameter. Without rows, and among several that
    fit, the first: targets of the highest compute capability before others, then as the spec lists
    them.

    Args:
        family: a family's name.
        device: where the tensors are.
        wanted: parameters by name, as specs write their values.
        facts: what the rows' conditions name beside parameters: symbols and scalars, by name.
        target: only this target's.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """
    catalog.check_name("target", target, catalog.targets())
    rows = _rows(family)
    held = tuple(i for i, (when, _) in enumerate(rows) if _holds(when, {**wanted, **facts}))
    key = (family, device, target, tuple(wanted.items()), held)
    found = _chosen.get(key)
    if found is not None:
        return found
    capability = {t.name: t.capability for t in manifest.family(family).targets}
    by_capability = sorted(catalog.kernels(family), key=lambda info: -capability[info.target])
    refused: dict[tuple[str, str], list[str]] = {}
    for take in [rows[i][1] for i in held] if rows else [_NOTHING]:
        for info in by_capability:
            why = _why_not(info, device, target, wanted, take)
            if why is None:
                return _chosen.setdefault(key, catalog.kernel(info.key))
            refused.setdefault((info.target, why), []).append(info.key)
    raise KernelNotFound(_explain(family, device, wanted, refused))


@functools.cache
def _rows(family: str) -> tuple[tuple[Expression, Mapping[str, Any]], ...]:
    """The family's rows: (condition, values to take)."""
    found = manifest.family(family)
    kinds = {parameter.name: parameter.kind for parameter in found.parameters}
    kinds |= dict.fromkeys(found.symbols, INT)
    kinds |= dict.fromkeys(found.optional_tensors, BOOL)
    kinds |= {a.name: a.kind for a in found.arguments if a.role == "scalar"}
    return tuple((parse(row.when, kinds, "bool"), row.take) for row in found.choices)


def _holds(when: Expression, values: Mapping[str, Any]) -> bool:
    try:
        return bool(when.evaluate(values))
    except EVALUATION_ERRORS as error:
        raise InvalidArgument(f"choices.yaml: {when.text} has no value: {reason(error)}") from None


def _why_not(
    info: KernelInfo,
    device: torch.device,
    target: str | None,
    wanted: Mapping[str, Any],
    take: Mapping[str, Any],
) -> str | None:
    if device.type != ("cuda" if info.is_cuda else "cpu"):
        return f"runs on {'a CUDA device' if info.is_cuda else 'the CPU'}"
    if target is not None and info.target != target:
        return f"its target is {info.target}, not {target}"
    if not info.built and info.reason is not None:
        return info.reason
    if info.is_cuda:
        where = manifest.family(info.family).target(info.target)
        index = torch.cuda.current_device() if device.index is None else device.index
        if info.built:
            (kernel,) = (kernel for kernel in where.kernels if kernel.key == info.key)
            built_for = kernel.pack.architectures
            why = devices.why_unavailable(
                where.capability, where.exact, built_for, index
            ) or devices.why_too_large(kernel.shared_memory, index)
        else:  # built when it is first asked for
            why = devices.why_unsuitable(where.capability, where.exact, index)
        if why is not None:
            return why
    own = info.parameters
    asked = {name: value for name, value in wanted.items() if value is not None}
    wrong = [
        f"{name} is {own[name]}, not {text(value)}"
        if name in own
        else f"it has no parameter {name}"
        for name, value in asked.items()
        if own.get(name) != value
    ]
    wrong += [
        f"{name} is {own[name]}, not {value}"
        for name, value in take.items()
        if name in own and name not in asked and own[name] != value
    ]
    return ", ".join(wrong) or None


def _explain(
    family: str,
    device: torch.device,
    wanted: Mapping[str, Any],
    refused: Mapping[tuple[str, str], list[str]],
) -> str:
    settings = ", ".join(
        f"{name} {text(value)}" for name, value in wanted.items() if value is not None
    )
    reasons = "".join(
        f"\n  {keys[0]}{f' and {len(keys) - 1} more' if len(keys) > 1 else ''}: {why}"
        for (_, why), keys in refused.items()
    )
    found = manifest.family(family)
    return (
        f"no {family} kernel for {settings} on {device}:{reasons or ' none was generated'}\n"
        f"In the project of pack {found.pack.name}, add a configuration to {found.folder}; then "
        f"`{manifest.REGENERATE}` builds it"
    )
