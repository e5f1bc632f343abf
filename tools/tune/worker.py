"""The process that calls the kernels which are tuned: it may hang or crash, and is replaced then.

It takes requests over a pipe, and names each kernel before it calls it, so that the kernel that
killed it is known.
"""

from __future__ import annotations

import functools
import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import runtime
from codegen.core import packs
from codegen.core.packs import PackError
from codegen.spec.model import Shape
from runtime import InvalidArgument, Kernel, listing

from ..bench.clocks import Watch
from ..bench.measure import one_round, timer
from ..cluster.errors import LostError
from ..families import specs
from ..problem import NoProblemError, Problem, make
from ..process import NoAnswerError, Process
from .errors import CandidateError, InputsError
from .executor import Built, Timed

_INPUTS = "inputs"  # the turn while inputs and their right results are made
_OF_INPUTS = 10  # times as much patience: a reference computes in fp64, and for people to read
_PACK = "pack"  # the failure of a kernel whose pack cannot be used


@dataclass(frozen=True)
class Setup:
    """The family that a worker works on, and its device."""

    family: str
    specs: str | None  # the folder that was loaded, if the family is in no pack
    device: str  # "cpu", "cuda:1"


class ProcessWorker:
    """A Worker in a process, from the near side of the pipe."""

    def __init__(self, setup: Setup, patience: float) -> None:
        """Waits for answers for `patience` seconds from the time that a kernel's turn begins, and
        ten times as long for inputs and right results."""
        self._setup = setup
        self._patience = patience
        self._process = Process(serve, setup)

    def check(self, kernel: Built, shape: Shape, seed: int) -> None:
        """Calls a kernel once on random inputs; raises CandidateError if it is not right."""
        self._ask("check", kernel, shape, seed)

    def rounds(
        self, kernels: Sequence[Built], shape: Shape, seed: int, least: int, seconds: float
    ) -> Timed:
        """Times kernels in turns, as Worker says."""
        timed: Timed = self._ask("rounds", tuple(kernels), shape, seed, least, seconds)
        return timed

    def stop(self) -> None:
        """Ends the process."""
        self._process.stop()

    def _ask(self, *request: Any) -> Any:
        turn = None  # the turn's owner: a kernel's key, the inputs, or None
        try:
            self._process.send(request)
            while True:
                times = _OF_INPUTS if turn == _INPUTS else 1
                word, *rest = self._process.receive(times * self._patience)
                if word == "turn":
                    (turn,) = rest
                elif word == "done":
                    return rest[0]
                else:
                    kind, reason, is_broken = rest
                    if is_broken:
                        self.stop()
                    raise self._blame(turn, kind, reason)
        except NoAnswerError as error:
            kind = "timeout" if error.timed_out else "runtime"
            raise self._blame(turn, kind, str(error)) from None

    def _blame(self, turn: str | None, kind: str, reason: str) -> Exception:
        """Returns the error of a failure, by whose turn it was."""
        if turn is None or kind == _PACK:
            return LostError(self._setup.device, reason)
        if turn == _INPUTS:
            return InputsError(f"the inputs: {reason}")
        if kind == _INPUTS:  # the inputs leave a kernel too little memory
            return InputsError(f"{turn}: {reason}")
        return CandidateError(turn, kind, reason)


def serve(pipe: Connection, setup: Setup) -> None:
    """Runs in the process: answers until the pipe is closed."""
    if setup.specs is not None:
        runtime.load(setup.specs)
    service = _Service(setup, pipe)
    pipe.send(("ready",))
    while True:
        request = pipe.recv()
        try:
            pipe.send(("done", service.answer(*request)))
        except InvalidArgument as error:
            pipe.send(("failed", "constraints", str(error), False))
        except (InputsError, torch.OutOfMemoryError) as error:
            pipe.send(("failed", _INPUTS, str(error), True))
        except _WrongError as error:
            pipe.send(("failed", "correctness", str(error), False))
        except PackError as error:
            pipe.send(("failed", _PACK, str(error), True))
        except Exception as error:  # an error of CUDA, which stays in its process, for one
            pipe.send(("failed", "runtime", f"{type(error).__name__}: {error}", True))


class _WrongError(Exception):
    pass


class _Service:
    def __init__(self, setup: Setup, pipe: Connection) -> None:
        self._setup = setup
        self._pipe = pipe
        self._device = torch.device(setup.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._kernels: dict[str, Kernel] = {}
        self._problem: tuple[Shape, int, Problem] | None = None
        self._timer = timer(self._device)

    def answer(self, what: str, *request: Any) -> Any:
        """Answers a request."""
        return self._check(*request) if what == "check" else self._rounds(*request)

    def _check(self, built: Built, shape: Shape, seed: int) -> None:
        problem = self._problem_of(shape, seed, solved=True)

        def call(**arguments: Any) -> None:
            self._pipe.send(("turn", built.key))
            self._kernel(built)(**arguments)
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            self._pipe.send(("turn", _INPUTS))  # a family's own rule may compute the right results

        wrong = [difference for difference in problem.check(call) if not difference.passed]
        self._pipe.send(("turn", built.key))
        for difference in wrong:
            count = f"{difference.beyond} of {difference.compared} elements are wrong"
            raise _WrongError(f"{count}: {difference} (seed {seed})")

    def _rounds(
        self, kernels: Sequence[Built], shape: Shape, seed: int, least: int, seconds: float
    ) -> Timed:
        keys = [built.key for built in kernels]
        problem = self._problem_of(shape, seed)
        arguments = problem.arguments(problem.outputs())
        calls: dict[str, Callable[[], Any]] = {}
        for built in kernels:
            self._pipe.send(("turn", built.key))
            calls[built.key] = functools.partial(self._kernel(built), **arguments)
            self._timer(calls[built.key])  # to warm up

        def turn(key: str) -> float:
            self._pipe.send(("turn", key))
            return self._timer(calls[key])

        rounds: list[dict[str, float]] = []
        order = random.Random(seed)
        end = time.monotonic() + seconds * len(keys)
        with Watch(self._device) as watch:
            while len(rounds) < least or (time.monotonic() < end and len(rounds) < 10 * least):
                rounds.append(one_round(keys, turn, order))
        return Timed(rounds, watch.spreads())

    def _kernel(self, built: Built) -> Kernel:
        """Returns the kernel that was built, even if an installed pack has the same key."""
        if built.key not in self._kernels:
            listing.add_single(built.key, packs.read(built.folder))
            self._kernels[built.key] = runtime.kernel(built.key)
        return self._kernels[built.key]

    def _problem_of(self, shape: Shape, seed: int, solved: bool = False) -> Problem:
        """Returns the inputs; with `solved`, also the expected results.

        Raises InputsError, whatever the family's own Python raises.
        """
        kept = self._problem
        self._problem = None  # before the next one takes memory
        try:
            self._pipe.send(("turn", _INPUTS))
            if kept is None or kept[:2] != (shape, seed):
                kept = None
                kept = shape, seed, make(self._setup.family, shape, self._device, seed)
            if solved:
                kept[2].prepare()
        except NoProblemError as error:
            raise InputsError(str(error)) from None
        except Exception as error:  # an error of the family's own functions, or of PyTorch
            raise InputsError(_with_place(error, specs(self._setup.family))) from None
        self._problem = kept
        return kept[2]


def _with_place(error: Exception, folder: Path) -> str:
    """Returns an error with its place: the innermost one among the files of a folder."""
    places = [
        f"{frame.filename}:{frame.lineno}: "
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
    ]
    return f"{''.join(places[-1:])}{type(error).__name__}: {error}"
