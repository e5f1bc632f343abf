"""Kernels by their key, their short form or their configuration."""

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
    slices,
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
_configurations: dict[tuple[object, ...], str] = {}  # keys by the values of configurations
_MOST_CONFIGURATIONS = 65_536
packs.when_changed(_configurations.clear)
_LOOK = 1.0  # seconds between two looks at a kernel's sources: one look outlasts many calls
_next_look: dict[str, float] = {}  # by the monotonic clock, if built on demand


def kernel(key: str | Mapping[str, Any] | object, *, build: bool | None = None) -> Kernel:
    """Returns the kernel of a key, ready to call; a second call with one key returns the same
    object.

    Args:
        key: a key, a short form (`kernelmint list --short` prints them), or a
            configuration: a mapping or a dataclass of parameters (`family` and `target` may be
            among them). A parameter that it leaves out takes its default. A parameter without a
            default takes any of its values, and one kernel must be left.
        build: whether to build, from its family's spec into the cache, a kernel that no pack holds
            for this machine. A kernel that was built so is built anew if its sources have changed.
            None builds kernels of folders that `load` named, and all kernels if KERNELMINT_BUILD is
            `missing`; if it is `always`, also those that packs hold. Under torch.compile the kernel
            is built while a graph is traced.

    Raises:
        KernelNotFound: no such kernel was generated, or a configuration leaves several.
        TargetUnavailable: the kernel was generated but is not in this build.
        BuildError: the kernel does not compile.
    """
    if torch.compiler.is_dynamo_compiling():
        traced: Kernel = getattr(in_graphs, _resolved(key, build))
        return traced
    if not isinstance(key, str):
        key = _key_of(key, build)
    kept = _kernels.get(key)
    if kept is None:
        return _kernels.setdefault(key, _make(key, build, compiles=True))
    if not build and time.monotonic() < _next_look.get(key, math.inf):
        return kept
    single = packs.single(kept.info.family, key)
    if single is None:
        return kept
    from runtime.ondemand import kernels as on_demand

    if build:
        fresh = on_demand.build([key])[key]
        if fresh is not single:
            listing.add_single(key, fresh)
            kept = _kernels[key] = _make(key, None, compiles=False)
    else:
        on_demand.warn_if_stale(key, single)
        _next_look[key] = time.monotonic() + _LOOK
    return kept


@traced_as_constant
def _resolved(key: str | Mapping[str, Any] | object, build: bool | None) -> str:
    """Returns a kernel's name in graphs: it is resolved, and built if need be, while one is
    traced."""
    return kernel(key, build=build).name_in_graphs()


resolved = _kernels.get


def find(key: str) -> Kernel:
    """Returns the kernel of a key for an operator, which may run within a graph: nothing is
    compiled."""
    kept = _kernels.get(key)
    return kept if kept is not None else _kernels.setdefault(key, _make(key, None, False))


def describe(key: str) -> kernel_info.KernelInfo:
    """Describes the kernel of a key for an operator that is traced: no device is needed, and the
    kernel need not be built yet."""
    family = key.partition(".")[0]
    info = _info(family, key)
    if info is None and family in ondemand.sources:
        from runtime.ondemand import kernels as on_demand

        part = on_demand.described(key)
        (target,) = part.targets
        info = next(kernel_info.infos_of(part, target, target.kernels, "not built"))
    return find(key).info if info is None else info


def _make(key: str, build: bool | None, compiles: bool) -> Kernel:
    if key.lstrip().startswith("("):
        key = _key_of_short(key)
        return kernel(key, build=build) if compiles else find(key)
    family = key.partition(".")[0]
    info = _info(family, key)
    if packs.owner(family) is not None and ondemand.builds(family, build):
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
    if not info.built and info.reason is None:
        info = _fetched(info, compiles)
    if not info.built:
        raise TargetUnavailable(f"{key}: {info.reason}")
    if _native.is_set("KERNELMINT_REQUIRE"):
        from runtime import verified

        verified.require(info)
    pack = slices.of(family, key)
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
    if pack is packs.single(family, key):
        _next_look[key] = time.monotonic() + _LOOK
    kernel_class: type[Kernel] = packs.face(pack, family)
    kernel_object = kernel_class.of_key(key, through_operator)(info, native)
    native.serve(kernel_object)  # plain calls; other calls go through the generated method
    return kernel_object


