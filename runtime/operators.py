"""PyTorch operators of the families: torch.ops.kernelmint.<family> and <family>_out.

They exist for torch.compile, torch.export and whatever else needs a graph; eager calls go straight
to the kernel. The first argument of both is the key. <family> always returns every output, as an
empty tensor if an optional one was not asked for; <family>_out writes into tensors that are
passed by name, and is absent if a family has no outputs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from codegen.core import dtypes, expressions
from codegen.core.manifest import DeclaredGradient, Family, Gradient, Tensor
from codegen.core.manifest import Scalar as ScalarArgument
from codegen.core.packs import PACK_JSON, Pack, PackError
from codegen.core.where import manifest_scope
from runtime import _native, manifest, packs
from runtime._native import DirectCall, OperatorCall
from runtime.errors import InvalidArgument, unexpected
from runtime.handle import Inputs, Kernel, Out, Result, Scalar
from runtime.when_imported import when_imported

if TYPE_CHECKING:
    from runtime.kernel_info import KernelInfo


@dataclass(frozen=True)
class Asked:
    """What a call of an operator says: its device, symbols and scalars by name, and arguments."""

    device: torch.device
    sizes: Mapping[str, Any]
    inputs: Inputs
    scalars: tuple[Scalar, ...]
    requested: tuple[bool, ...]  # of each optional output


Call = Callable[[], Asked]

NAMESPACE = "kernelmint"
DTYPES: dict[str, torch.dtype] = {d.name: getattr(torch, d.torch) for d in dtypes.TABLE}
_Tensors = Mapping[str, torch.Tensor]
# Of inputs, outputs and the gradients of outputs that have one, by name, and `needed`, the names of
# the inputs that need one: the inputs' gradients.
_Backward = Callable[..., _Tensors]


@dataclass(frozen=True)
class Ways:
    """What operators need of those above them.

    Attributes:
        known: gives the kernel of a key that was found before, or None.
        find: gives the kernel of a key and a call.
        describe: what is known of it, built or not.
        backward: the backward of a call of a family whose spec declares its gradient; see
            `gradients.of_call`.
    """

    known: Callable[[str], Kernel | None]
    find: Callable[[str, Call], Kernel]
    describe: Callable[[str, Call], KernelInfo]
    backward: Callable[..., _Backward]


_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]  # PyTorch's


class _Operator:
    """What the two operators of one family have in common. Its arguments are read when it is first
    called: defining it must be cheap, since an import defines the operators of all packs."""

    def __init__(self, name: str, ways: Ways) -> None:
        self.name = name
        self.known = ways.known
        self.find = ways.find
        self.describe = ways.describe
        self.backward = ways.backward
        self._calls: dict[str, OperatorCall] = {}  # not yet called from torch.ops directly

    @functools.cached_property
    def family(self) -> Family:
        return manifest.family(self.name)

    @functools.cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.family.inputs

    @functools.cached_property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        return self.family.scalars

    @functools.cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.family.outputs

    @functools.cached_property
    def scalar_names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.scalars)

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.outputs)

    @functools.cached_property
    def shapes(self) -> list[list[expressions.Expression]]:
        """The outputs' extents."""
        return [[expressions.parse(d, self.scope, "int") for d in a.dims] for a in self.outputs]

    @functools.cached_property
    def sizes(self) -> frozenset[str]:
        """What the outputs' extents name."""
        return frozenset(name for dims in self.shapes for dim in dims for name in dim.names)

    @functools.cached_property
    def scalar_defaults(self) -> dict[str, expressions.Expression]:
        names = {**self.scope, **dict.fromkeys(expressions.DEVICE_FACTS, expressions.INT)}
        found = ((a.name, a.default) for a in self.scalars)
        return {name: expressions.parse(text, names) for name, text in found if text is not None}

    @functools.cached_property
    def conditions(self) -> tuple[expressions.Expression, ...]:
        """For which calls, by kernels of which targets, each of its gradients is."""
        return conditions_of(self.family)

    @functools.cached_property
    def operations(self) -> Callable[[KernelInfo, Inputs], int] | None:
        """How many a call makes, if the family says."""
        text = self.family.operations
        if text is None:
            return None
        module, _, function = text.partition(":")
        if function:
            count = packs.specs_function(packs.of(self.name), module, function)
            return lambda info, inputs: count(info.parameters, self._named(inputs))
        constants = manifest_scope(self.family, self.family.targets[0])
        counted = expressions.parse(text, {**constants, **self.call_scope}, "int")
        return lambda info, inputs: extent(
            counted, {**info.parameters, **info.derived, **self.symbols_of(inputs)}, info
        )

    @functools.cached_property
    def scope(self) -> dict[str, expressions.Kind]:
        """What expressions may name of a call."""
        return _scope_of(self.family)

    @property
    def call_scope(self) -> dict[str, expressions.Kind]:
        return _call_scope_of(self.family)

    def define(self, schemas: tuple[str, ...], on_host: bool) -> None:
        """Registers the operators by their schemas, as codegen orders them; `on_host`: inputs of a
        call are on two devices."""
        implementations = (self._run, self._fake, False), (self._run_out, self._fake_out, True)
        for text, (run, fake, in_place) in zip(schemas, implementations, strict=False):
            operator = text.partition("(")[0]
            arguments = torch._C.parse_schema(f"{NAMESPACE}::{text}").arguments
            names = [a.name for a in arguments]
            written = [a.name for a in arguments if a.alias_info and a.alias_info.is_write]
            _library.define(text)  # type: ignore[no-untyped-call]  # PyTorch's
            described = functools.partial(self._described, operator, in_place)
            plainly = functools.partial(OperatorCall, described, self.known)
            below = plainly(None, _unpacked(run))
            self._calls[operator] = below
            _library.impl(operator, below.call, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # PyTorch's
            autograd = self._autograd(operator, in_place)
            if _HAS_NUMBERS:
                autograd = plainly(_is_device_next, autograd).call
            when_imported("torch.utils.flop_counter", functools.partial(self._count, operator))
            when_imported("torch.distributed.tensor", functools.partial(self._shard, operator))
            _library.impl(operator, autograd, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]  # PyTorch's
            mapped = _by_name(names, functools.partial(_mapped, operator, written))
            _library.impl(operator, mapped, "FuncTorchBatched")  # type: ignore[no-untyped-call]  # PyTorch's
            if on_host:  # PyTorch tells the results' device by itself only if there is one
                torch.library.register_fake(
                    f"{NAMESPACE}::{operator}", _unpacked(fake), lib=_library
                )
            else:
                # register_fake looks up the source of its caller, for each operator, and costs as
                # much again as all the rest of an import.
                _library.impl(operator, _unpacked(fake), "Meta")  # type: ignore[no-untyped-call]  # PyTorch's

    def _count(self, name: str) -> None:
        from torch.utils.flop_counter import flop_registry

        # Not register_flop_formula: PyTorch 2.4's takes the overload, which its counter never asks.
        flop_registry[getattr(getattr(torch.ops, NAMESPACE), name)] = self._operations

    def _operations(
        self, key: str, *given: torch.Tensor | None, out_val: object = None, **options: Any
    ) -> int:
        """What FlopCounterMode counts of a call."""
        if self.operations is None:
            return 0
        call, inputs, _ = self._arguments(given, options)
        return int(self.operations(self.describe(key, call), inputs))

    def _shard(self, name: str) -> None:
        if not hasattr(torch.library, "register_torch_dispatch"):
            return  # PyTorch 2.4
        from runtime import sharding

        sharding.register(self, f"{NAMESPACE}::{name}", _library)

    def _described(self, operator: str, in_place: bool) -> tuple[Any, ...]:
        """What OperatorCall needs to know of the arguments, asked at the operator's first call."""
        if (below := self._calls.pop(operator, None)) is not None:
            _call_directly(operator, below)
        asking = [a.name if in_place else f"return_{a.name}" for a in self.outputs if a.optional]
        outputs = self.output_names if in_place else ()
        return self.name, len(self.inputs), self.scalar_names, tuple(asking), outputs

    def _autograd(self, name: str, in_place: bool) -> Callable[..., Any]:
        """What autograd calls of the operator: it differentiates a call or refuses to."""

        def call(keys: Any, key: str, *inputs: Any, **options: Any) -> Any:
            below = keys & torch._C._after_autograd_keyset
            operator = getattr(getattr(torch.ops, NAMESPACE), name).default
            below_autograd = functools.partial(operator.redispatch, below, key)
            named = {a.name: t for a, t in zip(self.inputs, inputs, strict=False)}
            given = {**named, **{name: options.get(name) for name in self.output_names}}
            asks = torch.is_grad_enabled() and any(
                t is not None and t.requires_grad for t in inputs
            )
            gradient = self._gradient(key, inputs, options) if asks and not in_place else None
            if not self._asks_gradient(given, gradient, in_place):
                return below_autograd(*inputs, **options)
            sharding = sys.modules.get("runtime.sharding")
            if sharding is not None and sharding.is_sharded(inputs):
                return sharding.run(self, operator, key, inputs, options)  # parts have gradients
            assert gradient is not None
            options |= {f"return_{name}": True for name in gradient.keeps}
            differentiated = _Differentiated(
                functools.partial(below_autograd, **options),
                self._backward(gradient, key, inputs, options),
                self,
                gradient,
            )
            return _plain(_Differentiable.apply(differentiated, *inputs))  # type: ignore[no-untyped-call,unused-ignore]  # PyTorch's; 2.14 types it

        return call

    def _gradient(
        self, key: str, given: Inputs, options: Mapping[str, Any]
    ) -> Gradient | DeclaredGradient | None:
        """What gives a call's gradients: the first whose condition holds."""
        gradients = self.family.gradients
        if not gradients or gradients[0].when == "True":
            return next(iter(gradients), None)
        call, inputs, scalars = self._arguments(given, options)
        info = self.describe(key, call)
        named = frozenset().union(*(condition.names for condition in self.conditions))
        scope = self.values_of(info, inputs, scalars, self._asked(options), named)
        scope["target"] = info.target
        cases = zip(self.conditions, gradients, strict=True)
        return next((gradient for when, gradient in cases if extent(when, scope, info)), None)

    def _backward(
        self,
        gradient: Gradient | DeclaredGradient,
        key: str,
        given: Inputs,
        options: Mapping[str, Any],
    ) -> _Backward:
        """The backward of a call."""
        call, inputs, scalars = self._arguments(given, options)
        info = self.describe(key, call)
        if isinstance(gradient, DeclaredGradient):
            return self.backward(self, gradient, info, inputs, scalars, self._asked(options))
        make = packs.specs_function(packs.of(self.name), gradient.module, gradient.function)
        backward = make(
            info.parameters,
            self._named(inputs),
            dict(zip(self.scalar_names, scalars, strict=True)),
        )
        return lambda *tensors, **_: backward(*tensors)

    def _asked(self, options: Mapping[str, Any]) -> dict[str, bool]:
        """Of each output, whether a call computes it."""
        return {
            a.name: not a.optional or options.get(f"return_{a.name}", False) for a in self.outputs
        }

    def _asks_gradient(
        self,
        given: Mapping[str, Any],
        gradient: Gradient | DeclaredGradient | None,
        in_place: bool,
    ) -> bool:
        """Whether autograd asks for gradients. Raises InvalidArgument if there is none."""
        asks = False
        for name, tensor in given.items():
            if tensor is None:
                continue
            if forward_ad._current_level >= 0:
                tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]  # PyTorch's
                if tangent is not None:
                    raise InvalidArgument(
                        f"{name}: has a tangent of forward-mode differentiation, which "
                        f"{self.family.name} has no derivative for; pass {name}.detach()"
                    )
            if torch.is_grad_enabled() and tensor.requires_grad:
                if gradient is None or name not in gradient.inputs:
                    how = " when it writes into out" if in_place and self.family.gradients else ""
                    raise InvalidArgument(
                        f"{name}: requires_grad is set and grad mode is on, but "
                        f"{self.family.name} has no gradient for it{how}; call it under "
                        f"torch.no_grad() or pass {name}.detach()"
                    )
                asks = True
        if asks and torch._C._are_functorch_transforms_active():
            raise InvalidArgument(
                f"{self.family.name}: torch.func cannot differentiate it; call backward() or "
                "torch.autograd.grad outside of torch.func's transforms"
            )
        return asks

    def _arguments(
        self, inputs: Inputs, options: Mapping[str, Any]
    ) -> tuple[Call, Inputs, tuple[Scalar, ...]]:
        """A call's arguments, as the dispatcher passes them: without those that are defaults."""
        if len(inputs) < len(self.inputs):
            inputs += (None,) * (len(self.inputs) - len(inputs))
        scalars = tuple(map(options.get, self.scalar_names))

        def call() -> Asked:
            named = zip(self.scalar_names, scalars, strict=True)
            given = {name: scalar for name, scalar in named if scalar is not None}
            wishes = {
                a.name: bool(options.get(f"return_{a.name}")) or options.get(a.name) is not None
                for a in self.outputs
                if a.optional
            }
            sizes = {**given, **self.symbols_of(inputs), **wishes}
            device = self._first(inputs).device
            return Asked(device, sizes, inputs, scalars, tuple(wishes.values()))

        return call, inputs, scalars

    def _named(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Those that are there, by name."""
        named = zip(self.inputs, inputs, strict=True)
        return {argument.name: tensor for argument, tensor in named if tensor is not None}

    def _check_family(self, info: KernelInfo) -> None:
        if info.family != self.name:
            raise InvalidArgument(
                f"key: got {info.key}, a kernel of {info.family}, expected one of {self.name}"
            )

    def symbols_of(self, inputs: Inputs) -> dict[str, Any]:
        """The symbols' values, and whether each input is there."""
        found: dict[str, Any] = {}
        for argument, tensor in zip(self.inputs, inputs, strict=True):
            found[argument.name] = tensor is not None
            if tensor is None:
                continue
            for dim, extent in zip(argument.dims, tensor.shape, strict=False):
                if dim in self.family.symbols:
                    found.setdefault(dim, extent)
        return found

    def values_of(
        self,
        info: KernelInfo,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        asked: Mapping[str, bool],
        named: Container[str],
    ) -> dict[str, Any]:
        """What expressions may name of a call: of scalars that were left out, the defaults of those
        that are `named`. `asked` are the outputs, and whether each is computed."""
        scope = {**info.parameters, **info.derived, **asked, **self.symbols_of(inputs)}
        for scalar, value in zip(self.scalars, scalars, strict=True):
            if value is None and scalar.name in named and scalar.name in self.scalar_defaults:
                value = extent(self.scalar_defaults[scalar.name], scope, info)
                value = scalar.values[value] if scalar.values else value
            scope[scalar.name] = value
        return scope

    def _first(self, inputs: Inputs) -> torch.Tensor:
        """The first input on the call's device: those that are not on the host are."""
        known = zip(self.inputs, inputs, strict=True)
        return next(t for a, t in known if t is not None and not a.on_host)

    def _run(self, key: str, given: Inputs, options: Mapping[str, Any]) -> Result:
        call, inputs, scalars = self._arguments(given, options)
        return self._kernel(key, call)._native.run(inputs, scalars, call().requested, None)

    def _kernel(self, key: str, call: Call) -> Kernel:
        kernel = self.known(key) or self.find(key, call)
        self._check_family(kernel.info)
        return kernel

    def _run_out(self, key: str, given: Inputs, options: Mapping[str, Any]) -> None:
        call, inputs, scalars = self._arguments(given, options)
        written = tuple(t for t in map(options.get, self.output_names) if t is not None)
        self._kernel(key, call)._native.run(inputs, scalars, call().requested, written)

    def _fake(self, key: str, given: Inputs, options: Mapping[str, Any]) -> Result:
        call, inputs, scalars = self._arguments(given, options)
        info = self.describe(key, call)
        self._check_family(info)
        self._check_fake(info, inputs, {})
        asked = self._asked(options)
        scope = self.values_of(info, inputs, scalars, asked, self.sizes)
        return _plain(
            [
                self._new_empty(
                    inputs,
                    [extent(dim, scope, info) for dim in dims] if asked[a.name] else [0],
                    _dtype(a, info.parameters),
                    a.like if asked[a.name] else "",
                )
                for a, dims in zip(self.outputs, self.shapes, strict=True)
            ]
        )

    def _fake_out(self, key: str, given: Inputs, options: Mapping[str, Any]) -> None:
        call, inputs, _ = self._arguments(given, options)
        info = self.describe(key, call)
        self._check_family(info)
        self._check_fake(info, inputs, {name: options.get(name) for name in self.output_names})

    def _new_empty(
        self, inputs: Inputs, shape: list[Any], dtype: torch.dtype, like: str
    ) -> torch.Tensor:
        """An output on the call's device."""
        first = self._first(inputs)
        if not like:
            return first.new_empty(shape, dtype=dtype)
        named = zip(self.inputs, inputs, strict=True)
        strides = next(t.stride() for a, t in named if a.name == like and t is not None)
        # As Kernel::allocate: those of 0 first, then the greatest.
        inner = sorted(range(len(shape)), key=lambda i: (bool(strides[i]), -strides[i]))
        step, found = 1, [1] * len(shape)
        for i in reversed(inner):
            found[i] = step
            step *= _OF_SYMBOLS["max"](shape[i], 1)
        return first.new_empty_strided(shape, found, dtype=dtype)

    def _check_fake(
        self, info: KernelInfo, inputs: Inputs, outputs: Mapping[str, torch.Tensor | None]
    ) -> None:
        """Checks what must not wait for the run: what the outputs' shapes come from, and that the
        call is of meta tensors alone, since PyTorch asks for no run if one is."""
        device = self._first(inputs).device
        named = zip(self.inputs, inputs, strict=True)
        on_device = {a.name: t for a, t in named if not a.on_host} | {**outputs}
        for name, tensor in on_device.items():
            if tensor is not None and (tensor.device.type == "meta") != (device.type == "meta"):
                raise InvalidArgument(
                    f"{name}: got a tensor on {tensor.device}, expected the device of the first "
                    f"input, {device}"
                )
        for argument, tensor in zip(self.inputs, inputs, strict=True):
            if tensor is None:
                continue
            if tensor.dim() != len(argument.dims):
                raise InvalidArgument(
                    f"{argument.name}: got shape {list(tensor.shape)}, expected "
                    f"{len(argument.dims)} dimensions, [{', '.join(argument.dims)}]"
                )
            dtype = _dtype(argument, info.parameters)
            if tensor.dtype != dtype:
                raise InvalidArgument(
                    f"{argument.name}: got dtype {tensor.dtype}, expected {dtype} ({info.key})"
                )


def _is_device_next(keys: int) -> bool:
    """Whether of these dispatch keys a kernel of a device follows autograd's: no mode, transform or
    subclass is between them."""
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & torch._C._after_autograd_keyset
    return below.highestPriorityTypeId() in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


_HAS_NUMBERS = hasattr(torch._C.DispatchKeySet, "raw_repr")  # PyTorch 2.4 lacks it


def _call_directly(operator: str, call: OperatorCall) -> None:
    """Has torch.ops run an operator's plain calls without the dispatcher, which turns Python's
    objects into its own and back, twice; PyTorch's function gets all others."""
    packet = getattr(getattr(torch.ops, NAMESPACE), operator)
    holders = packet, packet.default
    register = getattr(torch.jit._builtins, "_register_builtin", None)
    if register is None or not all("_op" in vars(h) for h in holders) or not _reads_keys():
        return
    for holder in holders:
        direct = DirectCall(call, _is_thread_plain, holder._op)
        functools.update_wrapper(direct, holder._op)
        del vars(direct)["__wrapped__"]  # a packet has it too: inspect.signature would look there
        register(direct, f"{NAMESPACE}::{operator}")  # TorchScript knows functions by this
        holder._op = direct


_BETWEEN = ("BackendSelect", "ADInplaceOrView")  # keys of every thread; neither does anything here


def _is_thread_plain() -> bool:
    """Whether no mode, transform or cast of this thread has to see a call of plain tensors."""
    included = torch._C._dispatch_tls_local_include_set().raw_repr()
    for name in _BETWEEN:
        key = getattr(torch._C.DispatchKey, name)
        included &= ~torch._C.DispatchKeySet(key).raw_repr()
    return included == 0 and not torch._C._is_any_autocast_enabled()


@functools.cache
def _reads_keys() -> bool:
    """Whether the extension finds a thread's keys where this PyTorch has them: it is to see which
    one a guard leaves out."""
    before = _native.thread_keys()
    asked = ("_dispatch_tls_local_include_set", "_is_any_autocast_enabled")
    if before is None or not _HAS_NUMBERS or not all(hasattr(torch._C, name) for name in asked):
        return False
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.Negative)  # here nothing asks for it
    with torch._C._ExcludeDispatchKeyGuard(key):
        without = _native.thread_keys()
    return without == (before[0], before[1] ^ key.raw_repr())


