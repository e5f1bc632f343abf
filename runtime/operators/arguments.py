"""The arguments of a family's operators: their names, and what expressions may say of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from codegen.core import expressions
from codegen.core.manifest import Family, Tensor
from codegen.core.where import manifest_scope
from runtime import manifest
from runtime.errors import InvalidArgument
from runtime.handle import Inputs, Result, Scalar
from runtime.tensors import DTYPES

if TYPE_CHECKING:
    from runtime.kernel_info import KernelInfo

NAMESPACE = "kernelmint"

# min and max of symbols: Python's own would compare them, and the graph would hold for one outcome.
OF_SYMBOLS: Mapping[str, Any] = {
    "min": lambda *values: functools.reduce(torch.sym_min, values),
    "max": lambda *values: functools.reduce(torch.sym_max, values),
}


@dataclass(frozen=True)
class CallArguments:
    """A call of an operator.

    Attributes:
        device: the call's device.
        sizes: symbols and scalars by name, and whether each optional tensor is there.
        inputs: the input tensors.
        scalars: the scalars; None for a default.
        requested: whether the call computes each optional output.
    """

    device: torch.device
    sizes: Mapping[str, Any]
    inputs: Inputs
    scalars: tuple[Scalar, ...]
    requested: tuple[bool, ...]


LazyArguments = Callable[[], CallArguments]  # most calls never need them


class Arguments:
    """The arguments of one family's operators.

    They are read from the manifest at the first call: an import defines the operators of all packs.
    """

    def __init__(self, family: str) -> None:
        self.name = family

    @functools.cached_property
    def family(self) -> Family:
        """Returns the family, as its pack's manifest describes it."""
        return manifest.family(self.name)

    @functools.cached_property
    def scalar_names(self) -> tuple[str, ...]:
        """Returns the names of the scalars."""
        return tuple(a.name for a in self.family.scalars)

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        """Returns the names of the outputs."""
        return tuple(a.name for a in self.family.outputs)

    @functools.cached_property
    def scope(self) -> dict[str, expressions.Kind]:
        """Returns the names that expressions may use of a call, with their kinds."""
        return _scope_of(self.family)

    @property
    def call_scope(self) -> dict[str, expressions.Kind]:
        """Returns the symbols and optional tensors of that scope."""
        return _call_scope_of(self.family)

    @functools.cached_property
    def shapes(self) -> list[list[expressions.Expression]]:
        """Returns the extents of each output."""
        return [
            [expressions.parse(d, self.scope, "int") for d in a.dims] for a in self.family.outputs
        ]

    @functools.cached_property
    def shape_names(self) -> frozenset[str]:
        """Returns the names in the outputs' extents."""
        return frozenset(name for dims in self.shapes for dim in dims for name in dim.names)

    @functools.cached_property
    def scalar_defaults(self) -> dict[str, expressions.Expression]:
        """Returns the default of each scalar that has one."""
        names = {**self.scope, **dict.fromkeys(expressions.DEVICE_FACTS, expressions.INT)}
        texts = ((a.name, a.default) for a in self.family.scalars)
        return {name: expressions.parse(text, names) for name, text in texts if text is not None}

    @functools.cached_property
    def conditions(self) -> tuple[expressions.Expression, ...]:
        """Returns the condition of each of the family's gradients."""
        return conditions_of(self.family)

    def read(
        self, inputs: Inputs, options: Mapping[str, Any]
    ) -> tuple[LazyArguments, Inputs, tuple[Scalar, ...]]:
        """Reads a call's arguments as the dispatcher passes them: without those that are defaults.

        Returns the call, its inputs and its scalars.
        """
        if len(inputs) < len(self.family.inputs):
            inputs += (None,) * (len(self.family.inputs) - len(inputs))
        scalars = tuple(map(options.get, self.scalar_names))

        def call() -> CallArguments:
            named = zip(self.family.scalars, scalars, strict=True)
            passed = {a.name: s for a, s in named if s is not None and not a.length}
            requested = {
                a.name: bool(options.get(f"return_{a.name}")) or options.get(a.name) is not None
                for a in self.family.outputs
                if a.optional
            }
            sizes = {**passed, **self.symbols_of(inputs), **requested}
            device = self.first(inputs).device
            return CallArguments(device, sizes, inputs, scalars, tuple(requested.values()))

        return call, inputs, scalars

    def computed(self, options: Mapping[str, Any]) -> dict[str, bool]:
        """Returns of each output whether a call computes it."""
        return {
            a.name: not a.optional or options.get(f"return_{a.name}", False)
            for a in self.family.outputs
        }

    def named(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Returns the inputs that are there, by name."""
        named = zip(self.family.inputs, inputs, strict=True)
        return {argument.name: tensor for argument, tensor in named if tensor is not None}

    def tensors(self, inputs: Inputs) -> Iterator[tuple[Tensor, str, torch.Tensor]]:
        """Yields the tensors that are there, each with its argument and its name, which is
        `params[3]` in a list."""
        for argument, value in zip(self.family.inputs, inputs, strict=False):
            if argument.length:
                for i, tensor in enumerate(value or ()):
                    yield argument, f"{argument.name}[{i}]", tensor
            elif value is not None:
                yield argument, argument.name, value

    def first(self, inputs: Inputs) -> torch.Tensor:
        """Returns the first tensor that is not on the host: it is on the call's device."""
        return next(tensor for a, _, tensor in self.tensors(inputs) if not a.on_host)

    def symbols_of(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the symbols' values, and whether each input is there."""
        values: dict[str, Any] = {}
        for argument, tensor in zip(self.family.inputs, inputs, strict=True):
            values[argument.name] = tensor is not None
            if tensor is None:
                continue
            extents = (len(tensor),) if argument.length else tensor.shape
            for dim, extent in zip(argument.sizes, extents, strict=False):
                if dim in self.family.symbols:
                    values.setdefault(dim, extent)
        return values

    def values_of(
        self,
        info: KernelInfo,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        computed: Mapping[str, bool],
        names: Iterable[str],
    ) -> dict[str, Any]:
        """Returns the values that expressions may name of a call of a kernel.

        A scalar that was left out has its default if `names` holds it, else None. `computed` says
        of each output whether the call computes it.
        """
        needed = {name.partition("[")[0] for name in names}  # x of x[0], a number of a list
        scope = {**info.parameters, **info.derived, **computed, **self.symbols_of(inputs)}
        for scalar, value in zip(self.family.scalars, scalars, strict=True):
            if value is None and scalar.name in needed and scalar.name in self.scalar_defaults:
                value = extent(self.scalar_defaults[scalar.name], scope, info)
                value = scalar.values[value] if scalar.values else value
                scope[scalar.name] = [value] * scalar.length if scalar.length else value
                continue
            scope[scalar.name] = value
        return scope


def _call_scope_of(family: Family) -> dict[str, expressions.Kind]:
    """Returns symbols, and optional tensors, which are true if they are there."""
    symbols = dict.fromkeys(family.symbols, expressions.INT)
    return {**symbols, **dict.fromkeys(family.optional_tensors, expressions.BOOL)}


def _scope_of(family: Family) -> dict[str, expressions.Kind]:
    """Returns parameters, derived values, symbols, optional tensors and scalars."""
    scalars = expressions.scalar_kinds(family.scalars)
    return {**manifest_scope(family, family.targets[0]), **_call_scope_of(family), **scalars}


def conditions_of(family: Family) -> tuple[expressions.Expression, ...]:
    """Returns the condition on calls and targets of each of a family's gradients. A condition may
    name targets that the pack was built without."""
    scope = {**_scope_of(family), "target": expressions.Kind("text")}
    return tuple(expressions.parse(g.when, scope, "bool") for g in family.gradients)


def extent(dim: expressions.Expression, scope: Mapping[str, Any], info: KernelInfo) -> Any:
    """Returns the value of an expression over a call of a kernel.

    Raises InvalidArgument if it has none.
    """
    try:
        return dim.evaluate({**scope, **OF_SYMBOLS})
    except expressions.EVALUATION_ERRORS as error:
        named = ", ".join(f"{name} = {scope[name]}" for name in sorted(dim.names) if name in scope)
        raise InvalidArgument(
            f"{info.key}: {dim.text}: {expressions.reason(error)}; here {named}"
        ) from None


def dtype_of(argument: Tensor, parameters: Mapping[str, Any]) -> torch.dtype:
    """Returns the dtype of a tensor argument of a kernel with these parameters."""
    return DTYPES[parameters.get(argument.dtype, argument.dtype)]


def result_of(tensors: Sequence[torch.Tensor]) -> Result:
    """Returns outputs as a call does: one as it is, several as a tuple, none as None."""
    if len(tensors) == 1:
        return tensors[0]
    return tuple(tensors) if tensors else None
