"""Faults in a function's machine code: instructions that are wrong whatever the source is.

Unwritten: an instruction reads a register that no instruction on any way to it writes; or takes an
address, a descriptor or a condition from one that is not written on some way. Elsewhere a value may
be undefined on a way: a source leaves a variable undefined where it is not used, or a loop that
always runs writes it. A write under a predicate counts as one, so that no fault is invented. A
register that nothing has written may be copied or spilled, but what is copied is not written by
that: right code moves pairs whose one half means nothing, and variables before their first value.

In flight: an instruction overwrites the registers of an asynchronous product (wgmma) before a wait
for it, or reads its sums.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import operands
from .listing import Function, Instruction
from .operands import EVERY, GENERAL, UNIFORM, Effect, effect

_TARGET = re.compile(r"`\(([^)]*)\)")
_TARGETS = re.compile(r'BRANCH_TARGETS ([^"]*)')
_PREDICATE = re.compile(r"\bU?P\d")
_JUMPS = {"BRA", "JMP"}
_TABLES = {"BRX", "BRXU", "JMX", "JMXU"}  # jumps to where a register says
_ENDS = {"EXIT", "KILL", "RET"}
_TRANSFERS = {*_JUMPS, *_TABLES, *_ENDS, "CALL"}
_GROUPS = 8  # the products in flight that are told apart; older ones count as one


class Faults(NamedTuple):
    """Instructions of a function, each with what is wrong with it."""

    unwritten: list[str]
    in_flight: list[str]


class _Call(NamedTuple):
    callee: int | None  # a block; None if it is not in this section
    after: int


# The registers in flight: sums, and left operands.
_Group = tuple[int, int]
# Products since the last commit, then the groups that were committed, the newest first.
_InFlight = tuple[_Group, ...]


class _Moves(NamedTuple):
    """A block's effect on the set of written registers, copies followed."""

    writes: int
    copies: dict[int, int]  # registers, each with those of which one must be written before

    def after(self, before: int) -> int:
        after = before | self.writes
        for to, sources in self.copies.items():
            after = after | to if before & sources else after & ~to
        return after


class _Paths:
    """The control-flow graph of a function: blocks of instructions without a jump in between."""

    def __init__(self, function: Function) -> None:
        self.code = function.instructions
        self.effects = [effect(i.operation, i.operands) for i in self.code]
        self.guards = [operands.predicates(i.guard) for i in self.code]
        self._labels = function.labels
        names = [i.operation.partition(".")[0] for i in self.code]
        self.transfers = {at: name for at, name in enumerate(names) if name in _TRANSFERS}
        starts = {0, *function.labels.values(), *(at + 1 for at in self.transfers)}
        first = sorted(start for start in starts if start < len(self.code))
        self.blocks = [
            range(begin, end)
            for begin, end in zip(first, [*first[1:], len(self.code)], strict=True)
        ]
        self._block_at = {block.start: index for index, block in enumerate(self.blocks)}
        self.calls: dict[int, _Call] = {}
        self.returns: set[int] = set()
        self.successors = [self._successors(index) for index in range(len(self.blocks))]
        self._resolve_tables()
        self.writes: list[int] = []
        self.exposed: list[int] = []  # the registers that a block reads before it writes them
        for block in self.blocks:
            written = exposed = 0
            for at in block:
                exposed |= (self.effects[at].reads | self.guards[at]) & ~written
                written |= self.effects[at].writes
            self.writes.append(written)
            self.exposed.append(exposed)

    def _successors(self, index: int) -> list[int]:
        last = self.blocks[index][-1]
        name = self.transfers.get(last)
        following = [index + 1] if index + 1 < len(self.blocks) else []
        if name is None:
            return following
        instruction = self.code[last]
        targets = [
            self._block_at[at]
            for label in _TARGET.findall(instruction.operands)
            if (at := self._labels.get(label)) in self._block_at
        ]
        may_go_on = bool(instruction.guard) or bool(_PREDICATE.search(instruction.operands))
        onward = following if may_go_on or ".DIV" in instruction.operation else []
        if name == "CALL":
            if following:
                self.calls[index] = _Call(targets[0] if targets else None, following[0])
            return [*targets, *onward]
        if name == "RET":
            self.returns.add(index)
            return onward
        return [*targets, *onward] if name in _JUMPS else onward

    def _resolve_tables(self) -> None:
        """Adds the targets of jumps through tables: those that nvdisasm knows, else all blocks that
        nothing else leads to."""
        reached = {0, *(after for block in self.successors for after in block)}
        reached |= {call.after for call in self.calls.values()}
        unreached = [index for index in range(len(self.blocks)) if index not in reached]
        for index, block in enumerate(self.blocks):
            if self.transfers.get(block[-1]) in _TABLES:
                match = _TARGETS.search(self.code[block[-1]].operands)
                labels = (
                    (self._labels.get(name.strip()) for name in match[1].split(","))
                    if match
                    else ()
                )
                known = [self._block_at[at] for at in labels if at in self._block_at]
                self.successors[index] += known or unreached

    def written_on_all(self, before: int) -> dict[int, int]:
        """Returns what is written on all ways to each block that can be reached from the start,
        where `before` is written; what is copied counts as written."""
        return self._flow(0, before, int.__and__, {}, self._plain())

    def written_on_any(self, before: int) -> dict[int, int]:
        """Returns what is written on some way to each block that can be reached from the start,
        where `before` is written."""
        moves = [self.moves(block) for block in self.blocks]
        return self._flow(0, before, int.__or__, {}, moves)

    def _plain(self) -> list[_Moves]:
        return [_Moves(writes, {}) for writes in self.writes]

    def moves(self, block: range) -> _Moves:
        """Returns what the instructions of a block, or of a part of it, make of what is written."""
        writes, copies = 0, dict[int, int]()
        for at in block:
            own, guard = self.effects[at], self.guards[at]
            copied = {
                to: 0 if writes & source else copies.get(source, source)
                for to, source in own.copies
            }
            for to, sources in copied.items():
                if guard and sources:  # the copy may be left out
                    copied[to] = 0 if writes & to else sources | copies.get(to, to)
            for to in [to for to in copies if own.writes & to]:
                del copies[to]
            writes |= own.writes
            for to, sources in copied.items():
                if sources:
                    writes &= ~to
                    copies[to] = sources
        return _Moves(writes, copies)

    def _flow(
        self,
        start: int,
        before: int,
        join: Callable[[int, int], int],
        callees: dict[int, int | None],
        moves: list[_Moves],
    ) -> dict[int, int]:
        state = {start: before}
        work = [start]
        while work:
            index = work.pop()
            after = moves[index].after(state[index])
            ways = [(successor, after) for successor in self.successors[index]]
            if call := self.calls.get(index):
                by_callee = self._of_callee(call.callee, join, callees)
                if by_callee is not None:
                    ways.append((call.after, after | by_callee))
            for successor, value in ways:
                old = state.get(successor)
                new = value if old is None else join(old, value)
                if new != old:
                    state[successor] = new
                    work.append(successor)
        return state

    def _of_callee(
        self, callee: int | None, join: Callable[[int, int], int], callees: dict[int, int | None]
    ) -> int | None:
        """Returns what a called function writes until it returns; None if it does not."""
        if callee is None:
            return EVERY
        if callee not in callees:
            callees[callee] = EVERY  # a call within itself
            # A function may copy its arguments, and registers that it saves.
            state = self._flow(callee, 0, join, callees, self._plain())
            of_all: int | None = None
            for index in self.returns & state.keys():
                value = state[index] | self.writes[index]
                of_all = value if of_all is None else join(of_all, value)
            callees[callee] = of_all
        return callees[callee]