@dataclass(frozen=True)
class _Differentiated:
    """A call that autograd differentiates."""

    run: Callable[..., Any]  # of the inputs
    backward: _Backward
    operator: _Operator
    gradient: Gradient | DeclaredGradient

    @property
    def saved(self) -> frozenset[str]:
        """The inputs and outputs that the backward may look at."""
        if isinstance(self.gradient, DeclaredGradient):
            passed = self.gradient.tensors
            return frozenset(p.name for p in passed if p.what in ("input", "output"))
        return frozenset(a.name for a in self.operator.family.tensors)


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
        operator = ctx.call.operator
        ctx.names = [a.name for a in operator.inputs[: len(tensors)]]
        outputs = list(zip(operator.output_names, output, strict=True))
        known = [*zip(ctx.names, tensors, strict=True), *outputs]
        saved = ctx.call.saved
        ctx.save_for_backward(*(t if name in saved else None for name, t in known))
        flowing = ctx.call.gradient.outputs
        ctx.mark_non_differentiable(*(tensor for name, tensor in outputs if name not in flowing))
        ctx._materialize_non_diff_grads = False  # zeros, which nothing would read

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved, names = ctx.saved_tensors, ctx.call.operator.output_names
        inputs = {n: t for n, t in zip(ctx.names, saved, strict=False) if t is not None}
        outputs: _Tensors = dict(zip(names, saved[len(ctx.names) :], strict=True))
        if torch.is_grad_enabled():
            outputs = _refusing_others(ctx.call, inputs, outputs)
        needed = [n for n, asks in zip(ctx.names, ctx.needs_input_grad[1:], strict=True) if asks]

        def call(*given: torch.Tensor | None) -> _Tensors:
            named = {n: t for n, t in zip(names, given, strict=True) if t is not None}
            return ctx.call.backward(inputs, outputs, named, needed=needed)  # type: ignore[no-any-return]  # autograd's has no types

        return None, *map(_each(call, tuple(map(_with_memory, gradients))).get, ctx.names)


