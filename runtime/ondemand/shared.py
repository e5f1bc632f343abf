"""The second level of the cache, which machines of a team share: packs that one of them built.

    <store>/1/<request>/files-<hash>  dependencies of a request, which lead to a pack's name
    <store>/1/<request>/pack-<name>   a pack, which has that name in caches
    <store>/1/<request>/lease         renewed while a machine builds the request: others wait

A file is signed by ssh, or belongs to a trusted user. A pack's name is the hash of its request, its
dependencies and their contents, and the file repeats these, so that a file of another name is not
believed. Nothing here fails a build but wrong settings and untrusted owners: a store that is full,
absent, slow or damaged costs time, and kernels are built as without it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import os
import platform
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from codegen.core.home import expanded
from runtime.errors import BuildError
from runtime.ondemand import packed
from runtime.ondemand.cache import Cache, Dependencies, Entry, Roots, digest
from runtime.ondemand.stores import FolderStore, Item, Store, UrlStore, is_partial

PLACE = "KERNELMINT_SHARED_CACHE"
WRITE = "KERNELMINT_SHARED_CACHE_WRITE"
SIGNERS = "KERNELMINT_SHARED_CACHE_SIGNERS"
SIZE = "KERNELMINT_SHARED_CACHE_SIZE"

_NAMESPACE = "kernelmint"  # in signatures; also the principal of signers
_END = b"-----END SSH SIGNATURE-----\n"
_LEASE = "lease"
_EXPIRY = 30.0  # seconds without a renewal after which whoever took a lease is taken for dead
_LONGEST = 3600.0  # seconds that a kernel is waited for
_PATIENCE = 60.0  # seconds for a file; afterwards, and after an error, the store is left alone
_PAUSE = 60.0  # for so long
_LISTS = 16  # lists of dependencies that are tried for one request
_DAY = 86400.0
_SHARE = 0.1  # a writer looks at the size again after it has written this share of the limit

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Settings:
    """The settings of a shared cache.

    Attributes:
        place: a folder, or a URL of fsspec.
        write: "" to read only, "1" to write, or the file of the ssh key that signs.
        signers: ssh's file of the keys that are trusted; "" if the files' owners are trusted.
        size: bytes that writers leave, the last used; None for all.
    """

    place: str
    write: str = ""
    signers: str = ""
    size: int | None = None

    @property
    def is_url(self) -> bool:
        """Returns whether the place is no folder."""
        return "://" in self.place

    def check(self) -> None:
        """Raises BuildError for settings that contradict each other."""
        if self.is_url and not self.signers:
            raise BuildError(
                f"{PLACE}={self.place}: files of a URL have no owner, and code in a cache is run: "
                f"name the file of the signers' keys in {SIGNERS}"
            )
        if self.signers and self.write == "1":
            raise BuildError(
                f"{WRITE}=1: a shared cache with {SIGNERS} takes the file of an ssh key, which "
                "signs"
            )
        for name, value in ((SIGNERS, self.signers), (WRITE, self.key)):
            if value and not expanded(value).is_file():
                raise BuildError(f"{name}={value}: there is no such file")

    @property
    def key(self) -> str:
        """Returns the file of the key that signs, or ""."""
        return "" if self.write == "1" else self.write

    def store(self) -> Store:
        """Returns the store. Raises BuildError if no file system serves the URL."""
        self.check()
        if self.is_url:
            return UrlStore(self.place)
        folder = expanded(self.place)
        if self.write:
            with contextlib.suppress(OSError):  # the first use says why
                folder.mkdir(mode=0o777 if self.signers else 0o755, parents=True, exist_ok=True)
        return FolderStore(folder, is_owned=not self.signers)


def of_environment() -> Shared | None:
    """Returns the shared cache that the environment names, if it does. Raises BuildError for
    settings that contradict each other."""
    place = os.environ.get(PLACE, "")
    if not place:
        return None
    write = os.environ.get(WRITE, "")
    return _shared(
        os.getpid(),  # a forked process has no thread that renews its parent's leases
        Settings(
            place,
            "" if write == "0" else write,
            os.environ.get(SIGNERS, ""),
            _size(os.environ.get(SIZE, "")),
        ),
    )


def _size(text: str) -> int | None:
    if not text:
        return None
    from click import BadParameter  # a slow import, and so is the next one

    from codegen.options import Size

    try:
        return Size().convert(text, None, None)
    except BadParameter as error:
        raise BuildError(f"{SIZE}: {error.message}") from None


@functools.cache
def _shared(_process: int, settings: Settings) -> Shared:
    return Shared(settings)


class Shared:
    """A shared cache."""

    def __init__(self, settings: Settings) -> None:
        """Raises BuildError for settings that contradict each other."""
        self.settings = settings
        self._store = settings.store()
        self._paused = {"read": 0.0, "written": 0.0}  # until when, of the monotonic clock
        self._unseen: float = settings.size or 0  # bytes since the size was looked at; at first all
        self._leases = _Leases(self, self._store)

    @property
    def writes(self) -> bool:
        """Returns whether this process writes."""
        return bool(self.settings.write)

    def attempt(self, verb: str, function: Callable[[], _Result]) -> _Result | None:
        """Returns a function's result; None if the store fails or takes too long, and for a while
        after it did. `verb` is "read" or "written"."""
        if time.monotonic() < self._paused[verb]:
            return None
        try:
            return _in_time(function)
        except OSError as error:
            why = error.strerror or str(error)
        self._paused[verb] = time.monotonic() + _PAUSE
        self._warn(f"cannot be {verb} ({why}): kernels are built without it for {_PAUSE:g} s")
        return None

    def _warn(self, text: str) -> None:
        warnings.warn(
            f"the shared cache {self.settings.place} {text}", RuntimeWarning, stacklevel=2
        )

    def fetch(self, request: str, roots: Roots, cache: Cache) -> Entry | None:
        """Returns the pack of a request, put into a cache, in which the request is locked; None if
        the store has none. Raises BuildError if a user who is not trusted may have written it."""
        items = self.attempt("read", lambda: self._store.items(request)) or []
        packs = {item.name: item for item in items}
        lists = [item for item in items if item.name.startswith(f"{request}/files-")]
        for item in sorted(lists, key=lambda item: -item.used)[:_LISTS]:
            dependencies = self._dependencies(item)
            if dependencies is None:
                continue
            name = cache.identify(request, dependencies, roots)
            pack = packs.get(f"{request}/pack-{name}")
            content = None if pack is None else self._content(pack)
            if pack is None or content is None:
                continue
            try:
                found = packed.decoded(content)
            except ValueError:
                found = None
            named = None if found is None else (found.request, found.name, found.dependencies)
            if found is not None and named == (request, name, dependencies):
                return packed.put(found, cache)
            self._warn(f"has a damaged file, {pack.name}: the kernel is built anew")
        return None

    def has(self, request: str) -> bool:
        """Returns whether the store has a pack of a request, whatever it was built from."""
        items = self.attempt("read", lambda: self._store.items(request)) or []
        return any(item.name.startswith(f"{request}/pack-") for item in items)

    def _dependencies(self, item: Item) -> Dependencies | None:
        content = self._content(item)
        try:
            return None if content is None else packed.of_lists(json.loads(content))
        except (ValueError, TypeError, RecursionError):
            self._warn(f"has a damaged file, {item.name}: the kernel is built anew")
            return None

    def _content(self, item: Item) -> bytes | None:
        """Returns a file's content without its signature; None if it is absent, or not signed as it
        must be."""
        data = self.attempt("read", lambda: self._store.read(item.name))
        if data is None:
            return None
        signature, end, content = data.partition(_END)
        if not end:
            signature, content = b"", data
        if self.settings.signers and not self._is_signed(signature + end, content):
            self._warn(
                f"has a file, {item.name}, that no key of {self.settings.signers} signed, or that "
                "is damaged: the kernel is built anew"
            )
            return None
        if not self.settings.is_url or (self.writes and time.time() - item.used > _DAY):
            self.attempt("written", lambda: self._store.touch(item, data))
        return content

    def _is_signed(self, signature: bytes, content: bytes) -> bool:
        with tempfile.NamedTemporaryFile() as file:
            file.write(signature)
            file.flush()
            signers = str(expanded(self.settings.signers))
            command = ("verify", "-f", signers, "-I", _NAMESPACE, "-s", file.name)
            return _ssh(*command, content=content).returncode == 0

    def _signed(self, content: bytes) -> bytes:
        """Returns a content after its signature. Raises OSError if the key does not sign."""
        if not self.settings.key:
            return content
        done = _ssh("sign", "-f", str(expanded(self.settings.key)), content=content)
        if done.returncode:
            raise OSError(f"{WRITE}={self.settings.key}: {done.stderr.decode().strip()}")
        return done.stdout + content

    def offer(self, request: str, entry: Entry) -> None:
        """Writes a pack that was built here, if this process writes."""
        if not self.writes:
            return
        lists = packed.as_lists(entry.dependencies)
        files = {
            f"{request}/pack-{entry.folder.name}": packed.pack_up(request, entry).encoded(),
            f"{request}/files-{digest(lists)}": json.dumps(lists).encode(),
        }

        def write() -> int:
            signed = {name: self._signed(content) for name, content in files.items()}
            for name, content in signed.items():
                self._store.write(name, content)
            return sum(map(len, signed.values()))

        written = self.attempt("written", write)
        most = self.settings.size
        if written is not None and most is not None:
            self._unseen += written
            if self._unseen >= _SHARE * most:
                self._unseen = 0.0
                self.attempt("written", lambda: self.evict(most, 0.0))

    def usages(self) -> list[Item]:
        """Returns the files, the last used first. Raises OSError if the store fails."""
        return sorted(self._store.items(), key=lambda item: -item.used)

    def evict(self, most: int, oldest: float) -> list[Item]:
        """Removes files last used before `oldest`, then the longest unused ones until the others
        have no more than `most` bytes; returns them. Raises OSError if the store fails."""
        kept, removed = 0, []
        for item in self.usages():
            if is_partial(item) or item.name.endswith(f"/{_LEASE}"):
                is_unwanted = time.time() - item.used > _DAY  # left by a killed process
            else:
                kept += item.size
                is_unwanted = kept > most or item.used < oldest
            if is_unwanted:
                self._store.remove(item.name)
                removed.append(item)
        return removed

    def lease(self, request: str, what: str) -> str | None:
        """Takes the lease of a request, to be given back by `release`. Returns a description of
        the process that has it instead; None if nobody else has it, or none can be taken."""
        return self._leases.take(request, what) if self.writes else None

    def release(self, request: str) -> None:
        """Gives back a lease, if this process has it."""
        self._leases.release(request)


def _ssh(command: str, *arguments: str, content: bytes) -> subprocess.CompletedProcess[bytes]:
    """Runs ssh-keygen on a content. Raises OSError if it is not there."""
    return subprocess.run(
        ["ssh-keygen", "-Y", command, *arguments, "-n", _NAMESPACE],
        input=content,
        capture_output=True,
        check=False,
        start_new_session=True,  # without a terminal, on which it would ask for a passphrase
    )


def _in_time(function: Callable[[], _Result]) -> _Result:
    """Returns a function's result. Raises OSError if it takes too long: a file system that hangs
    does not let go of the thread, which is left to itself."""
    result: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not concurrent.futures.wait([result], _PATIENCE).done:
        raise OSError(f"nothing from it in {_PATIENCE:g} s")
    return result.result()


@dataclass
class _Wait:
    """A wait for another machine: the lease's content, and since when it is seen so, and at all."""

    content: bytes
    since: float
    first: float


