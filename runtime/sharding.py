"""Calls of the operators on PyTorch's distributed tensors: each process runs its own part.

Imported once torch.distributed.tensor is, which takes longer than all of Kernelmint.
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
    """Whether one of them is a distributed tensor."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def register(arguments: Arguments, name: str, library: torch.library.Library) -> None:
    """The rule of an operator for calls that autograd does not see."""

    def rule(kind: Any, function: Any, types: Any, given: Any, options: Any = None) -> Any:
        key, *inputs = given
        return run(arguments, function, key, tuple(inputs), dict(options or {}))

    torch.library.register_torch_dispatch(name, DTensor, rule, lib=library)


def run(arguments: Arguments, function: Any, key: str, inputs: Any, options: dict[str, Any]) -> Any:
    """What the operator `function` does of distributed tensors. Differentiable.

    Raises InvalidArgument unless all of them are divided along symbols along which the family says
    that a call falls apart.
    """
    inputs += (None,) * (len(arguments.family.inputs) - len(inputs))
    found = arguments.symbols_of(inputs)
    named = dict(zip((a.name for a in arguments.family.inputs), inputs, strict=True))
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    written = {n: options[n] for n in arguments.output_names if options.get(n) is not None}
    for name, tensor in {**named, **written}.items():
        if not isinstance(tensor, DTensor):
            raise InvalidArgument(
                f"{name}: got a {type(tensor).__name__} beside distributed tensors; pass a DTensor"
            )
    mesh = next(iter(named.values())).device_mesh
    tensors = {a.name: _in_call(arguments, a, found) for a in arguments.family.tensors}
    groups = [
        _divided(arguments, {n: (t, tensors[n]) for n, t in named.items()}, found, dim)
        for dim in range(mesh.ndim)
    ]
    _check_even(groups, found, mesh)
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
    made = [
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
    return made[0] if isinstance(result, torch.Tensor) else tuple(made)


def _in_call(arguments: Arguments, argument: Tensor, found: Mapping[str, Any]) -> Tensor:
    """A tensor of the family, of a dimension that is one symbol or another the one of this call."""

    def chosen(dim: str) -> str:
        tree = expressions.syntax(dim)
        while isinstance(tree, ast.IfExp):
            test = expressions.parse(ast.unparse(tree.test), arguments.call_scope, "bool")
            tree = tree.body if test.evaluate(found) else tree.orelse
        return ast.unparse(tree)

    return replace(argument, dims=tuple(map(chosen, argument.dims)))


def _listed(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _divided(
    arguments: Arguments,
    given: Mapping[str, tuple[DTensor, Tensor]],
    found: Mapping[str, Any],
    dim: int,
) -> tuple[str, ...]:
    """The symbols along which one dimension of the mesh divides a call; none: it does not."""
    wanted: tuple[str, ...] = ()
    for name, (tensor, argument) in given.items():
        placement = tensor.placements[dim]
        if placement.is_replicate():
            continue
        where = argument.dims[placement.dim] if type(placement) is Shard else ""
        along = next((s for s in _shards(arguments, found) if where in s), ())
        if not along or (wanted and along != wanted):
            ways = [wanted] if wanted else _shards(arguments, found)
            raise InvalidArgument(
                f"{name}: got {placement!r} of [{', '.join(argument.dims)}], expected a division "
                f"along {', or along '.join(map(' and '.join, ways)) or 'nothing'}: call "
                "redistribute() before"
            )
        wanted = along
    return wanted


def _shards(arguments: Arguments, found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What divides a call with these symbols and optional inputs."""
    return [
        s.along
        for s in arguments.family.shards
        if expressions.parse(s.when, arguments.call_scope, "bool").evaluate(found)
    ]


def _check_even(groups: list[tuple[str, ...]], found: Mapping[str, Any], mesh: Any) -> None:
    """Symbols that are divided together must be so alike, as those of one extent are."""
    for along in {*groups}:
        count = math.prod(mesh.size(i) for i, group in enumerate(groups) if group == along)
        for symbol in along if len({found.get(symbol) for symbol in along}) > 1 else ():
            if symbol in found and found[symbol] % count:
                raise InvalidArgument(
                    f"{symbol}: got {found[symbol]}, expected a multiple of {count}, among which "
                    f"{' and '.join(along)} are divided"
                )


def _placements(argument: Tensor, groups: list[tuple[str, ...]]) -> tuple[Placement, ...]:
    """How a tensor lies if the mesh's dimensions divide a call so."""
    return tuple(
        next((Shard(i) for i, dim in enumerate(argument.dims) if dim in along), Replicate())
        for along in groups
    )
