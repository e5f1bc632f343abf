"""The choice of the family whose kernels take a call, for all functions of the group."""

from __future__ import annotations

from typing import Any

import torch

from runtime import manifest, packs, tensors
from runtime.errors import InvalidArgument, shown, unexpected
from runtime.front import Front, Other, is_explaining, values_of
from runtime.handle import Inputs, Out, Scalar
from runtime.pytorch import traced_as_constant

from . import checks

FORWARD, PREFILL, DECODE = "flash_forward", "flash_prefill", "flash_decode"
DROPOUT = "flash_dropout"
_PAGES = 16  # keys that every target reads of a page at once
_FEW_ROWS = 16  # flash_decode takes so many query rows of one key head at once
_FEW_ON_CPU = 4  # with more, flash_forward is the faster family on the CPU
_SWAPPED = (0, 2, 1, 3)
_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # q, k, v
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # found once: calls are short
# Dynamo of earlier versions cannot trace the question.
_DYNAMO_KNOWS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


def _d_head(family: str, device: torch.device, D: int, Dv: int) -> int:
    """Returns the head dimension that is compiled in: those of tensors are padded to it."""
    wide = max(D, Dv)
    widths = values_of(family, "d_head", device.type == "cuda")
    return next((d for d in widths if wide <= d), wide)


def _of_prefill(device: torch.device, D: int, Dv: int) -> dict[str, Any]:
    return {"d_head": _d_head(PREFILL, device, D, Dv)}


def _of_any_pages(device: torch.device, D: int, Dv: int) -> dict[str, Any]:
    """Returns the same, of the target that reads pages of any size."""
    target = {"target": "sm80"} if device.type == "cuda" else {}
    return {**_of_prefill(device, D, Dv), **target}


def _of_decode(device: torch.device, D: int, Dv: int, block_table: bool) -> dict[str, Any]:
    """Returns the parameters of kernels for GPUs; those of the CPU take any head dimension."""
    if device.type != "cuda":
        return {}
    return {"d_head": _d_head(DECODE, device, D, Dv), "paged": block_table}


def _of_dropout(device: torch.device, D: int, Dv: int) -> dict[str, Any]:
    return {"d_head": _d_head(DROPOUT, device, D, Dv)}


def _of_forward(D: int) -> dict[str, Any]:
    return {"d_head": D}


_forward_permuted = dict.fromkeys(("q", "k", "v", "o"), _SWAPPED)
forward_front = Front(FORWARD, _of_forward, flags={"causal": False}, permuted=_forward_permuted)
# The calls are bound once: a call of the object itself is slower.
call_forward = forward_front.__call__
decode_front = Front(
    DECODE, _of_decode, permuted=dict.fromkeys(("q", "k_cache", "v_cache", "o"), _SWAPPED)
)
call_decode = decode_front.__call__
_call_dropout = Front(DROPOUT, _of_dropout, permuted=_forward_permuted).__call__
# Tuned rows may ask how large a batch is: where a row's bits must not depend on it, none counts.
call_decode_alone = Front(DECODE, _of_decode, tuned=False).__call__
# By whether none counts, and whether pages may have any size (not by Tk, which is another in each
# call without pages).
_call_prefill = {
    (alone, any_pages): Front(
        PREFILL, _of_any_pages if any_pages else _of_prefill, tuned=not alone
    ).__call__
    for alone in (False, True)
    for any_pages in (False, True)
}


def family_of(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    extents: tuple[Any, Any, Any, Any, Any],
    packed: bool = False,
    others: tuple[torch.Tensor | None, ...] = (),
    s_aux: torch.Tensor | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alone: bool = False,
    deterministic: bool = False,
) -> str:
    """Returns the family whose kernels take a call.

    flash_decode takes few queries without gradients, which it has not: it spreads the keys of one
    head over the device, and packs the queries that share them into 16 rows. flash_forward takes
    equal lengths without anything else, flash_prefill all other calls. If a row is to be `alone`,
    flash_prefill takes the call: the other families' bits, or the choice of their kernels, depend
    on the batch.

    Args:
        q, k, v: the inputs, which may ask for gradients.
        extents: queries of a sequence, heads of q, heads of k, head dimensions of q and of v.
        packed: whether sequences of q or k have lengths of their own that flash_decode cannot read.
        others: optional inputs that flash_forward does not take.
        s_aux: sinks.
        window: keys that a query sees before and after its own; -1: all.
        softcap: as the functions take it.
        alone: whether a row's bits must not depend on the batch.
        deterministic: whether the caller asks for gradients that repeat bit for bit.
    """
    queries, heads, kv_heads, head_dim, value_dim = extents
    is_open = not (packed or alone or deterministic)
    if is_open and is_few(queries, heads, kv_heads, q, k, v, s_aux, *others):
        return DECODE
    if packed or alone or s_aux is not None or head_dim != value_dim or softcap != 0:
        return PREFILL
    for tensor in others:
        if tensor is not None:
            return PREFILL
    if window not in ((-1, -1), (-1, 0)):
        return PREFILL
    return FORWARD if head_dim in values_of(FORWARD, "d_head", q.is_cuda) else PREFILL