class _Leases:
    """The leases of this process, renewed by a thread, and those of others that it waits for.

    Clocks of machines are not compared: a lease has expired if a process has seen the same content
    for long enough. If two processes see that at once, one may remove the new lease of the other;
    both then build the kernel, and the second pack replaces its equal.
    """

    def __init__(self, shared: Shared, store: Store) -> None:
        self._shared = shared
        self._store = store
        self._owner = f"{platform.node()}, process {os.getpid()}"
        self._token = os.urandom(16).hex()
        self._changing = threading.Lock()
        self._writing = threading.Lock()
        self._held: dict[str, str] = {}
        self._waits: dict[str, _Wait] = {}
        self._renewing: threading.Thread | None = None
        self._count = 0

    def _content(self, what: str) -> bytes:
        self._count += 1
        return json.dumps(
            [f"{self._owner}, which builds {what}", self._token, self._count]
        ).encode()

    def take(self, request: str, what: str) -> str | None:
        """Takes a lease, as Shared says."""
        attempt, store, name = self._shared.attempt, self._store, f"{request}/{_LEASE}"
        now = time.monotonic()
        wait = self._waits.get(request)
        if wait is not None and now - wait.first > _LONGEST:
            return None
        if attempt("written", lambda: store.create(name, self._content(what))) is not False:
            self._waits.pop(request, None)
            with self._changing:
                self._held[request] = what
                if self._renewing is None:
                    self._renewing = threading.Thread(target=self._renew, daemon=True)
                    self._renewing.start()
            return None
        content = attempt("read", lambda: store.read(name))
        if content is None:  # given back meanwhile, or the store fails
            return "another process"
        if wait is None or wait.content != content:
            first = now if wait is None else wait.first
            self._waits[request] = _Wait(content, now, first)
        elif now - wait.since > _EXPIRY:
            attempt("written", lambda: store.remove(name))
        try:
            return str(json.loads(content)[0])[:200]
        except (ValueError, IndexError, TypeError, KeyError):
            return "another process"

    def release(self, request: str) -> None:
        """Gives back a lease."""
        with self._changing:
            if self._held.pop(request, None) is None:
                return
        name = f"{request}/{_LEASE}"
        self._shared.attempt("written", lambda: self._remove_own(name))

    def _remove_own(self, name: str) -> None:
        with self._writing:  # no renewal comes after it
            if self._is_own(name):
                self._store.remove(name)

    def _is_own(self, name: str) -> bool:
        return self._token.encode() in (self._store.read(name) or b"")

    def _renew(self) -> None:
        while True:
            time.sleep(_EXPIRY / 6)
            with self._changing:
                held = dict(self._held)
            for request, what in held.items():
                renew = functools.partial(self._renew_one, request, what)
                self._shared.attempt("written", renew)

    def _renew_one(self, request: str, what: str) -> None:
        name = f"{request}/{_LEASE}"
        with self._writing:
            if request in self._held and self._is_own(name):
                self._store.write(name, self._content(what))
