"""The definition of a family's operators: their schemas, and what each does on a device, without
data (fake), for PyTorch's flop counter and for distributed tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from codegen.core import expressions
from codegen.core.packs import PACK_JSON, Pack, PackError
from codegen.core.where import manifest_scope
from runtime import packs
from runtime._native import OperatorCall
from runtime.errors import InvalidArgument
from runtime.handle import Inputs, Kernel, Result
from runtime.operators.arguments import (
    NAMESPACE,
    OF_SYMBOLS,
    Arguments,
    LazyArguments,
    dtype_of,
    extent,
    result_of,
)
from runtime.operators.autograd import Autograd, Backward
from runtime.operators.direct import HAS_NUMBERS, call_directly, is_device_next
from runtime.operators.transforms import mapped
from runtime.when_imported import when_imported

if TYPE_CHECKING:
    from runtime.kernel_info import KernelInfo


@dataclass(frozen=True)
class Callbacks:
    """The functions of modules above that operators call.

    Attributes:
        resolved: gives the kernel of a key that was found before, or None.
        find: gives the kernel of a key and a call.
        describe: describes that kernel, built or not.
        backward: gives the backward of a call of a family whose spec declares its gradient; see
            `gradients.of_call`.
    """

    resolved: Callable[[str], Kernel | None]
    find: Callable[[str, LazyArguments], Kernel]
    describe: Callable[[str, LazyArguments], KernelInfo]
    backward: Callable[..., Backward]


_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]  # PyTorch's


def register(pack: Pack, callbacks: Callbacks) -> None:
    """Registers the operators of a pack's families.

    Raises PackError for invalid schemas; nothing is registered then.
    """
    for family, schemas in pack.operators.items():
        for text in schemas:
            try:
                torch._C.parse_schema(f"{NAMESPACE}::{text}")
            except RuntimeError as error:
                reason = str(error).strip().partition("\n")[0]
                raise PackError(
                    f"{pack}: {pack.folder / PACK_JSON} is damaged (operators.{family}: {reason}): "
                    "reinstall it"
                ) from None
    for family, schemas in pack.operators.items():
        Definition(family, callbacks).define(schemas, family in pack.on_host)


class Definition:
    """The definition of one family's operators.

    It reads its arguments when it is first called: an import defines the operators of all packs.
    """

    def __init__(self, family: str, callbacks: Callbacks) -> None:
        self._arguments = Arguments(family)
        self._callbacks = callbacks
        self._calls: dict[str, OperatorCall] = {}  # not yet called from torch.ops directly

    def define(self, schemas: tuple[str, ...], on_host: bool) -> None:
        """Registers the operators by their schemas, as codegen orders them.

        `on_host` says that inputs of a call are on two devices.
        """
        autograd = Autograd(self._arguments, self._callbacks.describe, self._callbacks.backward)
        implementations = (self._run, self._fake, False), (self._run_out, self._fake_out, True)
        for text, (run, fake, in_place) in zip(schemas, implementations, strict=False):
            operator = text.partition("(")[0]
            arguments = torch._C.parse_schema(f"{NAMESPACE}::{text}").arguments
            names = [a.name for a in arguments]
            written = [a.name for a in arguments if a.alias_info and a.alias_info.is_write]
            _library.define(text)  # type: ignore[no-untyped-call]  # PyTorch's
            described = functools.partial(self._described, operator, in_place)
            plain_call = functools.partial(OperatorCall, described, self._callbacks.resolved)
            below = plain_call(None, _unpacked(run))
            self._calls[operator] = below
            _library.impl(operator, below.call, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # PyTorch's
            above = autograd.implementation(operator, in_place)
            if HAS_NUMBERS:
                above = plain_call(is_device_next, above).call
            when_imported("torch.utils.flop_counter", functools.partial(self._count, operator))
            when_imported("torch.distributed.tensor", functools.partial(self._shard, operator))
            _library.impl(operator, above, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]  # PyTorch's
            _library.impl(operator, mapped(operator, names, written), "FuncTorchBatched")  # type: ignore[no-untyped-call]  # PyTorch's
            if on_host:  # PyTorch tells the results' device by itself only if there is one
                torch.library.register_fake(
                    f"{NAMESPACE}::{operator}", _unpacked(fake), lib=_library
                )
            else:
                # register_fake looks up the source of its caller, for each operator, and costs as
                # much again as all the rest of an import.
                _library.impl(operator, _unpacked(fake), "Meta")  # type: ignore[no-untyped-call]  # PyTorch's

    def _described(self, operator: str, in_place: bool) -> tuple[Any, ...]:
        """Describes the arguments to OperatorCall, which asks at the operator's first call."""
        if (below := self._calls.pop(operator, None)) is not None:
            call_directly(operator, below)
        arguments = self._arguments
        optional = [a.name for a in arguments.family.outputs if a.optional]
        requests = optional if in_place else [f"return_{name}" for name in optional]
        outputs = arguments.output_names if in_place else ()
        inputs = len(arguments.family.inputs)
        return arguments.name, inputs, arguments.scalar_names, tuple(requests), outputs

    def _kernel(self, key: str, call: LazyArguments) -> Kernel:
        kernel = self._callbacks.resolved(key) or self._callbacks.find(key, call)
        self._check_family(kernel.info)
        return kernel

    def _check_family(self, info: KernelInfo) -> None:
        if info.family != self._arguments.name:
            raise InvalidArgument(
                f"key: got {info.key}, a kernel of {info.family}, expected one of "
                f"{self._arguments.name}"
            )

    def _run(self, key: str, inputs: Inputs, options: Mapping[str, Any]) -> Result:
        call, inputs, scalars = self._arguments.read(inputs, options)
        return self._kernel(key, call)._native.run(inputs, scalars, call().requested, None)

    def _run_out(self, key: str, inputs: Inputs, options: Mapping[str, Any]) -> None:
        call, inputs, scalars = self._arguments.read(inputs, options)
        outputs = map(options.get, self._arguments.output_names)
        written = tuple(t for t in outputs if t is not None)
        self._kernel(key, call)._native.run(inputs, scalars, call().requested, written)

    def _fake(self, key: str, inputs: Inputs, options: Mapping[str, Any]) -> Result:
        arguments = self._arguments
        call, inputs, scalars = arguments.read(inputs, options)
        info = self._callbacks.describe(key, call)
        self._check_family(info)
        self._check_fake(info, inputs, {})
        computed = arguments.computed(options)
        scope = arguments.values_of(info, inputs, scalars, computed, arguments.shape_names)
        return result_of(
            [
                self._new_empty(
                    inputs,
                    [extent(dim, scope, info) for dim in dims] if computed[a.name] else [0],
                    dtype_of(a, info.parameters),
                    a.like if computed[a.name] else "",
                )
                for a, dims in zip(arguments.family.outputs, arguments.shapes, strict=True)
            ]
        )

    def _fake_out(self, key: str, inputs: Inputs, options: Mapping[str, Any]) -> None:
        call, inputs, _ = self._arguments.read(inputs, options)
        info = self._callbacks.describe(key, call)
        self._check_family(info)
        outputs = {name: options.get(name) for name in self._arguments.output_names}
        self._check_fake(info, inputs, outputs)

    def _new_empty(
        self, inputs: Inputs, shape: list[Any], dtype: torch.dtype, like: str
    ) -> torch.Tensor:
        """Returns an output on the call's device, laid out as the input `like` if it names one."""
        first = self._arguments.first(inputs)
        if not like:
            return first.new_empty(shape, dtype=dtype)
        strides = next(t.stride() for _, name, t in self._arguments.tensors(inputs) if name == like)
        # Kernel::allocate has the same order: strides of 0 first, then the greatest.
        order = sorted(range(len(shape)), key=lambda i: (bool(strides[i]), -strides[i]))
        step, packed = 1, [1] * len(shape)
        for i in reversed(order):
            packed[i] = step
            step *= OF_SYMBOLS["max"](shape[i], 1)
        return first.new_empty_strided(shape, packed, dtype=dtype)

    def _check_fake(
        self, info: KernelInfo, inputs: Inputs, outputs: Mapping[str, torch.Tensor | None]
    ) -> None:
        """Checks what must not wait for the run: what the outputs' shapes come from, extents that a
        graph knows, since autograd reads the gradients' before any run, and that all tensors are
        meta tensors if one is, since PyTorch asks for no run then."""
        tensors = list(self._arguments.tensors(inputs))
        if not tensors:
            return
        device = self._arguments.first(inputs).device
        on_device = {name: t for a, name, t in tensors if not a.on_host} | {**outputs}
        for name, tensor in on_device.items():
            if tensor is not None and (tensor.device.type == "meta") != (device.type == "meta"):
                raise InvalidArgument(
                    f"{name}: got a tensor on {tensor.device}, expected the device of the first "
                    f"input, {device}"
                )
        known: dict[str, tuple[int, str]] = {}
        for argument, name, tensor in tensors:
            if tensor.dim() != len(argument.dims) and not argument.flat:
                raise InvalidArgument(
                    f"{name}: got shape {list(tensor.shape)}, expected "
                    f"{len(argument.dims)} dimensions, [{', '.join(argument.dims)}]"
                )
            dtype = dtype_of(argument, info.parameters)
            if tensor.dtype != dtype:
                raise InvalidArgument(
                    f"{name}: got dtype {tensor.dtype}, expected {dtype} ({info.key})"
                )
            if argument.flat or argument.length:
                continue
            for dim, of_dim in zip(argument.dims, tensor.shape, strict=True):
                if dim not in self._arguments.family.symbols or type(of_dim) is not int:
                    continue
                expected, of = known.setdefault(dim, (of_dim, name))
                if of_dim != expected:
                    raise InvalidArgument(
                        f"{name}: got shape {list(tensor.shape)}, expected "
                        f"[{', '.join(argument.dims)}] with {dim} = {expected} as in {of}"
                    )

    def _count(self, name: str) -> None:
        from torch.utils.flop_counter import flop_registry

        # Not register_flop_formula: PyTorch 2.4's takes the overload, which its counter never asks.
        flop_registry[getattr(getattr(torch.ops, NAMESPACE), name)] = self._operations_of

    def _operations_of(
        self, key: str, *inputs: torch.Tensor | None, out_val: object = None, **options: Any
    ) -> int:
        """Counts a call's operations for FlopCounterMode; 0 if the family does not say."""
        if self._operations is None:
            return 0
        call, inputs, _ = self._arguments.read(inputs, options)
        return int(self._operations(self._callbacks.describe(key, call), inputs))

    @functools.cached_property
    def _operations(self) -> Callable[[KernelInfo, Inputs], int] | None:
        """Returns the function that counts a call's operations, if the family says how."""
        arguments = self._arguments
        text = arguments.family.operations
        if text is None:
            return None
        module, _, function = text.partition(":")
        if function:
            count = packs.specs_function(packs.of(arguments.name), module, function)
            return lambda info, inputs: count(info.parameters, arguments.named(inputs))
        constants = manifest_scope(arguments.family, arguments.family.targets[0])
        counted = expressions.parse(text, {**constants, **arguments.call_scope}, "int")
        return lambda info, inputs: extent(
            counted, {**info.parameters, **info.derived, **arguments.symbols_of(inputs)}, info
        )

    def _shard(self, name: str) -> None:
        if not hasattr(torch.library, "register_torch_dispatch"):
            return  # PyTorch 2.4
        from runtime import sharding

        sharding.register(self._arguments, f"{NAMESPACE}::{name}", _library)


def _unpacked(function: Callable[[str, Inputs, dict[str, Any]], Any]) -> Callable[..., Any]:
    """Adapts a function of a call's key, inputs and other arguments to the dispatcher's way."""

    def call(key: str, *inputs: torch.Tensor | None, **options: Any) -> Any:
        return function(key, inputs, options)

    return call
