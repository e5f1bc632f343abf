"""The operators under autograd: a call that asks for gradients has them, or is refused."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from codegen.core.manifest import DeclaredGradient, Gradient
from runtime import packs
from runtime.errors import InvalidArgument
from runtime.handle import Inputs
from runtime.operators.arguments import NAMESPACE, Arguments, LazyArguments, extent, result_of

if TYPE_CHECKING:
    from runtime.kernel_info import KernelInfo

Tensors = Mapping[str, torch.Tensor]
# A function of inputs, outputs, the gradients of the outputs that have one, by name, and `needed`,
# the names of the inputs that need a gradient. It returns the inputs' gradients.
Backward = Callable[..., Tensors]


class Autograd:
    """The autograd of one family's operators.

    Args:
        arguments: the family's.
        describe: describes the kernel of a key and a call.
        declared: gives the backward of a call whose spec declares its gradient, as
            `gradients.of_call` does.
    """

    def __init__(
        self,
        arguments: Arguments,
        describe: Callable[[str, LazyArguments], KernelInfo],
        declared: Callable[..., Backward],
    ) -> None:
        self._arguments = arguments
        self._describe = describe
        self._declared = declared

    def implementation(self, name: str, in_place: bool) -> Callable[..., Any]:
        """Returns the autograd kernel of an operator: it differentiates a call or refuses to."""

        def call(keys: Any, key: str, *inputs: Any, **options: Any) -> Any:
            below = keys & torch._C._after_autograd_keyset
            operator = getattr(getattr(torch.ops, NAMESPACE), name).default
            below_autograd = functools.partial(operator.redispatch, below, key)
            arguments = self._arguments
            tensors: dict[str, Any] = {name: t for _, name, t in arguments.tensors(inputs)}
            asking = {n for n, t in tensors.items() if torch.is_grad_enabled() and t.requires_grad}
            tensors |= {name: options.get(name) for name in arguments.output_names}
            gradient = None
            if asking and not in_place:
                gradient = self._gradient(asking, key, inputs, options)
            if not self._asks_gradient(tensors, gradient, in_place):
                return below_autograd(*inputs, **options)
            sharding = sys.modules.get("runtime.sharding")
            if sharding is not None and sharding.is_sharded(inputs):
                # The parts of distributed tensors have gradients.
                return sharding.run(arguments, operator, key, inputs, options)
            assert gradient is not None
            options |= {f"return_{name}": True for name in gradient.keeps}
            differentiated = _Differentiated(
                functools.partial(below_autograd, **options),
                self._backward(gradient, key, inputs, options),
                arguments,
                gradient,
            )
            return result_of(_Differentiable.apply(differentiated, *inputs))  # type: ignore[no-untyped-call,unused-ignore]  # PyTorch's; 2.14 types it

        return call

    def _gradient(
        self, asking: set[str], key: str, inputs: Inputs, options: Mapping[str, Any]
    ) -> Gradient | DeclaredGradient | None:
        """Returns the first gradient that a call has of all `asking` inputs.

        Without such a gradient: the first whose condition holds for the call, or None.
        """
        gradients = self._arguments.family.gradients
        if not gradients or gradients[0].when == "True":
            return next(iter(gradients), None)
        conditions = self._arguments.conditions
        call, inputs, scalars = self._arguments.read(inputs, options)
        info = self._describe(key, call)
        names = frozenset().union(*(condition.names for condition in conditions))
        computed = self._arguments.computed(options)
        scope = self._arguments.values_of(info, inputs, scalars, computed, names)
        scope["target"] = info.target
        cases = zip(conditions, gradients, strict=True)
        holding = [gradient for when, gradient in cases if extent(when, scope, info)]
        suiting = (gradient for gradient in holding if asking <= {*gradient.inputs})
        return next(suiting, next(iter(holding), None))

    def _backward(
        self,
        gradient: Gradient | DeclaredGradient,
        key: str,
        inputs: Inputs,
        options: Mapping[str, Any],
    ) -> Backward:
        """Returns the backward of a call."""
        arguments = self._arguments
        call, inputs, scalars = arguments.read(inputs, options)
        info = self._describe(key, call)
        if isinstance(gradient, DeclaredGradient):
            computed = arguments.computed(options)
            return self._declared(arguments, gradient, info, inputs, scalars, computed)
        make = packs.specs_function(packs.of(arguments.name), gradient.module, gradient.function)
        backward = make(
            info.parameters,
            arguments.named(inputs),
            dict(zip(arguments.scalar_names, scalars, strict=True)),
        )
        return lambda *tensors, **_: backward(*tensors)

    def _asks_gradient(
        self,
        tensors: Mapping[str, Any],
        gradient: Gradient | DeclaredGradient | None,
        in_place: bool,
    ) -> bool:
        """Returns whether autograd asks for gradients. Raises InvalidArgument if there is none."""
        family = self._arguments.family
        asks = False
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if forward_ad._current_level >= 0:
                tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]  # PyTorch's
                if tangent is not None:
                    raise InvalidArgument(
                        f"{name}: has a tangent of forward-mode differentiation, which "
                        f"{family.name} has no derivative for; pass {name}.detach()"
                    )
            if torch.is_grad_enabled() and tensor.requires_grad:
                if gradient is None or name not in gradient.inputs:
                    how = " when it writes into out" if in_place and family.gradients else ""
                    raise InvalidArgument(
                        f"{name}: requires_grad is set and grad mode is on, but "
                        f"{family.name} has no gradient for it{how}; call it under "
                        f"torch.no_grad() or pass {name}.detach()"
                    )
                asks = True
        if asks and torch._C._are_functorch_transforms_active():
            raise InvalidArgument(
                f"{family.name}: torch.func cannot differentiate it; call backward() or "
                "torch.autograd.grad outside of torch.func's transforms"
            )
        return asks


@dataclass(frozen=True)
class _Differentiated:
    """A call that autograd differentiates."""

    run: Callable[..., Any]  # takes the inputs
    backward: Backward
    arguments: Arguments
    gradient: Gradient | DeclaredGradient

    @property
    def saved(self) -> frozenset[str]:
        """Returns the names of the inputs and outputs that the backward may read."""
        if isinstance(self.gradient, DeclaredGradient):
            passed = self.gradient.tensors
            return frozenset(p.name for p in passed if p.what in ("input", "output"))
        return frozenset(a.name for a in self.arguments.family.tensors)


class _Differentiable(torch.autograd.Function):
    """A call in autograd's graph."""

    @staticmethod
    def forward(call: _Differentiated, *inputs: Any) -> tuple[torch.Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            result = call.run(*inputs)
        return result if isinstance(result, tuple) else (result,)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        arguments = ctx.call.arguments
        ctx.names = [a.name for a in arguments.family.inputs[: len(tensors)]]
        outputs = list(zip(arguments.output_names, output, strict=True))
        all_tensors = [*zip(ctx.names, tensors, strict=True), *outputs]
        saved = ctx.call.saved
        ctx.save_for_backward(*(t if name in saved else None for name, t in all_tensors))
        flowing = ctx.call.gradient.outputs
        ctx.mark_non_differentiable(*(tensor for name, tensor in outputs if name not in flowing))
        ctx._materialize_non_diff_grads = False  # zeros, which nothing would read

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved, names = ctx.saved_tensors, ctx.call.arguments.output_names
        inputs = {n: t for n, t in zip(ctx.names, saved, strict=False) if t is not None}
        outputs: Tensors = dict(zip(names, saved[len(ctx.names) :], strict=True))
        if torch.is_grad_enabled():
            outputs = _refusing_others(ctx.call, inputs, outputs)
        needed = [n for n, asks in zip(ctx.names, ctx.needs_input_grad[1:], strict=True) if asks]

        def call(*tensors: torch.Tensor | None) -> Tensors:
            named = {n: t for n, t in zip(names, tensors, strict=True) if t is not None}
            return ctx.call.backward(inputs, outputs, named, needed=needed)  # type: ignore[no-any-return]  # autograd's has no types

        return None, *map(_each(call, tuple(map(_with_memory, gradients))).get, ctx.names)


def _with_memory(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Returns a gradient of zeros that PyTorch kept without memory as zeros that a kernel reads."""
    if gradient is None or not gradient._is_zerotensor():
        return gradient
    return gradient.new_zeros(gradient.shape)


class _Refused(torch.autograd.Function):
    """The first `count` tensors, which autograd refuses to differentiate by any of the tensors."""

    @staticmethod
    def forward(message: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        ctx.message = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(ctx.message)


def refused(message: str, results: Tensors, by: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns results that autograd refuses, with this message, to differentiate again: by
    themselves or by the tensors that they were made of.

    `by` must hold all of these tensors: if autograd is asked for the gradients of some inputs only,
    it skips whatever does not lead to them, as if there were no gradients.
    """
    tensors = _Refused.apply(message, len(results), *results.values(), *by)  # type: ignore[no-untyped-call]  # PyTorch's
    return dict(zip(results, tensors, strict=True))


def _refusing_others(call: _Differentiated, inputs: Tensors, outputs: Tensors) -> Tensors:
    """Returns a call's outputs for a backward that may be differentiated again.

    An output without a gradient (a log-sum-exp) is no constant: what is computed from it is refused
    a second gradient.
    """
    flowing, results = call.gradient.outputs, dict(outputs)
    asking = [tensor for tensor in inputs.values() if tensor.requires_grad]
    for name, tensor in outputs.items():
        if asking and name not in flowing and tensor is not None and tensor.is_floating_point():
            message = (
                f"{call.arguments.name}: its gradients take {name}, which has none: they cannot be "
                "differentiated again"
            )
            results |= refused(message, {name: tensor}, asking)
    return results


def _each(call: Callable[..., Tensors], gradients: Sequence[torch.Tensor | None]) -> Tensors:
    """Returns a backward's result for the outputs' gradients, one call for each of a batch of them
    (is_grads_batched)."""
    present = [t for t in gradients if t is not None]
    batched = [t for t in present if torch._C._functorch.is_legacy_batchedtensor(t)]
    if not batched:
        return call(*gradients)
    # A level's axis comes first after its removal; a tensor without the axis is repeated.
    level = next(i for i in range(1, 65) if len(torch._remove_batch_dim(batched[0], i, 0, 0)))
    count = len(torch._remove_batch_dim(batched[0], level, 0, 0))
    parts = (
        (None,) * count if t is None else torch._remove_batch_dim(t, level, count, 0).unbind()
        for t in gradients
    )
    results = [_each(call, part) for part in zip(*parts, strict=True)]
    stacked = {name: torch.stack([one[name] for one in results]) for name in results[0]}
    return {name: torch._add_batch_dim(t, 0, level) for name, t in stacked.items()}
