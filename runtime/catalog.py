"""Which kernels exist, and finding one by key, by configuration or by what it must do."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from codegen.packs import Pack
from codegen.spec.expressions import EVALUATION_ERRORS, ExpressionError, Kind, reason
from codegen.spec.where import Where, manifest_scope
from runtime import devices, manifest, operators, packs
from runtime.errors import InvalidArgument, KernelNotFound, PackError, TargetUnavailable, shown
from runtime.handle import Kernel

_DTYPE_NAMES = {dtype: name for name, dtype in operators.DTYPES.items()}


@dataclass(frozen=True)
class KernelInfo:
    """What is known of one kernel.

    Attributes:
        key: its name everywhere: `family.target.` and the tokens of its parameters.
        short: its short form, `(FP16, 128, 64, 64, 4): async+…`, where its target has one.
        family: what it computes.
        target: what it runs on.
        parameters: the configuration, by name; dtypes as bf16, fp16, f32, ….
        derived: what the spec derives from the configuration (threads, shared memory, …).
        registers: registers a thread, from ptxas; the most over the architectures compiled for.
            None on the CPU.
        spills: bytes that ptxas spilled, stores plus loads; None on the CPU.
        is_cuda: whether it takes CUDA tensors.
        built: whether its pack holds it.
        available: whether it is built and can run here: on this processor, or on at least one of
            this machine's CUDA devices.
        reason: why it is not available; None where it is.
    """

    key: str
    short: str | None
    family: str
    target: str
    parameters: Mapping[str, Any]
    derived: Mapping[str, Any]
    registers: int | None
    spills: int | None
    is_cuda: bool
    built: bool
    available: bool
    reason: str | None


def families() -> list[str]:
    """The families of all packs that can be used."""
    return packs.families()


def targets() -> list[str]:
    """The targets of these families."""
    found = (target.name for family in manifest.families() for target in family.targets)
    return list(dict.fromkeys(found))


def load_pack(folder: str | os.PathLike[str]) -> Pack:
    """Adds the pack in a folder to those that are installed, for this process.

    Args:
        folder: a folder with a pack.json: `<package>/_pack` of a distribution.

    Returns:
        the pack; the same as before where it is known already.

    Raises:
        PackError: it cannot be used, or one of its families is in another pack. Nothing has changed
            then.
    """
    known = packs.all_packs()
    pack = packs.add(folder)
    if pack not in known:
        operators.register(pack, kernel)
        _short_forms.cache_clear()
    return pack


def is_built(family: manifest.Family, target: manifest.Target) -> bool:
    """Whether the family's pack was built for a target."""
    return f"{family.name}.{target.name}" in family.pack.targets


def why_not_built(family: manifest.Family, target: manifest.Target) -> str:
    """Why a pack's build left a target's kernels out, and what would build them."""
    pack = family.pack
    rebuild = f"rebuild pack {pack.name} in its project, `{manifest.REBUILD}"
    if not target.is_cuda:
        return f"pack {pack.name} has no kernels of target {target.name}: {rebuild}`"
    if not pack.architectures:
        return (
            f"built without CUDA; {rebuild} -C cmake.define.KERNELMINT_CUDA=ON` "
            "(nvcc comes from PyPI where the machine has none)"
        )
    return (
        f"built for compute capability {', '.join(pack.architectures)} only; {rebuild} "
        f"-C cmake.define.CMAKE_CUDA_ARCHITECTURES={target.capability}"
        f"{'a' if target.exact else ''}`"
    )


def why_unavailable(family: manifest.Family, target: manifest.Target) -> str | None:
    """Why a built target runs on none of this machine's devices, or None."""
    if not target.is_cuda:
        return devices.why_no_isa(family.pack.isas)
    if not devices.has_cuda():
        return "no CUDA device"
    reasons = [
        devices.why_unavailable(target.capability, target.exact, family.pack.architectures, index)
        for index in range(torch.cuda.device_count())
    ]
    return None if None in reasons else reasons[0]