def check_dropout(dropout_p: float) -> None:
    """Raises InvalidArgument for a value of `dropout_p` that is no probability."""
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, (int, float)):
        raise unexpected("dropout_p", dropout_p, "a float")
    if not 0 <= dropout_p <= 1:
        raise InvalidArgument(f"dropout_p: got {shown(dropout_p)}, expected 0 to 1")


def is_few(queries: Any, heads: Any, kv_heads: Any, *inputs: torch.Tensor | None) -> bool:
    """Returns whether flash_decode takes so many queries: few of the heads that share keys, and no
    input asks for a gradient."""
    if queries * heads > _FEW_ROWS * kv_heads:
        return False
    return not (torch.is_grad_enabled() and _any_requires_grad(inputs))


def _any_requires_grad(inputs: Inputs) -> bool:
    # Anything but a tensor is the kernel's to refuse.
    return True in [getattr(tensor, "requires_grad", False) for tensor in inputs]


def decodes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, swapped: bool) -> bool:
    """Returns whether flash_decode takes a call of `attention`, whose lengths are equal.

    A graph that serves many extents keeps flash_forward, unless all of them are few: no guard is
    added. Wrong calls keep flash_forward, which names the arguments as the function does, and so do
    head dimensions that it has not.

    Args:
        q, k, v: the inputs of `attention`.
        swapped: whether the layout is "bhsd".
    """
    for tensor in (q, k, v):
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.dim() != 4:
            return False
    of_q, of_k, of_v = q.shape, k.shape, v.shape
    at = 1 if swapped else 2  # the heads' dimension
    rows, most = of_q[1] * of_q[2], (_FEW_ROWS if q.is_cuda else _FEW_ON_CPU) * of_k[at]
    if _is_dynamo_compiling() or not (
        type(rows) is type(most) is type(of_k[3 - at]) is type(of_q[0]) is int
    ):
        if tensors.is_jit_tracing() or not _is_settled(rows, most, of_q, of_k, of_v, at):
            return False
        suits = _suits_decode(q.is_cuda, q.dtype, of_q[3])
    elif of_k != of_v or (of_q[0], of_q[3]) != (of_k[0], of_k[3]):
        return False
    else:
        suits = _are_few((q, k, v), swapped)
    return suits and not (torch.is_grad_enabled() and _any_requires_grad((q, k, v)))


def _are_few(inputs: _Inputs, swapped: bool) -> bool:
    """Returns whether flash_decode takes plain calls of `attention` of such dtypes and extents, if
    the inputs suit each other and ask for no gradient."""
    q, k, _ = inputs
    at = 1 if swapped else 2
    heads, kv_heads = q.shape[at], k.shape[at]
    most = _FEW_ROWS if q.is_cuda else _FEW_ON_CPU
    if kv_heads == 0 or heads % kv_heads != 0 or q.shape[3 - at] * heads > most * kv_heads:
        return False
    return _suits_decode(q.is_cuda, q.dtype, q.shape[3])


def _suits_decode(on_cuda: bool, dtype: torch.dtype, head_dim: int) -> bool:
    """Returns whether both families have kernels for such inputs."""
    is_known = head_dim in values_of(FORWARD, "d_head", on_cuda)
    return is_known and _has_decode(on_cuda, dtype, head_dim)


