"""The base of the generated kernel classes: one call signature a family, one instance a kernel."""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from codegen.core import expressions
from codegen.core.where import parameter_kind
from runtime import manifest
from runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from codegen.core.manifest import Family
    from runtime._native import NativeKernel
    from runtime.kernel_info import KernelInfo

Inputs = tuple[torch.Tensor | None, ...]
Result = torch.Tensor | tuple[torch.Tensor, ...] | None
Out = torch.Tensor | tuple[torch.Tensor, ...] | None
Scalar = float | int | bool | str | None


is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # looked up once: calls are short


class _Graphs:
    """The kernels of compiled graphs, as attributes: torch.compile reads attributes anew at each
    use, but keeps a dict as it was when it was first read."""


in_graphs = _Graphs()


def name_in_graphs(key: str) -> str:
    """Returns the attribute of `in_graphs` that holds the kernel of a key."""
    return f"kernel_{key.encode().hex()}"


def record_shapes(family: Family, parameters: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the shapes of a record's tensors by name, for a traced configuration."""
    assert family.trace is not None
    names = {parameter.name: parameter_kind(parameter) for parameter in family.parameters}
    return {
        tensor.name: [
            expressions.parse(extent, names, "int").evaluate(parameters) for extent in tensor.shape
        ]
        for tensor in family.trace.record
    }


def split_records(
    records: torch.Tensor, shapes: Mapping[str, list[int]]
) -> dict[str, torch.Tensor]:
    """Returns the tensors of records, [*grid, numbers of a record], each as [*grid, *shape]."""
    parts = torch.split(records, [math.prod(shape) for shape in shapes.values()], -1)
    views = (
        part.view(*part.shape[:-1], *s) for part, s in zip(parts, shapes.values(), strict=True)
    )
    return dict(zip(shapes, views, strict=True))


class Kernel:
    """A kernel of one configuration, resolved and ready to call.

    A call checks its arguments, allocates the outputs that `out` does not bring, and runs on the
    current stream of the arguments' device without synchronising. Under `torch.compile`, and while
    anything else records or transforms the call (make_fx, torch.jit.trace, torch.func, a
    dispatch mode), the same call goes through the family's operator in `torch.ops.kernelmint`.

    Raises:
        InvalidArgument: an argument is wrong.
        TypeError: an argument is missing, unknown or given twice.

    Attributes:
        info: the description: the configuration, registers, and whether it can run here.
    """

    __slots__ = ("_native", "_run", "info")

    info: KernelInfo
    # The class's: Dynamo of PyTorch 2.4 cannot read a slot's key, and that of 2.5 calls no function
    # of a slot.
    _key: str
    _operator: Callable[..., Result]
    _native: NativeKernel
    _run: Callable[..., Result]

    def __init__(self, info: KernelInfo, native: NativeKernel) -> None:
        self.info = info
        self._native = native
        self._run = native.call  # bound once: a call of the object itself is slower

    @classmethod
    def of_key(cls, key: str, operator: Callable[..., Result]) -> type[Kernel]:
        """Returns this class for one kernel, whose key is in Python's error for a call that does
        not suit.

        Python takes the name that it shows from the function, so a call that suits costs no more.
        """
        own = {name: _renamed(getattr(cls, name), key) for name in ("__call__", "trace")}
        called = {"_key": key, "_operator": staticmethod(operator)}
        rest = {"__slots__": (), "__module__": cls.__module__, "__doc__": cls.__doc__}
        return type(cls.__name__, (cls,), {**own, **called, **rest})

    def left_open(self, key: str) -> Kernel:
        """Returns a kernel for graphs, whose operator finds by this key the kernel that suits
        when it runs."""
        of_key = type(self).of_key(key, self._operator)
        other = of_key(replace(self.info, key=key), self._native)
        other._run = partial(self._operator, key)
        return other

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Runs the kernel; each family's class has the signature that its spec asks for."""
        raise NotImplementedError("only the class generated for a family can be called")

    def _call(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        out: Out,
    ) -> Any:
        if is_dynamo_compiling():
            return self._operator(self._key, inputs, scalars, requested, out)
        return self._run(inputs, scalars, requested, out)

    def trace(self, *arguments: Any, **options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
        """Runs a kernel that was built with tracing; returns a call's result, and the trace.

        The trace holds the tensors that the family's `trace:` declares, by name: f32, each of
        [*grid, *shape], NaN if the kernel writes nothing. Only this method allocates it.

        Raises:
            InvalidArgument: the kernel is not traced, an argument is wrong, or something records
                or transforms the call (make_fx, torch.jit.trace, torch.func, a mode).
        """
        raise InvalidArgument(f"{self.info.key}: kernels of {self.info.family} write no trace")

    def _trace(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        out: Out,
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        family, parameters = manifest.family(self.info.family), self.info.parameters
        assert family.trace is not None
        if not parameters[family.trace.parameter]:
            raise InvalidArgument(
                f"{self.info.key}: got a kernel without tracing, expected one of runtime.kernels("
                f"{family.name!r}, where={family.trace.parameter!r})"
            )
        result, records = self._native.trace(inputs, scalars, requested, out)
        return result, split_records(records, record_shapes(family, parameters))

    def timed(self, *arguments: Any, **options: Any) -> tuple[Any, float]:
        """Calls the kernel and waits for it.

        Returns:
            the call's result, and the milliseconds it took: on a GPU between two CUDA events on
            the current stream, on the CPU by the clock, argument checks and allocation included.

        Raises:
            InvalidArgument: torch.compile traces the call, which cannot measure it.
        """
        if is_dynamo_compiling():
            raise InvalidArgument(
                f"{self.info.key}: timed() waits for the kernel, which a compiled graph cannot; "
                "call timed() outside of torch.compile"
            )
        values = (*arguments, *options.values())
        single = (a for v in values for a in (v if isinstance(v, (list, tuple)) else (v,)))
        tensors = (a for a in single if isinstance(a, torch.Tensor))
        device = next((t.device for t in tensors if t.is_cuda), None)
        if device is not None:
            with torch.cuda.device(device):
                start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch's
                end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch's
                start.record()
                result = self(*arguments, **options)
                end.record()
                end.synchronize()
            return result, start.elapsed_time(end)
        begin = time.perf_counter()
        result = self(*arguments, **options)
        return result, 1e3 * (time.perf_counter() - begin)

    def name_in_graphs(self) -> str:
        """Returns the attribute of `in_graphs` that holds the kernel from now on."""
        name = name_in_graphs(self.info.key)
        setattr(in_graphs, name, self)
        return name

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        """Returns the key to pickle: a copy is the same kernel, and another process looks up its
        own."""
        return _by_key, (self.info.key,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info.key}>"


def _by_key(key: str) -> Any:
    return sys.modules["runtime"].kernel(key)


def _renamed(method: FunctionType, key: str) -> FunctionType:
    """Returns a copy that error messages call by the key and its arguments."""
    copy = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__)
    copy.__kwdefaults__, copy.__annotations__ = method.__kwdefaults__, method.__annotations__
    copy.__qualname__ = f"{key} takes {_plain_signature(method)}: {method.__name__}"
    return copy


@cache
def _plain_signature(method: FunctionType) -> str:
    """Returns the arguments of a family's method, without annotations."""
    _, *parameters = inspect.signature(method).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))
