"""Which kernels exist, and finding one by key, by configuration or by what it must do."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from codegen.packs import Pack
from codegen.spec.expressions import EVALUATION_ERRORS, ExpressionError, Kind, reason
from codegen.spec.where import Where, manifest_scope
from codegen.words import counted
from runtime import devices, manifest, ondemand, operators, packs, used
from runtime.errors import InvalidArgument, KernelNotFound, PackError, TargetUnavailable, shown
from runtime.handle import Kernel, traced_as_constant

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
        available: whether it can run here, on this processor or on at least one of this machine's
            CUDA devices: it is built for it, or will be when it is first asked for.
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
        operators.register(pack, find)
        _short_forms.cache_clear()
    return pack


def load(folder: str | os.PathLike[str]) -> list[KernelInfo]:
    """Adds the families in a folder of specs, for this process: each kernel is built when it is
    first asked for, for the GPUs or the processor that are here, into the cache
    (docs/on_demand.md). Keys that are in no set of the specs can be asked for too.

    Args:
        folder: a family's folder, a group's, or a folder of specs.

    Returns:
        the kernels of the default sets.

    Raises:
        BuildError: problems of the specs, each with its place.
        PackError: one of the families is in a pack of another project. Nothing has changed then.
    """
    from runtime.ondemand import kernels as on_demand  # its modules take a while to import

    known = packs.families()
    names = on_demand.load(folder)
    for name in names:
        if name not in known:
            pack = packs.owner(name)
            assert pack is not None
            operators.register(pack, find)
    _short_forms.cache_clear()
    return [info for name in names for info in _infos([manifest.family(name)])]


def build(
    specs: str | os.PathLike[str],
    where: str | None = None,
    *,
    set_name: str = "default",
    keys: Sequence[str] | None = None,
    architectures: Sequence[str] | None = None,
) -> list[KernelInfo]:
    """Builds kernels of a folder of specs into the cache, as many at a time as the machine bears.

    Args:
        specs: a folder, as `load` takes it, which is loaded; or the name of a family, known or in
            the current folder's kernel_specs.
        where: only those for which this expression over parameters, derived values, `family` and
            `target` holds.
        set_name: of which set of each target.
        keys: these kernels instead, in a set or not.
        architectures: what CUDA kernels are compiled for: "80", "90". Without it, the GPUs that are
            here, and targets that none of them runs are left out.

    Returns:
        the kernels.

    Raises:
        BuildError: problems of the specs, or what a compiler refused.
        InvalidArgument: an unknown name, or nothing matches.
    """
    from runtime.ondemand import kernels as on_demand  # its modules take a while to import
    from runtime.ondemand.specs import here

    if isinstance(specs, str) and packs.owner(specs) is not None:
        names = [specs]
    else:
        if isinstance(specs, str) and os.sep not in specs and not os.path.isdir(specs):
            if (folder := here(specs)) is None:
                check_name("family or folder", specs, packs.families())
            specs = folder or specs
        names = list(dict.fromkeys(info.family for info in load(specs)))
    if keys is None:
        keys = on_demand.keys(names, set_name, where)
        if architectures is None:
            keys = on_demand.runnable(keys)
    for key, part in on_demand.build(keys, architectures).items():
        add_part(key, part)
    return [info for info in _infos(map(manifest.family, names)) if info.key in keys]


def why_not_built(family: manifest.Family, target: manifest.Target) -> str | None:
    """Why a pack holds none of a target's kernels, and what would build them; None where they are
    built when they are first asked for."""
    if ondemand.wanted(family.name, None):
        from runtime.ondemand import kernels as on_demand

        return on_demand.why_not(target)
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


def why_unavailable(pack: Pack, target: manifest.Target, shared_memory: int) -> str | None:
    """Why kernels that a pack holds, whose blocks take so much shared memory, run on none of this
    machine's devices, or None."""
    if not target.is_cuda:
        return devices.why_no_isa(pack.isas)
    if not devices.has_cuda():
        return "no CUDA device"
    reasons = [
        devices.why_unavailable(target.capability, target.exact, pack.architectures, index)
        or devices.why_too_large(shared_memory, index)
        for index in range(torch.cuda.device_count())
    ]
    return None if None in reasons else reasons[0]


