"""Folders of the cache that only their owner may write, since code in them is compiled and run.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def folder(top: Path, *names: str) -> Path:
    """Returns a folder in the cache at `top`, made if it is absent; only its owner may write into
    it, whatever the umask is."""
    path = top
    for part in ("", *names):
        path = path / part
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return path


def fault(top: Path, *names: str, setting: str = "KERNELMINT_CACHE_DIR") -> str | None:
    """Returns why a file or folder in the cache at `top` cannot be trusted, and how to fix it, also
    by a `setting`: a user other than this one and root owns, or may write, a folder on the way to
    it or something in it. None for a trusted file, and for an absent one."""
    way = [top.joinpath(*names[:count]) for count in range(len(names) + 1)]
    below = (
        Path(parent, name)
        for parent, folders, files in os.walk(way[-1])
        for name in (*folders, *files)
    )
    for path, follow in [*((path, True) for path in way), *((path, False) for path in below)]:
        try:
            status = os.stat(path, follow_symlinks=follow)
        except OSError:
            continue
        if status.st_uid not in (os.geteuid(), 0):
            why, fix = "belongs to another user", f"chown -R {os.geteuid()}"
        elif status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode):
            why, fix = "may be written by its group or by others", "chmod -R go-w"
        else:
            continue
        return (
            f"{path} {why}, and code in the cache is run: if you trust all that is in it, fix it "
            f"with `{fix} {shlex.quote(str(top))}`; else name another folder in {setting}"
        )
    return None


@contextlib.contextmanager
def work(parent: Path, prefix: str) -> Iterator[Path]:
    """Makes a new folder in `parent` and removes it at the end; first removes folders of killed
    processes."""
    for left in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as held:
        folder_ = None
        while folder_ is None or not folder_.exists():  # it may be removed before it is locked
            folder_ = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            with contextlib.suppress(FileNotFoundError):
                held.enter_context(_locked(folder_, fcntl.LOCK_SH))
        try:
            yield folder_
        finally:
            shutil.rmtree(folder_, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)
