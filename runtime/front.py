"""Calls without a key: the kernel of a family is chosen by what the call says."""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import BaseTorchFunctionMode

from codegen.core.expressions import COMPUTE_CAPABILITY, EVALUATION_ERRORS, layout, reason
from runtime import _native, choice, finding, listing, manifest, packs, tensors
from runtime.errors import InvalidArgument, unexpected, unlisted
from runtime.handle import Inputs, Kernel, Out, Scalar, traced_as_constant

if TYPE_CHECKING:
    from runtime.kernel_info import KernelInfo
    from runtime.operators.arguments import LazyArguments

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # found once: calls are short


def _nothing() -> Mapping[str, Any]:
    return {}  # PyTorch 2.4 cannot trace what _NOTHING is


class Front:
    """What calls one family's kernels without a key.

    What decides (the device, dtypes, and the extents, scalars and flags that `takes` or rows of the
    family name) is looked up in the extension, so that a call whose like was seen before costs
    little more than one by key. While something records or transforms the call, and if an argument
    is wrong, it goes step by step through Python.

    Args:
        family: its name.
        takes: the values of parameters that decide, by name, beside the dtypes of tensors: a
            function whose parameters are named as symbols, as optional tensors (true if they are
            there), as scalars (None if they are left out), as the inputs' dtypes, as
            `codegen.core.expressions.layout` reads them, `device` or `compute_capability`.
        flags: parameters whose values callers pass, and their defaults; None, if it is the default,
            leaves one open. `target` is that of the kernels.
        permuted: the other layout: dimension i of what callers have as `name` is the dimension
            `permuted[name][i]` of the spec's. Those of the spec's that are in none are of extent
            1: `{"x": (1,)}` takes an x [E] as [1, E, 1].
        tuned: whether rows that were tuned count. They may ask how large a batch is: a front whose
            results must not depend on the batch leaves them out.
    """

    def __init__(
        self,
        family: str,
        takes: Callable[..., Mapping[str, Any]] = _nothing,
        *,
        flags: Mapping[str, Any] = _NOTHING,
        permuted: Mapping[str, tuple[int, ...]] = _NOTHING,
        tuned: bool = True,
    ) -> None:
        self._family = family
        self._takes = takes
        self._named = tuple(inspect.signature(takes).parameters)
        known = [(name, layout(name)) for name in self._named]
        self._layouts = tuple((name, *found) for name, found in known if found)
        self._flags = tuple(flags.items())
        self._permuted = permuted
        self._tuned = tuned
        self._selector = _native.Selector(self._watched, self.find, self._otherwise)
        self._run = self._selector.call  # bound once: calls are short
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
            inputs: tensors, None for what is optional and absent.
            scalars: None for defaults.
            requested: whether each optional output is wanted.
            out: where to write: a tensor, or one for each output that is wanted.
            flags: as they are named in the constructor.
            permuted: whether tensors are in the other layout; so are the outputs, then.

        Raises:
            KernelNotFound: no kernel suits; the message says for each candidate why.
            InvalidArgument: an argument is wrong.
        """
        if _is_dynamo_compiling():
            return self._otherwise(inputs, scalars, requested, out, flags, permuted)
        return self._run(inputs, scalars, requested, out, flags, permuted)

    def explain(
        self,
        inputs: Inputs,
        flags: tuple[Any, ...] = (),
        permuted: bool = False,
        *,
        scalars: tuple[Scalar, ...] = (),
        requested: tuple[bool, ...] = (),
    ) -> choice.Explanation:
        """What is considered for a call, in its order, and what is taken; see `__call__`. Scalars
        that are left out have their defaults."""
        inputs = self._read(inputs) if permuted else inputs
        asked = self._asked(inputs, scalars, requested, flags)
        return choice.explain(self._family, *asked, tuned=self._tuned)

    def __reduce__(self) -> tuple[Callable[..., Front], tuple[Any, ...]]:
        """By what it was made of; `takes` has to be a function that pickle finds, or its copier."""
        flags, permuted = dict(self._flags), dict(self._permuted)
        return _made, (self._family, self._takes, flags, permuted, self._tuned)

    def find(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        flags: tuple[Any, ...],
        permuted: bool = False,
    ) -> Kernel:
        """The kernel that a call of these arguments takes; see `__call__`."""
        if permuted:
            inputs = self._read(inputs)
        if self._layouts and (_is_dynamo_compiling() or any(map(_is_opaque, inputs))):
            # How tensors lie is known when the graph runs: its operator chooses then, among what
            # is built now. Any of them tells shapes.
            for is_aligned in (True, False):
                asked = self._asked(inputs, scalars, requested, flags, is_aligned)
                found = choice.take(self._family, *asked, tuned=self._tuned)
            names = tuple([name for name, _ in self._flags])
            return choice.in_graph(_at_run(self._family, found._key, names, flags))
        asked = self._asked(inputs, scalars, requested, flags)
        return choice.take(self._family, *asked, tuned=self._tuned)

    def _otherwise(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        out: Out,
        flags: tuple[Any, ...],
        permuted: bool,
    ) -> Any:
        """The call step by step, for what records or transforms it to see."""
        if is_explaining():
            raise _ExplainedError(
                self.explain(inputs, flags, permuted, scalars=scalars, requested=requested)
            )
        if not permuted:
            kernel = self.find(inputs, scalars, requested, flags)
            return kernel._call(inputs, scalars, requested, out)
        inputs = self._read(inputs)
        asked = (wish is True for wish in requested)  # what is no bool is the kernel's to refuse
        outputs = [o for o, is_optional in _outputs(self._family) if not is_optional or next(asked)]
        given = out
        if isinstance(out, (tuple, list)):
            given = tuple(map(self._memory, outputs, out))
        elif out is not None:
            given = self._memory(outputs[0], out)
        kernel = self.find(inputs, scalars, requested, flags)
        result = kernel._call(inputs, scalars, requested, given)
        if out is not None:
            return tuple(out) if isinstance(out, list) else out
        if isinstance(result, tuple):
            return tuple(map(self._as_caller, outputs, result))
        return self._as_caller(outputs[0], result)

    def _read(self, inputs: Inputs) -> Inputs:
        return tuple(
            self._as_spec(name, name, tensor)
            for (name, *_), tensor in zip(_inputs(self._family), inputs, strict=True)
        )

    def _memory(self, name: str, tensor: Any) -> Any:
        return self._as_spec(name, f"out ({name})", tensor)

    def _as_spec(self, name: str, said: str, tensor: Any) -> Any:
        """A caller's tensor, which messages call `said`, with the spec's order of dimensions."""
        order = self._permuted.get(name)
        if order is None or tensor is None:
            return tensor
        tensors.extents(said, tensor, len(order))
        try:
            tensor = tensor.permute([order.index(i) for i in sorted(order)])
            for i in range(_rank(self._family, name)):
                if i not in order:
                    tensor = tensor.unsqueeze(i)
            return tensor
        except (RuntimeError, TypeError) as error:  # without memory, or a subclass that cannot
            reason = str(error).partition("\n")[0]
            raise InvalidArgument(f"{said}: cannot be read in this layout: {reason}") from None

    def _as_caller(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
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

    def _asked(
        self,
        inputs: Inputs,
        scalars: tuple[Scalar, ...],
        requested: tuple[bool, ...],
        flags: tuple[Any, ...],
        is_aligned: bool | None = None,
    ) -> tuple[torch.device, dict[str, Any], dict[str, Any], str | None]:
        """The device, what is wanted, what rows may name beside it, and the target; `is_aligned`:
        what counts as the alignment of tensors whose memory is not there yet."""
        device: Any = None
        wanted: dict[str, Any] = {}
        sizes: dict[str, Any] = {}
        for (name, dims, is_optional, on_host, dtype), tensor in zip(
            _inputs(self._family), inputs, strict=True
        ):
            if is_optional:
                sizes[name] = tensor is not None
                if tensor is None:
                    continue
            is_first = device is None and not on_host
            is_new = any(dim and dim not in sizes for dim in dims)
            if not (is_first or is_new or (dtype and dtype not in wanted)):
                continue  # what else it may be is the kernel's to refuse
            extents = tensors.extents(name, tensor, len(dims))
            assert tensor is not None
            for dim, extent in zip(dims, extents, strict=True):
                if dim and dim not in sizes:  # not setdefault: PyTorch 2.4 cannot trace it
                    sizes[dim] = extent
            if dtype and dtype not in wanted:
                wanted[dtype] = tensor.dtype
            if is_first:
                device = tensor.device
        for name, number in zip(_scalars(self._family), scalars, strict=False):
            if number is not None:
                sizes[name] = number
        for name, wish in zip(_optional_outputs(self._family), requested, strict=False):
            sizes[name] = wish is True
        sizes.update(choice.lying(self._family, inputs))
        wanted.update(self._decided(self._known(device, wanted, sizes, inputs, is_aligned)))
        for (name, default), value in zip(self._flags, flags, strict=True):
            if name != "target" and (value is not None or default is not None):
                _check_flag(self._family, name, value)
            wanted[name] = value
        target = wanted.pop("target", None)
        return device, wanted, sizes, target

    def _decided(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        if _is_dynamo_compiling():
            return self._takes(**known)
        try:
            return self._takes(**known)
        except InvalidArgument:
            raise
        except EVALUATION_ERRORS as error:
            named = ", ".join(f"{name} = {value}" for name, value in known.items())
            raise InvalidArgument(
                f"{self._family}: what takes a kernel has no value: {reason(error)}; here {named}"
            ) from None

    def _known(
        self,
        device: Any,
        dtypes: Mapping[str, Any],
        sizes: Mapping[str, Any],
        inputs: Inputs,
        is_aligned: bool | None,
    ) -> dict[str, Any]:
        """What `takes` is called with."""
        known: dict[str, Any] = {"device": device}
        if COMPUTE_CAPABILITY in self._named:
            known[COMPUTE_CAPABILITY] = choice.compute_capability(device)
        for name in self._named:
            if name in dtypes:
                known[name] = _dtype_name(dtypes[name])
            elif name in sizes:
                known[name] = sizes[name]
        for name, python, values, is_required in _numbers(self._family, self._named):
            known[name] = choice.number(name, known.get(name), python, values, is_required)
        for name, what, argument, number in self._layouts:
            tensor = inputs[_place(self._family, argument)]
            if tensor is None:
                known[name] = 0
            elif what == "stride":
                known[name] = tensor.stride(number)
            elif what == "expanded":
                known[name] = tensors.is_expanded(tensor, number)
            else:
                known[name] = _is_aligned(tensor, number) if is_aligned is None else is_aligned
        return {name: known.get(name, 0) for name in self._named}

    def _watched(
        self,
    ) -> tuple[list[Any], list[int], list[int], dict[int, tuple[tuple[int, ...], int]]]:
        """What Selector compares."""
        family = manifest.family(self._family)
        deciding = {*choice.deciding(self._family), *self._named}
        known: set[str] = set()  # from inputs that are always there
        required = [name for name, _, _ in choice.asked_of_memory(self._family)]
        asked = dict.fromkeys((*self._named, *required))
        layouts = [found for found in map(layout, asked) if found]
        inputs = []
        for name, dims, is_optional, on_host, dtype in _inputs(self._family):
            counting = [i for i, dim in enumerate(dims) if dim in deciding - known]
            (place,) = (i for i, tensor in enumerate(family.tensors) if tensor.name == name)
            has_dtype = bool(dtype) and dtype not in known
            lies = [
                [number for what, of, number in layouts if (what, of) == (function, name)]
                for function in ("stride", "aligned", "expanded")
            ]
            inputs.append((place, len(dims), is_optional, on_host, has_dtype, counting, *lies))
            if not is_optional:
                known |= {*dims, dtype}
        scalars = [i for i, name in enumerate(_scalars(self._family)) if name in deciding]
        outputs = _optional_outputs(self._family)
        requested = [i for i, name in enumerate(outputs) if name in deciding]
        places = {tensor.name: i for i, tensor in enumerate(family.tensors)}
        orders = {
            places[name]: (order, _rank(self._family, name))
            for name, order in self._permuted.items()
        }
        return inputs, scalars, requested, orders


def _made(
    family: str,
    takes: Callable[..., Mapping[str, Any]],
    flags: Mapping[str, Any],
    permuted: Mapping[str, tuple[int, ...]],
    tuned: bool,
) -> Front:
    return Front(family, takes, flags=flags, permuted=permuted, tuned=tuned)


_thread = threading.local()  # `explains`: whether it is within explain_call


class _ExplainedError(BaseException):
    """Ends a call that is explained; no front takes it for an error of its own."""

    def __init__(self, explanation: choice.Explanation) -> None:
        super().__init__()
        self.explanation = explanation


def explain_call(
    function: Callable[..., Any], *arguments: Any, **options: Any
) -> choice.Explanation:
    """What a call without a key considers, in its order: rows that were tuned, those of
    choices.yaml, kernels, each with why it is taken or not. `str()` of it is for people.

    The function is called up to where it chooses a kernel, which is not called. What it does before
    that, it does.

    Args:
        function: `kernelmint.decode`, or another that picks a kernel.
        arguments, options: what it is called with.

    Raises:
        InvalidArgument: an argument is wrong, or the function picks no kernel.
    """
    _thread.explains = True
    try:
        with BaseTorchFunctionMode():  # the extension leaves a call to Python then
            function(*arguments, **options)
    except _ExplainedError as found:
        return found.explanation
    finally:
        _thread.explains = False
    named = getattr(function, "__name__", repr(function))
    raise InvalidArgument(f"explain_call: {named} picks no kernel for these arguments")


def is_explaining() -> bool:
    """Whether this is within `explain_call`."""
    return not _is_dynamo_compiling() and getattr(_thread, "explains", False)


_values: dict[tuple[str, str, bool], tuple[Any, ...]] = {}
packs.when_changed(_values.clear)


@traced_as_constant
def values_of(family: str, parameter: str, on_cuda: bool) -> tuple[Any, ...]:
    """The values of a parameter that a family's kernels for such devices have, in order; they are
    kept, since each call may ask."""
    asked = family, parameter, on_cuda
    if asked not in _values:
        targets = (t for t in listing.known_family(family).targets if t.is_cuda == on_cuda)
        values = {kernel.parameters[parameter] for t in targets for kernel in t.kernels}
        _values[asked] = tuple(sorted(values))
    return _values[asked]


_Input = tuple[str, tuple[str, ...], bool, bool, str]
_known_inputs: dict[str, tuple[_Input, ...]] = {}
packs.when_changed(_known_inputs.clear)


@traced_as_constant
def _inputs(family: str) -> tuple[_Input, ...]:
    """Of each input its name, the symbols that its dimensions are ("" for others), whether it is
    optional and on the host, and the parameter that is its dtype ("" if none is); kept, since each
    call of a new kind asks."""
    if family not in _known_inputs:
        found = manifest.family(family)
        parameters = {parameter.name for parameter in found.parameters}
        _known_inputs[family] = tuple(
            (
                tensor.name,
                tuple(dim if dim in found.symbols else "" for dim in tensor.dims),
                tensor.optional,
                tensor.on_host,
                tensor.dtype if tensor.dtype in parameters else "",
            )
            for tensor in found.inputs
        )
    return _known_inputs[family]


@traced_as_constant
def _outputs(family: str) -> tuple[tuple[str, bool], ...]:
    """Of each output its name, and whether it is optional."""
    return tuple((tensor.name, tensor.optional) for tensor in manifest.family(family).outputs)


@traced_as_constant
def _optional_outputs(family: str) -> tuple[str, ...]:
    return tuple(name for name, is_optional in _outputs(family) if is_optional)


@traced_as_constant
def _place(family: str, name: str) -> int:
    return [tensor.name for tensor in manifest.family(family).inputs].index(name)


@traced_as_constant
def _rank(family: str, name: str) -> int:
    """A tensor's, in the spec."""
    return next(len(t.dims) for t in manifest.family(family).tensors if t.name == name)


