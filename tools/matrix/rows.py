"""The rows of the matrix: a line for each kind, with its versions and its check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import compilers, manylinux, pythons, toolkits
from .results import Outcome
from .work import Work


class Kind(NamedTuple):
    """Rows that one check checks."""

    versions: Sequence[str]
    check: Callable[[str, Work], Outcome]


KINDS = {
    "python": Kind(
        ("3.10", "3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t"), pythons.check_python
    ),
    "torch": Kind([f"2.{minor}" for minor in range(4, 16)], pythons.check_torch),
    "gcc": Kind(("11", "12", "13", "14"), compilers.check_gcc),
    "clang": Kind(("14", "15", "16", "17", "18", "19"), compilers.check_clang),
    "aarch64": Kind(("g++",), compilers.check_aarch64),
    "nvcc": Kind(("12", *(f"13.{minor}" for minor in range(6))), toolkits.check_nvcc),
    "manylinux": Kind(("2_28",), manylinux.check_manylinux),
}
NAMES = [f"{kind}:{version}" for kind, (versions, _) in KINDS.items() for version in versions]


def chosen(words: Sequence[str]) -> list[str]:
    """Returns the names of the rows that words name: all of a kind by `torch`, one by `torch:2.4`;
    all rows without words. Raises ValueError for a word that names no row."""
    for word in words:
        if word not in KINDS and word not in NAMES:
            raise ValueError(f"{word}: no such row; there are {', '.join(NAMES)}")
    return [n for n in NAMES if not words or n in words or n.partition(":")[0] in words]


def check(name: str, work: Work) -> Outcome:
    """Runs a row's check. Raises AbsentError, FailedError."""
    kind, _, version = name.partition(":")
    return KINDS[kind].check(version, work)
