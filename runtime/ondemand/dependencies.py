"""The dependencies of a kernel: the files that compilers and the linker say they read, and the
names that they looked for elsewhere first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from runtime.errors import BuildError
from runtime.ondemand.cache import Dependencies, Roots, is_system

_ASKED_FOR = re.compile(rb'__has_include(?:_next)?\s*\(\s*[<"]([^>"\n]+)[>"]\s*\)')
_UNLISTED = re.compile(rb"\.incbin\b")
_INCLUDE = re.compile(
    r"(?:-I|-isystem|-iquote|-idirafter|--include-path|--system-include)=?(?P<folder>.*)"
)
_TRACED = re.compile(r"\(?(/[^()]*)\)?[^()/]*")  # a file, or an archive with its member


def listed(path: Path) -> Iterator[str]:
    """Yields the files that a compiler's -MD lists."""
    text = path.read_text(errors="surrogateescape").replace("\\\n", " ")
    _, _, names = text.partition(": ")
    for word in re.findall(r"(?:\\.|[^\s\\])+", names.partition("\n")[0]):
        yield re.sub(r"\\(.)", r"\1", word).replace("$$", "$")


def traced(output: str) -> Iterator[str]:
    """Yields the files that a linker's --trace lists, but for those of its own folder."""
    for line in output.splitlines():
        match = _TRACED.fullmatch(line.strip())
        if match and os.path.isfile(match[1]):
            yield os.path.normpath(match[1])


def searched(command: Sequence[str]) -> Iterator[str]:
    """Yields the folders that a compiler's command names for headers."""
    words = iter(command)
    for word in words:
        if match := _INCLUDE.fullmatch(word):
            folder = match["folder"] or next(words, "")
            if os.path.isabs(folder):
                yield os.path.normpath(folder)


def libraries(names: Iterable[str], folders: Sequence[str], read: set[str]) -> Iterator[str]:
    """Yields the files that are tried for libraries, as -l takes them: the one `read`, and those
    that come before it."""
    for name in names:
        for path in (f"{folder}/lib{name}{end}" for folder in folders for end in (".so", ".a")):
            yield path
            if path in read:
                break


def headers(files: Sequence[str], folders: Iterable[str], roots: Roots) -> Dependencies:
    """Returns sources and headers, by absolute paths, that were read, and the names by which others
    would have been found instead: in the folders that were searched and, of those that people edit,
    in the folders within them.

    Raises BuildError if a source reads a file that compilers do not list.
    """
    searched = {os.path.normpath(folder) for folder in folders}
    own = [path for path in files if not is_system(roots.name(path))]
    sought: set[str] = set()
    for path in files:
        sought.update(_spelled(path, searched))
        text = Path(path).read_bytes()
        for name in _ASKED_FOR.findall(text):
            sought.update(os.fsdecode(name).split("/"))
        if path in own and (match := _UNLISTED.search(text)):
            line = text.count(b"\n", 0, match.start()) + 1
            raise BuildError(
                f"{path}:{line}: .incbin reads a file that the compiler does not list, so a change "
                "of it would go unnoticed: write its bytes into a header, or build a pack"
            )
    watched: set[str] = set()
    pending = [*searched, *map(os.path.dirname, own)]
    while pending:
        folder = pending.pop()
        while not os.path.isdir(folder):  # the folder may appear later
            folder, name = os.path.split(folder)
            sought.add(name)
        if folder in watched:
            continue
        watched.add(folder)
        if not is_system(roots.name(folder)):
            below = (f"{folder}/{name}" for name in sought.intersection(os.listdir(folder)))
            pending += filter(os.path.isdir, below)
    return Dependencies(
        tuple(sorted(map(roots.name, files))),
        tuple(sorted(map(roots.name, watched))),
        tuple(sorted(sought)),
    )


def _spelled(path: str, searched: set[str]) -> Iterator[str]:
    """Yields the names of a file and of its folders within the folders that were searched."""
    folder, name = os.path.split(path)
    names = [name]
    yield name
    while folder != os.path.dirname(folder):
        if folder in searched:
            yield from names
        folder, name = os.path.split(folder)
        names.append(name)


def changed_since(moment: int, files: Iterable[str], roots: Roots) -> tuple[bool, bool]:
    """Returns whether one of these files was touched in any way at that time or later, and
    whether one of their folders was, within `roots`. No program sets the time that counts."""

    def changed(path: str) -> bool:
        try:
            return max(os.stat(path).st_ctime_ns, os.lstat(path).st_ctime_ns) >= moment
        except OSError:
            return False

    files = set(files)
    folders: set[str] = set()
    for path in files:
        if not is_system(roots.name(path)):
            folder = os.path.dirname(path)
            while not is_system(roots.name(folder)) and not roots.name(folder).endswith(":."):
                folders.add(folder)
                folder = os.path.dirname(folder)
    return any(map(changed, files)), any(map(changed, folders))
