"""The known keys nearest to an unknown one, by their parameters. Standard library only."""

from __future__ import annotations

import difflib
import functools
import heapq
import math
import re
from collections.abc import Iterable

_COMPARED = 300  # characters; no key is longer
_SPELT = 20  # how many more have their spelling compared, which costs the product of the lengths
_NUMBERED = re.compile(r"([a-z_]+)m?(\d{1,11})")


def nearest(key: str, keys: Iterable[str], count: int = 3) -> list[str]:
    """Returns the `count` nearest of the known keys, the nearest first.

    Keys of the same family (else of a family named alike) and target come first; then those with
    the fewest different parameters; then those whose numbers differ by the least factors; then
    those that are spelt most alike.
    """
    family, target, tokens = _parts(key[:_COMPARED])
    numbers, words = _tokens(tokens)

    @functools.cache
    def unlikeness(other: str) -> float:
        if other == family:
            return 0.0
        return 1.0 - difflib.SequenceMatcher(None, family, other).ratio()

    def distance(other: str) -> tuple[float, bool, int, float]:
        its_family, its_target, its_tokens = _parts(other)
        its_numbers, its_words = _tokens(its_tokens)
        factors = [
            abs(math.log2((number + 1) / (its_numbers[name] + 1)))
            for name, number in numbers.items()
            if name in its_numbers
        ]
        # A word or a name that only one of them has stands for another one of the other's.
        more = len(words - its_words) + len(numbers.keys() - its_numbers.keys())
        fewer = len(its_words - words) + len(its_numbers.keys() - numbers.keys())
        differing = sum(factor > 0 for factor in factors) + max(more, fewer)
        return unlikeness(its_family), its_target != target, differing, sum(factors)

    def spelling(other: str) -> float:
        return -difflib.SequenceMatcher(None, tokens, _parts(other)[2]).ratio()

    few = heapq.nsmallest(count + _SPELT, keys, key=distance)
    return sorted(few, key=lambda other: (distance(other), spelling(other)))[:count]


def _parts(key: str) -> tuple[str, str, str]:
    """Returns a key's family, target and tokens; empty for missing parts."""
    family, _, rest = key.partition(".")
    target, _, tokens = rest.partition(".")
    return family, target, tokens


def _tokens(text: str) -> tuple[dict[str, int], set[str]]:
    """Returns a key's numbers by the names before them, and the other tokens."""
    numbers: dict[str, int] = {}
    words: set[str] = set()
    for token in text.split("-"):
        if match := _NUMBERED.fullmatch(token):
            numbers[match[1]] = int(match[2])
        else:
            words.add(token)
    return numbers, words