def _infos(families: Iterable[manifest.Family]) -> Iterator[KernelInfo]:
    for family in families:
        resources = manifest.resources(family.pack)
        for target in family.targets:
            built = is_built(family, target)
            reason = why_unavailable(family, target) if built else why_not_built(family, target)
            for kernel in target.kernels:
                used = resources.get(kernel.key)
                yield KernelInfo(
                    key=kernel.key,
                    short=kernel.short,
                    family=family.name,
                    target=target.name,
                    parameters=kernel.parameters,
                    derived=kernel.derived,
                    registers=used.registers if used else None,
                    spills=used.spills if used else None,
                    is_cuda=target.is_cuda,
                    built=built,
                    available=reason is None,
                    reason=reason,
                )


def kernels(
    family: str | None = None,
    target: str | None = None,
    where: str | Callable[[KernelInfo], bool] | None = None,
) -> list[KernelInfo]:
    """The kernels that were generated, in the manifest's order, built or not.

    Args:
        family: only this family's.
        target: only this target's.
        where: an expression over parameters, derived values, `family` and `target`, such as
            ``"B_r == 64 and dtype == 'bf16'"``, or a function of a KernelInfo. A kernel that lacks
            a name the expression uses does not match. The language is that of the specs and of
            `kernelmint list --where` (docs/adding_a_family.md).

    Raises:
        InvalidArgument: an unknown family, target or name, or a malformed expression.
        PackError: no family is named, and a pack cannot be used: the message names each such pack.
            The families of the others can be listed by name.
    """
    if family is None and packs.faults():
        raise PackError("\n".join(dict.fromkeys(fault.reason for fault in packs.faults())))
    found = _listed(family, target)
    if where is None:
        return found
    if callable(where):
        return [info for info in found if _holds(where(info))]
    matches = _filter(where, {(info.family, info.target) for info in found})
    return [info for info in found if matches(info)]


def _listed(family: str | None, target: str | None) -> list[KernelInfo]:
    """The kernels of one family, or of all that can be used."""
    chosen = manifest.families() if family is None else [_known(family)]
    check_name("target", target, targets())
    return [info for info in _infos(chosen) if target in (None, info.target)]


def _known(name: str) -> manifest.Family:
    """The family of that name. Raises InvalidArgument where there is none, PackError where its pack
    cannot be used."""
    if not isinstance(name, str) or packs.owner(name) is None:
        check_name("family", name, families())
    return manifest.family(name)


def _holds(answer: object) -> bool:
    try:
        return bool(answer)
    except Exception as error:
        raise InvalidArgument(
            f"where: the function returned a {type(answer).__name__}, expected a bool ({error})"
        ) from None


def _filter(text: str, among: set[tuple[str, str]]) -> Callable[[KernelInfo], bool]:
    """A filter that knows the names of these targets, given as (family, target)."""
    if not isinstance(text, str):
        raise InvalidArgument(
            f"where: got a {type(text).__name__}, expected an expression or a function"
        )
    scopes = {
        (family.name, target.name): _names(family, target)
        for family in manifest.families()
        for target in family.targets
        if not among or (family.name, target.name) in among
    }
    try:
        where = Where(text, scopes)
    except ExpressionError as error:
        raise InvalidArgument(f"where: {shown(text)}: {error}") from None

    def matches(info: KernelInfo) -> bool:
        scope = info.family, info.target
        values = {
            **info.parameters, **info.derived, "family": info.family, "target": info.target
        }  # fmt: skip
        try:
            return where.matches(scope, values)
        except EVALUATION_ERRORS as error:
            raise InvalidArgument(
                f"where: {shown(text)} has no value for {info.key}: {reason(error)}"
            ) from None

    return matches


