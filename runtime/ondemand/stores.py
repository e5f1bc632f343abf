"""Stores of files for several machines: a folder, NFS included, and an object store by fsspec.

Files lie in folders of one level. No lock is used, since locks over NFS differ from one server to
another: a file appears whole, and `create` makes a file that is absent. A client of NFS may believe
for a minute that a folder is as it was, until it makes a file in that folder itself: `create` is
what brings a folder up to date.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from codegen.core import trust
from runtime.errors import BuildError

FORMAT = "1"
LARGEST = 1 << 30  # bytes of a file: a larger one is damaged
_PARTIAL = ".part"
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


@dataclass(frozen=True)
class Item:
    """A file of a store."""

    name: str  # folder/file
    size: int  # bytes
    used: float  # the time of its last use that is known, in seconds since the epoch


class Store(Protocol):
    """Files by name, `folder/file`. Each method raises OSError if the store fails."""

    def read(self, name: str) -> bytes | None:
        """Returns a file's content; None if it is absent."""

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, or replaces one."""

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file that is absent; returns whether it was."""

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""

    def items(self, folder: str | None = None) -> list[Item]:
        """Returns the files of one folder, or of all."""

    def touch(self, item: Item, data: bytes) -> None:
        """Notes that a file, whose content is `data`, was used now."""


class FolderStore:
    """A folder that several machines see."""

    def __init__(self, top: Path, is_owned: bool) -> None:
        """Takes a folder. With `is_owned`, `read` and `items` raise BuildError if a user other than
        this one and root owns, or may write, what they read."""
        self._top = top
        self._is_owned = is_owned

    def _check(self, *names: str) -> None:
        if not self._is_owned:
            return
        other = "KERNELMINT_SHARED_CACHE, or its signers in KERNELMINT_SHARED_CACHE_SIGNERS"
        if why := trust.fault(self._top, FORMAT, *names, setting=other):
            raise BuildError(why)

    @contextlib.contextmanager
    def _opened(self, *names: str, make: bool = False) -> Iterator[int]:
        """Opens a folder of the store, made if it is absent and `make`. No link is followed: others
        may write here, and could lead what is written and removed elsewhere."""
        with contextlib.ExitStack() as opened:
            folder = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            for name in (FORMAT, *names):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755 if self._is_owned else 0o777, dir_fd=folder)
                folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                opened.callback(os.close, folder)
            yield folder

    def read(self, name: str) -> bytes | None:
        """Returns a file's content; None if it is absent."""
        folder, _, file_name = name.partition("/")
        self._check(folder, file_name)
        try:
            with self._opened(folder) as opened:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
                with open(os.open(file_name, flags, dir_fd=opened), "rb") as file:
                    status = os.fstat(file.fileno())
                    is_sound = stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST
                    # Python allocates the bytes that a read asks for before it reads.
                    return file.read(status.st_size) if is_sound else b""
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, or replaces one."""
        folder, _, file_name = name.partition("/")
        partial = f"{os.urandom(16).hex()}{_PARTIAL}"
        with self._opened(folder, make=True) as opened:
            try:
                self._make(partial, data, opened)
                os.replace(partial, file_name, src_dir_fd=opened, dst_dir_fd=opened)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial, dir_fd=opened)
                raise

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file that is absent; returns whether it was."""
        folder, _, file_name = name.partition("/")
        with self._opened(folder, make=True) as opened:
            try:
                self._make(file_name, data, opened)
            except FileExistsError:
                return False
        return True

    def _make(self, name: str, data: bytes, folder: int) -> None:
        mode = 0o644 if self._is_owned else 0o666  # the umask says who else may write
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(name, flags, mode, dir_fd=folder), "wb") as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there, and its folder, if that is empty."""
        folder, _, file_name = name.partition("/")
        with contextlib.suppress(FileNotFoundError), self._opened(folder) as opened:
            os.unlink(file_name, dir_fd=opened)
        with contextlib.suppress(OSError), self._opened() as opened:
            os.rmdir(folder, dir_fd=opened)

    def items(self, folder: str | None = None) -> list[Item]:
        """Returns the files of one folder, or of all."""
        os.stat(self._top)  # an absent store is an error, an absent folder in it is not
        if folder is not None:
            return list(self._items(folder))
        try:
            with self._opened() as opened:
                folders = os.listdir(opened)
        except FileNotFoundError:
            folders = []
        return [item for name in folders for item in self._items(name)]

    def _items(self, folder: str) -> Iterator[Item]:
        self._check(folder)
        absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with absent, self._opened(folder) as opened, os.scandir(opened) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    used = max(status.st_mtime, status.st_atime)
                    yield Item(f"{folder}/{entry.name}", status.st_size, used)

    def touch(self, item: Item, data: bytes) -> None:
        """Notes that a file was used now. A reader who may not note it leaves that to the file
        system's time of the last access."""
        folder, _, file_name = item.name.partition("/")
        with contextlib.suppress(OSError), self._opened(folder) as opened:
            os.utime(file_name, dir_fd=opened, follow_symlinks=False)


class UrlStore:
    """Files of an object store."""

    def __init__(self, url: str) -> None:
        """Takes a URL. Raises BuildError if fsspec, or its package for the URL, is missing, or does
        not take the URL."""
        try:
            from fsspec.core import url_to_fs

            self._files, root = url_to_fs(url)
        except (ImportError, ValueError, TypeError) as error:
            raise BuildError(
                f"KERNELMINT_SHARED_CACHE={url}: {error}: a URL takes `kernelmint[shared]`, and "
                "fsspec's package for it, such as s3fs or gcsfs"
            ) from None
        self._root = f"{str(root).rstrip('/')}/{FORMAT}"

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Raises OSError, whatever a file system of fsspec raises."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """Returns a file's content; None if it is absent."""
        try:
            with self._reported():
                return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, or replaces one."""
        self._make(name, data, "overwrite")

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file that is absent; returns whether it was: for sure only where the object
        store has conditional writes, as S3 and Google's have."""
        try:
            self._make(name, data, "create")
        except FileExistsError:
            return False
        return True

    def _make(self, name: str, data: bytes, mode: str) -> None:
        path = f"{self._root}/{name}"
        with self._reported():
            self._files.makedirs(os.path.dirname(path), exist_ok=True)  # few stores have folders
            self._files.pipe_file(path, data, mode=mode)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._reported():
            self._files.rm_file(f"{self._root}/{name}")

    def items(self, folder: str | None = None) -> list[Item]:
        """Returns the files of one folder, or of all."""
        top = self._root if folder is None else f"{self._root}/{folder}"
        with self._reported():
            self._files.invalidate_cache()
            found = self._files.find(top, detail=True).values()
            return [
                Item(info["name"][len(self._root) + 1 :], info["size"] or 0, _modified(info))
                for info in found
                if info.get("type") == "file"
            ]

    def touch(self, item: Item, data: bytes) -> None:
        """Notes that a file was used now: the file is written again."""
        self.write(item.name, data)


def _modified(info: Mapping[str, Any]) -> float:
    """Returns the time of a file's last change, which each file system names in its own way."""
    value = next((info[name] for name in _MODIFIED if info.get(name)), 0.0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value.timestamp() if isinstance(value, datetime) else float(value)


def is_partial(item: Item) -> bool:
    """Returns whether a file was being written when it was listed, or is left of a killed
    process."""
    return item.name.endswith(_PARTIAL)
