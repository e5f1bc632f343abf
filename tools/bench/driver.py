"""The driver: a family's contenders are held to its reference, and measured in turns."""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from rich.console import Console

from codegen.core.words import did_you_mean
from runtime import KernelInfo, manifest

from .. import problem as checked
from ..families import hook
from ..listing import print_table
from ..problem import Case, cases_of, compiled_sizes, of_case, single
from . import results
from .hooks import Contender, Inputs, Problem, Results, difference, tensors
from .measure import Call, captured, measure

KERNELS = "kernels"  # the contender's name that stands for each kernel


def contenders_of(
    family: str, names: Sequence[str], device: torch.device
) -> tuple[dict[str, Contender | None], dict[str, str]]:
    """Returns the contenders that can run on a device, all or those of some names, and why the
    others cannot. The kernels, whose contender is None, come last.

    Raises ValueError if a name is unknown.
    """
    contenders: dict[str, Contender | None] = {**hook(family, "contenders", {}), KERNELS: None}
    for name in names:
        if name not in contenders:
            raise ValueError(
                f"--contender: got {name!r}{did_you_mean(name, contenders)}, expected some of: "
                + ", ".join(contenders)
            )
    contenders = {
        name: contender for name, contender in contenders.items() if not names or name in names
    }
    absent = {
        name: why
        for name, contender in contenders.items()
        if contender and (why := contender.absent(device))
    }
    return {name: contender for name, contender in contenders.items() if name not in absent}, absent


def problems_of(
    family: str,
    kernels: Sequence[KernelInfo],
    device: torch.device,
    values: Sequence[Mapping[str, tuple[Any, ...]]],
) -> list[Problem]:
    """Returns the cells of a family that some kernel suits: the usual ones, or those with each of
    some values.

    Raises ValueError if the family has no such value.
    """
    make = hook(family, "problems", partial(_moved, family))
    parameters = inspect.signature(make).parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    problems: dict[Any, Problem] = {}
    for each in values or ({},):
        if named and (unknown := each.keys() - named):
            raise ValueError(
                f"--case: got {', '.join(unknown)}, expected some of {', '.join(sorted(named))}"
            )
        cells = make(kernels, device, **each)
        problems |= {(p.group, p.size): p for p in cells if any(map(p.suits, kernels))}
    return list(problems.values())