def decoding_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, swapped: bool
) -> tuple[bool, str]:
    """Returns `decodes` for a call that flash_forward takes, and why."""
    at = 1 if swapped else 2
    rows, most = q.shape[3 - at] * q.shape[at], _FEW_ROWS if q.is_cuda else _FEW_ON_CPU
    each = f"{rows} query rows over {k.shape[at]} key heads, at most {most} each"
    if decodes(q, k, v, swapped):
        return True, f"taken: {each}, and no gradients are asked for"
    if rows > most * k.shape[at]:
        return False, f"no: {each}"
    if not is_few(q.shape[3 - at], q.shape[at], k.shape[at], q, k, v):
        return False, "no: gradients are asked for"
    return False, "no: a graph is recorded that serves other lengths, or no kernel suits"


def _is_settled(
    rows: Any, most: Any, of_q: torch.Size, of_k: torch.Size, of_v: torch.Size, at: int
) -> bool:
    """Returns whether all calls that a graph serves are right, and have `most` rows or fewer. The
    question adds no guard to the graph."""
    if _is_dynamo_compiling() and not _DYNAMO_KNOWS:
        return False
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # loads SymPy

    if not statically_known_true(rows <= most) or not statically_known_true(most > 0):
        return False
    # (Either family's kernels compare batches and keys.)
    equal = ((of_q[3], of_k[3]), (of_k[3], of_v[3]), (of_k[at], of_v[at]), (of_q[at] % of_k[at], 0))
    are_equal = [statically_known_true(one == other) for one, other in equal]
    return False not in are_equal


_kernels_of_decode: dict[tuple[bool, torch.dtype, int], bool] = {}
packs.when_changed(_kernels_of_decode.clear)


@traced_as_constant
def _has_decode(on_cuda: bool, dtype: torch.dtype, head_dim: int) -> bool:
    """Returns whether flash_decode has kernels for such inputs: packs may leave them out."""
    key = on_cuda, dtype, head_dim
    if key not in _kernels_of_decode:
        name = tensors.dtype_name(dtype)
        family = None if packs.owner(DECODE) is None else manifest.family(DECODE)
        _kernels_of_decode[key] = family is not None and any(
            kernel.parameters["dtype"] == name
            and int(kernel.parameters.get("d_head", head_dim)) >= head_dim
            for target in family.targets
            for kernel in target.kernels
            if target.is_cuda == on_cuda
        )
    return _kernels_of_decode[key]


def _attend_any(
    inputs: _Inputs,
    scalars: tuple[Scalar, ...],
    requested: tuple[bool, ...],
    out: Out,
    flags: tuple[Any, ...],
    swapped: bool,
) -> Any:
    """Makes a call of `attention` that something records or transforms, or that is wrong."""
    q, k, v = inputs
    scale, deterministic = scalars
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    scalars = scale, deterministic
    if decodes(q, k, v, swapped):
        return _attend_few(inputs, scalars, requested, out, flags, swapped)
    return call_forward(inputs, scalars, requested, out, flags, swapped)


def _attend_few(
    inputs: _Inputs,
    scalars: tuple[Scalar, ...],
    requested: tuple[bool, ...],
    out: Out,
    flags: tuple[Any, ...],
    swapped: bool,
) -> Any:
    """Makes a call of `attention` that has few queries, by flash_decode if all else suits it."""
    q, k, v = inputs
    (causal,), (scale, deterministic) = flags, scalars
    is_named = type(causal) is bool and (deterministic is None or type(deterministic) is bool)
    asks_gradient = torch.is_grad_enabled() and _any_requires_grad(inputs)
    if is_named and q.shape[3] == v.shape[3] and not asks_gradient:
        try:
            return call_decode(
                (q, k, v, None, None, None, None, None),
                (scale, 0.0, -1, 0 if causal else -1, False), requested, out, (), swapped,
            )  # fmt: skip
        except InvalidArgument:
            pass  # flash_forward takes the call, or names the argument as `attention` does
    return call_forward(inputs, scalars, requested, out, flags, swapped)


def drop_out(
    inputs: tuple[torch.Tensor | None, ...],
    dropout_p: float,
    scalars: tuple[Scalar, ...],
    requested: tuple[bool, ...],
    out: Out,
    swapped: bool = False,
) -> Any:
    """Makes a call whose probabilities drop out, by flash_dropout.

    The seed is drawn anew, by PyTorch's generator of the device: torch.manual_seed repeats it, so
    does a checkpoint's recomputation, and each replay of a CUDA graph draws another. Of distributed
    tensors each process draws its own, and adds its part's number, so that parts differ even if
    generators do not.

    Args:
        inputs: flash_dropout's, without `rng`.
        dropout_p: how probably a probability is dropped.
        scalars: flash_dropout's, without `dropout_p`, which comes before the last.
        requested, out, swapped: as `Front.__call__` takes them.
    """
    q, k, v, *others = inputs
    assert q is not None
    rng = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    if hasattr(q, "placements"):
        rng = _of_part(rng, q)
    scalars = (*scalars[:-1], dropout_p, scalars[-1])
    return _call_dropout((q, k, v, rng, *others), scalars, requested, out, (), swapped)


