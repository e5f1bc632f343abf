"""The way from a set of configurations to rows: kernels are left out, built, checked and timed."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from codegen.core.packs import Pack
from codegen.core.problems import SpecError
from codegen.spec.load import load
from codegen.spec.model import Configuration, Family, Shape, Shapes, Target
from codegen.spec.source import Document
from codegen.spec.tuning import load_shapes
from runtime import BuildError, listing, manifest, ondemand, packs
from runtime.ondemand import kernels as on_demand
from runtime.ondemand.cache import content
from runtime.ondemand.specs import Source

from .. import problem
from ..cluster import check_ray, shipping
from ..cluster.errors import LostError
from ..cluster.node import Work
from . import rows
from .code import code_hash, offence, toolchain
from .elimination import Elimination, Result, Round
from .errors import CandidateError, InputsError, TuningError
from .executor import Built, Executor, Worker
from .journal import Journal
from .local import LocalExecutor
from .plan import ShapePlan, plan
from .t4 import Outcome

# The least rounds of each pass. A pass starts new processes: the first pass screens.
PASSES = (5, 10, 10, 20)
_MOST_LOSSES = 3  # workers lost while measuring one shape, or while starting at one place
_SHARE_OF_BUILDS = 0.6  # the share of the budget
_NONE_LEFT = "no kernel is left"
_NONE_SUITS = "no configuration has its parameters"


@dataclass(frozen=True)
class Options:
    """Options of a tuning; times are in seconds."""

    family: str
    target: str
    specs: str | None = None  # the folder that was loaded, if the family is in no pack
    set_name: str | None = None  # None: `tune`, else `default`
    where: str | None = None
    shapes: Path | None = None  # None: <target>.shapes.yaml beside the spec
    budget: float | None = None
    device: str | None = None  # None: the only kind
    ray: str | None = None  # the address of a cluster; None: this machine
    seconds: float = 0.3  # for each kernel in each pass
    patience: float = 60.0  # for one call of a kernel
    fresh: bool = False


@dataclass(frozen=True)
class Ranking:
    """The kernels that were timed on a shape, with their median seconds, the chosen one first; and
    the bytes of its tensors, if they are known."""

    shape: Shape
    kernels: list[tuple[str, float]]
    result: Result
    bytes_moved: int | None


@dataclass
class _Candidate:
    """A configuration that is built."""

    configuration: Configuration
    built: Built
    code: str
    toolchain: str
    invalidity: str | None = None  # rounds of all shapes
    reason: str = ""

    @property
    def key(self) -> str:
        return self.configuration.key

    @functools.cached_property
    def id(self) -> str:
        """Returns the candidate's name in the journal: its times are those of this machine code."""
        return hashlib.sha256(f"{self.key} {self.code}".encode()).hexdigest()[:12]


@dataclass
class _ShapeState:
    """A shape, its candidates, and their progress."""

    shape_plan: ShapePlan
    elimination: Elimination | None = None
    passes: dict[str, int] = field(default_factory=dict)  # by key: in how many it was timed
    processes: int = 0
    losses: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def shape(self) -> Shape:
        """Returns the shape that is measured."""
        return self.shape_plan.shape

    @functools.cached_property
    def id(self) -> str:
        """Returns the shape's name in the journal."""
        identity: list[Any] = [self.shape.parameters, self.shape.sizes, self.shape.scalars]
        if self.shape.given:
            identity.append(self.shape.given)
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]

    def waiting(self) -> list[str]:
        """Returns the candidates that are still to be timed against the best one."""
        if self.elimination is None:
            return []
        return [
            key
            for key in self.elimination.remaining
            if key != self.elimination.best and self.passes.get(key, 0) < len(PASSES)
        ]


