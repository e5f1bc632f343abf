"""The choice of a kernel for a call of a family, by the rows that were tuned for this device and by
those of the family's choices.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from codegen.core.manifest import Target, TunedRow
from runtime import devices, finding, listing, manifest, ondemand, packs, rows, slices
from runtime.errors import KernelNotFound, text
from runtime.handle import Kernel
from runtime.kernel_info import KernelInfo, infos_of
from runtime.rows import NOTHING, Unmet

if TYPE_CHECKING:
    from runtime.ondemand.kernels import Allowed

_MOST_REASONS = 8  # why kernels do not suit, and one for each target
_chosen: dict[tuple[object, ...], Kernel] = {}
packs.when_changed(_chosen.clear)


@dataclass(frozen=True)
class Considered:
    """A row or a kernel that a choice considered, and why it was taken or not."""

    what: str
    verdict: str


@dataclass(frozen=True)
class Explanation:
    """The rows and kernels that `choose` considers for a call, in its order, and the kernel that it
    takes."""

    family: str
    device: str
    considered: tuple[Considered, ...]
    key: str | None

    def __str__(self) -> str:
        """Returns all of it as text for people."""
        lines = [f"  {entry.what}: {entry.verdict}" for entry in self.considered]
        return "\n".join([f"{self.key or f'no kernel of {self.family}'} on {self.device}", *lines])


def choose(
    family: str,
    device: torch.device,
    parameters: Mapping[str, Any],
    sizes: Mapping[str, Any] = NOTHING,
    target: str | None = None,
    tuned: bool = True,
) -> Kernel:
    """Returns the kernel of `family` that suits a call on `device`; it is kept for the process.

    The kernel has the `parameters`; a value of None leaves one open. First come the rows that were
    tuned (<target>.tuned.yaml): the first row of this device and these parameters that covers the
    call decides, if its kernel is available. Then, of the rows of the family's choices.yaml whose
    condition holds, the first that a kernel fits: its values count for parameters that are open, if
    a target has them. Without rows, and among several kernels that fit, the first: targets of the
    highest compute capability before others, then as the spec lists them.

    Args:
        family: a family's name.
        device: the device of the tensors.
        parameters: values by name, as specs write them.
        sizes: the values that rows name beside parameters: symbols, scalars, and whether optional
            tensors are there, by name; and what `tensors.expanded` returns.
        target: the only target whose kernels count.
        tuned: whether rows that were tuned count.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """
    if target is not None:
        listing.check_target(target)
    of_family = rows.of(family)
    values = of_family.values(device, parameters, sizes)
    holding = of_family.holding(values)
    covering: tuple[int, ...] = ()
    if tuned:
        tuned_rows = of_family.tuned(devices.indexed(device), parameters)
        covering = of_family.covering(tuned_rows, values)
    return first(family, device, parameters, target, covering, holding, of_family.unmet(sizes))


def first(
    family: str,
    device: torch.device,
    parameters: Mapping[str, Any],
    target: str | None,
    covering: tuple[int, ...],
    holding: tuple[int, ...],
    unmet: Unmet,
) -> Kernel:
    """Returns the first kernel that fits, by the tuned rows that cover the call and those of
    choices.yaml that hold.

    If only targets with `unmet` requirements have one, it is theirs, and says itself what it
    requires.
    """
    key = (family, device, target, tuple(parameters.items()), covering, holding, unmet)
    chosen = _chosen.get(key)
    if chosen is not None:
        return chosen
    of_family = rows.of(family)
    tuned = of_family.tuned(devices.indexed(device), parameters) if covering else ()
    tuned = tuple(tuned[i] for i in covering)
    of_its_kind = [t for t in of_family.targets if _is_for(t, device)]
    for targets in (of_its_kind, of_family.targets):  # the others can only say why they do not suit
        candidates = _candidates(family, device, targets, tuned, holding)
        fitting, _, refused = _judged(candidates, device, target, parameters, unmet)
        if fitting is not None:
            return _chosen.setdefault(key, finding.kernel(fitting.key))
    if unmet:
        return first(family, device, parameters, target, covering, holding, ())
    from runtime.ondemand import kernels as on_demand  # compilers, which nothing else needs

    settings = {name: value for name, value in parameters.items() if value is not None}
    allowed = on_demand.allowed(family, _targets_for(family, device, target), settings)
    if allowed is not None and allowed.keys and ondemand.builds(family, None):
        return _chosen.setdefault(key, finding.kernel(allowed.keys[0]))
    raise KernelNotFound(_not_found(family, device, settings, refused, allowed))


def _is_for(target: Target, device: torch.device) -> bool:
    return devices.why_not_its_kind(target.is_cuda, device.type) is None


def _targets_for(family: str, device: torch.device, target: str | None) -> list[str]:
    """Returns the targets whose kernels a device can run, of the highest compute capability
    first."""
    index = 0 if device.type != "cuda" else devices.indexed(device).index
    return [
        candidate.name
        for candidate in rows.of(family).targets
        if target in (None, candidate.name)
        and _is_for(candidate, device)
        and not (candidate.is_cuda and devices.why_unsuitable(candidate.name, index))
    ]


def explain(
    family: str,
    device: torch.device,
    parameters: Mapping[str, Any],
    sizes: Mapping[str, Any] = NOTHING,
    target: str | None = None,
    tuned: bool = True,
) -> Explanation:
    """Returns the rows and kernels that `choose` considers for these arguments, with the reasons
    why each is taken or not."""
    listing.check_target(target)
    of_family = rows.of(family)
    indexed = devices.indexed(device)
    name = devices.name(indexed)
    values = of_family.values(device, parameters, sizes)
    considered = list(_tuned_rows_considered(of_family, name, parameters, values)) if tuned else []
    tuned_rows = of_family.tuned(indexed, parameters) if tuned else ()
    covering = tuple(tuned_rows[i] for i in of_family.covering(tuned_rows, values))
    holding = of_family.holding(values)
    considered += [
        Considered(f"choices.yaml, row {i + 1}: {when.text}", "holds" if i in holding else "no")
        for i, (when, _) in enumerate(of_family.choices)
    ]
    candidates = _candidates(family, device, of_family.targets, covering, holding)
    unmet = of_family.unmet(sizes)
    fitting, grounds, refused = _judged(candidates, device, target, parameters, unmet)
    by_reason: dict[str, list[str]] = {}
    for (_, why), keys in refused.items():
        by_reason.setdefault(why, []).extend(keys)
    considered += [
        Considered(f"{keys[0]}{f' and {len(keys) - 1} more' if len(keys) > 1 else ''}", why)
        for why, keys in by_reason.items()
    ]
    if fitting is not None:
        considered.append(Considered(fitting.key, f"taken: {grounds}"))
    return Explanation(family, name, tuple(considered), fitting.key if fitting else None)


def _measured(row: TunedRow) -> str:
    if row.runner_up is None or row.runner_up_milliseconds is None:
        return f"{row.milliseconds:.4g} ms, nothing else was measured"
    how = "a tie with" if row.tie else "before"
    return (
        f"{row.milliseconds:.4g} ms, {how} {row.runner_up} with {row.runner_up_milliseconds:.4g} ms"
    )


def _tuned_rows_considered(
    of_family: rows.Rows, device: str, parameters: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[Considered]:
    for target in of_family.targets:
        passed_over: dict[str, int] = {}
        for i, row in enumerate(target.tuned):
            if row.device != device:
                why = "of other devices"
            elif not rows.suits(row, parameters):
                why = "for other parameters"
            else:
                wrong = [] if of_family.holds(row, values) else [f"not so: {row.when}"]
                wrong = wrong or [
                    f"{r.text} is {value}, not in [{r.least}, {r.most}]"
                    for r in row.ranges
                    if not r.least <= (value := rows.product(r, values)) <= r.most
                ]
                what = f"{target.name}.tuned.yaml, row {i + 1}: {row.take}"
                yield Considered(what, ", ".join(wrong) or "covers the call")
                continue
            passed_over[why] = passed_over.get(why, 0) + 1
        for why, count in passed_over.items():
            yield Considered(f"{target.name}.tuned.yaml, {count} rows", why)


def _candidates(
    family: str,
    device: torch.device,
    targets: Sequence[Target],
    tuned: tuple[TunedRow, ...],
    holding: tuple[int, ...],
) -> Iterator[tuple[KernelInfo, Mapping[str, Any], str]]:
    """Yields kernels of targets in the order in which they are tried, each with the values that a
    row prefers and the grounds on which it is tried."""
    whole = listing.known_family(family)
    for row in tuned:
        listed = manifest.kernel(family, row.take)
        if listed is None:
            info = _unlisted(family, row)
        else:
            (info,) = infos_of(*listed, devices.why_not_its_kind(listed[1].is_cuda, device.type))
        yield info, NOTHING, _measured(row)
    why = "no kernel of a row is available" if tuned else "no row covers the call"
    others = [(NOTHING, f"{why}, and it is the first that fits")]
    if choices := rows.of(family).choices:
        others = [
            (choices[i][1], f"the first that fits row {i + 1} of choices.yaml") for i in holding
        ]
    for take, grounds in others:
        for target in targets:
            unasked = devices.why_not_its_kind(target.is_cuda, device.type)
            for info in infos_of(whole, target, target.kernels, unasked):
                yield info, take, grounds


def _judged(
    candidates: Iterator[tuple[KernelInfo, Mapping[str, Any], str]],
    device: torch.device,
    target: str | None,
    parameters: Mapping[str, Any],
    unmet: Unmet,
) -> tuple[KernelInfo | None, str, dict[tuple[str, str], list[str]]]:
    """Returns the first candidate that fits, the grounds on which it is tried, and the keys of
    those before it, by target and the reason why they do not fit."""
    refused: dict[tuple[str, str], list[str]] = {}
    for candidate, take, grounds in candidates:
        why = dict(unmet).get(candidate.target)
        why = why or _why_not(candidate, device, target, parameters, take)
        if why is None:
            return candidate, grounds, refused
        refused.setdefault((candidate.target, why), []).append(candidate.key)
    return None, "", refused


def _unlisted(family: str, row: TunedRow) -> KernelInfo:
    """Returns the kernel of a row that no pack lists: it may be built on demand."""
    target = manifest.family(family).target(row.take.split(".")[1])
    why = None
    if not ondemand.builds(family, None):
        why = (
            f"its row covers the call, but no pack holds it: runtime.kernel({row.take!r}, "
            "build=True) builds it"
        )
    return KernelInfo(
        key=row.take,
        short=None,
        family=family,
        target=target.name,
        parameters=row.configuration,
        derived=NOTHING,
        is_cuda=target.is_cuda,
        built=False,
        available=why is None,
        reason=why,
    )


def _why_not(
    info: KernelInfo,
    device: torch.device,
    target: str | None,
    parameters: Mapping[str, Any],
    take: Mapping[str, Any],
) -> str | None:
    """Returns why a kernel does not suit a call, or None if it does."""
    if why := devices.why_not_its_kind(info.is_cuda, device.type):
        return why
    if target is not None and info.target != target:
        return f"its target is {info.target}, not {target}"
    if not info.built and info.reason is not None:
        return info.reason
    if info.is_cuda:
        index = torch.cuda.current_device() if device.index is None else device.index
        if info.built:
            listed = manifest.kernel(info.family, info.key)
            assert listed is not None
            _, _, (kernel,) = listed
            built_for = slices.of(info.family, info.key).architectures
            why = devices.why_unavailable(info.target, built_for, index) or devices.why_too_large(
                kernel.shared_memory, index
            )
        else:  # built when it is first asked for
            why = devices.why_unsuitable(info.target, index)
        if why is not None:
            return why
    own = info.parameters
    required = manifest.family(info.family).asked_of(own, parameters)
    wrong = [
        f"{name} is {own[name]}, not {text(value)}"
        if name in own
        else f"it has no parameter {name}"
        for name, value in required.items()
        if own.get(name) != value
    ]
    wrong += [
        f"{name} is {own[name]}, not {value}"
        for name, value in take.items()
        if name in own and name not in required and own[name] != value
    ]
    return ", ".join(wrong) or None


def _not_found(
    family: str,
    device: torch.device,
    settings: Mapping[str, Any],
    refused: Mapping[tuple[str, str], list[str]],
    allowed: Allowed | None,
) -> str:
    """Returns why no kernel suits: the nearest one first, then the others, then what to do."""
    named = ", ".join(f"{name} {text(value)}" for name, value in settings.items())
    whole = manifest.family(family)
    parameters = {kernel.key: kernel.parameters for t in whole.targets for kernel in t.kernels}

    def distance(entry: tuple[tuple[str, str], list[str]]) -> tuple[bool, int, int]:
        (target, _), keys = entry
        own = parameters.get(keys[0], {})
        other_kind = whole.target(target).is_cuda != (device.type == "cuda")
        return other_kind, *finding.differing(own, settings)

    reasons: list[str] = []
    targets: set[str] = set()
    for (target, why), keys in sorted(refused.items(), key=distance):
        if len(reasons) < _MOST_REASONS or target not in targets:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            reasons.append(f"{keys[0]}{more}: {why}")
        targets.add(target)
    nearest = f". Nearest: {reasons[0]}" if reasons else ": none was generated"
    lines = [f"no {family} kernel for {named} on {device}{nearest}"]
    lines += [f"  {reason}" for reason in reasons[1:]]
    if len(refused) > len(reasons):
        lines.append(f"  and {len(refused) - len(reasons)} other reasons, of kernels farther away")
    if allowed is None or allowed.keys:
        add = (
            f"in the project of pack {packs.of(family).name}, add a configuration to "
            f"{whole.spec_folder}; then `{manifest.REGENERATE}` builds it"
        )
        if allowed is None:
            lines.append(f"If its spec allows one: {add}")
        else:
            lines.append(
                f"runtime.kernel({allowed.keys[0]!r}, build=True) builds one now, and "
                f"KERNELMINT_BUILD=missing whatever is asked for; or, {add}"
            )
    elif allowed.reasons:
        lines += ["None can be built with these parameters:", *(f"  {r}" for r in allowed.reasons)]
    return "\n".join(lines)
