"""Compilers' answers about themselves, remembered in the cache: starting a compiler would take a
warm start longer than all else."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from codegen.core.home import cache_folder
from runtime.errors import BuildError
from runtime.ondemand.cache import SETTLED, Cache, content, digest

# Variables that change an answer, or the result of a compiler or its linker.
ENVIRONMENT = (
    "CCC_OVERRIDE_OPTIONS", "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX",
    "LD_RUN_PATH", "LIBRARY_PATH", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS",
)  # fmt: skip
# Programs that answer by themselves, by name. (Others, such as ccache, run a compiler.)
_COMPILERS = re.compile(r"(\S+-)?(c\+\+|g\+\+|clang(\+\+)?|nvcc)(-[0-9.]+)?")


class Answer(NamedTuple):
    """The output of a command."""

    output: str
    errors: str


def ask(command: Sequence[str]) -> Answer:
    """Returns a compiler's answer, from the cache if the compiler is the file that it was.

    Raises BuildError if the compiler cannot be run, or fails.
    """
    question, cache = _question(command), Cache(cache_folder())
    noted = None if question is None else cache.noted(question)
    if isinstance(noted, list) and len(noted) == len(Answer._fields):
        return Answer(*map(str, noted))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{shlex.join(command)}: {error.strerror or error}") from None
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}: {done.stderr.strip() or 'it failed'}")
    answer = Answer(done.stdout, done.stderr)
    if question is not None:
        cache.note(question, answer)
    return answer


def contents(programs: Iterable[str]) -> list[str]:
    """Returns the hashes of the files of programs, by name or path, from the cache while size
    and times stay; programs that are not there have none."""
    cache, hashes = Cache(cache_folder()), []
    for path in filter(None, map(shutil.which, programs)):
        status = os.stat(path)
        stamp = [status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino]
        question = digest([os.path.realpath(path), stamp])
        value = cache.noted(question)
        if not isinstance(value, str):
            value = content(path)
            if time.time_ns() - status.st_ctime_ns > SETTLED:
                cache.note(question, value)
        hashes.append(value)
    return hashes


def _question(command: Sequence[str]) -> str | None:
    """Returns a hash of the command and of its program's path, size and time; None if the
    program may run another: a script, ccache, or a compiler that looks for its programs in
    folders of the user's."""
    if os.environ.get("COMPILER_PATH") or os.environ.get("GCC_EXEC_PREFIX"):
        return None
    program = os.path.realpath(shutil.which(command[0]) or command[0])
    folder, name = os.path.split(program)
    try:
        with open(program, "rb") as file:
            if file.read(4) != b"\x7fELF" or not _COMPILERS.fullmatch(name):
                return None
        settings = os.path.join(folder, "nvcc.profile")
        files = [program, settings] if os.path.exists(settings) else [program]
        stamps = [(f, s.st_mtime_ns, s.st_size, s.st_ino) for f in files if (s := os.stat(f))]
    except OSError:
        return None
    return digest([list(command), stamps, [os.environ.get(name, "") for name in ENVIRONMENT]])
