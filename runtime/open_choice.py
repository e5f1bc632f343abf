"""Choices in graphs: one graph serves all sizes, so it may leave the choice of a kernel to its
operator, which chooses whenever the graph runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from codegen.core import as_json
from runtime import devices, finding, handle, listing, manifest, packs, rows
from runtime.choice import choose, first
from runtime.errors import InvalidArgument, KernelNotFound, text
from runtime.handle import Kernel, in_graphs
from runtime.pytorch import traced_as_constant

_Value = bool | int | float | str | None
_Items = tuple[tuple[str, Any], ...]
_taken: dict[tuple[object, ...], Kernel] = {}
_MOST_TAKEN = 4096  # calls of different sizes that are kept at one time
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # looked up once: calls are short
packs.when_changed(_taken.clear)


@dataclass(frozen=True)
class OpenChoice:
    """A choice that a graph leaves to its operator; as JSON, the operator's key.

    Attributes:
        family: the family's name.
        parameters: the kernel's parameters, by name.
        target: the only target whose kernels count.
        tuned: whether rows that were tuned count.
        flags: the flags with which the family's front chooses, by how tensors lie in memory; None:
            the parameters decide.
    """

    family: str
    parameters: Mapping[str, _Value]
    target: str | None
    tuned: bool
    flags: Mapping[str, _Value] | None = None

    @property
    def key(self) -> str:
        """Returns the operator's key."""
        return json.dumps(as_json.form(self))

    @classmethod
    @functools.lru_cache(maxsize=1024)  # each run of a graph parses its keys
    def parse(cls, key: str) -> OpenChoice:
        """Returns the choice of an operator's key. Raises InvalidArgument for an invalid key."""
        try:
            choice = as_json.read(cls, as_json.parse(key))
            is_known = packs.owner(choice.family) is not None
        except ValueError:
            is_known = False
        if not is_known:
            raise InvalidArgument(
                f"key: got {text(key)}, expected a kernel's key, or what a graph recorded"
            )
        return choice

    def any_kernel(self) -> Kernel:
        """Returns a kernel with the parameters: any of them tells the shapes of results."""
        kept = getattr(in_graphs, handle.name_in_graphs(self.key), None)
        if kept is None:  # another process recorded the graph
            device = torch.device("cuda" if devices.has_cuda() else "cpu")
            parameters = tuple(self.parameters.items())
            name = _for_any_sizes(self.family, device, parameters, self.target, self.tuned, ())
            kept = getattr(in_graphs, name)
        kernel: Kernel = kept
        return kernel


packs.when_changed(OpenChoice.parse.cache_clear)


def take(
    family: str,
    device: torch.device,
    parameters: Mapping[str, Any],
    sizes: Mapping[str, Any],
    target: str | None,
    tuned: bool,
) -> Kernel:
    """Returns the kernel that `choose` returns: quickly if it was chosen before, and right in a
    graph.

    While torch.compile, torch.export or make_fx record the call, sizes may be symbols. If rows
    would take several kernels for other sizes, the kernel leaves the choice open.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """
    if _is_dynamo_compiling():
        return _recorded(family, device, parameters, sizes, target, tuned)
    call = (
        family, device, target, tuned, *parameters, *parameters.values(), *sizes, *sizes.values()
    )  # fmt: skip
    try:
        kernel = _taken.get(call)
    except TypeError:  # a symbol has no hash
        listing.check_target(target)
        return _recorded(family, device, parameters, sizes, target, tuned)
    except Exception:  # a value's own, which the kernel refuses in turn
        return choose(family, device, parameters, sizes, target, tuned)
    if kernel is None:
        kernel = choose(family, device, parameters, sizes, target, tuned)
        if len(_taken) >= _MOST_TAKEN:
            _taken.clear()
        _taken[call] = kernel
    return kernel