@dataclass(frozen=True)
class Driver:
    """The choices of a run, for all its problems.

    Attributes:
        reference: what the family computes; None if that is unknown.
        changed: the inputs that kernels change.
        device: where calls run.
        contenders: those that can run there, by name; the kernels' is None.
        seconds: the time for each figure.
        clock: of a CPU.
        host: whether the host's time is measured instead of the device's.
    """

    reference: Callable[..., Any] | None
    changed: Sequence[str]
    device: torch.device
    contenders: Mapping[str, Contender | None]
    seconds: float
    clock: Callable[[], float]
    host: bool = False

    def measured(
        self, problem: Problem, kernels: Sequence[KernelInfo]
    ) -> tuple[list[results.Row], list[results.Remark]]:
        """Returns the rows of a problem. A contender whose results are not the reference's, or that
        raises something, is not measured, but remarked on."""
        inputs = problem.inputs(self.device)
        judge = problem.judge(inputs, self.reference)
        calls: dict[str, Call] = {}
        ours: dict[str, str] = {}
        remarks: list[results.Remark] = []
        for name, part in self._taking_part(problem, kernels, inputs).items():
            own = part.judge(problem, inputs) if part.judge else judge
            call = self._checked(name, part, problem, inputs, own)
            if isinstance(call, results.Remark):
                remarks.append(call)
                continue
            if problem.graphs and self.device.type == "cuda" and not self.host:
                replay = captured(call)
                if isinstance(replay, str):
                    text = f"launched without a CUDA graph: {replay}"
                    remarks.append(results.Remark(name, problem, text))
                else:
                    call = replay
            calls[name] = call
            if part.kernel is not None:
                ours[name] = part.kernel(problem, inputs)
        if not calls:
            return [], remarks
        taken = measure(calls, self.device, self.seconds, self.clock, self.host)
        return results.rows_of(problem, taken, ours, problem.notes(self.device)), remarks

    def _taking_part(
        self, problem: Problem, kernels: Sequence[KernelInfo], inputs: Inputs
    ) -> dict[str, Contender]:
        """Returns the contenders, and in place of all kernels those that suit, by their keys."""
        contenders = {name: one for name, one in self.contenders.items() if one is not None}
        if KERNELS in self.contenders and problem.by_key:
            contenders |= {info.key: _of_key(info) for info in filter(problem.suits, kernels)}
        return contenders

    def _checked(
        self,
        name: str,
        contender: Contender,
        problem: Problem,
        inputs: Inputs,
        judge: Callable[[Results], str | None],
    ) -> Call | results.Remark:
        """Returns a contender's call, whose results are right, or what to say instead. The inputs
        that kernels change are as before afterwards."""
        changed = single(inputs, [name for name in self.changed if name in inputs])
        before = {name: tensor.clone() for name, tensor in changed.items()}
        try:
            call = contender.make(problem, inputs)
            if isinstance(call, str):
                return results.Remark(name, problem, call)
            why = judge((*tensors(call()), *changed.values()))
        except Exception as error:  # a contender is others' code: what it raises is its reason
            text = textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder=" ...")
            return results.Remark(name, problem, text, wrong=contender.kernel is not None)
        finally:
            for changed_name, tensor in before.items():
                changed[changed_name].copy_(tensor)
        return call if why is None else results.Remark(name, problem, why, wrong=True)


@dataclass(frozen=True)
class _Cell(Problem):
    """Calls whose results are those of the first one."""

    unit: ClassVar[str] = "s"

    group: str
    size: str
    calls: Mapping[str, Call]

    def inputs(self, device: torch.device) -> Inputs:
        """Returns nothing: calls have their inputs."""
        return {}

    def judge(
        self, inputs: Inputs, reference: Callable[..., Any] | None
    ) -> Callable[[Results], str | None]:
        """Returns what compares results with the first call's."""
        expected = [t.clone() for t in tensors(next(iter(self.calls.values()))())]
        return lambda results: difference(results, expected)


class _ReplayedCell(_Cell):
    graphs = True


def print_times(
    title: str,
    cells: Iterable[tuple[str, Mapping[str, Call]]],
    device: torch.device,
    *,
    seconds: float = 0.1,
    host: bool = False,
    graphs: bool = False,
) -> bool:
    """Measures the calls of each cell in turns, prints a table, and returns whether results agree.

    Args:
        title: the table's.
        cells: the head of each column, and the calls by name; the first is ours, with whose
            results the others' are compared.
        device: where the calls run.
        seconds: the time for each figure.
        host: whether the host's time is measured, of calls that wait for nothing.
        graphs: whether calls on a GPU are replayed from CUDA graphs.
    """
    rows: list[results.Row] = []
    remarks: list[results.Remark] = []
    for size, calls in cells:
        contenders = {name: _of_call(call) for name, call in calls.items()}
        ours = next(iter(calls))
        contenders[ours] = replace(contenders[ours], kernel=lambda problem, inputs: "")
        driver = Driver(None, (), device, contenders, seconds, time.perf_counter, host)
        problem = (_ReplayedCell if graphs else _Cell)(title, size, calls)
        of_cell = driver.measured(problem, ())
        rows += of_cell[0]
        remarks += of_cell[1]
    console = Console(width=None if sys.stdout.isatty() else 250)
    if rows:
        print_table(console, results.table(rows, "us" if host else "ms", remarks))
    results.print_remarks(console, remarks)
    return not any(remark.wrong for remark in remarks)