def _state(
    family: manifest.Family, target: manifest.Target, kernel: manifest.Kernel
) -> tuple[bool, str | None]:
    """Whether a kernel's pack holds its code, and why it cannot run here."""
    pack = kernel.pack
    if f"{family.name}.{target.name}" not in pack.targets:
        return False, why_not_built(family, target)
    compiled = [int(name.rstrip("a")) for name in pack.architectures]
    suited = [c for c in compiled if c >= target.capability]
    if kernel.not_on and all(capability in kernel.not_on for capability in suited):
        names = ", ".join(f"{c // 10}.{c % 10}" for c in suited)
        return False, (
            f"takes {kernel.shared_memory:,} bytes of shared memory a thread block, and no "
            f"architecture that pack {pack.name} was built for ({names}) has that much"
        )
    return True, why_unavailable(pack, target, kernel.shared_memory)


def _infos(
    families: Iterable[manifest.Family], only_target: str | None = None
) -> Iterator[KernelInfo]:
    for family in families:
        for target in family.targets:
            if only_target in (None, target.name):
                yield from _infos_of(family, target, target.kernels)


def infos_for(family: str, device_type: str) -> Iterator[KernelInfo]:
    """A family's kernels, in the manifest's order. Of those for another kind of device nothing is
    found out, which may take starting CUDA; they are said to be not available."""
    found = _known(family)
    for target in found.targets:
        unasked = devices.why_not_its_kind(target.is_cuda, device_type)
        yield from _infos_of(found, target, target.kernels, unasked)


def _infos_of(
    family: manifest.Family,
    target: manifest.Target,
    kernels: Iterable[manifest.Kernel],
    unasked: str | None = None,
) -> Iterator[KernelInfo]:
    """`unasked` is why they are not available, where that is known; else it is found out."""
    # whether built, why not available: by pack and shared memory
    states: dict[tuple[Pack, int], tuple[bool, str | None]] = {}
    for kernel in kernels:
        pack, state = kernel.pack, (kernel.pack, kernel.shared_memory)
        if state not in states:
            states[state] = (False, unasked) if unasked else _state(family, target, kernel)
        built, reason = states[state]
        used = manifest.resources(pack).get(kernel.key)
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
    return list(_infos(chosen, target))


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
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    raise InvalidArgument(f"unknown {what}: {shown(name)}{meant}; known: {', '.join(known)}")


_kernels: dict[str, Kernel] = {}


def kernel(key: str | Mapping[str, Any] | object, *, build: bool | None = None) -> Kernel:
    """The kernel of a key, ready to call; a second call with one key returns the same object.

    Args:
        key: a key, a short form (`kernelmint list --short` prints them), or a
            configuration: a mapping or a dataclass of parameters (`family` and `target` may be
            among them). A parameter that it leaves out takes its default; without one, any of
            its values, and one kernel must be left.
        build: whether to build a kernel that is in no pack, or not for what is here, from its
            family's spec, into the cache; of one that was built so, whether to build it anew where
            its sources have changed. None: kernels of folders that `load` named, and all where
            KERNELMINT_BUILD is `missing`; where it is `always`, those that packs hold as well.
            Under torch.compile it is built while a graph is traced.

    Raises:
        KernelNotFound: no such kernel was generated, or a configuration leaves several.
        TargetUnavailable: it was generated but is not in this build.
        BuildError: it does not compile.
    """
    if torch.compiler.is_dynamo_compiling():
        return _kernels[_resolved(key, build)]
    if not isinstance(key, str):
        key = resolve(key)
    found = _kernels.get(key)
    if found is None:
        return _kernels.setdefault(key, _make(key, build, compiles=True))
    part = packs.part(found.info.family, key)
    if part is None:
        return found
    from runtime.ondemand import kernels as on_demand

    if build:
        fresh = on_demand.build([key])[key]
        if fresh is not part:
            add_part(key, fresh)
            found = _kernels[key] = _make(key, None, compiles=False)
    else:
        on_demand.warn_if_stale(key, part)
    return found