def _names(family: manifest.Family, target: manifest.Target) -> dict[str, Kind]:
    """What a filter may name of a target's configurations."""
    parameters = {p.name: p.kind for p in (*family.parameters, *target.parameters)}
    derived = target.kernels[0].derived if target.kernels else {}
    return manifest_scope(family.name, target.name, parameters, derived)


def check_name(what: str, name: object, known: list[str]) -> None:
    """Raises InvalidArgument for what is not among the known names; None names nothing."""
    if name is None:
        return
    if not isinstance(name, str):
        raise InvalidArgument(
            f"{what}: got a {type(name).__name__}, expected one of {', '.join(known)}"
        )
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    raise InvalidArgument(f"unknown {what}: {shown(name)}{meant} Known: {', '.join(known)}")


_kernels: dict[str, Kernel] = {}


def kernel(key: str | Mapping[str, Any] | object) -> Kernel:
    """The kernel of a key, ready to call; a second call with one key returns the same object.

    Args:
        key: a key, a short form (`kernelmint list --short` prints them), or a
            configuration: a mapping or a dataclass of parameters (`family` and `target` may be
            among them). A parameter that it leaves out takes its default; without one, any of
            its values, and one kernel must be left.

    Raises:
        KernelNotFound: no such kernel was generated, or a configuration leaves several.
        TargetUnavailable: it was generated but is not in this build.
    """
    if not isinstance(key, str):
        key = resolve(key)
    found = _kernels.get(key)
    return found if found is not None else _kernels.setdefault(key, _make(key))


def _make(key: str) -> Kernel:
    if key.lstrip().startswith("("):
        return kernel(_key_of_short(key))
    family = key.partition(".")[0]
    pack = packs.owner(family)
    infos = _infos([manifest.family(family)]) if pack is not None else iter(())
    info = next((info for info in infos if info.key == key), None)
    if pack is None or info is None:
        raise KernelNotFound(_explain_unknown(key))
    if not info.built:
        raise TargetUnavailable(f"{key}: {info.reason}")
    through_operator = operators.caller(family)
    library = packs.library(pack, family)
    try:
        native = library.kernel(key, {**info.parameters, **info.derived}, through_operator)
    except KeyError:
        raise PackError(
            f"{pack}: {pack.library(family)} lacks {key}, which its manifest names: reinstall it"
        ) from None
    kernel_class: type[Kernel] = packs.face(pack, family)
    return kernel_class.of_key(key)(info, native, through_operator)


# How much of a key or a short form that names no kernel is compared and shown: comparing costs the
# product of the lengths, and no key is longer.
_COMPARED = 300


def _abridged(key: str) -> str:
    return key if len(key) <= _COMPARED else f"{key[:_COMPARED]}…"


def _plain_short(text: str) -> str:
    """A short form as it is compared: case, spaces and the order of its features do not count."""
    head, _, features = "".join(text.lower().split()).partition(":")
    return f"{head}:{'+'.join(sorted(features.split('+')))}"


@functools.cache
def _short_forms() -> dict[str, list[str]]:
    """The keys of each short form."""
    found: dict[str, list[str]] = {}
    for info in _infos(manifest.families()):
        if info.short is not None:
            found.setdefault(_plain_short(info.short), []).append(info.key)
    return found


def _key_of_short(short: str) -> str:
    plain, known = _plain_short(short), _short_forms()
    keys = known.get(plain, [])
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise KernelNotFound(
            f"{_abridged(short)} is the short form of {', '.join(keys)}: name one of them"
        )
    nearest = difflib.get_close_matches(plain[:_COMPARED], known, n=3, cutoff=0)
    given = _abridged(short)
    near = ", ".join(
        info.short
        for info in _infos(manifest.families())
        if info.short and info.key in {known[n][0] for n in nearest}
    )
    raise KernelNotFound(
        f"no kernel was generated for {given}. Nearest: {near or 'no kernel has a short form'}. "
        f"{_how_to_add(given)}"
    )


