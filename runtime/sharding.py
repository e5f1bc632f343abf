"""Calls of the operators on PyTorch's distributed tensors: each process runs its own part.

This module is imported after torch.distributed.tensor, whose import takes longer than all of
Kernelmint.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from codegen.core import expressions
from codegen.core.manifest import Tensor
from runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from runtime.operators.arguments import Arguments


def is_sharded(tensors: Any) -> bool:
    """Returns whether one of the tensors is a distributed tensor."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def register(arguments: Arguments, name: str, library: torch.library.Library) -> None:
    """Registers the rule of an operator for calls that autograd does not see."""

    def rule(kind: Any, function: Any, types: Any, passed: Any, options: Any = None) -> Any:
        key, *inputs = passed
        return run(arguments, function, key, tuple(inputs), dict(options or {}))

    torch.library.register_torch_dispatch(name, DTensor, rule, lib=library)


def run(arguments: Arguments, function: Any, key: str, inputs: Any, options: dict[str, Any]) -> Any:
    """Runs the operator `function` on distributed tensors. Differentiable.

    Raises InvalidArgument unless all tensors are divided along symbols that the family names for
    that (`shards:`).
    """
    for argument in arguments.family.inputs:
        if argument.length:
            raise InvalidArgument(
                f"{argument.name}: got distributed tensors, which no family with lists of tensors "
                "takes; pass the parts, to_local()"
            )
    inputs += (None,) * (len(arguments.family.inputs) - len(inputs))
    symbols = arguments.symbols_of(inputs)
    named = dict(zip((a.name for a in arguments.family.inputs), inputs, strict=True))
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    written = {n: options[n] for n in arguments.output_names if options.get(n) is not None}
    for name, tensor in {**named, **written}.items():
        if not isinstance(tensor, DTensor):
            raise InvalidArgument(
                f"{name}: got a {type(tensor).__name__} beside distributed tensors; pass a DTensor"
            )
    mesh = next(iter(named.values())).device_mesh
    tensors = {a.name: _in_call(arguments, a, symbols) for a in arguments.family.tensors}
    groups = [
        _divided(arguments, {n: (t, tensors[n]) for n, t in named.items()}, symbols, dim)
        for dim in range(mesh.ndim)
    ]
    _check_even(groups, symbols, mesh)
    local: dict[str, Any] = {}
    for name, tensor in {**named, **written}.items():
        if tensor.device_mesh != mesh:
            raise InvalidArgument(f"{name}: is on another device mesh than {next(iter(named))}")
        placements = _placements(tensors[name], groups)
        if name in written and tuple(tensor.placements) != placements:
            raise InvalidArgument(
                f"{name}: got placements {tuple(tensor.placements)}, expected {placements}, as the "
                "inputs are divided"
            )
        gradients = [
            Partial() if group and not p.is_shard() else p
            for group, p in zip(groups, placements, strict=True)
        ]
        placed = tensor if name in written else tensor.redistribute(mesh, placements)
        local[name] = placed.to_local(grad_placements=gradients)
    parts = [local.get(a.name) for a in arguments.family.inputs]
    result = function(key, *parts, **{**options, **{n: local[n] for n in written}})
    if result is None:
        return None
    whole = [
        t if t is None else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        for t in inputs
    ]
    shapes = function(key, *whole, **options)
    results = [
        DTensor.from_local(
            part,
            mesh,
            _placements(tensors[argument.name], groups)
            if part.dim() == len(argument.dims)
            else None,
            run_check=False,
            shape=shape.shape,
            stride=shape.stride(),
        )
        for argument, part, shape in zip(
            arguments.family.outputs, _listed(result), _listed(shapes), strict=True
        )
    ]
    return results[0] if isinstance(result, torch.Tensor) else tuple(results)


def _in_call(arguments: Arguments, argument: Tensor, symbols: Mapping[str, Any]) -> Tensor:
    """Returns a tensor of the family with the dimensions of this call, where a spec has one
    symbol or another."""

    def chosen(dim: str) -> str:
        tree = expressions.syntax(dim)
        while isinstance(tree, ast.IfExp):
            test = expressions.parse(ast.unparse(tree.test), arguments.call_scope, "bool")
            tree = tree.body if test.evaluate(symbols) else tree.orelse
        return ast.unparse(tree)

    return replace(argument, dims=tuple(map(chosen, argument.dims)))


def _listed(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _divided(
    arguments: Arguments,
    tensors: Mapping[str, tuple[DTensor, Tensor]],
    symbols: Mapping[str, Any],
    dim: int,
) -> tuple[str, ...]:
    """Returns the symbols along which one dimension of the mesh divides a call; none if it does
    not."""
    chosen: tuple[str, ...] = ()
    for name, (tensor, argument) in tensors.items():
        placement = tensor.placements[dim]
        if placement.is_replicate():
            continue
        where = argument.dims[placement.dim] if type(placement) is Shard else ""
        along = next((s for s in _shards(arguments, symbols) if where in s), ())
        if not along or (chosen and along != chosen):
            ways = [chosen] if chosen else _shards(arguments, symbols)
            raise InvalidArgument(
                f"{name}: got {placement!r} of [{', '.join(argument.dims)}], expected a division "
                f"along {', or along '.join(map(' and '.join, ways)) or 'nothing'}: call "
                "redistribute() before"
            )
        chosen = along
    return chosen


def _shards(arguments: Arguments, symbols: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns what divides a call with these symbols and optional inputs."""
    return [
        s.along
        for s in arguments.family.shards
        if expressions.parse(s.when, arguments.call_scope, "bool").evaluate(symbols)
    ]


def _check_even(groups: list[tuple[str, ...]], symbols: Mapping[str, Any], mesh: Any) -> None:
    """Raises InvalidArgument unless symbols that are divided together are divided alike, as
    those of one extent are."""
    for along in {*groups}:
        count = math.prod(mesh.size(i) for i, group in enumerate(groups) if group == along)
        for symbol in along if len({symbols.get(symbol) for symbol in along}) > 1 else ():
            if symbol in symbols and symbols[symbol] % count:
                raise InvalidArgument(
                    f"{symbol}: got {symbols[symbol]}, expected a multiple of {count}, among which "
                    f"{' and '.join(along)} are divided"
                )


def _placements(argument: Tensor, groups: list[tuple[str, ...]]) -> tuple[Placement, ...]:
    """Returns how a tensor lies if the mesh's dimensions divide a call so."""
    return tuple(
        next((Shard(i) for i, dim in enumerate(argument.dims) if dim in along), Replicate())
        for along in groups
    )
