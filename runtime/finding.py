"""Finding a kernel by its key, its short form or its configuration."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import numbers
import time
from collections.abc import Mapping
from typing import Any

import torch

from codegen.core.nearest import nearest
from codegen.core.words import counted, display_path
from runtime import (
    _native,
    devices,
    kernel_info,
    listing,
    manifest,
    ondemand,
    packs,
    tensors,
    used,
)
from runtime.errors import (
    BuildError,
    KernelNotFound,
    PackError,
    TargetUnavailable,
    shown,
    unexpected,
)
from runtime.handle import Kernel, in_graphs
from runtime.operators.calls import caller, eager_caller
from runtime.pytorch import traced_as_constant

_kernels: dict[str, Kernel] = {}
_configurations: dict[tuple[object, ...], str] = {}  # keys, by what configurations say
_MOST_CONFIGURATIONS = 65_536
packs.when_changed(_configurations.clear)
_LOOK = 1.0  # seconds between two looks at what a kernel was built from: one outlasts many calls
_next_look: dict[str, float] = {}  # by the monotonic clock, of kernels that were built on demand


def kernel(key: str | Mapping[str, Any] | object, *, build: bool | None = None) -> Kernel:
    """The kernel of a key, ready to call; a second call with one key returns the same object.

    Args:
        key: a key, a short form (`kernelmint list --short` prints them), or a
            configuration: a mapping or a dataclass of parameters (`family` and `target` may be
            among them). A parameter that it leaves out takes its default; without one, any of
            its values, and one kernel must be left.
        build: whether to build a kernel that is in no pack, or not for what is here, from its
            family's spec, into the cache; of one that was built so, whether to build it anew if
            its sources have changed. None: kernels of folders that `load` named, and all if
            KERNELMINT_BUILD is `missing`; if it is `always`, those that packs hold as well.
            Under torch.compile it is built while a graph is traced.

    Raises:
        KernelNotFound: no such kernel was generated, or a configuration leaves several.
        TargetUnavailable: it was generated but is not in this build.
        BuildError: it does not compile.
    """
    if torch.compiler.is_dynamo_compiling():
        traced: Kernel = getattr(in_graphs, _resolved(key, build))
        return traced
    if not isinstance(key, str):
        key = _key_of(key, build)
    found = _kernels.get(key)
    if found is None:
        return _kernels.setdefault(key, _make(key, build, compiles=True))
    if not build and time.monotonic() < _next_look.get(key, math.inf):
        return found
    single = packs.single(found.info.family, key)
    if single is None:
        return found
    from runtime.ondemand import kernels as on_demand

    if build:
        fresh = on_demand.build([key])[key]
        if fresh is not single:
            listing.add_single(key, fresh)
            found = _kernels[key] = _make(key, None, compiles=False)
    else:
        on_demand.warn_if_stale(key, single)
        _next_look[key] = time.monotonic() + _LOOK
    return found


@traced_as_constant
def _resolved(key: str | Mapping[str, Any] | object, build: bool | None) -> str:
    """A kernel, by its name in graphs: resolved and built, if need be, while one is traced."""
    return kernel(key, build=build).name_in_graphs()


known = _kernels.get


def find(key: str) -> Kernel:
    """The kernel of a key for an operator, which may run within a graph: nothing is compiled."""
    found = _kernels.get(key)
    return found if found is not None else _kernels.setdefault(key, _make(key, None, False))


def describe(key: str) -> kernel_info.KernelInfo:
    """What is known of a key for an operator that is traced: no device is needed, and the kernel
    need not be built yet."""
    family = key.partition(".")[0]
    found = _info(family, key)
    if found is None and family in ondemand.sources:
        from runtime.ondemand import kernels as on_demand

        part = on_demand.described(key)
        (target,) = part.targets
        found = next(kernel_info.infos_of(part, target, target.kernels, "not built"))
    return find(key).info if found is None else found


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
            single = on_demand.build([key])[key] if compiles else on_demand.find(key)
            if single is None:
                raise KernelNotFound(
                    f"{key} is not built, and nothing is built while a graph runs: call "
                    f"runtime.kernel({key!r}) before"
                )
            listing.add_single(key, single)
            info = _info(family, key)
    if info is None:
        raise KernelNotFound(_explain_unknown(key))
    if not info.built:
        raise TargetUnavailable(f"{key}: {info.reason}")
    if _native.is_set("KERNELMINT_REQUIRE"):
        from runtime import verified

        verified.require(info)
    pack = packs.of(family, key)
    through_operator = caller(family)
    library = packs.library(pack, family)
    intercepted = eager_caller(family)
    try:
        values = {**info.parameters, **info.derived}
        native = library.kernel(key, values, intercepted, manifest.family(family).likes)
    except KeyError:
        raise PackError(
            f"{pack}: {pack.library(family)} lacks {key}, which its manifest names: reinstall it"
        ) from None
    used.note(key)
    if pack is not packs.owner(family):
        _next_look[key] = time.monotonic() + _LOOK
    kernel_class: type[Kernel] = packs.face(pack, family)
    made = kernel_class.of_key(key)(info, native, through_operator)
    native.serve(made)  # plain calls; others go the way of the generated method
    return made


def _info(family: str, key: str) -> kernel_info.KernelInfo | None:
    """What is known of a key; None if no pack lists it."""
    if packs.owner(family) is None:
        return None
    found = manifest.kernel(family, key)
    # Of this one alone: whether others are available may take starting CUDA.
    return None if found is None else next(kernel_info.infos_of(*found))


# How much of a key or a short form that names no kernel is compared and shown: comparing costs the
# product of the lengths, and no key is longer.
_COMPARED = 300


def _abridged(key: str) -> str:
    return key if len(key) <= _COMPARED else f"{key[:_COMPARED]}…"


def _key_of_short(short: str) -> str:
    plain, known = listing.plain_short(short), listing.short_forms()
    keys = known.get(plain, [])
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise KernelNotFound(
            f"{_abridged(short)} is the short form of {', '.join(keys)}: name one of them"
        )
    near_forms, given = nearest(plain, known), _abridged(short)
    near = ", ".join(
        info.short
        for info in kernel_info.infos(manifest.families())
        if info.short and info.key in {known[n][0] for n in near_forms}
    )
    raise KernelNotFound(
        f"no kernel was generated for {given}. Nearest: {near or 'no kernel has a short form'}. "
        f"`kernelmint explain '{given}'` says what became of it"
    )


def _explain_unknown(key: str) -> str:
    parts = key.split(".")
    if parts[0] not in listing.families():
        what = f"no family {shown(parts[0])}; families: {', '.join(listing.families())}"
    elif len(parts) > 1 and parts[1] not in listing.targets():
        what = f"no target {shown(parts[1])}; targets: {', '.join(listing.targets())}"
    else:
        count = sum(info.built for info in listing.kernels(parts[0]))
        what = f"{counted(count, 'kernel')} of {parts[0]} built, and not this one"
    near = nearest(key, (info.key for info in kernel_info.infos(manifest.families()) if info.built))
    given = _abridged(key)
    return f"{given}: {what}. Nearest built: {', '.join(near) or 'none'}. {_what_to_do(key)}"


def _what_to_do(key: str) -> str:
    """How a kernel that no pack lists can be had, or why it cannot."""
    from runtime.ondemand import kernels as on_demand
    from runtime.ondemand.specs import here

    family, given = key.partition(".")[0], _abridged(key)
    add = (
        f"In the project that has its spec, `kernelmint explain '{given}'` says what to add; then "
        f"`{manifest.REGENERATE}` builds it"
    )
    if packs.owner(family) is None:
        folder = repr(display_path(place)) if (place := here(family)) else "folder of specs"
        return f"kernelmint.load({folder}) adds families whose kernels are built when called. {add}"
    if len(key) > _COMPARED:
        return "No key is so long"
    try:
        explained = on_demand.explain(key)
    except BuildError as error:
        return f"Its spec cannot be read: {error}"
    if explained is None:
        return add
    if excluded := explained[1]:
        return f"It cannot be built: {excluded} (`kernelmint explain '{given}'` says more)"
    return (
        f"runtime.kernel({given!r}, build=True) builds it now, and KERNELMINT_BUILD=missing "
        f"whatever is asked for. {add}"
    )


def explain(key: str) -> str:
    """What became of a key, as `kernelmint explain` says it: built, excluded and why, or how to
    have it.

    Args:
        key: a key of a family that is here, or a short form that names a kernel.

    Raises:
        InvalidArgument: it is not a text.
        KernelNotFound: there is no such family, or its pack has no specs.
        BuildError: its specs cannot be read.
    """
    if not isinstance(key, str):
        raise unexpected("key", key, "a str")
    from runtime.ondemand import kernels as on_demand

    if key.lstrip().startswith("("):
        key = _key_of_short(key)
    family = key.partition(".")[0]
    if packs.owner(family) is None:
        raise KernelNotFound(_explain_unknown(key))
    found = on_demand.explain(key)
    if found is None:
        raise KernelNotFound(
            f"{_abridged(key)}: {packs.owner(family)} has no specs to explain it by"
        )
    return found[0]


def _key_of(config: Mapping[str, Any] | object, build: bool | None) -> str:
    """The key of a configuration, kept by what it says."""
    if type(config) is not dict:
        config = _values(config)
    values = config.values()
    said = (*config, *values, *map(type, values))  # 1 is no True
    try:
        key = _configurations.get(said)
    except Exception:  # a value that cannot be hashed or compared, which no parameter has
        return resolve(config, build)
    if key is None:
        key = resolve(config, build)
        if len(_configurations) >= _MOST_CONFIGURATIONS:
            _configurations.clear()
        _configurations[said] = key
    return key


def _values(config: Mapping[str, Any] | object) -> dict[str, Any]:
    """The parameters of a configuration, by name."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {name: getattr(config, name) for name in _names_of(type(config))}
    if isinstance(config, Mapping):
        return dict(config)
    raise unexpected("kernel", config, "a key, a mapping or a dataclass of parameters")