def _of_call(call: Call) -> Contender:
    return Contender(lambda problem, inputs: call)


def _of_key(info: KernelInfo) -> Contender:
    return Contender(
        lambda problem, inputs: problem.call(info, inputs), kernel=lambda problem, inputs: info.key
    )


@dataclass(frozen=True, eq=False)
class _Moved(Problem):
    """A call of one size, by the memory that it must move, for a family without problems."""

    unit: ClassVar[str] = "B/s"
    axis: ClassVar[str] = "bytes"

    kernel: KernelInfo  # one of those that compute the same
    case: Case

    @property
    def group(self) -> str:
        """Returns the family's parameters."""
        return ", ".join(f"{n} {v}" for n, v in self._shared.items()) or self.kernel.family

    @property
    def size(self) -> str:
        """Returns the sizes of the symbols."""
        return ", ".join(f"{name} {size}" for name, size in self.case.sizes.items())

    @functools.cached_property
    def operations(self) -> float:
        """Counts the bytes of inputs and outputs."""
        call = _made(self)
        tensors = single(call.tensors, call.tensors).values()
        return sum(tensor.nbytes for tensor in (*tensors, *call.outputs()))

    @property
    def _shared(self) -> dict[str, Any]:
        parameters = manifest.family(self.kernel.family).parameters
        return {p.name: self.kernel.parameters[p.name] for p in parameters}

    def as_columns(self) -> dict[str, Any]:
        """Returns parameters and sizes."""
        return {**self._shared, **self.case.sizes}

    def suits(self, info: KernelInfo) -> bool:
        """Says whether a kernel has these parameters, and is compiled for no other size."""
        sizes = compiled_sizes(info)
        return {**sizes, **self.case.sizes} == {**self.case.sizes, **sizes} and super().suits(info)

    def inputs(self, device: torch.device) -> Inputs:
        """Returns the inputs that tuning takes too."""
        call = _made(self)
        return {**call.tensors, **call.scalars}

    def judge(
        self, inputs: Inputs, reference: Callable[..., Any] | None
    ) -> Callable[[Results], str | None]:
        """Returns what compares results as sanity-check does."""
        if reference is None:
            return lambda results: None
        call = _made(self)
        call.prepare()

        def differing(results: Results) -> str | None:
            failed = (
                d for d in call.differences(tuple(results[: len(call.shapes)])) if not d.passed
            )
            return next(map(str, failed), None)

        return differing


@functools.lru_cache(maxsize=1)
def _made(problem: _Moved) -> checked.Problem:
    device = torch.device("cuda" if problem.kernel.is_cuda else "cpu")
    return of_case(problem.kernel, problem.case, device)


def _moved(
    family: str, kernels: Sequence[KernelInfo], device: torch.device, **sizes: tuple[int, ...]
) -> list[Problem]:
    """Returns a cell for each group of kernels that compute the same.

    Raises ValueError if no kernel is compiled for the sizes.
    """
    several = next((name for name, values in sizes.items() if len(values) > 1), None)
    if several is not None:
        raise ValueError(f"--case: several values of {several}: write one --case for each")
    chosen = {name: size for name, (size,) in sizes.items()}
    by_group: dict[str, Problem] = {}
    for info in kernels:
        case = next(reversed(cases_of(info)), Case({}))
        if chosen:  # the elements of tensors are of other sizes
            case = replace(case, sizes=chosen, values={})
        if (cell := _Moved(info, case)).suits(info):
            by_group.setdefault(cell.group, cell)
    if not by_group:
        compiled = {f"{n}={s}": None for info in kernels for n, s in compiled_sizes(info).items()}
        sizes_text = ", ".join(f"{name}={size}" for name, size in chosen.items())
        raise ValueError(f"--case {sizes_text}: the kernels are compiled for {', '.join(compiled)}")
    return list(by_group.values())
