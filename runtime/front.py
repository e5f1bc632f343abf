"""Calls without a key: the kernel of a family is chosen by what the call says."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import BaseTorchFunctionMode

from codegen.core.expressions import COMPUTE_CAPABILITY, EVALUATION_ERRORS, layout, reason
from runtime import (
    _native,
    choice,
    devices,
    finding,
    listing,
    manifest,
    open_choice,
    packs,
    tensors,
)
from runtime.errors import InvalidArgument, unexpected, unlisted
from runtime.handle import Inputs, Kernel, Out, Scalar
from runtime.open_choice import OpenChoice
from runtime.pytorch import traced_as_constant
from runtime.rows import NOTHING, python_type
from runtime.rows import of as rows_of

if TYPE_CHECKING:
    from runtime.kernel_info import KernelInfo
    from runtime.operators.arguments import LazyArguments

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # looked up once: calls are short


# An input of a family: its name; the symbols that its dimensions are, or ""; whether it may be
# absent; whether it is in the CPU's memory, whatever the target; the parameter that is its dtype,
# or ""; whether it is a list, whose one dimension is its length. It is no NamedTuple, which PyTorch
# 2.11 does not unpack in a trace.
_Input = tuple[str, tuple[str, ...], bool, bool, str, bool]


class _Facts(NamedTuple):
    """The facts of a family that fronts use.

    Attributes:
        inputs: the inputs.
        places: the place of each input.
        outputs: the name of each output, whether it is optional, and the output that holds its true
            first extent, or "".
        optional_outputs: the names of optional outputs.
        ranks: the number of dimensions of each tensor.
        scalars: the name of each scalar, its type, an enum's texts, and whether it is required.
        flags: the type of each parameter, and an enum's texts.
        memory: the questions that targets ask of how tensors lie in memory; see `rows.Rows`.
    """

    inputs: tuple[_Input, ...]
    places: dict[str, int]
    outputs: tuple[tuple[str, bool, str], ...]
    optional_outputs: tuple[str, ...]
    ranks: dict[str, int]
    scalars: tuple[tuple[str, str, tuple[str, ...], bool], ...]
    flags: dict[str, tuple[str, tuple[str, ...]]]
    memory: tuple[tuple[str, int, int], ...]


_families: dict[str, _Facts] = {}
packs.when_changed(_families.clear)


@traced_as_constant
def _facts(family: str) -> _Facts:
    """Returns what fronts know of a family, kept until packs change."""
    facts = _families.get(family)  # one look: another thread may forget them
    return facts if facts is not None else _families.setdefault(family, _read(family))


def _read(name: str) -> _Facts:
    family = manifest.family(name)
    parameters = {parameter.name for parameter in family.parameters}
    inputs = tuple(
        (
            tensor.name,
            tuple(dim if dim in family.symbols else "" for dim in tensor.sizes),
            tensor.optional,
            tensor.on_host,
            tensor.dtype if tensor.dtype in parameters else "",
            bool(tensor.length),
        )
        for tensor in family.inputs
    )
    own = (parameter for target in family.targets for parameter in target.parameters)
    flags = {
        p.name: (p.type, tuple(map(str, (p.values if p.type == "enum" else ()) or ())))
        for p in reversed((*family.parameters, *own))
    }
    return _Facts(
        inputs=inputs,
        places={name: place for place, (name, *_) in enumerate(inputs)},
        outputs=tuple((t.name, t.optional, t.extent) for t in family.outputs),
        optional_outputs=tuple(tensor.name for tensor in family.outputs if tensor.optional),
        ranks={tensor.name: len(tensor.dims) for tensor in family.tensors},
        scalars=tuple(
            (s.name, python_type(s), s.values, s.default is None) for s in family.scalars
        ),
        flags=flags,
        memory=rows_of(name).memory,
    )


def _nothing() -> Mapping[str, Any]:
    return {}  # PyTorch 2.4 cannot trace NOTHING


class Other(NamedTuple):
    """A function that makes some of a front's calls in place of the family's kernels.

    Attributes:
        takes: whether the function makes plain calls of these inputs, and of `permuted`, as
            `Front.__call__` has both. The answer is kept: it may depend on devices, dtypes, and the
            extents that `symbols` names.
        symbols: the symbols of the spec whose extents `takes` reads.
        call: the function, which takes the arguments of `Front.__call__`. Calls that something
            records or transforms, and wrong calls, go to `refer`.
        refer: makes any call.
    """

    takes: Callable[..., bool]
    symbols: tuple[str, ...]
    call: Callable[..., Any]
    refer: Callable[..., Any]


class Front:
    """A function that calls one family's kernels without a key.

    Whatever decides (the device, dtypes, and the extents, scalars and flags that `takes` or rows of
    the family name) is looked up in the extension, so that a call whose like was seen before costs
    little more than one by key. While something records or transforms the call, and if an argument
    is wrong, the call goes step by step through Python.

    Args:
        family: the family's name.
        takes: the values of parameters that decide, by name, beside the dtypes of tensors: a
            function whose parameters are named as symbols, as optional tensors (true if they are
            there), as scalars (None if they are left out), as the inputs' dtypes, as flags, as
            `codegen.core.expressions.layout` reads them, `device` or `compute_capability`.
        flags: parameters whose values callers pass, and their defaults; None, if it is the default,
            leaves one open. A dtype's is PyTorch's, or its name in specs. `target` is that of the
            kernels.
        permuted: the other layout: dimension i of the callers' tensor `name` is the dimension
            `permuted[name][i]` of the spec's. Dimensions of the spec's that it leaves out have
            extent 1: `{"x": (1,)}` takes an x [E] as [1, E, 1].
        tuned: whether rows that were tuned count. They may ask how large a batch is: a front whose
            results must not depend on the batch leaves them out.
        other: a function that makes some of the calls instead, as a `runtime.front.Other`.

    Attributes:
        run: a function that makes a call as `__call__` does, outside of torch.compile.
    """

    def __init__(
        self,
        family: str,
        takes: Callable[..., Mapping[str, Any]] = _nothing,
        *,
        flags: Mapping[str, Any] = NOTHING,
        permuted: Mapping[str, tuple[int, ...]] = NOTHING,
        tuned: bool = True,
        other: Other | None = None,
    ) -> None:
        self._family = family
        self._takes = takes
        self._named = tuple(inspect.signature(takes).parameters)
        layouts = [(name, layout(name)) for name in self._named]
        self._layouts = tuple((name, *parts) for name, parts in layouts if parts)
        self._flags = tuple(flags.items())
        self._permuted = permuted
        self._tuned = tuned
        self._other = other
        self._otherwise = self._step_by_step if other is None else other.refer
        self._selector = _native.Selector(self._watched, self._look_up, self._otherwise)
        self.run = self._selector.call  # bound once: calls are short
        packs.when_changed(self._selector.forget)

    def __call__(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        out: Out,
        flags: tuple[Any, ...] = (),
        permuted: bool = False,
    ) -> Any:
        """Calls the kernel that suits; all arguments are in the order of the spec.

        Args:
            inputs: tensors, None for an optional one that is absent.
            scalars: None for defaults.
            requested: whether each optional output is wanted.
            out: where to write: a tensor, or one for each output that is wanted.
            flags: values in the order of the constructor's.
            permuted: whether tensors, those of the outputs included, are in the other layout.

        Raises:
            KernelNotFound: no kernel suits; the message says for each candidate why.
            InvalidArgument: an argument is wrong.
        """
        if _is_dynamo_compiling():
            return self._otherwise(inputs, scalars, requested, out, flags, permuted)
        return self.run(inputs, scalars, requested, out, flags, permuted)

    def explain(
        self,
        inputs: Inputs,
        flags: tuple[Any, ...] = (),
        permuted: bool = False,
        *,
        scalars: tuple[Scalar, ...] = (),
        requested: tuple[bool, ...] = (),
    ) -> choice.Explanation:
        """Returns what is considered for a call, in its order, and what is taken; see `__call__`.

        Scalars that are left out have their defaults.
        """
        facts = _facts(self._family)
        inputs = self._as_spec_all(facts, inputs) if permuted else inputs
        call = self._read_call(facts, inputs, scalars, requested, flags)
        return choice.explain(self._family, *call, self._tuned)

    def __reduce__(self) -> tuple[Callable[..., Front], tuple[Any, ...]]:
        """Returns the constructor's arguments to pickle; pickle, or its copier, must find
        `takes`."""
        flags, permuted = dict(self._flags), dict(self._permuted)
        return _unpickled, (self._family, self._takes, flags, permuted, self._tuned, self._other)

    def _look_up(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        flags: tuple[Any, ...],
        permuted: bool,
    ) -> Kernel | Callable[..., Any]:
        """Returns the kernel of a plain call, or the other function that makes it."""
        self._check_counts(inputs, scalars, requested, flags)
        if self._other is not None and self._other.takes(inputs, permuted):
            return self._other.call
        return self.find(inputs, scalars, requested, flags, permuted)

    def find(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        flags: tuple[Any, ...],
        permuted: bool = False,
    ) -> Kernel:
        """Returns the kernel that a call of these arguments takes; see `__call__`."""
        facts = _facts(self._family)
        if permuted:
            inputs = self._as_spec_all(facts, inputs)
        if self._layouts and (_is_dynamo_compiling() or any(map(_is_opaque, inputs))):
            # A graph knows how tensors lie when it runs: its operator chooses then, among kernels
            # that are built now.
            for is_aligned in (True, False):
                call = self._read_call(facts, inputs, scalars, requested, flags, is_aligned)
                kernel = open_choice.take(self._family, *call, self._tuned)
            _, parameters, _, target = call
            names = tuple([name for name, _ in self._flags])
            flags = tuple([_named_dtype(value) for value in flags])
            return open_choice.leave_to_front(
                self._family, kernel._key, parameters, target, self._tuned, names, flags
            )
        call = self._read_call(facts, inputs, scalars, requested, flags)
        return open_choice.take(self._family, *call, self._tuned)

    def _step_by_step(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        out: Out,
        flags: tuple[Any, ...],
        permuted: bool,
    ) -> Any:
        """Makes the call step by step, for what records or transforms it to see."""
        self._check_counts(inputs, scalars, requested, flags)
        if _is_nothing(_facts(self._family), inputs):
            return None
        explains = is_explaining()
        if explains and _thread.explanation is None:
            _thread.explanation = self.explain(
                inputs, flags, permuted, scalars=scalars, requested=requested
            )
        if not permuted:
            kernel = self.find(inputs, scalars, requested, flags)
            run = kernel._call if not explains else functools.partial(_zeros, kernel)
            return run(inputs, scalars, requested, out)
        facts = _facts(self._family)
        inputs = self._as_spec_all(facts, inputs)
        # Anything but a bool is the kernel's to refuse.
        requests = dict(zip(facts.optional_outputs, requested, strict=True))
        outputs = [name for name, *_ in facts.outputs if requests.get(name, True) is True]
        memory = out
        if isinstance(out, (tuple, list)):
            memory = tuple(
                [
                    self._as_spec(facts, o, f"out ({o})", t)
                    for o, t in zip(outputs, out, strict=False)
                ]
            )
        elif out is not None:
            memory = self._as_spec(facts, outputs[0], f"out ({outputs[0]})", out)
        kernel = self.find(inputs, scalars, requested, flags)
        run = kernel._call if not explains else functools.partial(_zeros, kernel)
        result = run(inputs, scalars, requested, memory)
        if out is not None:
            return tuple(out) if isinstance(out, list) else out
        if isinstance(result, tuple):
            return tuple(map(self._as_caller, outputs, result))
        return self._as_caller(outputs[0], result)

    def _check_counts(self, *arguments: tuple[Any, ...]) -> None:
        """Raises InvalidArgument unless there are as many inputs, scalars, requests and flags as
        the family and this front have."""
        facts = _facts(self._family)
        of_spec = (facts.inputs, facts.scalars, facts.optional_outputs, self._flags)
        expected, got = ([len(part) for part in parts] for parts in (of_spec, arguments))
        if expected != got:
            raise InvalidArgument(
                f"{self._family}: takes {expected[0]} inputs, {expected[1]} scalars, "
                f"{expected[2]} requests of optional outputs and {expected[3]} flags, got "
                f"{', '.join(map(str, got))}: None stands for what is left out"
            )

    def _as_spec_all(self, facts: _Facts, inputs: Inputs) -> Inputs:
        return tuple(
            [
                self._as_spec(facts, name, name, tensor)
                for (name, *_), tensor in zip(facts.inputs, inputs, strict=True)
            ]
        )

    def _as_spec(self, facts: _Facts, name: str, shown: str, tensor: Any) -> Any:
        """Returns a caller's tensor, which messages call `shown`, with the spec's order of
        dimensions."""
        order = self._permuted.get(name)
        if order is None or tensor is None:
            return tensor
        tensors.extents(shown, tensor, len(order))
        try:
            tensor = tensor.permute([order.index(i) for i in sorted(order)])
            for i in range(facts.ranks[name]):
                if i not in order:
                    tensor = tensor.unsqueeze(i)
            return tensor
        except (RuntimeError, TypeError) as error:  # without memory, or a subclass that cannot
            reason = str(error).partition("\n")[0]
            raise InvalidArgument(f"{shown}: cannot be read in this layout: {reason}") from None

    def _as_caller(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns an output with the caller's order of dimensions."""
        order = self._permuted.get(name)
        if order is None:
            return tensor
        for i in reversed(range(tensor.dim())):
            if i in order:
                continue
            if tensor.shape[i] != 1:
                raise InvalidArgument(
                    f"{self._family}: {name} has {tensor.shape[i]} in dimension {i}, which this "
                    "layout leaves out"
                )
            tensor = tensor.squeeze(i)
        kept = sorted(order)
        return tensor.permute([kept.index(i) for i in order])

    def _read_call(
        self,
        facts: _Facts,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        flags: tuple[Any, ...],
        is_aligned: bool | None = None,
    ) -> tuple[torch.device, dict[str, Any], dict[str, Any], str | None]:
        """Returns a call's device, the kernel's parameters, what rows may name beside them, and the
        target.

        `is_aligned` is the alignment of tensors whose memory is not there yet.
        """
        device: Any = None
        parameters: dict[str, Any] = {}
        sizes: dict[str, Any] = {}
        for (name, dims, is_optional, on_host, dtype, is_list), tensor in zip(
            facts.inputs, inputs, strict=True
        ):
            if is_list:
                tensors.check_list(name, tensor)
                assert tensor is not None
                if tensor:
                    tensors.extents(f"{name}[0]", tensor[0], tensor[0].dim())
                if dims[0] and dims[0] not in sizes:
                    sizes[dims[0]] = len(tensor)
                if tensor and dtype and dtype not in parameters:
                    parameters[dtype] = tensors.dtype_name(tensor[0].dtype)
                if tensor and device is None:
                    device = tensor[0].device
                continue
            if is_optional:
                sizes[name] = tensor is not None
                if tensor is None:
                    continue
            is_first = device is None and not on_host
            is_new = is_first or bool(dtype and dtype not in parameters)
            for dim in dims:
                is_new = is_new or bool(dim and dim not in sizes)
            if not is_new:
                continue  # the kernel refuses whatever else may be wrong
            extents = tensors.extents(name, tensor, len(dims))
            assert tensor is not None
            for dim, extent in zip(dims, extents, strict=True):
                if dim and dim not in sizes:  # not setdefault: PyTorch 2.4 cannot trace it
                    sizes[dim] = extent
            if dtype and dtype not in parameters:
                parameters[dtype] = tensors.dtype_name(tensor.dtype)
            if is_first:
                device = tensor.device
        for (name, _, _, _), number in zip(facts.scalars, scalars, strict=False):
            if number is not None and not isinstance(number, (list, tuple)):
                sizes[name] = number
        for name, wish in zip(facts.optional_outputs, requested, strict=False):
            sizes[name] = wish is True
        if facts.memory:
            sizes.update(tensors.expanded(inputs, facts.memory))
        passed: dict[str, Any] = {}
        for (name, default), value in zip(self._flags, flags, strict=True):
            is_checked = name != "target" and (value is not None or default is not None)
            passed[name] = _flag(name, value, *facts.flags[name]) if is_checked else value
        if self._named:
            values = {**sizes, **parameters, **passed}
            named = self._named_values(facts, device, values, inputs, is_aligned)
            taken = self._taken(named)
            parameters.update(taken)
            passed.update(taken)  # a rule decides a flag by what callers pass
        parameters.update(passed)
        target = parameters.pop("target", None)
        return device, parameters, sizes, target

    def _named_values(
        self,
        facts: _Facts,
        device: Any,
        values: Mapping[str, Any],
        inputs: Inputs,
        is_aligned: bool | None,
    ) -> dict[str, Any]:
        """Returns the arguments of `takes`."""
        named: dict[str, Any] = {"device": device}
        if COMPUTE_CAPABILITY in self._named:
            named[COMPUTE_CAPABILITY] = devices.compute_capability(device)
        for name in self._named:
            if name in values:
                named[name] = values[name]
        for name, python, texts, is_required in facts.scalars:
            if name in self._named:
                named[name] = tensors.number(name, named.get(name), python, texts, is_required)
        for name, what, argument, number in self._layouts:
            tensor = inputs[facts.places[argument]]
            if tensor is None:
                named[name] = 0
            elif what == "stride":
                named[name] = tensor.stride(number)
            elif what == "expanded":
                named[name] = tensors.is_expanded(tensor, number)
            else:
                named[name] = _is_aligned(tensor, number) if is_aligned is None else is_aligned
        return {name: named.get(name, 0) for name in self._named}

    def _taken(self, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the parameters that `takes` gives."""
        if _is_dynamo_compiling():
            return self._takes(**named)
        try:
            return self._takes(**named)
        except InvalidArgument:
            raise
        except EVALUATION_ERRORS as error:
            values = ", ".join(f"{name} = {value}" for name, value in named.items())
            raise InvalidArgument(
                f"{self._family}: what takes a kernel has no value: {reason(error)}; here {values}"
            ) from None

    def _watched(
        self,
    ) -> tuple[list[Any], list[int], list[int], dict[int, tuple[tuple[int, ...], int]]]:
        """Returns what Selector compares of a call."""
        facts = _facts(self._family)
        places = {t.name: i for i, t in enumerate(manifest.family(self._family).tensors)}
        symbols = () if self._other is None else self._other.symbols
        deciding = {*rows_of(self._family).deciding, *self._named, *symbols}
        from_required: set[str] = (
            set()
        )  # symbols and dtypes that inputs which are always there give
        names = dict.fromkeys((*self._named, *(name for name, _, _ in facts.memory)))
        layouts = [parts for parts in map(layout, names) if parts]
        inputs = []
        for name, dims, is_optional, on_host, dtype, is_list in facts.inputs:
            counting = [i for i, dim in enumerate(dims) if dim in deciding - from_required]
            has_dtype = bool(dtype) and dtype not in from_required
            lies = [
                [number for what, of, number in layouts if (what, of) == (function, name)]
                for function in ("stride", "aligned", "expanded")
            ]
            inputs.append(
                (places[name], len(dims), is_optional, on_host, has_dtype, counting, *lies, is_list)
            )
            if is_list:
                from_required |= {*dims}  # an empty list has no dtype
            elif not is_optional:
                from_required |= {*dims, dtype}
        scalars = [i for i, (name, *_) in enumerate(facts.scalars) if name in deciding]
        outputs = facts.optional_outputs
        requested = [i for i, name in enumerate(outputs) if name in deciding]
        orders = {
            places[name]: (order, facts.ranks[name]) for name, order in self._permuted.items()
        }
        return inputs, scalars, requested, orders


def to_extents(family: str, result: Any, requested: tuple[bool, ...]) -> Any:
    """Returns a call's outputs, those with a bound cut to their true extents, which it waits for.
    In a graph these are sizes of PyTorch's without a value.

    Args:
        family: the family's name.
        result: the call's result.
        requested: whether each optional output is in it.

    Raises:
        InvalidArgument: an extent exceeds its bound.
    """
    facts = _facts(family)
    asked = dict(zip(facts.optional_outputs, requested, strict=True))
    bounded = [(name, count) for name, _, count in facts.outputs if asked.get(name, True)]
    results = result if isinstance(result, tuple) else (result,)
    outputs = {name: tensor for (name, _), tensor in zip(bounded, results, strict=True)}
    extents: dict[str, Any] = {}
    for name, count in bounded:
        if not count:
            continue
        bound = outputs[name].shape[0]
        if count not in extents:
            extents[count] = outputs[count].item()
        extent = extents[count]
        if _is_dynamo_compiling():
            torch._check(extent >= 0)  # type: ignore[no-untyped-call]  # PyTorch's
            torch._check(extent <= bound)  # type: ignore[no-untyped-call]  # PyTorch's
        elif not 0 <= extent <= bound:
            raise InvalidArgument(
                f"{family}: {name} holds {bound}, but {count} is {extent}: raise the bound, or "
                "leave out sliced=True"
            )
        outputs[name] = outputs[name][:extent]
    return tuple(outputs.values()) if isinstance(result, tuple) else result


def _unpickled(
    family: str,
    takes: Callable[..., Mapping[str, Any]],
    flags: Mapping[str, Any],
    permuted: Mapping[str, tuple[int, ...]],
    tuned: bool,
    other: Other | None,
) -> Front:
    return Front(family, takes, flags=flags, permuted=permuted, tuned=tuned, other=other)


_thread = threading.local()  # `explains`: whether it is within explain_call, and `explanation`


def explain_call(
    function: Callable[..., Any], *arguments: Any, **options: Any
) -> choice.Explanation:
    """Returns what a call without a key considers, in its order: rows that were tuned, those of
    choices.yaml, kernels, each with why it is taken or not. `str()` of it is for people.

    The function is called; the kernels that it chooses are not: they give zeros. If it chooses
    several, the first counts.

    Args:
        function: `kernelmint.decode`, or another that picks a kernel.
        arguments, options: the function's.

    Raises:
        InvalidArgument: an argument is wrong, or the function picks no kernel.
    """
    _thread.explains, _thread.explanation = True, None
    try:
        with BaseTorchFunctionMode():  # the extension leaves a call to Python then
            function(*arguments, **options)
    except Exception:  # no kernel suits, or the function makes nothing of zeros
        if _thread.explanation is None:
            raise
    finally:
        _thread.explains, explanation = False, _thread.explanation
    if explanation is None:
        named = getattr(function, "__name__", repr(function))
        raise InvalidArgument(f"explain_call: {named} picks no kernel for these arguments")
    return explanation  # type: ignore[no-any-return]  # a thread's attributes have no types


def is_explaining() -> bool:
    """Returns whether this is within `explain_call`."""
    return not _is_dynamo_compiling() and getattr(_thread, "explains", False)


def _without_memory(value: Any) -> Any:
    """Returns an input as meta tensors."""
    if isinstance(value, (list, tuple)):
        return list(map(_without_memory, value))
    return None if value is None else value.detach().to("meta")


def _is_nothing(facts: _Facts, inputs: Inputs) -> bool:
    """Returns whether a call has lists, and no tensor: no kernel runs."""
    has_lists = False
    for (_, _, _, on_host, _, is_list), tensor in zip(facts.inputs, inputs, strict=True):
        has_lists = has_lists or is_list
        if is_list and isinstance(tensor, (list, tuple)):
            if tensor:
                return False
        elif tensor is not None and not on_host:
            return False
    return has_lists


def _zeros(
    kernel: Kernel,
    inputs: Inputs,
    scalars: tuple[Scalar, ...],
    requested: tuple[bool, ...],
    out: Out,
) -> Any:
    """Returns zeros in place of a kernel's results, or `out` as it is."""
    if out is not None:
        return out
    single = (t for i in inputs for t in (i if isinstance(i, (list, tuple)) else (i,)))
    cuda = (t.device for t in single if t is not None and t.is_cuda)
    device = next(cuda, torch.device("cpu"))
    shapes = tuple(map(_without_memory, inputs))
    results = kernel._operator(kernel._key, shapes, scalars, requested, None)
    if isinstance(results, tuple):
        return tuple(torch.zeros_like(result, device=device) for result in results)
    return None if results is None else torch.zeros_like(results, device=device)


_values: dict[tuple[str, str, bool], tuple[Any, ...]] = {}
packs.when_changed(_values.clear)


@traced_as_constant
def values_of(family: str, parameter: str, on_cuda: bool) -> tuple[Any, ...]:
    """Returns the values, in order, of a parameter of a family's kernels for such devices.

    They are kept, since each call may ask.
    """
    question = family, parameter, on_cuda
    kept = _values.get(question)  # one look: another thread may forget them
    if kept is None:
        targets = (t for t in listing.known_family(family).targets if t.is_cuda == on_cuda)
        values = {kernel.parameters[parameter] for t in targets for kernel in t.kernels}
        kept = _values[question] = tuple(sorted(values))
    return kept


def _is_opaque(tensor: torch.Tensor | None) -> bool:
    """Returns whether a tensor does not tell where its memory is: a subclass with a dispatch of its
    own, or a tensor that a transform of torch.func wraps."""
    if not isinstance(tensor, torch.Tensor):
        return False
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return True
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _is_aligned(tensor: torch.Tensor, least: int) -> bool:
    """Returns whether the address and all strides but those of 1 are multiples of so many bytes.

    Selector compares the same; the strides of extents of 1 do not count.
    """
    size, strides = tensor.element_size(), zip(tensor.shape, tensor.stride(), strict=True)
    steps = [size * stride for extent, stride in strides if extent > 1 and stride != 1]
    return all(number % least == 0 for number in (tensor.data_ptr(), *steps))


# The types of parameters' values.
KINDS: dict[str, type] = {"bool": bool, "int": int, "enum": str, "dtype": str}


def _named_dtype(value: Any) -> Any:
    """Returns a dtype as specs name it; other values as they are."""
    return tensors.dtype_name(value) if isinstance(value, torch.dtype) else value


def _flag(name: str, value: Any, type_name: str, texts: tuple[str, ...]) -> Any:
    """Returns a flag's value as specs write it. Raises InvalidArgument for another type or text."""
    kind = KINDS[type_name]
    if type_name == "dtype" and isinstance(value, torch.dtype):
        return tensors.dtype_name(value)
    if type(value) is not kind:
        what = "torch.dtype" if type_name == "dtype" else kind.__name__
        raise unexpected(name, value, f"{'an' if kind is int else 'a'} {what}")
    if texts and value not in texts:
        raise InvalidArgument(unlisted(name, str(value), texts))
    return value


@functools.cache
def of_family(name: str, parameters: tuple[str, ...]) -> tuple[Front, tuple[Any, ...]]:
    """Returns a front that chooses as the family's generated one, or a default one, and the
    defaults of its flags but the last: these are the `parameters`."""
    is_generated = any(not front.module for front in manifest.family(name).fronts)
    own = packs.generated_front(name) if is_generated else Front(name)
    flags = {flag: default for flag, default in own._flags if flag not in parameters}
    front = Front(name, own._takes, flags={**flags, **dict.fromkeys(parameters)})
    return front, tuple(flags.values())


packs.when_changed(of_family.cache_clear)


def of_call(key: str, call: LazyArguments) -> Kernel:
    """Returns the kernel of an operator's key, which is a kernel's key or an open choice, for a
    call."""
    if not key.startswith("{"):
        return finding.find(key)
    arguments = call()
    open_ = OpenChoice.parse(key)
    if arguments.device.type == "meta":
        return open_.any_kernel()
    if open_.flags is not None:
        front, defaults = of_family(open_.family, tuple(open_.flags))
        flags = (*defaults, *open_.flags.values())
        return front.find(arguments.inputs, arguments.scalars, arguments.requested, flags)
    memory = _facts(open_.family).memory
    sizes = {**arguments.sizes, **tensors.expanded(arguments.inputs, memory)}
    return open_choice.take(
        open_.family, arguments.device, open_.parameters, sizes, open_.target, open_.tuned
    )


def describe(key: str, call: LazyArguments) -> KernelInfo:
    """Returns what is known of the kernel of an operator's key, which need not be built."""
    return of_call(key, call).info if key.startswith("{") else finding.describe(key)