def _with_memory(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient of zeros that PyTorch kept without memory, as zeros that a kernel can read."""
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


def refused(message: str, found: _Tensors, by: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What was `found`, which is not to be differentiated again, by itself or by the tensors that
    it was made of: autograd says so with this message. It must be told of all of these: where it is
    asked for the gradients of some inputs alone, it passes by what does not lead to them, as if
    there were none."""
    results = _Refused.apply(message, len(found), *found.values(), *by)  # type: ignore[no-untyped-call]  # PyTorch's
    return dict(zip(found, results, strict=True))


def _refusing_others(call: _Differentiated, inputs: _Tensors, outputs: _Tensors) -> _Tensors:
    """A call's outputs for a backward that may be differentiated again: those that have no
    gradients (a log-sum-exp) are no constants, and what is made of them has no second ones."""
    flowing, found = call.gradient.outputs, dict(outputs)
    asking = [tensor for tensor in inputs.values() if tensor.requires_grad]
    for name, tensor in outputs.items():
        if asking and name not in flowing and tensor is not None and tensor.is_floating_point():
            message = (
                f"{call.operator.name}: its gradients take {name}, which has none: they cannot be "
                "differentiated again"
            )
            found |= refused(message, {name: tensor}, asking)
    return found


def _each(call: Callable[..., _Tensors], gradients: Sequence[torch.Tensor | None]) -> _Tensors:
    """What a backward gives of the outputs' gradients, those of is_grads_batched one by one."""
    there = [t for t in gradients if t is not None]
    batched = [t for t in there if torch._C._functorch.is_legacy_batchedtensor(t)]
    if not batched:
        return call(*gradients)
    # The axis of a level is the first then; a tensor without it is as often there as is asked.
    level = next(i for i in range(1, 65) if len(torch._remove_batch_dim(batched[0], i, 0, 0)))
    count = len(torch._remove_batch_dim(batched[0], level, 0, 0))
    parts = (
        (None,) * count if t is None else torch._remove_batch_dim(t, level, count, 0).unbind()
        for t in gradients
    )
    found = [_each(call, part) for part in zip(*parts, strict=True)]
    stacked = {name: torch.stack([one[name] for one in found]) for name in found[0]}
    return {name: torch._add_batch_dim(t, 0, level) for name, t in stacked.items()}


# Of symbols, which Python's own would compare: a graph would be one for the outcome.
_OF_SYMBOLS: Mapping[str, Any] = {
    "min": lambda *values: functools.reduce(torch.sym_min, values),
    "max": lambda *values: functools.reduce(torch.sym_max, values),
}


def _call_scope_of(family: Family) -> dict[str, expressions.Kind]:
    """Symbols, and optional tensors, which are true if they are there."""
    symbols = dict.fromkeys(family.symbols, expressions.INT)
    return {**symbols, **dict.fromkeys(family.optional_tensors, expressions.BOOL)}


def _scope_of(family: Family) -> dict[str, expressions.Kind]:
    """Parameters, what a spec derives from them, symbols, optional tensors and scalars."""
    scalars = {a.name: expressions.scalar_kind(a) for a in family.scalars}
    return {**manifest_scope(family, family.targets[0]), **_call_scope_of(family), **scalars}


def conditions_of(family: Family) -> tuple[expressions.Expression, ...]:
    """Returns for which calls, by kernels of which targets, each of a family's gradients is."""
    targets = expressions.Kind("text", tuple(t.name for t in family.targets))
    scope = {**_scope_of(family), "target": targets}
    return tuple(expressions.parse(g.when, scope, "bool") for g in family.gradients)


def extent(dim: expressions.Expression, scope: Mapping[str, Any], info: KernelInfo) -> Any:
    """The value of an expression over a call of a kernel. Raises InvalidArgument without one."""
    try:
        return dim.evaluate({**scope, **_OF_SYMBOLS})
    except expressions.EVALUATION_ERRORS as error:
        named = ", ".join(f"{name} = {scope[name]}" for name in sorted(dim.names) if name in scope)
        raise InvalidArgument(
            f"{info.key}: {dim.text}: {expressions.reason(error)}; here {named}"
        ) from None


def _plain(results: Sequence[torch.Tensor]) -> Result:
    """What a call with these results returns: one as it is, several as a tuple, None for none."""
    if len(results) == 1:
        return results[0]
    return tuple(results) if results else None


def _dtype(argument: Tensor, parameters: Any) -> torch.dtype:
    return DTYPES[parameters.get(argument.dtype, argument.dtype)]


def _unpacked(function: Callable[[str, Inputs, dict[str, Any]], Any]) -> Callable[..., Any]:
    """Adapts a function of a call's key, inputs and other arguments to the dispatcher's way."""

    def call(key: str, *inputs: torch.Tensor | None, **options: Any) -> Any:
        return function(key, inputs, options)

    return call


def _by_name(names: list[str], function: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Adapts a function of a dict to the way the dispatcher passes arguments."""

    def call(*arguments: Any, **options: Any) -> Any:
        return function({**dict(zip(names, arguments, strict=False)), **options})

    return call


def register(pack: Pack, ways: Ways) -> None:
    """Registers the operators of a pack's families.

    Raises PackError for invalid schemas; nothing is registered then.
    """
    for family, schemas in pack.operators.items():
        for text in schemas:
            try:
                torch._C.parse_schema(f"{NAMESPACE}::{text}")
            except RuntimeError as error:
                said = str(error).strip().partition("\n")[0]
                raise PackError(
                    f"{pack}: {pack.folder / PACK_JSON} is damaged (operators.{family}: {said}): "
                    "reinstall it"
                ) from None
    for family, schemas in pack.operators.items():
        _Operator(family, ways).define(schemas, family in pack.on_host)


def _mapped(operator: str, written: Sequence[str], values: dict[str, Any]) -> Result:
    """What torch.func.vmap calls of an operator: one call for each of its own."""
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    functorch = torch._C._functorch
    level = retrieve_current_functorch_interpreter().level()
    call = getattr(getattr(torch.ops, NAMESPACE), operator).default
    axes: dict[str, torch.Tensor] = {}  # those with an axis of vmap's, which is the first then
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            continue
        values[name], axis = functorch._unwrap_batched(value, level)
        if axis is not None:
            axes[name] = values[name].movedim(axis, 0)
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)
    with torch._C._ExcludeDispatchKeyGuard(below):
        if not axes:
            return call(**values)  # type: ignore[no-any-return]  # operators have no types
        for name in written:
            if name not in axes and values.get(name) is not None:
                raise InvalidArgument(
                    f"{name}: each of vmap's calls writes it, and there is one for all; pass one "
                    "for each, with an axis in in_dims"
                )
        # A kernel's rows may have to be contiguous, which an axis behind others prevents.
        packed = {name: tensor.contiguous() for name, tensor in axes.items()}
        count = len(next(iter(packed.values())))
        if count == 0:
            raise InvalidArgument(f"{next(iter(axes))}: vmap's axis has no elements")
        rows = zip(*(tensor.unbind() for tensor in packed.values()), strict=True)
        found = [call(**{**values, **dict(zip(packed, row, strict=True))}) for row in rows]
        for name in written:
            if name in axes and packed[name] is not axes[name]:
                axes[name].copy_(packed[name])
        if found[0] is None:
            return None
        if isinstance(found[0], torch.Tensor):
            stacked = [torch.stack(found)]
        else:
            stacked = [torch.stack(parts) for parts in zip(*found, strict=True)]
    return _plain([functorch._add_batch_dim(tensor, 0, level) for tensor in stacked])


@functools.cache
def eager_caller(name: str) -> Callable[..., Result]:
    """`caller`'s function for calls that nothing compiles: those that a mode, a transform or a
    tensor subclass must see."""
    through = caller(name)
    arguments = manifest.family(name).inputs

    def call(
        key: str,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        out: Out,
    ) -> Result:
        for argument, tensor in zip(arguments, inputs, strict=True):
            if tensor is not None or not argument.optional:
                _check_tensor(argument.name, tensor)
        given = None if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)
        for tensor in given or ():
            _check_tensor("out", tensor)
        try:
            if given is None or not _is_functionalized():
                return through(key, inputs, scalars, requested, given)
            # functionalize takes no operator that writes: it sees a result and a copy.
            made = through(key, inputs, scalars, requested, None)
            return _copied(given, made)
        except (TypeError, NotImplementedError) as error:  # PyTorch's, if a subclass takes neither
            wraps = {type(t).__name__ for t in inputs if _dispatches(t)}
            if not wraps:
                raise
            raise InvalidArgument(
                f"{key}: {' and '.join(sorted(wraps))}, a tensor subclass with a dispatch of its "
                f"own, does not take torch.ops.{NAMESPACE}.{name}; pass the plain torch.Tensor "
                f"that it wraps (PyTorch: {str(error).partition(chr(10))[0]})"
            ) from error

    return call


def _dispatches(tensor: torch.Tensor | None) -> bool:
    """Whether it is of a subclass with a dispatch of its own."""
    if tensor is None:
        return False
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _is_functionalized() -> bool:
    functorch = torch._C._functorch
    return any(
        interpreter.key() == functorch.TransformType.Functionalize
        for interpreter in functorch.get_interpreter_stack() or ()
    )


def _check_tensor(name: str, given: Any) -> None:
    if not isinstance(given, torch.Tensor):
        raise unexpected(name, given, "a torch.Tensor")


def _copied(given: tuple[torch.Tensor, ...], made: Result) -> Result:
    """`given`, to which results were copied; it has their shapes and dtypes."""
    results = made if isinstance(made, tuple) else (made,)
    if len(given) != len(results):
        raise InvalidArgument(f"out: got {len(given)} tensors, expected {len(results)}")
    for tensor, result in zip(given, results, strict=True):
        assert result is not None
        if (tensor.shape, tensor.dtype) != (result.shape, result.dtype):
            raise InvalidArgument(
                f"out: got shape {list(tensor.shape)} of {tensor.dtype}, expected "
                f"{list(result.shape)} of {result.dtype}"
            )
        tensor.copy_(result)
    return _plain(given)


@functools.cache
def caller(name: str) -> Callable[..., Result]:
    """A function of the key and Kernel._call's arguments that goes through a family's operators.

    It is plain Python, as torch.compile traces it.
    """
    family = manifest.family(name)
    functional, *in_place = (
        getattr(torch.ops.kernelmint, text.partition("(")[0]).default for text in family.operators
    )
    scalar_names = tuple(a.name for a in family.scalars)
    output_names = tuple(a.name for a in family.outputs)
    optional_names = tuple(a.name for a in family.outputs if a.optional)

    def call(
        key: str,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        out: Out,
    ) -> Result:
        left_out = [n for n, asked in zip(optional_names, requested, strict=True) if not asked]
        wanted = [n for n in output_names if n not in left_out]
        options: dict[str, Any] = {
            n: s for n, s in zip(scalar_names, scalars, strict=True) if s is not None
        }
        if out is not None:
            given = (out,) if isinstance(out, torch.Tensor) else tuple(out)
            if len(given) != len(wanted):
                raise InvalidArgument(
                    f"out: got {len(given)} tensors, expected {len(wanted)}: {', '.join(wanted)}"
                )
            for name, tensor in zip(wanted, given, strict=True):
                options[name] = tensor
            in_place[0](key, *inputs, **options)
            return _plain(given)
        for name in optional_names:
            options[f"return_{name}"] = name in wanted
        result = functional(key, *inputs, **options)
        results = () if not output_names else result if len(output_names) > 1 else (result,)
        return _plain([r for n, r in zip(output_names, results, strict=True) if n in wanted])

    return call
