"""The state of a key: built, excluded (by which rule, and why), not in a set, or not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.core import hardware
from codegen.core.manifest import Selection
from codegen.core.nearest import nearest
from codegen.core.packs import Pack
from codegen.core.problems import UsageError
from codegen.core.words import did_you_mean, one_line
from codegen.space.expand import (
    TargetSpace,
    configured,
    exclusions,
    expand,
    pruned,
    sets_holding,
)
from codegen.spec import keys, short_form
from codegen.spec.keys import KeyFormatError, KeyParts
from codegen.spec.model import Configuration, Family, ParameterValue, Target

_MANY = 100  # kernels of a set that nobody builds for the sake of one


@dataclass(frozen=True)
class Explanation:
    """An explanation of a key.

    Attributes:
        text: for people.
        status: the state of the key, one of: unknown, excluded, built, generated (not compiled into
            its pack), in_set (not generated), valid (in no set).
        details: further members, for programs.
    """

    text: str
    status: str
    details: dict[str, Any]

    @property
    def as_json(self) -> dict[str, Any]:
        """Returns the object that `explain --json` prints."""
        return {"status": self.status, **self.details}


class UnknownKeyError(UsageError):
    """No configuration can have a key; the message says why, and names the nearest ones."""

    def __init__(self, key: str, reason: str, near: Sequence[str]) -> None:
        what = f"'{one_line(key)}' is not a valid key: {one_line(reason)}"
        super().__init__("\n".join([what, *_nearest_lines(near)]))
        details = {"key": key, "reasons": [reason], "nearest": list(near)}
        self.explanation = Explanation(str(self), "unknown", details)


def explain(
    key: str, families: Sequence[Family], built: Mapping[str, str], packs: Sequence[Pack] = ()
) -> Explanation:
    """Returns the explanation.

    Args:
        key: a key, or a target's short form of one.
        families: the specs that it is looked up in.
        built: the file of each key of the generated tree, or of the packs; empty without a tree.
        packs: the installed packs that the specs are of; none if they are a project's own.

    Raises:
        UnknownKeyError: no configuration can have the key; the nearest ones are named.
    """
    target, values = parse(key, families)
    if short_form.is_short(key):
        key = keys.key_prefix(target) + keys.tokens_of(target.parameters)(values)
    pack = next((pack for pack in packs if target.family in pack.families), None)
    of_pack = [f"specs of {pack}"] if pack else []
    details: dict[str, Any] = {
        "key": key,
        "family": target.family,
        "target": target.name,
        "pack": pack.name if pack else None,
        "parameters": target.by_name(values),
    }
    if excluded := exclusions(target, values):
        near = _nearest(key, families)
        lines = [f"{key} is excluded:", *(f"  {reason}" for reason in excluded), *of_pack]
        text = "\n".join([*lines, *_nearest_lines(near)])
        return Explanation(text, "excluded", {**details, "reasons": excluded, "nearest": near})
    configuration, names = configured(target, values), sets_holding(target, values)
    details |= {"derived": configuration.derived, "sets": names}
    if file := built.get(key):
        sets = f", in set {', '.join(names)}" if names else ""
        lines = [f"  {name} = {_yaml(value)}" for name, value in configuration.everything.items()]
        lines += _restriction(configuration)
        status = "built"
        if pack is None:
            what = f"is built: {file}{sets}"
        elif f"{target.family}.{target.name}" in pack.targets:
            what = f"is built: in {pack}{sets}"
        elif parts := [
            part.name for part in pack.slices if f"{target.family}.{target.name}" in part.targets
        ]:
            what = f"is built: in slices {', '.join(parts)} of {pack}{sets}"
        else:
            what = f"was generated, but not compiled into {pack}{sets}"
            status = "generated"
        return Explanation("\n".join([f"{key} {what}", *lines]), status, {**details, "file": file})
    where, then = "the generated tree; write it with", ""
    if pack:
        where, then = f"{pack}; in the project of that pack, run", " && pip install ."
    folder = target.family if pack else Path(target.display).parent
    alone = f"kernelmint build {folder} --key {key}"
    on_demand = ["or build it now, into the cache:", f"  {alone}"]
    spec = f"{target.file} in the project of {pack}" if pack else target.display
    count = _generated(names[0], families) if names and "default" not in names else 0
    if count > _MANY:
        lines = [
            f"{key} is in set {', '.join(names)}; build it alone, into the cache:",
            f"  {alone}",
            f"or add it to a set that is generated, such as default of {spec}:",
            f"  - {entry(target, values)}",
            f"(`kernelmint regenerate --set {names[0]}` writes {count:,} kernels)",
            *_restriction(configuration),
        ]
        return Explanation("\n".join(lines), "in_set", {**details, "command": alone})
    if names:
        option = "" if "default" in names else f" --set {names[0]}"
        command = f"kernelmint regenerate{option}{then}"
        lines = [
            f"{key} is in set {', '.join(names)}, but not in {where}",
            f"  {command}",
            *on_demand,
        ]
        return Explanation("\n".join(lines), "in_set", {**details, "command": command})
    rules = [
        f"the set {name} prunes it: {rule.location}: {rule.that.text}: {rule.because}"
        for name, rule in pruned(target, values)
    ]
    near, command = _nearest(key, families), f"kernelmint regenerate{then}"
    lines = [
        f"{key} is valid, but in no set; add to a set of {spec}, such as default:",
        f"  - {entry(target, values)}",
        "then run",
        f"  {command}",
        *on_demand,
        *rules,
        *_restriction(configuration),
    ]
    details |= {"reasons": rules, "nearest": near, "command": command}
    return Explanation("\n".join([*lines, *_nearest_lines(near)]), "valid", details)


def _generated(set_name: str, families: Sequence[Family]) -> int:
    """Returns the number of kernels of a tree of that set."""
    spaces = expand(families, Selection(set_name))
    return sum(len(target.configurations) for space in spaces for target in space.targets)


def _restriction(configuration: Configuration) -> list[str]:
    """Returns where the hardware does not launch a valid configuration of its target."""
    by_most: dict[int, list[str]] = {}
    for capability in configuration.not_on:
        most = hardware.LIMITS[capability].shared_memory_block
        by_most.setdefault(most, []).append(hardware.shown(capability))
    return [
        f"not on compute capability {', '.join(names)}: it takes {configuration.shared_memory:,} "
        f"bytes of shared memory a thread block, and those have {most:,}"
        for most, names in sorted(by_most.items())
    ]


def parse(key: str, families: Sequence[Family]) -> tuple[Target, tuple[ParameterValue, ...]]:
    """Returns the target that a key or a short form belongs to, and the values of its parameters.

    Raises UnknownKeyError if no target has it; the nearest keys are named.
    """
    try:
        if short_form.is_short(key):
            return _parse_short(key, families)
        parts = KeyParts.split(key)
        family = next((f for f in families if f.name == parts.family), None)
        if family is None:
            hint = did_you_mean(parts.family, [f.name for f in families])
            raise KeyFormatError(f"there is no family '{parts.family}'{hint}")
        target = next((t for t in family.targets if t.name == parts.target), None)
        if target is None:
            hint = did_you_mean(parts.target, [t.name for t in family.targets])
            raise KeyFormatError(f"{family.name} has no target '{parts.target}'{hint}")
        return target, keys.parse_tokens(target.parameters, parts.tokens)
    except KeyFormatError as error:
        raise UnknownKeyError(key, str(error), _nearest(key, families)) from None


def _parse_short(
    text: str, families: Sequence[Family]
) -> tuple[Target, tuple[ParameterValue, ...]]:
    """Returns the one target that a short form belongs to, and its configuration."""
    matches, refused = [], []
    for target in (t for f in families for t in f.targets if t.short is not None):
        try:
            matches.append((target, short_form.parse(target, text)))
        except KeyFormatError as error:
            refused.append(str(error))
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(f"{target.family}.{target.name}" for target, _ in matches)
        raise KeyFormatError(f"{names} all have it; write the key")
    raise KeyFormatError("; ".join(dict.fromkeys(refused)) or "no target has short forms")


def _nearest(key: str, families: Sequence[Family]) -> list[str]:
    """Returns the nearest keys of the default sets."""
    spaces: list[TargetSpace] = [t for s in expand(families, Selection()) for t in s.targets]
    return nearest(key, [c.key for space in spaces for c in space.configurations if c.key != key])


def _nearest_lines(near: Sequence[str]) -> list[str]:
    return ["the nearest keys of the default sets:", *(f"  {name}" for name in near)]


def entry(target: Target, values: Sequence[ParameterValue]) -> str:
    """Returns a configuration as an entry of a set."""
    named = target.by_name(tuple(values)).items()
    return f"{{{', '.join(f'{name}: {_yaml(value)}' for name, value in named)}}}"


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
