"""Calls of kernels through their operators: what torch.compile traces, and what a mode, a transform
or a tensor subclass must see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from runtime import manifest
from runtime.errors import InvalidArgument, unexpected
from runtime.handle import Inputs, Out, Result, Scalar
from runtime.operators.arguments import NAMESPACE, result_of
from runtime.tensors import check_list


@functools.cache
def caller(name: str) -> Callable[..., Result]:
    """Returns a function of a key and Kernel._call's arguments that calls a family's operators.

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
        left_out = [
            n for n, is_asked in zip(optional_names, requested, strict=True) if not is_asked
        ]
        computed = [n for n in output_names if n not in left_out]
        options: dict[str, Any] = {
            n: s for n, s in zip(scalar_names, scalars, strict=True) if s is not None
        }
        if out is not None:
            outputs = (out,) if isinstance(out, torch.Tensor) else tuple(out)
            if len(outputs) != len(computed):
                raise InvalidArgument(
                    f"out: got {len(outputs)} tensors, expected {len(computed)}: "
                    f"{', '.join(computed)}"
                )
            for name, tensor in zip(computed, outputs, strict=True):
                options[name] = tensor
            in_place[0](key, *inputs, **options)
            return result_of(outputs)
        for name in optional_names:
            options[f"return_{name}"] = name in computed
        result = functional(key, *inputs, **options)
        results = () if not output_names else result if len(output_names) > 1 else (result,)
        return result_of([r for n, r in zip(output_names, results, strict=True) if n in computed])

    return call


@functools.cache
def eager_caller(name: str) -> Callable[..., Result]:
    """Returns `caller`'s function for calls that nothing compiles: those that a mode, a transform
    or a tensor subclass must see."""
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
            if argument.length:
                check_list(argument.name, tensor)
            elif tensor is not None or not argument.optional:
                _check_tensor(argument.name, tensor)
        outputs = None if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)
        for tensor in outputs or ():
            _check_tensor("out", tensor)
        try:
            if outputs is None or not _is_functionalized():
                return through(key, inputs, scalars, requested, outputs)
            # functionalize takes no operator that writes: it sees a result and a copy.
            return _copied(outputs, through(key, inputs, scalars, requested, None))
        except (TypeError, NotImplementedError) as error:  # PyTorch's, if a subclass takes neither
            single = (t for i in inputs for t in (i if isinstance(i, (list, tuple)) else (i,)))
            wraps = {type(t).__name__ for t in single if _dispatches(t)}
            if not wraps:
                raise
            raise InvalidArgument(
                f"{key}: {' and '.join(sorted(wraps))}, a tensor subclass with a dispatch of its "
                f"own, does not take torch.ops.{NAMESPACE}.{name}; pass the plain torch.Tensor "
                f"that it wraps (PyTorch: {str(error).partition(chr(10))[0]})"
            ) from error

    return call


def _dispatches(tensor: torch.Tensor | None) -> bool:
    """Returns whether a tensor is of a subclass with a dispatch of its own."""
    if tensor is None:
        return False
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _is_functionalized() -> bool:
    functorch = torch._C._functorch
    return any(
        interpreter.key() == functorch.TransformType.Functionalize
        for interpreter in functorch.get_interpreter_stack() or ()
    )


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise unexpected(name, value, "a torch.Tensor")


def _copied(outputs: tuple[torch.Tensor, ...], result: Result) -> Result:
    """Copies a result to `outputs`, which must have its shapes and dtypes, and returns these."""
    results = result if isinstance(result, tuple) else (result,)
    if len(outputs) != len(results):
        raise InvalidArgument(f"out: got {len(outputs)} tensors, expected {len(results)}")
    for output, source in zip(outputs, results, strict=True):
        assert source is not None
        if (output.shape, output.dtype) != (source.shape, source.dtype):
            raise InvalidArgument(
                f"out: got shape {list(output.shape)} of {output.dtype}, expected "
                f"{list(source.shape)} of {source.dtype}"
            )
        output.copy_(source)
    return result_of(outputs)
