"""Block-sparse attention for HSTU: the two functions, with a kernel that suits the arguments."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from kernel_specs.hstu.block_sparse.semantics import check_selection, check_tensors, semantics_of
from kernel_specs.hstu.hstu_bsa.reference import (
    GateModel,
    check_jagged,
    pad,
    split_heads,
)
from kernel_specs.hstu.hstu_bsa.reference import hstu_attention_with_bsa as padded_attention
from runtime import catalog, dispatch, tensors
from runtime.catalog import KernelInfo
from runtime.errors import InvalidArgument, KernelNotFound
from runtime.kernel import Kernel

# Up to this many blocks, a tile's lists name few enough of them for `schedule: tiles` to be faster
# (docs/block_sparse.md); both schedules give the same bits.
_MOST_TILED_BLOCKS = 64
_MOST_TILED_HEADS = 24  # what that schedule's specs require

_chosen: dict[tuple[Any, ...], Kernel] = {}


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    g_cmp: torch.Tensor,
    *,
    block_count: int = 4,
    block_size: int = 32,
    mode: str = "fixed",
    target: str | None = None,
    dot: str | None = None,
    schedule: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Block-sparse attention for HSTU (docs/block_sparse.md).

    Args:
        q: queries, float32, [B, T, H, A].
        k: keys, like q.
        v: values, float32, [B, T, H, L].
        u: the elementwise gate of the output, like v.
        g_cmp: the gate of the compressed branch, float32, [B, T, H].
        block_count: how many blocks a query selects, its own among them.
        block_size: tokens of a block.
        mode: "fixed", causal and independent of padding; "interleaved", the same but for odd
            positions, which take the list of the even position before; or "literal", as published.
        target: "cpu", "sm80", ...; the first that is available where None.
        dot: precision of the products, one of the target's; its most exact where None.
        schedule: how the kernel goes about it, "blocks" or "tiles", where the target has both; the
            faster one for this length where None. The result is the same, bit for bit.

    Returns:
        o, float32, [B, T, H, L], and block_indices, int64, [B, H, T, min(block_count, C)] with
        C = ceil(T / block_size): the selected blocks by score, -1 for none.

    Raises:
        InvalidArgument: an argument is wrong.
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """
    named = {"q": q, "k": k, "v": v, "u": u, "g_cmp": g_cmp}
    shapes = {
        name: tensors.extents(name, t, 3 if name == "g_cmp" else 4) for name, t in named.items()
    }
    _check_options(mode, target, dot, schedule, block_count=block_count, block_size=block_size)
    _, length, heads, attention_dim = shapes["q"]
    try:
        flags = semantics_of(mode)
        check_tensors(q, k, v, u, g_cmp, None, (torch.float32,))
        check_selection(block_count, block_size, heads, length, flags)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    kernel = _choose(
        "block_sparse", q.device, target, dot, schedule, heads, length,
        attention_dim=int(attention_dim), linear_dim=int(shapes["v"][3]),
        block_size=block_size, block_count=block_count, mode=mode,
    )  # fmt: skip
    o, block_indices = kernel(q, k, v, u, g_cmp)
    return o, block_indices