def _how_to_add(given: str) -> str:
    return (
        f"In the project that has its spec, `kernelmint explain '{given}'` says what to add; then "
        f"`{manifest.REGENERATE}` builds it"
    )


def _explain_unknown(key: str) -> str:
    parts = key.split(".")
    if parts[0] not in families():
        what = f"no family {shown(parts[0])}; families: {', '.join(families())}"
    elif len(parts) > 1 and parts[1] not in targets():
        what = f"no target {shown(parts[1])}; targets: {', '.join(targets())}"
    else:
        count = sum(info.built for info in kernels(parts[0]))
        what = f"{count} kernels of {parts[0]} are built, not this one"
    given = _abridged(key)
    return f"{given}: {what}. Nearest built: {_nearest(key)}. {_how_to_add(given)}"


def _nearest(key: str) -> str:
    """The built keys that share most tokens with `key`, ties broken by spelling."""
    key = key[:_COMPARED]
    tokens = set(key.replace(".", "-").split("-"))

    def likeness(other: str) -> tuple[int, float]:
        shared = len(tokens.symmetric_difference(other.replace(".", "-").split("-")))
        return shared, -difflib.SequenceMatcher(None, key, other).ratio()

    built = (info.key for info in _infos(manifest.families()) if info.built)
    return ", ".join(sorted(built, key=likeness)[:3]) or "none"


def resolve(config: Mapping[str, Any] | object) -> str:
    """The key of a configuration given as a mapping or a dataclass; see `kernel`."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    elif isinstance(config, Mapping):
        values = dict(config)
    else:
        raise InvalidArgument(
            f"kernel: got a {type(config).__name__}, expected a key, a mapping or a dataclass of "
            "parameters"
        )
    wanted = {name: _plain(name, value) for name, value in values.items()}
    candidates = _listed(wanted.pop("family", None), wanted.pop("target", None))
    known = sorted({name for info in candidates for name in info.parameters})
    for name in wanted:
        check_name("parameter", name, known)
    defaults = {scope: _defaults(*scope) for scope in {(i.family, i.target) for i in candidates}}
    matching = [
        info
        for info in candidates
        if wanted.keys() <= info.parameters.keys()
        and (defaults[info.family, info.target] | wanted).items() <= info.parameters.items()
    ]
    if len(matching) == 1:
        return matching[0].key
    given = ", ".join(f"{name}={value}" for name, value in wanted.items())
    if not matching:
        raise KernelNotFound(
            f"no kernel was generated for {given}. `kernelmint list` shows what is; "
            f"`kernelmint info` shows what can run here"
        )
    raise KernelNotFound(
        f"{given} leaves {len(matching)} kernels; name more parameters: "
        f"{', '.join(info.key for info in matching[:8])}{', …' if len(matching) > 8 else ''}"
    )


def _defaults(family: str, target: str) -> dict[str, Any]:
    """What the parameters of a target are that a configuration leaves out."""
    known = manifest.family(family)
    (own,) = (t.parameters for t in known.targets if t.name == target)
    return {p.name: p.default for p in (*known.parameters, *own) if p.default is not None}


def _plain(name: object, value: object) -> Any:
    """A parameter's value as specs write it: torch.bfloat16, DType.BF16 and "BF16" are bf16."""
    if isinstance(value, torch.dtype):
        return _DTYPE_NAMES.get(value, str(value))
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, str):
        return value.lower()
    if isinstance(value, numbers.Integral):  # NumPy's too
        return value if isinstance(value, bool) else int(value)
    raise InvalidArgument(
        f"{name}: got a {type(value).__name__}, expected an int, a bool, a str, an enum or a dtype"
    )


def dtype_name(dtype: torch.dtype) -> str | None:
    """A PyTorch dtype as specs write it, or None where they have none for it."""
    return _DTYPE_NAMES.get(dtype)
