"""Gradients that a family's spec declares: kernels of another family of its pack give them, which
that family's front chooses."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from codegen.core.expressions import Expression, parse, scalar_kind
from codegen.core.manifest import DeclaredGradient, Family
from codegen.core.where import parameter_kind
from runtime import manifest
from runtime.errors import InvalidArgument
from runtime.front import KINDS, Front, of_family
from runtime.handle import Inputs, Scalar
from runtime.operators.arguments import Arguments, conditions_of, extent
from runtime.operators.autograd import Tensors, refused
from runtime.tensors import DTYPES

if TYPE_CHECKING:
    from runtime.kernel_info import KernelInfo


@dataclass(frozen=True)
class _Plan:
    """The arguments that calls of the family that gives the gradients take."""

    gradient: DeclaredGradient
    other: Family
    front: Front
    flags: tuple[Any, ...]  # the front's own defaults
    parameters: tuple[
        tuple[Expression, type], ...
    ]  # the kernel's parameters: the flags that follow
    scalars: tuple[Expression | str | None, ...]  # a list's: the list's name
    shapes: Mapping[str, list[Expression]]  # shapes of zeros
    named: frozenset[str]  # names in the expressions
    again: frozenset[str]  # the inputs that have gradients in turn
    requires: tuple[tuple[Expression, str], ...]  # conditions on a call, and why


@functools.cache
def _plan(arguments: Arguments, place: int) -> _Plan:
    """Returns the plan of the gradient at that place of the family's."""
    scope = arguments.scope
    gradient = arguments.family.gradients[place]
    assert isinstance(gradient, DeclaredGradient)
    other = manifest.family(gradient.family)
    parameters = {
        parameter.name: (parse(text, scope, parameter_kind(parameter)), KINDS[parameter.type])
        for parameter in other.parameters
        if (text := gradient.parameters.get(parameter.name)) is not None
    }
    scalars = tuple(
        text if text is None or scalar.length else parse(text, scope, scalar_kind(scalar))
        for scalar, text in zip(other.scalars, gradient.scalars, strict=True)
    )
    requires = tuple((parse(rule.that, scope, "bool"), rule.because) for rule in gradient.requires)
    shapes = {
        argument.name: [parse(dim, scope, "int") for dim in passed.shape]
        for argument, passed in zip(other.inputs, gradient.tensors, strict=True)
    }
    expressions = [expression for expression, _ in (*parameters.values(), *requires)]
    expressions += [dim for shape in shapes.values() for dim in shape]
    front, flags = of_family(other.name, tuple(parameters))
    return _Plan(
        gradient=gradient,
        other=other,
        front=front,
        flags=flags,
        parameters=tuple(parameters.values()),
        scalars=scalars,
        shapes=shapes,
        named=frozenset(
            name
            for e in (*expressions, *scalars)
            if e is not None
            for name in ([e] if isinstance(e, str) else e.names)
        ),
        again=frozenset.intersection(*(frozenset(g.inputs) for g in other.gradients))
        if other.gradients
        else frozenset(),
        requires=requires,
    )


@dataclass(frozen=True)
class Backward:
    """The backward of one call.

    Attributes:
        arguments: the arguments of the family that was called.
        plan: the plan of its gradients.
        info: the kernel that was called.
        scope: the values that expressions may name: sizes, scalars, and which tensors are there.
    """

    arguments: Arguments
    plan: _Plan
    info: KernelInfo
    scope: Mapping[str, Any]

    def __call__(
        self, inputs: Tensors, outputs: Tensors, gradients: Tensors, needed: list[str]
    ) -> Tensors:
        """Returns the gradients of the inputs that are `needed`, from inputs and outputs that
        were saved and from the outputs' gradients."""
        plan = self.plan
        returns = plan.gradient.returns
        wished = {returns[name] for name in needed}
        passed_tensors: dict[str, torch.Tensor | None] = {}
        for argument, passed in zip(plan.other.inputs, plan.gradient.tensors, strict=True):
            tensor = None
            if passed.what == "input":
                tensor = inputs.get(passed.name)
            elif passed.what == "output":
                tensor = outputs[passed.name]
            elif passed.what == "gradient" and self.scope[passed.name]:
                tensor = _laid_out(gradients[passed.name])
            elif passed.what == "zeros" and (argument.name in wished or not argument.optional):
                shape = [self._value(dim) for dim in plan.shapes[argument.name]]
                dtype = DTYPES[str(self.info.parameters.get(passed.dtype, passed.dtype))]
                tensor = gradients[plan.gradient.outputs[0]].new_zeros(shape, dtype=dtype)
            if passed.contiguous and tensor is not None:
                tensor = tensor.contiguous()
            passed_tensors[argument.name] = tensor
        asking = {name for name, t in passed_tensors.items() if t is not None and t.requires_grad}
        is_last = torch.is_grad_enabled() and not asking <= plan.again
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_last):
            result = plan.front(
                tuple(passed_tensors.values()),
                tuple([self._scalar(e) for e in plan.scalars]),
                tuple([a.name in wished for a in plan.other.outputs if a.optional]),
                None,
                plan.flags + tuple([kind(self._value(e)) for e, kind in plan.parameters]),
            )
        computed = [a.name for a in plan.other.outputs if not a.optional or a.name in wished]
        results = result if isinstance(result, tuple) else (result,)
        available: dict[str, Any] = {**passed_tensors, **dict(zip(computed, results, strict=False))}
        returned = {name: available[returns[name]] for name in needed}  # autograd casts them
        if not is_last:
            return returned
        message = (
            f"{self.arguments.name}: its gradients are {plan.other.name}'s, which has none: they "
            "cannot be differentiated again"
        )
        return refused(message, returned, [t for t in passed_tensors.values() if t is not None])

    def _scalar(self, passed: Expression | str | None) -> Any:
        if isinstance(passed, str):
            return self.scope[passed]
        return None if passed is None else self._value(passed)

    def _value(self, expression: Expression) -> Any:
        return extent(expression, self.scope, self.info)


def of_call(
    arguments: Arguments,
    gradient: DeclaredGradient,
    info: KernelInfo,
    inputs: Inputs,
    scalars: tuple[Scalar, ...],
    computed: Mapping[str, bool],
) -> Backward:
    """Returns the backward of a call with these arguments; `computed` says of each output
    whether the call computes it. Raises InvalidArgument if the call has no gradient."""
    plan = _plan(arguments, arguments.family.gradients.index(gradient))
    scope = arguments.values_of(info, inputs, scalars, computed, plan.named)
    for that, because in plan.requires:
        if not extent(that, scope, info):
            raise InvalidArgument(
                f"{arguments.name}: its gradient requires {that.text}, because {because}"
            )
    return Backward(arguments, plan, info, scope)


def family_of(info: KernelInfo) -> str | None:
    """Returns the family whose kernels give a kernel's gradients, or None if no family's do or if
    that depends on the call."""
    values = {**info.parameters, **info.derived, "target": info.target}
    family = manifest.family(info.family)
    for condition, gradient in zip(conditions_of(family), family.gradients, strict=True):
        if not condition.names <= values.keys():
            return None
        if condition.evaluate(values):
            return gradient.family if isinstance(gradient, DeclaredGradient) else None
    return None


def _laid_out(gradient: torch.Tensor) -> torch.Tensor:
    """Returns a gradient laid out as kernels write outputs: an expanded tensor, or a part of
    other memory, is copied."""
    if gradient.is_contiguous() and gradient.storage_offset() == 0:
        return gradient
    return gradient.clone(memory_format=torch.contiguous_format)
