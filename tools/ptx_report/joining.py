"""Pairs of the kernels of two reports: by name, and by another name if a kernel was renamed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from codegen.core.ptxas_rows import Row

Pair = tuple[Row | None, Row | None]

_TOKEN = re.compile(r"\w+|[^\s\w]")
_TAG = re.compile(r"[a-z]*")  # letters that begin a key's token: d64 is a value of the parameter d
_MOST = 10_000  # pairs of one function's instantiations that are tried

# Differences between rows of one name, the most telling first.
_TELLING: tuple[Callable[[Row], Hashable], ...] = (
    lambda row: (row.symbol, row.toolchain, row.source),
    lambda row: (row.symbol, row.toolchain),
    lambda row: row.symbol,
    lambda row: tuple(row.arguments),
    lambda row: None,
)


def pairs(old: Iterable[Row], new: Iterable[Row]) -> list[Pair]:
    """Returns every row of either report, with its like in the other one.

    Rows meet by key and function, or by their demangled name, and by architecture: a kernel of a
    log is that of an object. Of rows with one name, those with one symbol meet, then those with the
    same template arguments, then the others in the order of their objects. What is left meets under
    another name if only one can be meant (`_renamed`).
    """
    before, after = _grouped(old), _grouped(new)
    found: list[Pair] = []
    gone: list[Row] = []
    added: list[Row] = []
    for name in {**before, **after}:
        olds, news = before.get(name, []), after.get(name, [])
        for telling in _TELLING:
            if not (olds and news):
                break
            matched, olds, news = _matched(olds, news, telling)
            found += matched
        gone += olds
        added += news
    if gone and added:
        matched, gone, added = _renamed(gone, added, [o.kernel_config for o, _ in found if o])
        found += matched
    return [*found, *((row, None) for row in gone), *((None, row) for row in added)]


def group(row: Row) -> tuple[str, str]:
    """Returns the architecture and the kind, which two rows that meet have in common."""
    return row.arch or "", "kernel" if row.kind == "object" else row.kind


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[(row.kernel_config, row.kernel if row.key else "", *group(row))].append(row)
    for same in groups.values():
        if len(same) > 1:
            same.sort(key=lambda row: (row.source or "", row.arguments))
    return groups


def _matched(
    olds: Sequence[Row], news: Sequence[Row], telling: Callable[[Row], Hashable]
) -> tuple[list[Pair], list[Row], list[Row]]:
    """Returns the pairs that have the same, in order, and the rows left of both."""
    waiting: dict[Hashable, list[Row]] = defaultdict(list)
    for row in reversed(news):
        waiting[telling(row)].append(row)
    found: list[Pair] = []
    left = []
    for row in olds:
        if same := waiting[telling(row)]:
            found.append((row, same.pop()))
        else:
            left.append(row)
    rest = [row for rows in waiting.values() for row in reversed(rows)]
    return found, left, rest


def _renamed(
    gone: Sequence[Row], added: Sequence[Row], stayed: Sequence[str]
) -> tuple[list[Pair], list[Row], list[Row]]:
    """Returns pairs of kernels whose names changed, and the rows left of both.

    Either types or namespaces have other names, which no other kernel has or had; or an argument
    was added to, or taken from, all instantiations of a function, or a parameter to all keys of a
    target.
    """
    tokens = {row.kernel_config: _tokens(row.kernel_config) for row in (*gone, *added)}
    kept = {token for name in stayed for token in _tokens(name)}
    before, after = (
        {t for row in rows for t in tokens[row.kernel_config]} for rows in (gone, added)
    )
    changed = {token for token in (before ^ after) - kept if not token[0].isdigit()}
    meaning: dict[str, str] = {}  # tokens of the old names, to those of the new

    def shape(row: Row) -> Hashable:
        name = row.kernel_config
        own = _tokens(_function(name))[-1:]  # the function's own name stays
        return group(row), own, tuple("" if t in changed else t for t in tokens[name])

    def translated(row: Row) -> Hashable:
        return group(row), tuple(meaning.get(t, t) for t in tokens[row.kernel_config])

    found: list[Pair] = []
    for telling in (shape, translated):
        for old, new in list(_unique(_foreign(gone), _foreign(added), telling)):
            both = zip(tokens[old.kernel_config], tokens[new.kernel_config], strict=True)
            meaning.update((one, other) for one, other in both if one != other)
            found.append((old, new))
        gone, added = _without(gone, found), _without(added, found)
    functions = {_function(name) for name in stayed}
    theirs = _by_function(added)
    for (function, kind), mine in _by_function(gone).items():
        news = theirs.get((function, kind), [])
        is_partial = mine[0].key is None and function in functions
        if not is_partial and len(mine) * len(news) <= _MOST:
            found += _longer(mine, news, tokens, stayed)
    return found, _without(gone, found), _without(added, found)


def _tokens(name: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(name))


def _foreign(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.key is None]


def _without(rows: Iterable[Row], found: Iterable[Pair]) -> list[Row]:
    taken = {id(row) for pair in found for row in pair}
    return [row for row in rows if id(row) not in taken]


def _unique(
    olds: Iterable[Row], news: Iterable[Row], telling: Callable[[Row], Hashable]
) -> Iterator[tuple[Row, Row]]:
    """Yields the pairs that have the same, if no others have it."""
    before: dict[Hashable, list[Row]] = defaultdict(list)
    after: dict[Hashable, list[Row]] = defaultdict(list)
    for rows, groups in ((olds, before), (news, after)):
        for row in rows:
            groups[telling(row)].append(row)
    for what, rows in before.items():
        if len(rows) == 1 == len(after.get(what, ())):
            yield rows[0], after[what][0]


def _function(name: str) -> str:
    """Returns a demangled name without its arguments; a key's family and target."""
    is_spelt = "(" in name or "<" in name
    return re.split(r"[<(]", name, maxsplit=1)[0] if is_spelt else name.rpartition(".")[0]


