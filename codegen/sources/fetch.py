"""Fetches a file from an address, or a source distribution from the indexes that pip is set to.

    python codegen/sources/fetch.py ORIGIN FOLDER SECONDS

writes it into FOLDER; or prints the reason and exits with 1. It is a separate process, so that a
server keeps no build waiting, and fills neither memory nor disk: the process ends if a file is too
large, if hardly a byte comes in so many seconds, or with the process that started it.

Standard library only, except unearth, which searches indexes.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NoReturn
from urllib.parse import urlsplit

if __name__ == "__main__":  # it is run by its path; modules of its folder are not packages
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from codegen.core.staleness import open_regular

PYPI = "pypi:"
_TIMEOUT = 60  # seconds without a byte
_CHUNK = 1 << 20
_MOST_BYTES = 1 << 30
_LEAST_BYTES = 64 << 10  # in the time that the command names
_MOST_SECONDS = 3600
_MOST_MEMORY = 4 << 30  # an index's pages are read into memory
_LOOK = 0.2  # seconds between two looks at the bytes that came
# `-m pip` would run a pip.py of the current folder.
_PIP = (
    "import sys; sys.path[:] = filter(None, sys.path); from runpy import run_module as run; "
    "run('pip', run_name='__main__', alter_sys=True)"
)


class FetchError(LookupError):
    """A file cannot be had; the message says why."""


def masked(text: str) -> str:
    """Returns a text without the secrets in its addresses: users, passwords and queries."""
    text = re.sub(r"(\w://)[^/\s'\"]*@", r"\1", text)
    return re.sub(r"(\w://[^\s'\"?]*\?)[^\s'\"#]+", r"\1…", text)


def file_name(url: str) -> str:
    """Returns the name of the file at an address."""
    return PurePosixPath(urllib.request.url2pathname(urlsplit(url).path)).name


def receive(chunks: Iterable[bytes], path: Path) -> None:
    """Writes a file as it comes. Raises FetchError if it is too large."""
    size = 0
    with path.open("wb") as file:
        for chunk in chunks:
            size += len(chunk)
            if size > _MOST_BYTES:
                raise FetchError(f"it has more than {_MOST_BYTES >> 30} GiB")
            file.write(chunk)


def _from_url(url: str, folder: Path) -> None:
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        opened = open_regular(Path(urllib.request.url2pathname(parts.path)))
    else:
        opened = urllib.request.urlopen(url, timeout=_TIMEOUT)
    with opened as answer:  # whose `read` would wait for a whole chunk
        receive(iter(lambda: answer.read1(_CHUNK), b""), folder / file_name(url))


def _from_index(requirement: str, folder: Path) -> None:
    try:
        from unearth import PackageFinder
    except ImportError:
        raise FetchError(
            "unearth looks for it on an index, and is not installed: "
            'pip install "kernelmint[sources]" (an isolated build takes it from '
            "build-system.requires), or run `kernelmint sources` before"
        ) from None
    settings = _pip_settings()
    finder = PackageFinder(
        no_binary=[requirement.partition("==")[0]], index_urls=settings.get("index-url", ())
    )  # without an index: the default one
    for url in settings.get("extra-index-url", ()):
        finder.add_index_url(url)
    if settings.get("no-index", ["0"])[0].lower() in ("1", "true", "yes", "on"):
        finder.sources.clear()
    for link in settings.get("find-links", ()):
        finder.add_find_links(link if "://" in link else Path(link).absolute().as_uri())
    best = finder.find_best_match(requirement, allow_yanked=True, allow_prereleases=True).best
    if best is None:
        raise FetchError(
            f"there is no source distribution {requirement} on the indexes that pip is set to "
            "(`pip config list`)"
        )
    path = folder / PurePosixPath(str(best.link.filename)).name
    with finder.session.get_stream(best.link.normalized) as answer:
        answer.raise_for_status()
        receive(answer.iter_bytes(), path)


def _pip_settings() -> dict[str, list[str]]:
    """Returns the words of pip's options that say where it looks: by its files and, before these,
    by PIP_* of the environment, as `pip install` has it. Raises FetchError if pip cannot read its
    files."""
    settings: dict[str, list[str]] = {}
    if importlib.util.find_spec("pip") is not None:  # environments of uv have none
        command = [sys.executable, "-c", _PIP, "config", "list"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FetchError(f"`pip config list` fails: {done.stderr.strip()}")
        for section in ("global", "install"):
            for line in done.stdout.splitlines():
                name, _, value = line.partition("=")
                if name.startswith(f"{section}."):
                    settings[name.removeprefix(f"{section}.")] = str(
                        ast.literal_eval(value)
                    ).split()
    for option in ("index-url", "extra-index-url", "no-index", "find-links"):
        if words := os.environ.get(f"PIP_{option.upper().replace('-', '_')}", "").split():
            settings[option] = words
    return settings


def _watch(folder: Path, patience: float) -> None:
    parent, begin = os.getppid(), time.monotonic()
    looked, before = begin, 0
    while os.getppid() == parent:
        time.sleep(_LOOK)
        now, size = time.monotonic(), sum(path.stat().st_size for path in folder.iterdir())
        if now - looked > patience:
            if size - before < _LEAST_BYTES:
                _end(f"{size - before:,} bytes came in {patience:g} s")
            looked, before = now, size
        if now - begin > _MOST_SECONDS:
            _end(f"{size:,} bytes came in {_MOST_SECONDS:,} s")
    os._exit(1)


def _end(why: str) -> NoReturn:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Runs the command."""
    origin, folder, patience = arguments[0], Path(arguments[1]), float(arguments[2])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    threading.Thread(target=_watch, args=(folder, patience), daemon=True).start()
    try:
        if origin.startswith(PYPI):
            _from_index(origin.removeprefix(PYPI), folder)
        else:
            _from_url(origin, folder)
    except Exception as error:  # errors that a server, a proxy or a broken index may cause
        reason = getattr(error, "reason", error)
        _end(masked(str(reason)) or type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1:])
