"""causal_conv1d_pack: causal-conv1d's functions, by its kernels, and on the CPU.

from causal_conv1d_pack import causal_conv1d_fn, causal_conv1d_update

The signatures and meanings are those of causal-conv1d 1.7.0.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

import kernelmint

__version__ = "1.7.0"  # the version of upstream's functions

__all__ = ["causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes a causal convolution of each channel, and silu of it if `activation` is "silu" or
    "swish".

    What seq_idx, initial_states and final states need is a channel-last x: x.stride(1) == 1.

    Args:
        x: [batch, dim, seqlen].
        weight: [dim, width], of 2 to 4.
        bias: [dim].
        seq_idx: [batch, seqlen], int32: which sequence an element is of; below 0 it is padding.
        initial_states: [batch, dim, width - 1]: what lies before x.
        return_final_states: whether the states for a call that goes on are returned, too.
        final_states_out: [batch, dim, width - 1], into which they are written.
        activation: None, "silu" or "swish".

    Returns:
        [batch, dim, seqlen], in the layout of x, and the final states [batch, dim, width - 1] if
        they are asked for. Both have gradients: of x, weight, bias and initial_states.
    """
    silu = _is_silu(activation)
    if x.stride(2) != 1 and x.stride(1) != 1:
        x = x.contiguous()
    if bias is not None:
        bias = bias.contiguous()
    if x.stride(1) != 1 or x.stride(2) <= 1:
        if seq_idx is not None or initial_states is not None or return_final_states:
            raise ValueError(
                "seq_idx, initial_states and final states need a channel-last x: got strides "
                f"{x.stride()}, expected x.stride(1) == 1 and x.stride(2) > 1"
            )
        return kernelmint.causal_conv1d_fwd(
            x, weight, bias, silu=silu, deterministic=_is_deterministic()
        )
    if seq_idx is not None:
        if return_final_states:
            raise ValueError("seq_idx: the final states of several sequences are not returned")
        seq_idx = seq_idx.contiguous()
    if initial_states is not None:
        initial_states = initial_states.transpose(1, 2)
        if initial_states.stride(2) != 1:
            initial_states = initial_states.contiguous()
    results = kernelmint.causal_conv1d_channellast_fwd(
        x.transpose(1, 2),
        weight,
        bias,
        seq_idx,
        initial_states,
        silu=silu,
        deterministic=_is_deterministic(),
        return_final_states=return_final_states,
    )
    if not return_final_states:
        return results.transpose(1, 2)
    y, final_states = (one.transpose(1, 2) for one in results)
    if final_states_out is not None:
        final_states = final_states_out.copy_(final_states)
    return y, final_states


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """Computes the convolution of the newest elements of sequences, whose last ones conv_state
    keeps.

    Args:
        x: [batch, dim] or [batch, dim, seqlen].
        conv_state: [entries, dim, state_len] of at least width - 1, which is changed: x is
            appended, and as much left out at its front.
        weight: [dim, width], of 2 to 4.
        bias: [dim].
        activation: None, "silu" or "swish".
        cache_seqlens: [batch], int32: conv_state is a ring, into which x is written from
            cache_seqlens % state_len on.
        conv_state_indices: [batch], int32: the entry of each sequence; below 0 it is padding.

    Returns:
        In the shape and layout of x. It has no gradients.
    """
    silu = _is_silu(activation)
    if x.dim() == 2:
        return causal_conv1d_update(
            x.unsqueeze(-1),
            conv_state,
            weight,
            bias,
            activation,
            cache_seqlens,
            conv_state_indices,
        ).squeeze(-1)
    with torch.no_grad():
        return kernelmint.causal_conv1d_update(
            x,
            conv_state,
            weight,
            bias,
            cache_seqlens,
            conv_state_indices,
            silu=silu,
        )


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """Returns the last elements of each of several sequences in a row, 0 before the first one's.

    Args:
        x: [total, dim].
        cu_seqlens: [batch + 1]: where sequences begin, from 0 on, and where the last one ends.
        state_len: how many elements.

    Returns:
        [batch, dim, state_len], channel-last.
    """
    rows = cu_seqlens[1:, None] + torch.arange(-state_len, 0, device=x.device)
    states = x[rows.clamp(min=0)]
    return torch.where((rows >= cu_seqlens[:-1, None]).unsqueeze(-1), states, 0).transpose(1, 2)


def _is_silu(activation: str | None) -> bool:
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"activation: got {activation!r}, expected None, silu or swish")
    return activation is not None


def _is_deterministic() -> bool:
    """Returns whether the gradients are deterministic, as causal-conv1d decides."""
    setting = {"1": True, "0": False}.get(_said_deterministic())
    return torch.are_deterministic_algorithms_enabled() if setting is None else setting


@kernelmint.traced_as_constant
def _said_deterministic() -> str:
    """Returns whether deterministic algorithms are on; a compiled graph keeps the answer, since
    PyTorch 2.4 cannot trace the question."""
    return os.environ.get("CAUSAL_CONV1D_DETERMINISTIC", "")[:1]