def hstu_attention_with_bsa(
    num_heads: int,
    attention_dim: int,
    linear_dim: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    x_offsets: torch.Tensor,
    invalid_attn_mask: torch.Tensor,
    gate_model: GateModel,
    *,
    block_count: int = 4,
    block_size: int = 32,
    mode: str = "fixed",
    target: str | None = None,
    dot: str | None = None,
    schedule: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """HSTU's attention over jagged sequences, block-sparse attention inside.

    The kernel reads the sequences as they lie; but `literal` depends on the padded length, so there
    the sequences are padded first. On a GPU the call waits for x_offsets, which
    are checked on the host.

    Args:
        num_heads: H.
        attention_dim: A, the head size of q and k.
        linear_dim: L, the head size of v and u.
        q: queries of all sequences one behind another, float32, [sum N, H * A].
        k: keys, like q.
        v: values, float32, [sum N, H * L].
        u: the elementwise gate of the output, like v.
        x_offsets: int32 or int64, [B + 1]; sequence b is the rows x_offsets[b] to x_offsets[b + 1].
        invalid_attn_mask: [..., n, n]; only its extent, the padded length n, counts.
        gate_model: q [..., A] -> three gates [...]; `GateMLP` of
            kernel_specs.hstu.hstu_bsa.reference or another.
        block_count: how many blocks a query selects, its own among them.
        block_size: tokens of a block.
        mode: "fixed", "interleaved" or "literal".
        target: as in block_sparse_attention.
        dot: as in block_sparse_attention.
        schedule: as in block_sparse_attention.

    Returns:
        attn_output, float32, [sum N, H * L]; and padded_q and padded_k, [B, n, H, A], zeros behind
        each sequence.

    Raises:
        InvalidArgument: an argument is wrong.
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """

    def gates(queries: torch.Tensor) -> Any:
        found = gate_model(queries)
        if not isinstance(found, tuple) or len(found) != 3:
            raise InvalidArgument(
                f"gate_model: returned a {type(found).__name__}, expected a tuple of three gates"
            )
        tensors.check("gate_model's first gate", found[0], queries.dim() - 1)
        return found

    def attention(*tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, u, g_cmp, *_ = tensors
        return block_sparse_attention(
            q, k, v, u, g_cmp, **options, target=target, dot=dot, schedule=schedule
        )

    named = {"q": q, "k": k, "v": v, "u": u, "x_offsets": x_offsets}
    for name, tensor in named.items():
        tensors.check(name, tensor, 1 if name == "x_offsets" else 2)
    if not isinstance(invalid_attn_mask, torch.Tensor):
        raise InvalidArgument(
            f"invalid_attn_mask: a {type(invalid_attn_mask).__name__} came, needs a torch.Tensor"
        )
    if not callable(gate_model):
        raise InvalidArgument(
            f"gate_model: a {type(gate_model).__name__} came, needs a function of q"
        )
    if torch._C._is_tracing():
        raise InvalidArgument(
            "torch.jit.trace cannot record hstu_attention_with_bsa: what it does depends on the "
            "values of x_offsets; trace block_sparse_attention, or call this outside the trace"
        )
    if torch._C._len_torch_dispatch_stack() > 0:
        # tolist() below reads memory behind the back of what records operators; this it sees, and
        # refuses unless values are known.
        x_offsets[0].item()
    _check_options(
        mode, target, dot, schedule, block_count=block_count, block_size=block_size,
        num_heads=num_heads, attention_dim=attention_dim, linear_dim=linear_dim,
    )  # fmt: skip
    try:
        flags = semantics_of(mode)
        n = invalid_attn_mask.shape[-1] if invalid_attn_mask.dim() else 0
        offsets = check_jagged(num_heads, attention_dim, linear_dim, q, k, v, u, x_offsets, n)
        check_selection(block_count, block_size, num_heads, n, flags)
        if q.dtype != torch.float32:
            raise InvalidArgument(f"q is {q.dtype}: expected float32")
        if mode == "literal":
            return padded_attention(
                num_heads, attention_dim, linear_dim, q, k, v, u, x_offsets, invalid_attn_mask,
                gates,
                block_count=block_count, block_size=block_size, mode=mode, attention=attention,
            )  # fmt: skip
    except InvalidArgument:
        raise
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    longest = max(stop - start for start, stop in itertools.pairwise(offsets))
    kernel = _choose(
        "hstu_bsa", q.device, target, dot, schedule, num_heads, longest,
        attention_dim=attention_dim, linear_dim=linear_dim,
        block_size=block_size, block_count=block_count, mode=mode,
    )  # fmt: skip
    q, k, v, u = split_heads(num_heads, attention_dim, linear_dim, q, k, v, u)
    g_cmp, _, _ = gates(q)
    on_device = x_offsets.to(q.device, torch.int64)
    o, _ = kernel(q, k, v, u, g_cmp.contiguous(), on_device, max_length=longest)
    return o.flatten(1), pad(q, offsets, n), pad(k, offsets, n)


def _check_options(
    mode: object, target: object, dot: object, schedule: object, **integers: object
) -> None:
    """Checks types alone."""
    options = {"mode": mode, "target": target, "dot": dot, "schedule": schedule}
    for name, value in options.items():
        if not isinstance(value, str) and (value is not None or name == "mode"):
            raise InvalidArgument(f"{name}: a {type(value).__name__} came, needs a str")
    for name, value in integers.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgument(f"{name}: a {type(value).__name__} came, needs an int")


def _choose(
    family: str,
    device: torch.device,
    target: str | None,
    dot: str | None,
    schedule: str | None,
    heads: int,
    length: int,
    **wanted: Any,
) -> Kernel:
    """The first kernel of the manifest's order that is available there and has these parameters.

    `dot` and `schedule` count where a target has those parameters; the CPU's products are `ieee`.
    """
    most = _MOST_TILED_BLOCKS * wanted["block_size"]
    tiled = bool(heads <= _MOST_TILED_HEADS and length <= most)  # of make_fx's symbolic ints too
    key = (family, device, target, dot, schedule, tiled, *wanted.values())
    kernel = _chosen.get(key)
    if kernel is not None:
        return kernel
    refused = []
    fitting: dict[str | None, KernelInfo] = {}
    for info in catalog.kernels(family):
        asked = dict(wanted)
        if "dot" in info.parameters:
            asked["dot"] = dot or "tf32x3"
        if "schedule" in info.parameters and schedule is not None:
            asked["schedule"] = schedule
        reason = dispatch._why_not(info, device, asked)
        if target is not None and info.target != target:
            reason = f"its target is {info.target}, not {target}"
        elif "dot" not in info.parameters and dot not in (None, "ieee"):
            reason = f"its products are ieee, not {dot}"
        elif "schedule" not in info.parameters and schedule is not None:
            reason = "it has no schedules"
        if reason is None:
            fitting.setdefault(info.parameters.get("schedule"), info)
        else:
            refused.append(f"\n  {info.key}: {reason}")
    if fitting:
        best = fitting.get("tiles" if tiled else "blocks") or next(iter(fitting.values()))
        kernel = _chosen[key] = catalog.kernel(best.key)
        return kernel
    settings = ", ".join(f"{name} {value}" for name, value in wanted.items())
    raise KernelNotFound(
        f"no {family} kernel for {settings} on {device}:{''.join(refused) or ' none was generated'}"
        f"\nAdd a configuration to kernel_specs/hstu/{family}; then `python -m codegen regenerate` "
        "and `make build` build it"
    )