def leave_to_front(
    family: str,
    kernel: str,
    parameters: Mapping[str, Any],
    target: str | None,
    tuned: bool,
    flags: tuple[str, ...],
    values: tuple[Any, ...],
) -> Kernel:
    """Returns a kernel for graphs whose operator asks the family's front when it runs.

    Args:
        family: a family's name.
        kernel: the key of a kernel with the parameters, which `take` returned.
        parameters, target, tuned: as `take` has them.
        flags: the names of the front's flags.
        values: their values.
    """
    constants = _constants(family, parameters)
    name = _name_left_to_front(family, kernel, constants, target, tuned, flags, values)
    graph_kernel: Kernel = getattr(in_graphs, name)
    return graph_kernel


@traced_as_constant
def _name_left_to_front(
    family: str,
    kernel: str,
    parameters: _Items,
    target: str | None,
    tuned: bool,
    flags: tuple[str, ...],
    values: tuple[Any, ...],
) -> str:
    named = dict(zip(flags, values, strict=True))
    key = OpenChoice(family, dict(parameters), target, tuned, named).key
    shapes = getattr(in_graphs, handle.name_in_graphs(kernel), None) or finding.kernel(kernel)
    return shapes.left_open(key).name_in_graphs()


def _recorded(
    family: str,
    device: torch.device,
    parameters: Mapping[str, Any],
    sizes: Mapping[str, Any],
    target: str | None,
    tuned: bool,
) -> Kernel:
    expanded = tuple([name for name, _, _ in memory_of(family) if sizes.get(name)])
    unmet = _unmet(family, expanded) if expanded else ()
    constants = _constants(family, parameters)
    name = _for_any_sizes(family, device, constants, target, tuned, unmet)
    kernel: Kernel = getattr(in_graphs, name)
    return kernel


@traced_as_constant
def memory_of(family: str) -> tuple[tuple[str, int, int], ...]:
    """Returns the questions that a family's targets ask of how tensors lie in memory."""
    return rows.of(family).memory


@traced_as_constant
def _unmet(family: str, expanded: tuple[str, ...]) -> rows.Unmet:
    return rows.of(family).unmet(dict.fromkeys(expanded, True))


def _constants(family: str, parameters: Mapping[str, Any]) -> _Items:
    """Returns parameters, symbols as the equal value among those that kernels have.

    A symbol is compared, not converted: the graph then holds for this value.
    """
    constants = []
    for name, value in parameters.items():
        for integer in _integers(family, name):  # not next(…): PyTorch 2.4 cannot trace it
            if integer == value:
                value = integer
                break
        constants.append((name, value))
    return tuple(constants)


@traced_as_constant
def _integers(family: str, name: str) -> tuple[Any, ...]:
    """Returns the integers that a parameter has among the kernels of a family."""
    values = (
        kernel.parameters.get(name)
        for target in manifest.family(family).targets
        for kernel in target.kernels
    )
    return tuple(dict.fromkeys(value for value in values if type(value) is int))


@traced_as_constant
def _for_any_sizes(
    family: str,
    device: torch.device,
    parameters: _Items,
    target: str | None,
    tuned: bool,
    unmet: rows.Unmet,
) -> str:
    """Returns the name in graphs of the kernel that every row takes, or of one that leaves the
    choice open."""
    named = dict(parameters)
    of_family = rows.of(family)
    tuned_rows = of_family.tuned(devices.indexed(device), named) if tuned else ()
    cases: list[tuple[tuple[int, ...], tuple[int, ...]]]
    cases = [((i,), ()) for i in range(len(tuned_rows))]
    cases += [((), (i,)) for i in range(len(of_family.choices))] or [((), ())]
    kernels: dict[str, Kernel] = {}
    refused = None
    for covering, holding in cases:
        try:
            kernel = first(family, device, named, target, covering, holding, unmet)
            kernels[kernel.info.key] = kernel
        except KernelNotFound as error:
            refused = error
    if not kernels:
        assert refused is not None
        raise refused
    kernel = next(iter(kernels.values()))
    if len(kernels) > 1 or refused is not None:
        kernel = kernel.left_open(OpenChoice(family, named, target, tuned).key)
    return kernel.name_in_graphs()