class Tuner:
    """A tuning; `say` takes lines for people."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        """Reads the spec. Raises TuningError or SpecError."""
        self._options = options
        self._say = say
        self._begin = time.monotonic()
        source = ondemand.source_of(options.family)
        if source is None:
            raise TuningError(
                f"{packs.owner(options.family)} has no specs of {options.family} to build from"
            )
        (self._family,) = load([source.root], only=options.family)
        self._target = _target(self._family, options.target)
        self.out = source.folder / f"{options.target}.tuned.yaml"
        self._shapes = self._read_shapes(source.folder)
        self._executor = self._make_executor(source)
        self.device = self._executor.device
        name = hashlib.sha256(self.device.name.encode()).hexdigest()[:8]
        path = f"tune/{options.family}.{options.target}.{name}.jsonl"
        self.journal = Journal(on_demand.cache().folder / path, options.fresh)
        reference = manifest.family(options.family).reference or ""  # _read_shapes has looked
        # Results of checks apply to the reference that they were compared with.
        self._oracle = content(source.folder / reference.partition(":")[0])[:16]
        checked = self.journal.find("checked", oracle=self._oracle)
        self._checked = {(entry["id"], entry["shape"]) for entry in checked}
        self._candidates: dict[str, _Candidate] = {}
        self._unusable: set[str] = set()  # keys of kernels that do not compile, or that spill
        self._states: list[_ShapeState] = []
        self.unmeasured: list[dict[str, Any]] = []  # headings of earlier rows that are still good

    def _read_shapes(self, folder: Path) -> Shapes:
        path = self._options.shapes
        if path is not None:
            document = Document(path)
            shapes = load_shapes(document, self._family, self._target)
            if document.problems:
                raise SpecError(document.problems)
        else:
            shapes = self._target.shapes
        if shapes is None:
            raise TuningError(
                f"there is no {folder / self._options.target}.shapes.yaml, which lists the "
                "sizes to measure (docs/tuning.md), and --shapes names no other file"
            )
        for shape in shapes.shapes:
            family = manifest.family(self._family.name)
            problem.check(family, dict(shape.parameters), shape.given)
        return shapes

    def _make_executor(self, source: Source) -> Executor:
        options, target = self._options, self._target.name
        if options.ray is None:
            return LocalExecutor(
                options.family, target, options.specs, options.device, options.patience
            )
        check_ray(options.ray)
        from .cluster import RayExecutor

        sent = () if options.specs is None else (shipping.collect(source, self._family),)
        installed = (options.family,) if options.specs is None else ()
        work = Work.of_command(sent, installed, is_cuda=target != "cpu")
        return RayExecutor(
            options.ray, work, options.family, target, options.device, options.patience
        )

    def run(self) -> list[dict[str, Any]]:
        """Tunes; returns the rows. A shape for which the budget leaves no time has no row, or its
        row is called a tie."""
        options = self._options
        shape_plans, summary = plan(
            self._family, self._target, self._shapes, self.device, options.set_name, options.where
        )
        self._say(summary)
        self._states = [_ShapeState(shape_plan) for shape_plan in shape_plans]
        self._build()
        self._begin_elimination()
        for number in range(len(PASSES)):
            if not self._pass(number):
                break
        tuned_rows = list(self._rows())
        if count := sum(state.problem == _NONE_SUITS for state in self._states):
            self._say(f"{count} shapes: no row, {_NONE_SUITS}")
        return tuned_rows

    def _left(self, share: float = 1.0) -> float:
        if self._options.budget is None:
            return float("inf")
        return share * self._options.budget - (time.monotonic() - self._begin)

    def _build(self) -> None:
        # Incumbents come first, then each shape in turn: the budget may not be enough for all.
        incumbents = [c for state in self._states for c in state.shape_plan.incumbents]
        configurations = {
            c.key: c for state in self._states for c in state.shape_plan.configurations
        }
        in_turn = itertools.zip_longest(
            *(state.shape_plan.configurations for state in self._states)
        )
        order = (c for c in itertools.chain(incumbents, *in_turn) if c is not None)
        configurations = {c.key: c for c in order if c.key in configurations}
        waiting = dict.fromkeys(configurations)
        begin = time.monotonic()
        builds = self._executor.build(
            list(configurations), lambda: self._left(_SHARE_OF_BUILDS) > 0
        )
        for key, pack in builds:
            if isinstance(pack, LostError):
                self._lost(pack, key=key)
                continue
            del waiting[key]
            self._take(configurations[key], pack)
            done = len(configurations) - len(waiting)
            if done % self._executor.at_once == 0 or not waiting:
                left = _time_left(begin, done, len(configurations))
                self._say(f"built {done} of {len(configurations)} configurations{left}")
        if waiting:
            self._say(f"the budget leaves {len(waiting)} configurations out, not built")

    def _take(self, configuration: Configuration, pack: Pack | BuildError) -> None:
        """Makes a candidate of a built kernel."""
        family, key = self._family.name, configuration.key
        try:
            if isinstance(pack, BuildError):
                raise pack
            listing.add_single(key, pack)
        except BuildError as error:
            self._unusable.add(key)
            self._say(f"{key}: does not compile: {error}")
            return
        architecture = next(iter(pack.architectures), None)
        if reason := offence(pack, key, self._target.budget_on(architecture)):
            self._unusable.add(key)
            self._say(f"{key}: left out, {reason}")
            return
        built = Built(key, pack.folder)
        candidate = _Candidate(configuration, built, code_hash(pack, family), toolchain(pack))
        self._candidates[key] = candidate
        faults = [
            fault
            for fault in self.journal.find("fault", id=candidate.id, shape=None)
            if self._still_counts(fault)
        ]
        for fault in faults[-1:]:
            candidate.invalidity, candidate.reason = fault["invalidity"], fault["reason"]
            self._say(f"{key}: skipped, {candidate.reason} (found before; --fresh tries again)")

    def _still_counts(self, fault: Mapping[str, Any]) -> bool:
        """Returns whether a recorded failure still applies: a wrong result to the same reference, a
        hang to as much time."""
        if fault["invalidity"] == "correctness":
            return bool(fault.get("oracle") == self._oracle)
        if fault["invalidity"] == "timeout":
            return bool(fault.get("patience", 0.0) >= self._options.patience)
        return True

    def _begin_elimination(self) -> None:
        """Begins with the built kernels, and with the journal's rounds of this machine code."""
        for state in self._states:
            built = [
                c.key
                for c in state.shape_plan.configurations
                if c.key in self._candidates and self._candidates[c.key].invalidity is None
            ]
            by_id = {self._candidates[key].id: key for key in built}
            for fault in self.journal.find("fault", shape=state.id):
                if key := by_id.pop(fault["id"], None):
                    state.refused[key] = fault["invalidity"]
                    built.remove(key)
            if not built:
                if all(self._is_settled(c.key) for c in state.shape_plan.configurations):
                    state.problem = _NONE_LEFT if state.shape_plan.configurations else _NONE_SUITS
                continue
            rounds: list[Round] = []
            for entry in self.journal.find("rounds", shape=state.id):
                times = [{by_id[i]: s for i, s in r.items() if i in by_id} for r in entry["times"]]
                keys = dict.fromkeys(key for seconds in times for key in seconds)
                if not keys:
                    continue
                rounds += [Round(state.processes, seconds) for seconds in times if seconds]
                for key in keys:
                    state.passes[key] = state.passes.get(key, 0) + 1
                state.processes += 1
            # A candidate with times is the best to begin with; the incumbent, if it has times.
            incumbents = [c.key for c in state.shape_plan.incumbents if c.key in built]
            incumbent = (incumbents or built)[0]
            built.sort(key=lambda key: (key not in state.passes, key != incumbent))
            state.elimination = Elimination(built, incumbent)
            state.elimination.add(rounds)

    def _is_settled(self, key: str) -> bool:
        """Returns whether a kernel was built or ruled out within the budget."""
        return key in self._candidates or key in self._unusable

    def _pass(self, number: int) -> bool:
        """Times the open candidates in new processes; returns whether any was timed, and time is
        left."""
        waiting = collections.deque(
            state
            for state in self._states
            if state.elimination is not None
            and (state.waiting() or not state.processes or self._unchecked(state))
        )
        if not waiting:
            return False
        begin, total, done = time.monotonic(), len(waiting), itertools.count(1)
        failed: collections.Counter[str] = collections.Counter()  # starts, by place

        def work(place: str) -> None:
            try:
                worker = self._executor.worker(place)
            except LostError as error:
                self._lost(error)
                failed[place] += 1
                return
            try:
                while waiting and self._left() > 0:
                    try:
                        state = waiting.popleft()
                    except IndexError:  # another place was faster
                        return
                    try:
                        self._time(worker, place, state)
                    except LostError as error:
                        self._lost(error, state=state)
                        if state.elimination is not None:
                            waiting.append(state)
                        return
                    timed = next(done)
                    left = _time_left(begin, timed, total, " of this pass")
                    self._say(
                        f"pass {number + 1} of {len(PASSES)}: timed {timed} of {total} shapes{left}"
                    )
            finally:
                worker.stop()

        while waiting and self._left() > 0:
            places = [p for p in self._executor.places() if failed[p] < _MOST_LOSSES]
            if not places:
                raise TuningError(
                    f"no worker starts, after {_MOST_LOSSES} attempts on each of: "
                    f"{', '.join(failed)}; all results are in the journal: the same command "
                    "goes on from there"
                )
            with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
                list(pool.map(work, places[: len(waiting)]))
        if self._left() <= 0:
            self._say("the budget is spent: an open comparison is called a tie, or has no row")
            return False
        return True

    def _lost(
        self, error: LostError, key: str | None = None, state: _ShapeState | None = None
    ) -> None:
        """Records that a process or a machine is gone. Its work is done again, up to a limit."""
        self._say(str(error))
        self.journal.add(
            "lost", place=error.place, reason=error.reason, time=time.time(), key=key,
            shape=None if state is None else state.id,
        )  # fmt: skip
        if state is not None:
            state.losses += 1
            if state.losses >= _MOST_LOSSES:
                state.problem, state.elimination = f"{_MOST_LOSSES} times lost: {error}", None

    def _time(self, worker: Worker, place: str, state: _ShapeState) -> None:
        seed = random.SystemRandom().randrange(2**31)
        try:
            elimination = state.elimination
            assert elimination is not None
            while True:
                self._check(worker, place, state, seed)
                if not elimination.remaining:
                    state.problem = _NONE_LEFT
                    return
                keys = [elimination.best, *state.waiting()]
                if self._left() <= 0 or (len(keys) == 1 and state.processes):
                    return  # the journal has its times
                least = PASSES[min(state.passes.get(key, 0) for key in keys[1:] or keys)]
                try:
                    timed = worker.rounds(
                        [self._candidates[key].built for key in keys],
                        *(state.shape, seed, least, self._options.seconds),
                    )
                except CandidateError as error:
                    self._fault(state, error)
                    continue  # the candidates that it eliminated are back, and may be unchecked
                named = [{self._candidates[k].id: s for k, s in r.items()} for r in timed.rounds]
                self.journal.add(
                    "rounds", shape=state.id, seed=seed, place=place, time=time.time(),
                    clocks={name: asdict(spread) for name, spread in timed.clocks.items()},
                    times=named,
                )  # fmt: skip
                for key in keys:
                    state.passes[key] = state.passes.get(key, 0) + 1
                elimination.add(Round(state.processes, seconds) for seconds in timed.rounds)
                state.processes += 1
                return
        except InputsError as error:
            state.problem, state.elimination = str(error), None
            self._say(f"{_shown(state.shape)}: {error}")

    def _check(self, worker: Worker, place: str, state: _ShapeState, seed: int) -> None:
        """Compares kernels with the oracle that were not compared on this shape, while there is
        time."""
        while (unchecked := self._unchecked(state)) and self._left() > 0:
            key, *_ = unchecked
            candidate = self._candidates[key]
            try:
                worker.check(candidate.built, state.shape, seed)
            except CandidateError as error:
                self._fault(state, error)
            else:
                self._checked.add((candidate.id, state.id))
                self.journal.add(
                    "checked", id=candidate.id, key=key, shape=state.id, seed=seed, place=place,
                    oracle=self._oracle,
                )  # fmt: skip

    def _unchecked(self, state: _ShapeState) -> list[str]:
        """Returns the candidates that were not compared with the oracle on a shape."""
        return [
            key
            for key in (state.elimination.remaining if state.elimination else ())
            if (self._candidates[key].id, state.id) not in self._checked
        ]

    def _fault(self, state: _ShapeState, error: CandidateError) -> None:
        """Records why a kernel is no longer used: on this shape if the kernel refuses it, else on
        all."""
        candidate, everywhere = self._candidates[error.key], error.kind != "constraints"
        self._say(f"{error} ({_shown(state.shape)})")
        self.journal.add(
            "fault", id=candidate.id, key=error.key, shape=None if everywhere else state.id,
            invalidity=error.kind, reason=error.reason, oracle=self._oracle,
            patience=self._options.patience,
        )  # fmt: skip
        if everywhere:
            candidate.invalidity, candidate.reason = error.kind, error.reason
        else:
            state.refused[error.key] = error.kind
        for other in self._states if everywhere else [state]:
            if other.elimination is not None:
                other.elimination.remove(error.key)

    def _rows(self) -> Iterator[dict[str, Any]]:
        codes = {key: candidate.code for key, candidate in self._candidates.items()}
        for state in self._states:
            result = self._result(state)
            if result is None:
                if state.problem != _NONE_LEFT:
                    self.unmeasured.append(rows.heading(self.device.name, state.shape))
                if state.problem != _NONE_SUITS:
                    why = state.problem or "the budget left no time for it"
                    self._say(f"{_shown(state.shape)}: no row, {why}")
                continue
            made_by = self._candidates[result.winner].toolchain
            yield rows.row(self.device.name, state.shape, result, codes, made_by)

    def _result(self, state: _ShapeState) -> Result | None:
        """Returns a shape's result; None without a time, or without a kernel known to be right."""
        if state.elimination is None or not state.elimination.remaining or not state.processes:
            return None
        result = state.elimination.result()
        is_right = (self._candidates[result.winner].id, state.id) in self._checked
        return result if is_right else None

    def rankings(self) -> Iterator[Ranking]:
        """Yields the speed of the kernels, for each shape that has a row."""
        family = manifest.family(self._family.name)
        for state in self._states:
            if (result := self._result(state)) is not None:
                assert state.elimination is not None
                moved = problem.bytes_moved(family, state.shape)
                yield Ranking(state.shape, state.elimination.ranking(), result, moved)

    def outcomes(self) -> Iterator[Outcome]:
        """Yields the outcome of each configuration on each shape that it suits, for T4."""
        for state in self._states:
            times: dict[str, list[float]] = {}
            for entry in self.journal.find("rounds", shape=state.id):
                for seconds in entry["times"]:
                    for identity, value in seconds.items():
                        times.setdefault(identity, []).append(value)
            call = state.shape.call
            for c in state.shape_plan.costly:
                yield Outcome(c.parameters, call, "constraints")
            for c in state.shape_plan.configurations:
                candidate = self._candidates.get(c.key)
                invalidity, taken = "compile" if c.key in self._unusable else None, []
                if candidate is not None:
                    invalidity = candidate.invalidity or state.refused.get(c.key)
                    taken = [] if invalidity else times.get(candidate.id, [])
                if invalidity or taken:  # else the budget left no time for it
                    yield Outcome(c.parameters, call, invalidity or "correct", taken)


def _time_left(begin: float, done: int, total: int, of: str = "") -> str:
    """Returns the time that the remaining kernels will take, at the pace of the finished ones."""
    if done == total:
        return ""
    minutes, seconds = divmod(round((time.monotonic() - begin) / done * (total - done)), 60)
    return f", {minutes}:{seconds:02} left{of}"


def _target(family: Family, name: str) -> Target:
    for target in family.targets:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in family.targets)
    raise TuningError(f"{family.name} has no target {name} (known: {names})")


def _shown(shape: Shape) -> str:
    return ", ".join(f"{name} {value}" for name, value in shape.call.items())