def of_function(function: Function) -> Faults:
    """Returns the faults of a function, in the order of its instructions."""
    if not function.instructions:
        return Faults([], [])
    paths = _Paths(function)
    return Faults(list(_unwritten(function, paths)), list(_in_flight(paths)))


def _unwritten(function: Function, paths: _Paths) -> Iterator[str]:
    # A device function gets arguments, and saves registers of those that call it.
    before = 0 if function.is_kernel else EVERY & ~UNIFORM
    on_all = paths.written_on_all(before)
    if not any(paths.exposed[block] & ~always for block, always in on_all.items()):
        return
    on_any = paths.written_on_any(before)
    for block in sorted(on_all):
        always, ever = on_all[block], on_any[block]
        if not paths.exposed[block] & ~(always & ever):
            continue
        for at in paths.blocks[block]:
            own, guard = paths.effects[at], paths.guards[at]
            reads = own.reads & ~own.moved | guard
            never = reads & ~ever
            decides = guard | own.addresses | (own.reads if at in paths.transfers else 0)
            if never:
                yield f"{operands.names(never)}: {paths.code[at]}"
            elif sometimes := decides & reads & ~always:
                yield f"{operands.names(sometimes)} on a path: {paths.code[at]}"
            always |= own.writes
            ever = paths.moves(range(at, at + 1)).after(ever)


def _in_flight(paths: _Paths) -> Iterator[str]:
    if not any(own.product for own in paths.effects):
        return
    state: dict[int, _InFlight] = {0: ()}
    found: dict[int, int] = {}
    work = [0]
    while work:
        block = work.pop()
        groups = state[block]
        for at in paths.blocks[block]:
            if touched := _touched(groups, paths.effects[at]):
                found[at] = found.get(at, 0) | touched
            groups = _after(groups, paths.code[at], paths.effects[at])
        call = paths.calls.get(block)
        for successor in [*paths.successors[block], *([call.after] if call else [])]:
            old = state.get(successor)
            new = groups if old is None else _joined(old, groups)
            if new != old:
                state[successor] = new
                work.append(successor)
    for at in sorted(found):
        yield f"{operands.names(found[at])}: {paths.code[at]}"


def _touched(groups: _InFlight, own: Effect) -> int:
    """Returns the registers in flight that an instruction must not touch."""
    touched = 0
    for sums, left in groups:
        if own.product:  # products into the same sums follow each other
            touched |= own.product & ~own.writes & sums | own.writes & left
        else:
            touched |= (own.reads | own.writes) & sums | own.writes & left
    return touched & GENERAL


def _after(groups: _InFlight, instruction: Instruction, own: Effect) -> _InFlight:
    """Returns what is in flight after an instruction."""
    if own.product:
        sums, left = groups[0] if groups else (0, 0)
        open_group = sums | own.writes & GENERAL, left | own.product & ~own.writes
        groups = (open_group, *groups[1:])
        if "gsb" in instruction.operands:
            groups = ((0, 0), *groups)
        if len(groups) > _GROUPS:
            groups = (*groups[: _GROUPS - 1], _united(groups[_GROUPS - 1], groups[_GROUPS]))
    elif instruction.operation.startswith("WARPGROUP.DEPBAR"):
        groups = groups[: 1 + int(instruction.operands.rpartition(", ")[2], 16)]
    return groups if any(sums or left for sums, left in groups) else ()


def _united(one: _Group, other: _Group) -> _Group:
    return one[0] | other[0], one[1] | other[1]


def _joined(one: _InFlight, other: _InFlight) -> _InFlight:
    short, long = sorted((one, other), key=len)
    return (*map(_united, short, long), *long[len(short) :])