def _by_function(rows: Iterable[Row]) -> dict[tuple[str, tuple[str, str]], list[Row]]:
    groups: dict[tuple[str, tuple[str, str]], list[Row]] = defaultdict(list)
    for row in rows:
        groups[_function(row.kernel_config), group(row)].append(row)
    return groups


def _longer(
    olds: Sequence[Row],
    news: Sequence[Row],
    tokens: Mapping[str, Sequence[str]],
    stayed: Sequence[str],
) -> list[Pair]:
    """Returns the pairs of which one has the other's tokens and more, if each has no other such."""
    candidates: list[tuple[Row, Row]] = []
    known = [_tags(stayed, rows, tokens) for rows in (olds, news)]
    for old in olds:
        for new in news:
            one, other = tokens[old.kernel_config], tokens[new.kernel_config]
            short, long = sorted((one, other), key=len)
            if len(short) == len(long) or not _is_within(short, long):
                continue
            # A parameter that other keys have is not new: it is another configuration.
            more = {_tag(t) for t in Counter(long) - Counter(short) if t != "-"}
            if old.key is None or not more & known[short is other]:
                candidates.append((old, new))
    times = Counter(id(row) for pair in candidates for row in pair)
    return [pair for pair in candidates if all(times[id(row)] == 1 for row in pair)]


def _tags(
    stayed: Iterable[str], rows: Iterable[Row], tokens: Mapping[str, Sequence[str]]
) -> set[str]:
    names = [*map(_tokens, stayed), *(tokens[row.kernel_config] for row in rows)]
    return {_tag(token) for name in names for token in name}


def _tag(token: str) -> str:
    match = _TAG.match(token)
    return match[0] if match else ""


def _is_within(short: Sequence[str], long: Sequence[str]) -> bool:
    rest = iter(long)
    return all(token in rest for token in short)
