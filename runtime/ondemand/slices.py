"""Slices of packs from a store, a folder or an address: the file STORE/<sha256>/<wheel>, into the
cache.

The pack names the hash of each of its slices: a store is trusted for nothing. A file without that
hash is neither unpacked nor kept.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from codegen.core import slices, trust
from codegen.core.home import expanded
from codegen.core.packs import Pack, PackError, Slice
from codegen.core.staleness import open_regular
from codegen.core.staleness import sha256 as sha256_of
from codegen.core.words import one_line
from codegen.sources import fetch as fetching
from codegen.sources.unpack import unpack
from runtime import packs
from runtime.errors import BuildError
from runtime.ondemand.cache import Dependencies, Roots, digest, reported
from runtime.ondemand.kernels import cache
from runtime.ondemand.progress import Progress

_PATIENCE = 60  # seconds in which hardly a byte may come
_CHUNK = 1 << 20
_ROOTS = Roots({})


def _request(part: Slice) -> str:
    return digest(["slice", part.sha256])


def find(pack: Pack, part: Slice) -> Pack | None:
    """Returns a slice that was fetched before; None if none was, or it is damaged. Raises
    BuildError, or PackError."""
    entry = cache().find(_request(part), _ROOTS)
    return None if entry is None else slices.read(pack, part, entry.folder)


def fetch(pack: Pack, part: Slice, store: str) -> Pack:
    """Returns a slice, fetched from a store if it is not in the cache; its kernels can be called
    from now on. Raises BuildError."""
    what, request, kept = f"slice {part.name} of {pack.name}", _request(part), cache()
    entry = kept.find(request, _ROOTS)
    if entry is None:
        kept = kept.writable()
        with (
            reported(kept, what),
            Progress(f"fetching {what}") as progress,
            kept.locked([request], what, progress.wait_for),
            kept.work() as (work, _),
        ):
            entry = kept.find(request, _ROOTS)
            if entry is None:
                place = fetching.masked(store)
                print(f"kernelmint: fetching {what} from {place}", file=sys.stderr)
                folder = _unpacked(pack, part, received(part, store, work), work / "files")
                name = kept.identify(request, Dependencies(), _ROOTS)
                entry = kept.publish(request, Dependencies(), _ROOTS, name, folder)
    try:
        fetched = slices.read(pack, part, entry.folder)
    except PackError as error:
        raise BuildError(str(error)) from None
    packs.changed()
    return fetched


def copy(part: Slice, store: str, mirror: Path) -> Path:
    """Copies a slice's wheel from a store into another one, a folder. Raises BuildError."""
    folder = mirror / part.sha256
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with trust.work(folder, ".kernelmint-") as work:
            return received(part, store, work).replace(folder / part.wheel)
    except OSError as error:
        raise BuildError(f"{error.filename or folder}: {error.strerror or error}") from None


def received(part: Slice, store: str, work: Path) -> Path:
    """Returns a slice's wheel, copied from a store into a folder where nobody else may write.
    Raises BuildError for a file that is not the pack's."""
    place = f"{store.rstrip('/')}/{part.sha256}/{part.wheel}"
    into = work / "received"
    into.mkdir()
    wheel = into / part.wheel
    if "://" in store:
        done = subprocess.run(
            [sys.executable, fetching.__file__, place, str(into), str(_PATIENCE)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            why = " ".join(done.stderr.split()) or f"its process ended with {done.returncode}"
            raise BuildError(f"{fetching.masked(place)} cannot be fetched: {why}")
    else:
        try:
            with open_regular(expanded(place)) as file:
                fetching.receive(iter(lambda: file.read(_CHUNK), b""), wheel)
        except fetching.FetchError as error:
            raise BuildError(f"{place}: {error}") from None
        except OSError as error:
            if error.filename is None or Path(error.filename) == wheel:  # the cache's
                raise
            raise BuildError(f"{place}: {error.strerror}") from None
    size = wheel.stat().st_size
    if size != part.size:
        raise BuildError(
            f"{fetching.masked(place)} has {size:,} bytes, expected {part.size:,}: it was cut "
            "short, or is another file; it is not used"
        )
    if (actual := sha256_of(wheel)) != part.sha256:
        raise BuildError(
            f"{fetching.masked(place)} has sha256 {actual}, but its pack names {part.sha256}: it "
            "is damaged, or of another build; it is not used"
        )
    return wheel


def _unpacked(pack: Pack, part: Slice, wheel: Path, into: Path) -> Path:
    """Returns the slice's folder of an unpacked wheel, which has the pack's hash."""
    try:
        unpack(wheel, into)
        folder = into / f"{pack.name}_{part.name}"
        slices.read(pack, part, folder)
    except Exception as error:  # whatever a wheel of another form makes its readers raise
        why = one_line(str(error)) or type(error).__name__
        raise BuildError(f"{wheel.name} is not a slice of {pack}: {why}") from None
    return folder