@traced_as_constant
def _numbers(
    family: str, named: tuple[str, ...]
) -> tuple[tuple[str, str, tuple[str, ...], bool], ...]:
    """Of each scalar that is named its name, its type, an enum's values, and whether it must be
    passed."""
    return tuple(
        (scalar.name, choice.python_type(scalar), scalar.values, scalar.default is None)
        for scalar in manifest.family(family).scalars
        if scalar.name in named
    )


@traced_as_constant
def _dtype_name(dtype: torch.dtype) -> str | None:
    return finding.dtype_name(dtype)


def _is_opaque(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor tells of no memory where it is: a subclass with a dispatch of its own, or
    what a transform of torch.func wraps."""
    if not isinstance(tensor, torch.Tensor):
        return False
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return True
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _is_aligned(tensor: torch.Tensor, least: int) -> bool:
    """As Selector compares it: whether the address and all strides but those of 1 are multiples of
    so many bytes; the strides of extents of 1 do not count."""
    size, strides = tensor.element_size(), zip(tensor.shape, tensor.stride(), strict=True)
    steps = [size * stride for extent, stride in strides if extent > 1 and stride != 1]
    return all(number % least == 0 for number in (tensor.data_ptr(), *steps))


@traced_as_constant
def _scalars(family: str) -> tuple[str, ...]:
    return tuple(scalar.name for scalar in manifest.family(family).scalars)


@traced_as_constant
def _flag(family: str, name: str) -> tuple[str, tuple[str, ...]]:
    """The type of a parameter, and the values of an enum."""
    found = manifest.family(family)
    own = (parameter for target in found.targets for parameter in target.parameters)
    parameter = next(p for p in (*found.parameters, *own) if p.name == name)
    values = parameter.values if parameter.type == "enum" else ()
    return parameter.type, tuple(map(str, values or ()))


# Of parameters' values, beside dtypes.
KINDS: dict[str, type] = {"bool": bool, "int": int, "enum": str}


@functools.cache
def of_family(name: str, parameters: tuple[str, ...]) -> tuple[Front, tuple[Any, ...]]:
    """What picks a family's kernels as the front that is generated for it does, if one is, and by
    these parameters: the last of its flags. And the defaults of the others."""
    is_generated = any(not front.module for front in manifest.family(name).fronts)
    known = packs.generated_front(name) if is_generated else Front(name)
    flags = {flag: default for flag, default in known._flags if flag not in parameters}
    made = Front(name, known._takes, flags={**flags, **dict.fromkeys(parameters)})
    return made, tuple(flags.values())


packs.when_changed(of_family.cache_clear)


def of_call(key: str, call: LazyArguments) -> Kernel:
    """The kernel of an operator's key: a kernel's, one that leaves the choice to the operator, or
    one by which it asks the family's front; `call` tells what the call says."""
    if not key.startswith('{"front"'):
        return choice.of_call(key, call)
    said = call()
    try:
        asked = json.loads(key)
        family, flags = asked["front"], dict(asked["flags"])
        known = packs.owner(family) is not None
    except (ValueError, LookupError, TypeError):
        known = False
    if not known:
        raise choice.no_key(key)
    if said.device.type == "meta":  # any kernel tells shapes
        return choice.of_graph(asked["kernel"])
    front, others = of_family(family, tuple(flags))
    return front.find(said.inputs, said.scalars, said.requested, (*others, *flags.values()))


def describe(key: str, call: LazyArguments) -> KernelInfo:
    """What is known of the kernel of an operator's key, which need not be built."""
    return of_call(key, call).info if key.startswith("{") else finding.describe(key)


@traced_as_constant
def _at_run(family: str, kernel: str, names: tuple[str, ...], flags: tuple[Any, ...]) -> str:
    """A kernel whose operator asks the family's front when it runs, by its name in graphs."""
    known = choice.of_graph(kernel)
    flagged = dict(zip(names, flags, strict=True))
    key = json.dumps({"front": family, "kernel": known.info.key, "flags": flagged})
    return known.left_open(key).name_in_graphs()


def _check_flag(family: str, name: str, value: Any) -> None:
    type_name, values = _flag(family, name)
    kind = KINDS[type_name]
    if type(value) is not kind:
        raise unexpected(name, value, f"{'an' if kind is int else 'a'} {kind.__name__}")
    if values and value not in values:
        raise InvalidArgument(unlisted(name, str(value), values))
