"""From keys to packs of the cache, for `runtime.load`, `build` and `kernel(…, build=True)`.

A kernel that the cache holds already takes none of codegen's libraries, and a compiler only for its
version.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from codegen.core import packs as pack_files
from codegen.core.architectures import Architecture, of_target, spelt
from codegen.core.home import cache_folder
from codegen.core.manifest import DeclaredGradient, Family, Target
from codegen.core.packs import Pack, PackError
from runtime import _native, devices, manifest, ondemand, packs
from runtime.errors import BuildError, InvalidArgument, KernelNotFound, TargetUnavailable
from runtime.ondemand import compilers, specs
from runtime.ondemand.build import Request
from runtime.ondemand.build import build as build_all
from runtime.ondemand.build import find as find_entry
from runtime.ondemand.cache import (
    Cache,
    Dependencies,
    Entry,
    Roots,
    contents,
    digest,
    reported,
)
from runtime.ondemand.compilers import Recipe
from runtime.ondemand.progress import Progress
from runtime.ondemand.specs import Source

if TYPE_CHECKING:
    from runtime.ondemand.emit import Spec

_opened: dict[Path, Pack] = {}
_watched: dict[str, tuple[Pack, Request]] = {}  # sources of this process's kernels


def cache() -> Cache:
    """Returns the cache of this process."""
    return Cache(cache_folder())


def load(folder: str | os.PathLike[str]) -> list[str]:
    """Adds the families in a folder of specs, and those that give their gradients, as packs that
    hold no kernel yet; their kernels are built when they are first asked for.

    Returns the families' names. See `loading.load`.
    """
    pairs = [(source, _family_pack(source)) for source in specs.find(Path(folder))]
    for source, pack in pairs:  # the list grows
        for other in _giving_gradients(source, manifest.of_pack(pack, source.family)):
            if other not in [source_of_pair for source_of_pair, _ in pairs]:
                pairs.append((other, _family_pack(other)))
    for source, _ in pairs:
        owner = packs.owner(source.family)
        if owner is not None and not _was_built_of(owner, source):
            raise PackError(
                f"the family {source.family} of {source.folder} is already in {owner}: rename one "
                "of them"
            )
    for place, (source, pack) in enumerate(pairs):
        if packs.owner(source.family) is None:
            others = [other for _, other in pairs[:place]]
            packs.check_names(pack, str(source.folder), [*packs.all_packs(), *others])
    for source, pack in pairs:
        owner = packs.owner(source.family)
        if owner is None:
            packs.register(pack)
        elif owner.name != pack.name:
            manifest.check_same_family(source.family, owner, pack)
        elif owner.fingerprint != pack.fingerprint:
            manifest.check_same_family(source.family, owner, pack)
            packs.register(pack)
        ondemand.sources[source.family] = source
    return [source.family for source, _ in pairs]


def _giving_gradients(source: Source, family: Family) -> list[Source]:
    """Returns the families that give a family's gradients, if its spec names some."""
    names = {g.family for g in family.gradients if isinstance(g, DeclaredGradient)}
    return [other for other in specs.find(source.root) if other.family in names] if names else []


def _was_built_of(owner: Pack, source: Source) -> bool:
    """Returns whether a pack's family is that of these specs: they are its own, or pip noted
    that it installed the pack from their project (PEP 610)."""
    own = ondemand.source_of_pack(source.family, owner)
    if own is not None and own.folder.resolve() == source.folder.resolve():
        return True
    if owner.distribution is None:
        return False
    name = owner.distribution.rpartition(" ")[0]
    origin = json.loads(distribution(name).read_text("direct_url.json") or "{}")
    project = urlsplit(origin.get("url", ""))
    return project.scheme == "file" and source.root.is_relative_to(unquote(project.path))


def _family_pack(source: Source) -> Pack:
    """Returns a pack of a family without kernels: its manifest and its Python face."""
    store = cache()
    request = digest(
        [
            "family",
            source.root.name,
            source.written(),
            specs.codegen_identity(),
            _native.abi,
        ]
    )
    roots = Roots({"specs": source.root})
    entry = store.find(request, roots)
    if entry is None:
        store, name = store.writable(), source.family
        with (
            reported(store, name),
            Progress(f"reading {name}") as progress,
            store.locked([request], name, progress.wait_for),
            store.work() as (work, _),
        ):
            entry = store.find(request, roots) or _write_family(store, request, roots, source, work)
    pack = _opened.get(entry.folder)
    if pack is None or pack.specs != {source.root.name: source.root}:
        folders = {source.root.name: str(source.root)}
        pack = replace(pack_files.read(entry.folder), spec_folders=folders)
        _opened[entry.folder] = pack
    return pack