def _fetched(info: kernel_info.KernelInfo, fetches: bool) -> kernel_info.KernelInfo:
    """Returns the description of a kernel after its slice was fetched. Raises BuildError."""
    pack = packs.owner(info.family)
    if pack is None or not slices.is_fetched(pack, info.family, info.target):
        return info
    if not fetches:
        raise KernelNotFound(
            f"{info.key} is in a slice that is not here, and nothing is fetched while a graph "
            f"runs: call runtime.kernel({info.key!r}) before"
        )
    slices.fetch(pack, info.family, info.target)
    return _info(info.family, info.key) or info


def _info(family: str, key: str) -> kernel_info.KernelInfo | None:
    """Describes the kernel of a key; returns None if no pack lists it."""
    if packs.owner(family) is None:
        return None
    listed = manifest.kernel(family, key)
    # Only this kernel: to see whether others are available may start CUDA.
    return None if listed is None else next(kernel_info.infos_of(*listed))


# The length of an unknown key or short form that is compared and shown: comparing costs the product
# of the lengths, and no key is longer.
_COMPARED = 300


def _abridged(key: str) -> str:
    return key if len(key) <= _COMPARED else f"{key[:_COMPARED]}…"


def _key_of_short(short: str) -> str:
    plain, forms = listing.plain_short(short), listing.short_forms()
    keys = forms.get(plain, [])
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise KernelNotFound(
            f"{_abridged(short)} is the short form of {', '.join(keys)}: name one of them"
        )
    near_forms, shown_form = nearest(plain, forms), _abridged(short)
    near = ", ".join(
        info.short
        for info in kernel_info.infos(manifest.families())
        if info.short and info.key in {forms[n][0] for n in near_forms}
    )
    raise KernelNotFound(
        f"no kernel was generated for {shown_form}. Nearest: "
        f"{near or 'no kernel has a short form'}. `kernelmint explain '{shown_form}'` says what "
        "became of it"
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
    shown_key = _abridged(key)
    return f"{shown_key}: {what}. Nearest built: {', '.join(near) or 'none'}. {_what_to_do(key)}"


def _what_to_do(key: str) -> str:
    """Returns how a kernel that no pack lists can be had, or why it cannot."""
    from runtime.ondemand import kernels as on_demand
    from runtime.ondemand.specs import here

    family, shown_key = key.partition(".")[0], _abridged(key)
    add = (
        f"In the project that has its spec, `kernelmint explain '{shown_key}'` says what to add; "
        f"then `{manifest.REGENERATE}` builds it"
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
        return f"It cannot be built: {excluded} (`kernelmint explain '{shown_key}'` says more)"
    return (
        f"runtime.kernel({shown_key!r}, build=True) builds it now, and KERNELMINT_BUILD=missing "
        f"whatever is asked for. {add}"
    )


def explain(key: str) -> str:
    """Returns what became of a key, as `kernelmint explain` says it: built, excluded and why, or
    how to have it.

    Args:
        key: a key of a family that is here, or a short form that names a kernel.

    Raises:
        InvalidArgument: the key is not a text.
        KernelNotFound: there is no such family, or its pack has no specs.
        BuildError: the specs cannot be read.
    """
    if not isinstance(key, str):
        raise unexpected("key", key, "a str")
    from runtime.ondemand import kernels as on_demand

    if key.lstrip().startswith("("):
        key = _key_of_short(key)
    family = key.partition(".")[0]
    if packs.owner(family) is None:
        raise KernelNotFound(_explain_unknown(key))
    explained = on_demand.explain(key)
    if explained is None:
        raise KernelNotFound(
            f"{_abridged(key)}: {packs.owner(family)} has no specs to explain it by"
        )
    return explained[0]


def _key_of(config: Mapping[str, Any] | object, build: bool | None) -> str:
    """Returns the key of a configuration, kept by the configuration's values."""
    if type(config) is not dict:
        config = _values(config)
    values = config.values()
    values_and_types = (*config, *values, *map(type, values))  # 1 equals True
    try:
        key = _configurations.get(values_and_types)
    except Exception:  # a value that cannot be hashed or compared, which no parameter has
        return resolve(config, build)
    if key is None:
        key = resolve(config, build)
        if len(_configurations) >= _MOST_CONFIGURATIONS:
            _configurations.clear()
        _configurations[values_and_types] = key
    return key


def _values(config: Mapping[str, Any] | object) -> dict[str, Any]:
    """Returns the parameters of a configuration, by name."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {name: getattr(config, name) for name in _names_of(type(config))}
    if isinstance(config, Mapping):
        return dict(config)
    raise unexpected("kernel", config, "a key, a mapping or a dataclass of parameters")


@functools.cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def resolve(config: Mapping[str, Any] | object, build: bool | None = None) -> str:
    """Returns the key of a configuration given as a mapping or a dataclass; see `kernel`. If
    kernels are to be built, the key may be that of a kernel which is not built yet."""
    parameters = {}
    for name, value in _values(config).items():
        if not isinstance(name, str):
            raise unexpected("parameter", name, "its name")
        parameters[name] = _plain(name, value)
    candidates = listing.listed(parameters.pop("family", None), parameters.pop("target", None))
    names = sorted({name for info in candidates for name in info.parameters})
    for name in parameters:
        listing.check_name("parameter", name, names)
    defaults = {scope: _defaults(*scope) for scope in {(i.family, i.target) for i in candidates}}
    matching = [
        info
        for info in candidates
        if parameters.keys() <= info.parameters.keys()
        and (defaults[info.family, info.target] | parameters).items() <= info.parameters.items()
    ]
    if len(matching) == 1:
        return matching[0].key
    settings = ", ".join(f"{name}={value}" for name, value in parameters.items())
    keys = [info.key for info in matching]
    if not matching:
        keys, why = _buildable(parameters, defaults, build)
        if len(keys) == 1:
            return keys[0]
        if not keys:
            key_of = {info.key: info.parameters for info in candidates}
            near = min(key_of, key=lambda key: differing(key_of[key], parameters), default="none")
            raise KernelNotFound(f"no kernel was generated for {settings}. Nearest: {near}. {why}")
    raise KernelNotFound(
        f"{settings} leaves {len(keys)} kernels; name more parameters: "
        f"{', '.join(keys[:8])}{', …' if len(keys) > 8 else ''}"
    )


def differing(own: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how far a kernel's parameters are from others."""
    pairs = [(own.get(name), value) for name, value in others.items() if own.get(name) != value]
    return len(pairs), sum(abs(a - b) for a, b in pairs if type(a) is type(b) is int)


def _buildable(
    parameters: Mapping[str, Any],
    defaults: Mapping[tuple[str, str], Mapping[str, Any]],
    build: bool | None,
) -> tuple[list[str], str]:
    """Returns the keys of kernels with the `parameters` that can be built now, and advice if there
    are none. `defaults` has the parameters that are left out, for each family and target."""
    from runtime.ondemand import kernels as on_demand

    keys: list[str] = []
    reasons: list[str] = []
    for (family, target), left_out in defaults.items():
        allowed = on_demand.allowed(family, [target], {**left_out, **parameters})
        if allowed is not None and ondemand.builds(family, build):
            keys += allowed.keys
        if allowed is not None and allowed.keys:
            reasons.append(f"runtime.kernel({allowed.keys[0]!r}, build=True) builds one now")
        elif allowed is not None:
            reasons += allowed.reasons
    why = "; ".join(dict.fromkeys(reasons)) or "`kernelmint list` shows what was"
    return keys, why


def _defaults(family: str, target: str) -> dict[str, Any]:
    """Returns the defaults of a target's parameters, for those that a configuration leaves out."""
    whole = manifest.family(family)
    (own,) = (t.parameters for t in whole.targets if t.name == target)
    return {p.name: p.default for p in (*whole.parameters, *own) if p.default is not None}


def _plain(name: object, value: object) -> Any:
    """Returns a parameter's value as specs write it: torch.bfloat16, DType.BF16 and "BF16" are
    bf16."""
    if isinstance(value, torch.dtype):
        return tensors.dtype_name(value)
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, str):
        return value.lower()
    if isinstance(value, numbers.Integral):  # also NumPy's
        return value if isinstance(value, bool) else int(value)
    raise unexpected(name, value, "an int, a bool, a str, an enum or a dtype")