@functools.cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def resolve(config: Mapping[str, Any] | object, build: bool | None = None) -> str:
    """The key of a configuration given as a mapping or a dataclass; see `kernel`. If kernels are
    to be built, it may be that of one which is not yet."""
    wanted = {}
    for name, value in _values(config).items():
        if not isinstance(name, str):
            raise unexpected("parameter", name, "its name")
        wanted[name] = _plain(name, value)
    candidates = listing.listed(wanted.pop("family", None), wanted.pop("target", None))
    known = sorted({name for info in candidates for name in info.parameters})
    for name in wanted:
        listing.check_name("parameter", name, known)
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
    keys = [info.key for info in matching]
    if not matching:
        keys, why = _buildable(wanted, defaults, build)
        if len(keys) == 1:
            return keys[0]
        if not keys:
            key_of = {info.key: info.parameters for info in candidates}
            near = min(key_of, key=lambda key: differing(key_of[key], wanted), default="none")
            raise KernelNotFound(f"no kernel was generated for {given}. Nearest: {near}. {why}")
    raise KernelNotFound(
        f"{given} leaves {len(keys)} kernels; name more parameters: "
        f"{', '.join(keys[:8])}{', …' if len(keys) > 8 else ''}"
    )


def differing(own: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[int, int]:
    """How far a kernel's parameters are from others."""
    pairs = [(own.get(name), value) for name, value in wanted.items() if own.get(name) != value]
    return len(pairs), sum(abs(a - b) for a, b in pairs if type(a) is type(b) is int)


def _buildable(
    wanted: Mapping[str, Any],
    defaults: Mapping[tuple[str, str], Mapping[str, Any]],
    build: bool | None,
) -> tuple[list[str], str]:
    """The keys of kernels with the parameters `wanted` that are to be built now, by targets, which
    are given with what they leave out; and what to do if there are none."""
    from runtime.ondemand import kernels as on_demand

    keys: list[str] = []
    reasons: list[str] = []
    for (family, target), left_out in defaults.items():
        found = on_demand.allowed(family, [target], {**left_out, **wanted})
        if found is not None and ondemand.wanted(family, build):
            keys += found.keys
        if found is not None and found.keys:
            reasons.append(f"runtime.kernel({found.keys[0]!r}, build=True) builds one now")
        elif found is not None:
            reasons += found.reasons
    why = "; ".join(dict.fromkeys(reasons)) or "`kernelmint list` shows what was"
    return keys, why


def _defaults(family: str, target: str) -> dict[str, Any]:
    """What the parameters of a target are that a configuration leaves out."""
    known = manifest.family(family)
    (own,) = (t.parameters for t in known.targets if t.name == target)
    return {p.name: p.default for p in (*known.parameters, *own) if p.default is not None}


def _plain(name: object, value: object) -> Any:
    """A parameter's value as specs write it: torch.bfloat16, DType.BF16 and "BF16" are bf16."""
    if isinstance(value, torch.dtype):
        return tensors.dtype_name(value)
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, str):
        return value.lower()
    if isinstance(value, numbers.Integral):  # NumPy's too
        return value if isinstance(value, bool) else int(value)
    raise unexpected(name, value, "an int, a bool, a str, an enum or a dtype")