def _write_family(store: Cache, request: str, roots: Roots, source: Source, work: Path) -> Entry:
    from runtime.ondemand.emit import Spec  # codegen's libraries, which take a while to import

    generated = Spec(source).whole()
    folder = work / "pack"
    for name in (pack_files.MANIFEST, f"python/{source.family}.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(generated.files[name], encoding="utf-8")
    others = _giving_gradients(source, generated.family)
    read = tuple(roots.name(str(other.folder / specs.FAMILY)) for other in others)
    dependencies = Dependencies(files=read)
    fingerprint = store.identify(request, dependencies, roots)
    nothing: dict[str, Any] = dict.fromkeys(("targets", "architectures", "isas"), ())
    nothing |= {name: {} for name in ("settings", "sources", "spec_folders")}
    pack_files.write(
        folder, [generated.family], name=f"{source.family}_specs", fingerprint=fingerprint,
        abi=_native.abi, **nothing,
    )  # fmt: skip
    return store.publish(request, dependencies, roots, fingerprint, folder)


def why_not(target: Target) -> str | None:
    """Returns why a target's kernels cannot be built for what is here, or None if they can."""
    if not target.is_cuda:
        return None
    if why := devices.why_no_cuda():
        return why
    reasons = [devices.why_unsuitable(target.name, index) for index in range(devices.count())]
    return None if None in reasons else reasons[0]


def recipe(key: str, architectures: Sequence[str] | None) -> Recipe:
    """Returns how a kernel is compiled: for the architectures named, or for what is here. Raises
    BuildError, KernelNotFound or TargetUnavailable."""
    target = key.split(".")[1] if key.count(".") >= 2 else ""
    if target == "cpu":
        runs = tuple(_native.supported_cpu_isas())
        if os.environ.get("KERNELMINT_CPU_ISA"):
            return compilers.cpu(_native.active_cpu_isa())
        return compilers.cpu(compilers.best_isa(runs))
    named = of_target(target)
    if named is None:
        raise KernelNotFound(f"{key[:300]!a} is not a valid key: expected family.target.parameters")
    return compilers.cuda(_architectures(key, named, architectures))


def _architectures(key: str, target: Architecture, named: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the architectures that suit a target: of those named, else of the devices."""
    if named is None:
        if why := devices.why_no_cuda():
            raise TargetUnavailable(
                f"{key}: {why} to build it for; name an architecture, such as "
                f"runtime.build(…, architectures=['{target.capability}'])"
            )
        numbers = [devices.capability_of(index) for index in range(devices.count())]
        shown = f"the devices have {', '.join(f'{n // 10}.{n % 10}' for n in sorted(set(numbers)))}"
    else:
        numbers = []
        for name in named:
            if (architecture := spelt(name)) is None:
                raise InvalidArgument(
                    f"architectures: got {name!r}, expected such as '80', '90a' or '100f'"
                )
            numbers.append(architecture.capability)
        shown = f"got {', '.join(named)}"
    suiting = sorted(set(filter(target.suits, numbers)))
    if not suiting:
        raise TargetUnavailable(f"{key}: needs compute capability {target.devices}; {shown}")
    return tuple(str(target.on(number)) for number in suiting)


def request(key: str, architectures: Sequence[str] | None) -> Request:
    """Returns the request of a kernel for the architectures named, or for what is here. Raises
    BuildError, KernelNotFound or TargetUnavailable."""
    family = key.partition(".")[0]
    source = ondemand.source_of(family)
    if source is None:
        raise KernelNotFound(
            f"{key}: {packs.owner(family)} has no specs to build it from; name their folder: "
            "runtime.load(folder)"
        )
    try:
        return Request(key, source, recipe(key, architectures))
    except BuildError as error:
        raise BuildError(
            f"{key}: no pack holds it, and it cannot be built here: {error}. Where it can, "
            f"`kernelmint build {family} --key {key}` builds it, and `kernelmint slim` makes a "
            "wheel of it"
        ) from None


def opened(request: Request, entry: Entry) -> Pack:
    """Returns the pack of an entry."""
    pack = _opened.get(entry.folder)
    if pack is None:
        pack = _opened.setdefault(entry.folder, pack_files.read(entry.folder))
    _watched[request.key] = pack, request
    return pack


def described(key: str) -> Family:
    """Returns a family with one kernel as its spec has it, built or not. Raises KernelNotFound."""
    from runtime.ondemand.emit import Spec  # codegen's libraries

    return Spec(ondemand.sources[key.partition(".")[0]]).kernel(key).family


@functools.lru_cache(maxsize=16)
def _spec(source: Source, written: tuple[tuple[str, str], ...]) -> Spec:
    from runtime.ondemand.emit import Spec  # codegen's libraries

    return Spec(source)


def explain(key: str) -> tuple[str, str] | None:
    """Returns what `kernelmint explain` says of a key, and why it cannot be built, or ""; None
    if its family has no spec."""
    family = key.partition(".")[0]
    source = ondemand.source_of(family)
    if source is None:
        return None
    built = {k.key: k.file for t in manifest.family(family).targets for k in t.kernels}
    pack = None if family in ondemand.sources else packs.owner(family)
    return _spec(source, tuple(source.written())).explain(key, built, pack)


@dataclass(frozen=True)
class Allowed:
    """The configurations with some parameters that a spec allows."""

    keys: tuple[str, ...]  # otherwise as generated kernels
    reasons: tuple[str, ...]  # why the spec allows no others


def allowed(family: str, targets: Sequence[str], parameters: Mapping[str, Any]) -> Allowed | None:
    """Returns the configurations of these targets that have the `parameters`, and are otherwise
    as generated kernels; None if there is no spec."""
    source = ondemand.source_of(family)
    if source is None:
        return None
    keys: list[str] = []
    reasons: list[str] = []
    try:
        spec = _spec(source, tuple(source.written()))
    except BuildError as error:
        return Allowed((), (str(error),))
    whole = manifest.family(family)
    for target in map(whole.target, targets):
        names = {p.name for p in (*whole.parameters, *target.parameters)}
        required = whole.asked_of(names, parameters)
        configurations = [kernel.parameters for kernel in target.kernels]
        # The order begins with those that differ in the fewest parameters.
        configurations.sort(
            key=lambda own: sum(own.get(n) != value for n, value in required.items())
        )
        possible, excluded = spec.with_parameters(target.name, configurations, required)
        keys += possible
        reasons += excluded
    return Allowed(tuple(keys), tuple(dict.fromkeys(reasons)))


def find(key: str) -> Pack | None:
    """Returns the pack of a kernel that was built before, for its sources as they are now."""
    request_, store = request(key, None), cache()
    entry = find_entry(store, request_)
    return None if entry is None else opened(request_, entry)


def build(
    keys: Sequence[str],
    architectures: Sequence[str] | None = None,
    failed: dict[str, BuildError] | None = None,
    traces: Path | None = None,
) -> dict[str, Pack]:
    """Returns the packs of kernels, by key; those that the cache lacks are compiled. With a folder
    for the compilers' time traces, all are compiled.

    Errors of kernels that do not compile are put into `failed`, by key; without it, raises the
    first BuildError. Raises KernelNotFound or TargetUnavailable.
    """
    requests = [request(key, architectures) for key in dict.fromkeys(keys)]
    entries = build_all(cache(), requests, failed, traces)
    return {r.key: opened(r, entries[r.key]) for r in requests if r.key in entries}


def keys(families: Sequence[str], set_name: str, where: str | None) -> list[str]:
    """Returns the keys of a set of families that a filter leaves, over all targets, in the set's
    order.

    Raises InvalidArgument if there are none, BuildError if the specs are wrong.
    """
    from runtime.ondemand.emit import Spec, keys_of  # codegen's libraries

    read = []
    for family in families:
        source = ondemand.source_of(family)
        if source is None:
            raise InvalidArgument(f"{packs.owner(family)} has no specs of {family} to build from")
        read.append(Spec(source).family)
    return keys_of(read, set_name, where)


def runnable(keys: Sequence[str]) -> list[str]:
    """Returns the keys whose targets run here. Raises InvalidArgument if no target does."""
    why = {
        f"{family}.{target.name}": why_not(target)
        for family in dict.fromkeys(key.partition(".")[0] for key in keys)
        for target in manifest.family(family).targets
    }
    runs = [key for key in keys if why.get(key.rpartition(".")[0]) is None]
    if not runs:
        reasons = "; ".join(dict.fromkeys(filter(None, why.values())))
        raise InvalidArgument(f"none of {len(keys)} kernels runs here: {reasons}")
    return runs


def warn_if_stale(key: str, pack: Pack) -> None:
    """Warns if a source of a kernel has changed since it was built."""
    watched = _watched.get(key)
    if watched is None or watched[0] is not pack:
        return
    _, request = watched
    paths = request.roots.paths(pack.sources)
    paths += [f"{request.source.root}/{name}" for name, _ in request.written]
    built = [*pack.sources.values(), *(value for _, value in request.written)]
    pairs = zip(paths, built, contents(paths), strict=True)
    if changed := next((path for path, before, now in pairs if before != now), None):
        warnings.warn(
            f"{key}: {changed} has changed since it was built: runtime.kernel({key!r}, build=True) "
            "builds it anew",
            RuntimeWarning,
            stacklevel=3,
        )
