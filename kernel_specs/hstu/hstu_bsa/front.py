"""hstu_attention_with_bsa: HSTU's attention over jagged sequences, block-sparse inside."""

from __future__ import annotations

from typing import Any

import torch

from runtime import tensors
from runtime.errors import InvalidArgument, unexpected

from ..block_sparse.front import block_sparse_attention
from ..fronts import flags, front_of
from ..jagged import GateModel, Jagged
from ..semantics import check_selection, semantics_of

_front = front_of("hstu_bsa")


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
    max_length: int | None = None,
    block_count: int = 4,
    block_size: int = 32,
    mode: str = "fixed",
    target: str | None = None,
    dot: str | None = None,
    schedule: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes HSTU's attention over jagged sequences, block-sparse attention inside.

    The kernel reads the sequences as they lie; but `literal` depends on the padded length, so there
    the sequences are padded first. Without max_length a call on a GPU waits for x_offsets, which
    are checked on the host, and what records or transforms the call (torch.compile, torch.export,
    make_fx, torch.func) refuses it; with it nothing waits, and the device checks them.

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
        max_length: a length that no sequence exceeds, at most n.
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
        results = gate_model(queries)
        if not isinstance(results, tuple) or len(results) != 3:
            raise InvalidArgument(
                f"gate_model: returned a {type(results).__name__}, expected a tuple of three gates"
            )
        gate = results[0]
        tensors.check("gate_model's first gate", gate, queries.dim() - 1)
        if torch.is_grad_enabled() and gate.requires_grad and not queries.requires_grad:
            raise InvalidArgument(
                "gate_model: its gates require a gradient and grad mode is on, but hstu_bsa has no "
                "gradient for them; call it under torch.no_grad()"
            )
        if torch._C._is_any_autocast_enabled():
            gate = gate.to(queries.dtype)
        return gate, *results[1:]

    named = {"q": q, "k": k, "v": v, "u": u, "x_offsets": x_offsets}
    for name, tensor in named.items():
        tensors.check(name, tensor, 1 if name == "x_offsets" else 2)
    if not isinstance(invalid_attn_mask, torch.Tensor) or invalid_attn_mask.is_nested:
        raise unexpected("invalid_attn_mask", invalid_attn_mask, "a dense torch.Tensor")
    if not callable(gate_model):
        raise unexpected("gate_model", gate_model, "a function of q")
    if max_length is None and not tensors.is_known(x_offsets):
        raise InvalidArgument(
            "x_offsets: what hstu_attention_with_bsa does depends on its values, which are not "
            "known while a graph is recorded or a transform applied; pass max_length="
        )
    if max_length is not None and type(max_length) is not int:
        raise unexpected("max_length", max_length, "an int")
    try:
        jagged = Jagged(
            num_heads, attention_dim, linear_dim, q, k, v, u, x_offsets, invalid_attn_mask,
            gate_model,
        )  # fmt: skip
        n = jagged.n
        jagged.check()
        check_selection(block_count, block_size, num_heads, n, semantics_of(mode))
        if max_length is None:
            longest = jagged.longest()
        elif 1 <= max_length <= n:
            longest = max_length
            if mode == "literal" or q.is_cuda:  # elsewhere the kernel checks them
                if not torch.compiler.is_dynamo_compiling() and tensors.is_batched(x_offsets):
                    raise ValueError(
                        "x_offsets: got one for each of vmap's calls, expected one for all, "
                        "in_dims=None: its check on the device cannot be mapped"
                    )
                jagged.assert_lengths(longest)
        else:
            raise ValueError(f"max_length is {max_length}: expected 1 to n = {n}")
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if q.dtype != torch.float32:
        raise InvalidArgument(f"q is {q.dtype}: expected float32")
    try:
        q, k, v, u = jagged.by_heads()
    except TypeError as error:  # a subclass of tensors that cannot be viewed
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"q, k, v or u cannot be read by heads: {reason}") from None
    g_cmp, _, _ = gates(q)
    padded_q, padded_k = jagged.pad(q), jagged.pad(k)
    if mode == "literal":
        padded = (padded_q, padded_k, *map(jagged.pad, (v, u, g_cmp)))
        o, _ = block_sparse_attention(
            *padded, block_count=block_count, block_size=block_size, mode=mode,
            target=target, dot=dot, schedule=schedule,
        )  # fmt: skip
        return jagged.unpad(o).flatten(1), padded_q, padded_k
    rows = (q, k, v, u, g_cmp.contiguous(), x_offsets.to(q.device, torch.int64))
    chosen = flags(q, block_count, block_size, mode, target, dot, schedule)
    o, _ = _front(rows, (longest,), (), None, chosen)
    return o.flatten(1), padded_q, padded_k
