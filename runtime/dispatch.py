"""Attention without a key, and calls by key or configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime import catalog, devices, manifest, operators, tensors
from runtime.errors import InvalidArgument, KernelNotFound, shown
from runtime.kernel import Kernel

_FAMILY = "flash_forward"
_OPTIONAL_OUTPUTS = tuple(  # found here, as torch.compile traces what asks for them
    argument.name
    for family in manifest.load().families.values()
    if family.name == _FAMILY
    for argument in family.arguments
    if argument.role == "output" and argument.optional
)
_chosen: dict[tuple[torch.device, torch.dtype, int, bool], Kernel] = {}


def forward(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """Calls one attention kernel.

    Args:
        kernel: a key or a configuration, as `runtime.kernel` takes it.
        q: queries, [B, Sq, H, D].
        k: keys, [B, Sk, Hk, D].
        v: values, [B, Sk, Hk, D].
        o: where to write the output, [B, Sq, H, D]; allocated where None.
        options: the kernel's other arguments (`scale`, `return_lse`).

    Returns:
        what the kernel returns: the output, or output and log-sum-exp.
    """
    return catalog.kernel(kernel)(q, k, v, out=o, **options)


def forward_timed(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> tuple[Any, float]:
    """Like `forward`, and waits; returns (result, milliseconds), timed as `Kernel.timed` does."""
    return catalog.kernel(kernel).timed(q, k, v, out=o, **options)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bshd",
    return_lse: bool = False,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
) -> Any:
    """Attention forward, softmax(scale * q k^T) v, with a kernel that suits the arguments.

    The kernel is the first of the manifest's order (targets by name, then each target's kernels as
    their spec lists them) that is available on the device of `q` and has its dtype, its head
    dimension and `causal`; the choice is kept for the process.

    Args:
        q: queries, [B, Sq, H, D], or [B, H, Sq, D] where layout is "bhsd".
        k: keys, [B, Sk, Hk, D] or [B, Hk, Sk, D]; Hk divides H (grouped heads).
        v: values, like k.
        causal: query i sees keys up to i + Sk - Sq: aligned bottom-right, as FlashAttention does.
        scale: the factor on q k^T; D ** -0.5 where None.
        layout: "bshd" or "bhsd"; the latter is read through strides, nothing is copied.
        return_lse: also return the log-sum-exp of each row of scores: natural log, float32,
            [B, H, Sq] in both layouts.
        out: where to write: a tensor like q, or (o, lse) with return_lse.

    Returns:
        the output, like q in shape and dtype; or (output, lse).

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
    """
    given = out
    if not isinstance(layout, str) or layout not in ("bshd", "bhsd"):
        raise InvalidArgument(f"layout: {shown(layout)} came, needs 'bshd' or 'bhsd'")
    if causal is not True and causal is not False:
        raise InvalidArgument(f"causal: a {type(causal).__name__} came, needs a bool")
    if layout == "bhsd":
        q, k, v = _swapped("q", q), _swapped("k", k), _swapped("v", v)
        if isinstance(out, (tuple, list)):
            given = (_swapped("out", out[0]), *out[1:]) if out else ()
        elif out is not None:
            given = _swapped("out", out)
    result: Any
    if torch.compiler.is_dynamo_compiling():
        key = _search(q.device, q.dtype, int(q.shape[3]), causal)
        requested = tuple(name == "lse" and return_lse for name in _OPTIONAL_OUTPUTS)
        result = operators.callers[_FAMILY](key, (q, k, v), (scale,), requested, given)
    else:
        result = _choose(q, causal)(q, k, v, scale=scale, return_lse=return_lse, out=given)
    if layout == "bshd":
        return result
    if isinstance(out, torch.Tensor):
        return out
    o = result[0] if return_lse else result
    o = o.transpose(1, 2) if out is None else out[0]
    return (o, result[1]) if return_lse else o


def _choose(q: torch.Tensor, causal: bool) -> Kernel:
    try:
        return _chosen[q.device, q.dtype, q.shape[3], causal]
    except Exception:  # not met before, or wrong in one of many ways
        pass
    d_head = int(tensors.extents("q", q, 4)[3])
    kernel = catalog.kernel(_search(q.device, q.dtype, d_head, causal))
    return _chosen.setdefault((q.device, q.dtype, d_head, causal), kernel)


def _swapped(name: str, tensor: torch.Tensor) -> torch.Tensor:
    tensors.check(name, tensor, 4)
    try:
        return tensor.transpose(1, 2)
    except (RuntimeError, TypeError) as error:  # without memory, or a subclass that cannot
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"{name}: cannot be read as [B, S, H, D]: {reason}") from None


def _search(device: torch.device, dtype: torch.dtype, d_head: int, causal: bool) -> str:
    """The key of the first kernel that suits."""
    wanted = {"dtype": catalog.dtype_name(dtype), "d_head": d_head, "causal": causal}
    refused: dict[str, list[str]] = {}
    for info in catalog.kernels(_FAMILY):
        reason = _why_not(info, device, wanted)
        if reason is None:
            return info.key
        refused.setdefault(f"{info.target}: {reason}", []).append(info.key)
    reasons = "".join(
        f"\n  {keys[0]}{f' and {len(keys) - 1} more' if len(keys) > 1 else ''}: "
        f"{reason.partition(': ')[2]}"
        for reason, keys in refused.items()
    )
    raise KernelNotFound(
        f"no {_FAMILY} kernel for dtype {dtype}, head dimension {d_head}, "
        f"{'causal' if causal else 'not causal'}, on {device}:{reasons or ' none was generated'}\n"
        f"Add a configuration to kernel_specs/{_FAMILY}; then `{manifest.REGENERATE}` builds it"
    )


# The compiler calls the function instead of tracing into it. This is what
# torch.compiler.assume_constant_result does, without its import of torch._dynamo, which takes as
# long as that of torch.
_search._dynamo_marked_constant = True  # type: ignore[attr-defined]  # PyTorch's own marker


def _why_not(
    info: catalog.KernelInfo, device: torch.device, wanted: Mapping[str, Any]
) -> str | None:
    if device.type != ("cuda" if info.is_cuda else "cpu"):
        return f"runs on {'a CUDA device' if info.is_cuda else 'the CPU'}"
    if not info.built:
        return info.reason
    if info.is_cuda:
        target = next(
            t for t in manifest.load().families[info.family].targets if t.name == info.target
        )
        index = torch.cuda.current_device() if device.index is None else device.index
        reason = devices.why_unavailable(target.capability, target.exact, index)
        if reason is not None:
            return reason
    wrong = [
        f"{name} is {info.parameters[name]}, not {value}"
        for name, value in wanted.items()
        if info.parameters[name] != value
    ]
    return ", ".join(wrong) or None