@traced_as_constant
def _resolved(key: str | Mapping[str, Any] | object, build: bool | None) -> str:
    """The key of a kernel, which is resolved and built, where need be, while a graph is traced."""
    found = kernel(key, build=build).info.key
    return key if isinstance(key, str) else found


def find(key: str) -> Kernel:
    """The kernel of a key for an operator, which may run within a graph: nothing is compiled."""
    found = _kernels.get(key)
    return found if found is not None else _kernels.setdefault(key, _make(key, None, False))


def add_part(key: str, part: Pack) -> None:
    """Adds a kernel that was built by itself, for `kernel` to take instead of an installed one.

    Raises BuildError where its family's arguments are not those that are known here.
    """
    family = key.partition(".")[0]
    owner = packs.owner(family)
    assert owner is not None
    manifest.check_same_family(family, owner, part)
    packs.add_part(family, key, part)
    _short_forms.cache_clear()


def _make(key: str, build: bool | None, compiles: bool) -> Kernel:
    if key.lstrip().startswith("("):
        key = _key_of_short(key)
        return kernel(key, build=build) if compiles else find(key)
    family = key.partition(".")[0]
    info = _info(family, key)
    if packs.owner(family) is not None and ondemand.wanted(family, build):
        from runtime.ondemand import kernels as on_demand

        elsewhere = info is not None and info.is_cuda and not devices.has_cuda()
        held = info is not None and info.built and (info.available or elsewhere)
        if not held or ondemand.always(family):
            part = on_demand.build([key])[key] if compiles else on_demand.find(key)
            if part is None:
                raise KernelNotFound(
                    f"{key} is not built, and nothing is built while a graph runs: call "
                    f"runtime.kernel({key!r}) before"
                )
            add_part(key, part)
            info = _info(family, key)
    if info is None:
        raise KernelNotFound(_explain_unknown(key))
    if not info.built:
        raise TargetUnavailable(f"{key}: {info.reason}")
    pack = packs.part(family, key) or packs.owner(family)
    assert pack is not None
    through_operator = operators.caller(family)
    library = packs.library(pack, family)
    try:
        native = library.kernel(key, {**info.parameters, **info.derived}, through_operator)
    except KeyError:
        raise PackError(
            f"{pack}: {pack.library(family)} lacks {key}, which its manifest names: reinstall it"
        ) from None
    used.note(key)
    kernel_class: type[Kernel] = packs.face(pack, family)
    return kernel_class.of_key(key)(info, native, through_operator)


def _info(family: str, key: str) -> KernelInfo | None:
    """What is known of a key; None where no pack lists it."""
    if packs.owner(family) is None:
        return None
    found = manifest.family(family)
    for target in found.targets:
        for kernel in target.kernels:
            if kernel.key == key:
                # Of this one alone: whether others are available may take starting CUDA.
                return next(_infos_of(found, target, [kernel]))
    return None


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
        what = f"{counted(count, 'kernel')} of {parts[0]} built, and not this one"
    given = _abridged(key)
    from runtime.ondemand import kernels as on_demand
    from runtime.ondemand.specs import here

    now = ""
    if packs.owner(parts[0]) is None:
        folder = repr(os.path.relpath(place)) if (place := here(parts[0])) else "folder of specs"
        now = f"kernelmint.load({folder}) adds families whose kernels are built when called. "
    elif on_demand.source_of(parts[0]) is not None:
        now = f"runtime.kernel({given!r}, build=True) builds it now, if its spec allows it. "
    return f"{given}: {what}. Nearest built: {_nearest(key)}. {now}{_how_to_add(given)}"


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