def _of_part(rng: torch.Tensor, of: Any) -> torch.Tensor:
    """Returns a process's seed and offset as a distributed tensor beside `of`, whose parts have
    offsets that are 2^40 apart."""
    from torch.distributed.tensor import DTensor, Replicate  # takes longer to import than all else

    mesh, part = of.device_mesh, 0
    for dim, placement in enumerate(of.placements):
        if placement.is_shard():
            part = part * mesh.size(dim) + mesh.get_local_rank(dim)
    rng = rng.to_local() if isinstance(rng, DTensor) else rng
    rng = rng + torch.tensor([0, part << 40], device=rng.device)
    return DTensor.from_local(rng, mesh, [Replicate()] * mesh.ndim, run_check=False)


attention_front = Front(
    FORWARD, _of_forward, flags={"causal": False}, permuted=_forward_permuted,
    other=Other(_are_few, ("Sq", "H", "Hk", "D"), _attend_few, _attend_any),
)  # fmt: skip
call_attention, run_attention = attention_front.__call__, attention_front.run


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window: tuple[int, int],
    num_splits: int,
    with_lse: bool,
    softmax_scale: float | None,
    softcap: float,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    only_checks: bool = False,
    deterministic: bool = False,
    dropout_p: float = 0.0,
) -> tuple[Any, Any]:
    """Returns output and log-sum-exp, None if it is not wanted, by the family that takes the call.

    If `only_checks`, the family is called without queries: it refuses what is wrong, and computes
    nothing.
    """
    checks.check_numbers(softcap, num_splits=num_splits)
    check_dropout(dropout_p)
    _, queries, heads, head_dim = tensors.extents("q", q, 4)
    _, size, kv_heads, value_dim = tensors.extents("v", v, 4)
    alone = num_splits == 1
    family = DROPOUT if dropout_p != 0 else family_of(
        q, k, v, extents=(queries, heads, kv_heads, head_dim, value_dim), s_aux=s_aux,
        packed=cu_seqlens_q is not None or cu_seqlens_k is not None or seqused_q is not None,
        others=(seqused_k, leftpad_k, block_table, alibi_slopes, out), window=window,
        softcap=softcap, alone=alone, deterministic=deterministic,
    )  # fmt: skip
    if only_checks and not is_explaining():
        q = q[:, :0]
    into: Any = out
    if out is not None and with_lse:
        into = (out, q.new_empty((q.shape[0], heads, queries), dtype=torch.float32))
    if tensors.is_autocast():
        q, k, v, s_aux = tensors.autocast(q, k, v, s_aux)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    if family == FORWARD:
        results = call_forward(
            (q, k, v), (softmax_scale, deterministic), (with_lse,), None, (bool(window[1] == 0),)
        )
        return results if with_lse else (results, None)
    if isinstance(alibi_slopes, torch.Tensor) and alibi_slopes.dim() == 1:
        sequences = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        alibi_slopes = alibi_slopes.expand(sequences, -1)
    if family == DECODE:
        results = call_decode(
            (q, k, v, block_table, seqused_k, leftpad_k, s_aux, alibi_slopes),
            (softmax_scale, softcap, *window, False), (with_lse,), into,
        )  # fmt: skip
        return results if with_lse else (results, None)
    if family == DROPOUT:
        results = drop_out(
            (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, block_table,
             s_aux, alibi_slopes),
            dropout_p, (softmax_scale, softcap, *window, deterministic), (with_lse,), into,
        )  # fmt: skip
        return results if with_lse else (results, None)
    any_pages = block_table is not None and size % _PAGES != 0
    results = _call_prefill[alone, any_pages](
        (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, block_table, s_aux,
         alibi_slopes),
        (softmax_scale, softcap, *window, deterministic), (with_lse,), into,
    )  # fmt: skip
    return results if with_lse else (results, None)
