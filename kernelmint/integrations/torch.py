"""PyTorch's scaled_dot_product_attention on Kernelmint's kernels, forward and backward.

    from kernelmint.integrations import torch as slot

    slot.activate()      # every model that calls F.scaled_dot_product_attention runs on them
    print(slot.calls())  # how many calls went where, and why

PyTorch lets another flash attention stand in for its own (`torch.nn.attention`'s
`register_flash_attention_impl`, PyTorch 2.11 and later): this registers ours as "kernelmint".
SDPA's flash backend and `torch.nn.attention.varlen.varlen_attn` are ours then on CUDA devices, for
calls that a kernel suits, and on the CPU, where PyTorch has no varlen_attn. If PyTorch
prefers another backend to flash, as it prefers cuDNN on Hopper, flash comes first in its
order of preference while ours is active.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.attention

import runtime
from codegen.core.manifest import Gradient
from runtime import manifest, packs
from runtime.errors import shown
from runtime.front import Front, values_of

NAME = "kernelmint"
Otherwise = Literal["pytorch", "error"]
_FAMILY = "flash_forward"
_CUDA = "_scaled_dot_product_flash_attention"
_CUDA_BACKWARD = "_scaled_dot_product_flash_attention_backward"
_CUDNN = "_scaled_dot_product_cudnn_attention"
_CPU = "_scaled_dot_product_flash_attention_for_cpu"
_MATH = "_scaled_dot_product_attention_math"
_VARLEN = "_flash_attention_forward"  # varlen_attn's
_VARLEN_BACKWARD = "_flash_attention_backward"
_PACKED_BACKWARD = "flash_prefill_backward"  # a family
_VARLEN_CUDNN = "_cudnn_attention_forward"
_VARLEN_CUDNN_BACKWARD = "_cudnn_attention_backward"
_WITHOUT_KERNEL = (runtime.KernelNotFound, runtime.TargetUnavailable, runtime.BuildError)
_NOT_SUITED = (*_WITHOUT_KERNEL, runtime.InvalidArgument)
_FLASH = int(torch.nn.attention.SDPBackend.FLASH_ATTENTION.value)


@dataclass(frozen=True)
class Calls:
    """Forward calls of SDPA's flash backend and of varlen_attn, on the CPU also of SDPA's plain
    operators, since `activate`.

    Attributes:
        ours: the number that a kernel of ours computed.
        pytorch: the numbers that PyTorch's computed, by the reason.
    """

    ours: int
    pytorch: Mapping[str, int]


@dataclass(frozen=True)
class Changes:
    """The changes that `activate` made in PyTorch; after `deactivate` PyTorch's own answer again.

    Attributes:
        operators: PyTorch's operators whose kernels ours replace, with the kind of device.
        order: SDPA's backends in the order in which CUDA devices prefer them; None without any.
        order_before: the same before.
    """

    operators: tuple[str, ...]
    order: tuple[str, ...] | None
    order_before: tuple[str, ...] | None

    def __str__(self) -> str:
        lines = [f"{operator}: Kernelmint's if a kernel suits" for operator in self.operators]
        if self.order is not None and self.order_before is not None:
            lines.append(
                f"SDPA's order on CUDA: {', '.join(self.order)} "
                f"(before: {', '.join(self.order_before)})"
            )
        return "\n".join(lines)


@dataclass
class _Slot:
    """One activation: its options, its counts, and the calls that PyTorch makes while it holds."""

    otherwise: Otherwise
    originals: dict[str, Any] = field(default_factory=dict)  # PyTorch's kernels, by operator
    ours: int = 0
    pytorch: Counter[str] = field(default_factory=Counter)
    without_kernel: dict[tuple[object, ...], str] = field(default_factory=dict)
    counting: threading.Lock = field(default_factory=threading.Lock)

    def _forward_on_cuda(
        self,
        keys: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> Any:
        unsuited = "return_debug_mask is set" if return_debug_mask else None
        results = self._attention(query, key, value, dropout_p, is_causal, scale, unsuited)
        if results is None:
            return self.originals[_CUDA].call_boxed(
                *(keys, query, key, value, dropout_p, is_causal, return_debug_mask), scale=scale
            )
        o, lse = results
        rng_state = torch.empty(2, dtype=torch.uint64, device=query.device)  # dropout's
        unused = torch.empty((), dtype=torch.uint64, device=query.device)
        mask = torch.empty(0, dtype=query.dtype, device=query.device)
        return o, lse, None, None, query.shape[2], key.shape[2], rng_state, unused, mask

    def _forward_on_cpu(
        self,
        keys: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: torch.Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        unsuited = None if attn_mask is None else "a mask is given"
        results = self._attention(query, key, value, dropout_p, is_causal, scale, unsuited)
        if results is None:
            return self.originals[_CPU].call_boxed(
                *(keys, query, key, value, dropout_p, is_causal), attn_mask=attn_mask, scale=scale
            )
        o, lse = results
        # laid out as PyTorch's, which compiled graphs rely on: [B, Sq, H]
        return o, lse.transpose(1, 2).contiguous().transpose(1, 2)

    def _cudnn_on_cuda(
        self,
        keys: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: torch.Tensor | None,
        compute_log_sumexp: bool,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *arguments: Any,
        scale: float | None = None,
    ) -> Any:
        """Calls cuDNN's kernel, which PyTorch uses for calls that flash attention lacks; cuDNN
        returns nothing for an output without elements."""
        if 0 not in query.shape[:3]:
            return self.originals[_CUDNN].call_boxed(
                *(keys, query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal),
                *arguments, scale=scale,
            )  # fmt: skip
        o = query.new_zeros(*query.shape[:3], value.shape[3])
        lse = query.new_full((*query.shape[:3], 1), -torch.inf, dtype=torch.float32)
        unused = torch.empty((), dtype=torch.int64, device=query.device)  # dropout's state
        return o, lse, None, None, query.shape[2], key.shape[2], unused, unused, None

    def _varlen_on_cpu(self, _: Any, *arguments: Any, **options: Any) -> Any:
        return self._varlen(*arguments, **options)

    def _varlen_on_cuda(self, keys: Any, *arguments: Any, **options: Any) -> Any:
        if arguments[3] is not None:  # else SDPA's own, of equal lengths
            try:
                return self._varlen(*arguments, **options)
            except _NOT_SUITED as error:
                self._leave(_first_line(error))
        return self.originals[_VARLEN].call_boxed(keys, *arguments, **options)

    def _varlen_by_cudnn(
        self,
        keys: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: torch.Tensor | None,
        cum_seq_q: torch.Tensor | None,
        cum_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        compute_log_sumexp: bool,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        **options: Any,
    ) -> Any:
        """Computes the calls that varlen_attn gives cuDNN: long sequences on Hopper and Blackwell,
        without a window.

        cuDNN's log-sum-exp is laid out as ours, so its backward takes ours.
        """
        lengths = cum_seq_q, cum_seq_k, max_q, max_k
        # Else SDPA's own: of equal lengths, biased, or aligned top-left.
        if cum_seq_q is not None and attn_bias is None and not is_causal:
            try:
                o, lse, *rest = self._varlen(
                    *(query, key, value, *lengths, dropout_p, is_causal, return_debug_mask),
                    **options,
                )
            except _NOT_SUITED as error:
                self._leave(_first_line(error))
            else:
                return o, lse, *lengths, *rest
        return self.originals[_VARLEN_CUDNN].call_boxed(
            *(keys, query, key, value, attn_bias, *lengths, compute_log_sumexp),
            *(dropout_p, is_causal, return_debug_mask), **options,
        )  # fmt: skip

    def _varlen(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cum_seq_q: torch.Tensor | None,
        cum_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        return_debug_mask: bool,
        *descales: torch.Tensor | None,
        scale: float | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        out: torch.Tensor | None = None,
        num_splits: int | None = None,
        compute_auxiliary: bool = True,
        **lengths: torch.Tensor | None,
    ) -> Any:
        if cum_seq_q is None or return_debug_mask or any(t is not None for t in descales):
            raise runtime.InvalidArgument(
                f"aten::{_VARLEN}: got equal lengths, return_debug_mask or a descale, expected "
                "what varlen_attn passes"
            )
        if dropout_p != 0:  # the backward would need the seed
            raise runtime.InvalidArgument(
                f"dropout_p: got {shown(dropout_p)}, expected 0: flash_attn_varlen_func drops out"
            )
        left, right = (-1 if n is None else n for n in (window_size_left, window_size_right))
        with torch.no_grad():  # autograd is above
            o, lse, _ = runtime.flash_attn_varlen_func(
                *(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k), softmax_scale=scale,
                causal=is_causal, window_size=(left, right), return_attn_probs=True,
                num_splits=num_splits or 0, out=out, **lengths,
            )  # fmt: skip
        self._computed()
        lse = lse.masked_fill(lse.isneginf(), torch.inf)  # so is PyTorch's of rows without keys
        rng_state = torch.empty(2, dtype=torch.uint64, device=query.device)  # dropout's
        unused = torch.empty((), dtype=torch.uint64, device=query.device)
        return o, lse.contiguous(), rng_state, unused, query.new_empty(0)

    def _varlen_backward_on_cuda(self, keys: Any, *arguments: Any, **options: Any) -> Any:
        gradients = self.originals[_VARLEN_BACKWARD].call_boxed(keys, *arguments, **options)
        return _only_of_sequences(gradients, *arguments[6:8])

    def _varlen_backward_by_cudnn(self, keys: Any, *arguments: Any, **options: Any) -> Any:
        gradients = self.originals[_VARLEN_CUDNN_BACKWARD].call_boxed(keys, *arguments, **options)
        return _only_of_sequences(gradients, *arguments[9:11])

    def _varlen_backward_on_cpu(
        self,
        _: Any,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        cum_seq_q: torch.Tensor,
        cum_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        *unused: torch.Tensor,
        scale: float | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
    ) -> tuple[torch.Tensor, ...]:
        left, right = (-1 if n is None else n for n in (window_size_left, window_size_right))
        tensors = gradient.contiguous(), query, key, value, o, lse
        gradients = _backward_of_packed(
            (*(tensor[None] for tensor in tensors), cum_seq_q, cum_seq_k, *[None] * 5),
            (scale, 0.0, left, 0 if is_causal else right), (False,), None,
        )  # fmt: skip
        return tuple(each[0] for each in gradients)

    def _math_on_cpu(
        self,
        keys: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Calls PyTorch's operator, which computes calls that its flash attention lacks."""
        # Else the caller chose this one; within vmap it is every device's.
        if torch._C._get_flash_sdp_enabled() and query.device.type == "cpu":
            self._leave("dropout is on" if dropout_p else "PyTorch chose SDPBackend.MATH")
        return self.originals[_MATH].call_boxed(
            *(keys, query, key, value, attn_mask, dropout_p, *arguments), **options
        )

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        unsuited: str | None,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns output and log-sum-exp by a kernel of ours; None if PyTorch's own computes them.

        Raises:
            InvalidArgument: no kernel suits, and `otherwise` is "error".
        """
        if 0 in query.shape:  # PyTorch's kernel divides by the number of heads
            self._computed()
            lse = query.new_full(query.shape[:3], -torch.inf, dtype=torch.float32)
            return query.new_zeros(*query.shape[:3], value.shape[3]), lse
        if dropout_p:
            unsuited = "dropout is on"
        elif is_causal and query.shape[2] != key.shape[2]:
            unsuited = "is_causal with other numbers of queries and keys, aligned top-left"
        kind = (query.device, query.dtype, query.shape[3], value.shape[3], is_causal)
        unsuited = unsuited or self.without_kernel.get(kind)
        if unsuited is None:
            o = torch.empty_like(query)
            lse = torch.empty(query.shape[:3], device=query.device, dtype=torch.float32)
            try:
                with torch.no_grad():  # autograd is above
                    runtime.attention(
                        *(query, key, value), causal=is_causal, scale=scale,
                        layout="bhsd", return_lse=True, out=(o, lse),
                    )  # fmt: skip
            except _WITHOUT_KERNEL as error:  # kept: to ask again may be to compile again
                unsuited = self.without_kernel[kind] = _first_line(error)
            except runtime.InvalidArgument as error:
                unsuited = _first_line(error)
            else:
                self._computed()
                return o, lse
        self._leave(unsuited)
        return None

    def _leave(self, unsuited: str) -> None:
        """Leaves a call to PyTorch's kernel, or refuses it."""
        if self.otherwise == "error":
            raise runtime.InvalidArgument(
                f"scaled_dot_product_attention: no kernel of Kernelmint suits: {unsuited}; "
                'activate(otherwise="pytorch") leaves such calls to PyTorch'
            )
        with self.counting:
            self.pytorch[unsuited] += 1

    def _computed(self) -> None:
        with self.counting:
            self.ours += 1

    def _backward_on_cuda(
        self, keys: Any, gradient: torch.Tensor, *arguments: Any, scale: float | None = None
    ) -> Any:
        query, key, value, o, lse, _, _, _, _, dropout_p, causal, *_ = arguments
        if 0 in o.shape:
            return tuple(map(torch.zeros_like, (query, key, value)))
        if not dropout_p and not (causal and query.shape[2] != key.shape[2]):
            q, k, v, o, do = (t.transpose(1, 2) for t in (query, key, value, o, gradient))
            inputs = {"q": q, "k": k, "v": v}
            repeats = torch.are_deterministic_algorithms_enabled()
            kind = (query.device, query.dtype, query.shape[3], "gradients", causal)
            if kind not in self.without_kernel:
                try:
                    computed = runtime.attention_backward(
                        *(do, q, k, v, o, lse), scale=scale, causal=causal, deterministic=repeats
                    )
                    return tuple(t.transpose(1, 2) for t in computed)
                except _WITHOUT_KERNEL as error:
                    self.without_kernel[kind] = _first_line(error)
                except runtime.InvalidArgument:  # memory that PyTorch's operators take
                    pass
            with contextlib.suppress(runtime.InvalidArgument):  # PyTorch's computes it then
                scalars = {"scale": scale, "deterministic": repeats}
                backward = _gradient(_FAMILY, {"causal": causal}, inputs, scalars)
                gradients = backward(inputs, {"o": o, "lse": lse}, {"o": do})
                return tuple(gradients[name].transpose(1, 2) for name in ("q", "k", "v"))
        return self.originals[_CUDA_BACKWARD].call_boxed(keys, gradient, *arguments, scale=scale)


def _only_of_sequences(
    gradients: tuple[torch.Tensor, ...],
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Returns dq, dk and dv, with 0 in the rows before the first sequence and after the last one,
    which PyTorch leaves unwritten; nothing is read on the host."""
    for gradient, places in zip(gradients, (cum_seq_q, cum_seq_k, cum_seq_k), strict=True):
        if places is not None and places.numel():
            rows = torch.arange(len(gradient), device=gradient.device)
            is_unused = (rows < places[0]) | (rows >= places[-1])
            gradient.masked_fill_(is_unused[:, None, None], 0)
    return gradients


def _gradient(
    family: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
) -> Callable[..., Mapping[str, torch.Tensor]]:
    """Computes the backward of one call by the function that the family's spec names under
    `gradient:`."""
    hooks = manifest.family(family).gradients
    hook = next(hook for hook in hooks if isinstance(hook, Gradient))
    make = packs.specs_function(packs.of(family), hook.module, hook.function)
    backward: Callable[..., Mapping[str, torch.Tensor]] = make(parameters, inputs, scalars)
    return backward


def _compiled_for(D: int, Dv: int) -> dict[str, Any]:
    """Returns the head dimension that is compiled in: those of tensors are padded to it."""
    wide = max(D, Dv)
    widths = values_of(_PACKED_BACKWARD, "d_head", on_cuda=False)
    return {"d_head": next((d for d in widths if wide <= d), wide)}


_backward_of_packed = Front(_PACKED_BACKWARD, _compiled_for).__call__


def _first_line(error: Exception) -> str:
    return str(error.args[0]).partition("\n")[0]


def _varlen_takes_cudnn() -> bool:
    """Returns whether PyTorch's varlen_attn gives some calls to cuDNN, as PyTorch 2.14 does
    first."""
    schema = getattr(torch.ops.aten, _VARLEN_CUDNN).default._schema
    return "seqused_k" in {argument.name for argument in schema.arguments}


def _order() -> list[int]:
    """Returns SDPA's backends in CUDA's order of preference, which PyTorch settles at the first
    call."""
    tensor = torch.empty(1, 1, 1, 64, dtype=torch.float16, device="cuda")
    torch._fused_sdp_choice(tensor, tensor, tensor)
    return list(torch._C._get_sdp_priority_order())


def _names(order: list[int]) -> tuple[str, ...]:
    named = {int(b.value): n for n, b in torch.nn.attention.SDPBackend.__members__.items()}
    return tuple(named.get(backend, str(backend)) for backend in order)


class _Kernels:
    """Kernels of ours in PyTorch's dispatcher. They are registered once and stay, as PyTorch's way
    to remove a kernel ends a process whose other threads call it; `serving` says who answers.

    PyTorch's registry of flash attentions holds this as its handle.
    """

    def __init__(self) -> None:
        self.serving: _Slot | None = None  # None: PyTorch's own kernels answer
        self.latest = _Slot("pytorch")
        self.originals: dict[str, Any] = {}
        self.order_before: list[int] | None = None
        self._library: Any = None

    def start(self) -> _Kernels:
        """Registers our kernels, if they are not yet registered, and makes them answer."""
        if self._library is None:
            self._register()
        frame = _frames[-1]
        if frame.slot is None:  # PyTorch's own function activates ours
            frame.slot = _Slot("pytorch")
        self.serve(frame.slot)
        if torch.cuda.is_available():
            self.order_before = _order()
            order = [_FLASH, *(backend for backend in self.order_before if backend != _FLASH)]
            torch._C._set_sdp_priority_order(order)
        return self

    def serve(self, slot: _Slot) -> None:
        """Makes this activation answer from now on."""
        slot.originals = self.originals
        self.serving = self.latest = slot

    def remove(self) -> None:
        """Makes PyTorch's own kernels answer again; PyTorch's registry calls this method by its
        name."""
        self.serving = None
        if self.order_before is not None:
            torch._C._set_sdp_priority_order(self.order_before)

    @property
    def changes(self) -> Changes:
        on_cpu = (_CPU, _VARLEN)
        replaced = [f"aten::{name} (CUDA)" for name in self.originals if name not in (_CPU, _MATH)]
        return Changes(
            (*(f"aten::{name} (CPU)" for name in on_cpu), *replaced),
            None if self.order_before is None else _names(_order()),
            None if self.order_before is None else _names(self.order_before),
        )

    def _register(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # PyTorch's
        self._replace(_CPU, _Slot._forward_on_cpu, "CPU")
        self._add(_VARLEN, _Slot._varlen_on_cpu)
        self._add(_VARLEN_BACKWARD, _Slot._varlen_backward_on_cpu)
        # Inference mode has no autograd, and vmap takes the operator apart before it.
        self._replace(_MATH, _Slot._math_on_cpu, "CPU", "AutogradCPU", "FuncTorchVmapMode")
        if torch.cuda.is_available():
            self._replace(_CUDA, _Slot._forward_on_cuda, "CUDA")
            self._replace(_CUDA_BACKWARD, _Slot._backward_on_cuda, "CUDA")
            self._replace(_CUDNN, _Slot._cudnn_on_cuda, "CUDA")
            self._replace(_VARLEN, _Slot._varlen_on_cuda, "CUDA")
            self._replace(_VARLEN_BACKWARD, _Slot._varlen_backward_on_cuda, "CUDA")
            if _varlen_takes_cudnn():
                self._replace(_VARLEN_CUDNN, _Slot._varlen_by_cudnn, "CUDA")
            self._replace(_VARLEN_CUDNN_BACKWARD, _Slot._varlen_backward_by_cudnn, "CUDA")

    def _replace(self, name: str, ours: Callable[..., Any], *keys: str) -> None:
        """Registers a kernel of ours before the one that PyTorch has for the first of these
        keys."""
        original = self.originals[name] = torch.library.get_kernel(f"aten::{name}", keys[0])

        def run(keyset: Any, *arguments: Any, **options: Any) -> Any:
            slot = self.serving
            if slot is None:
                return original.call_boxed(keyset, *arguments, **options)
            return ours(slot, keyset, *arguments, **options)

        for key in keys:
            with warnings.catch_warnings():  # PyTorch warns of a replaced kernel; `changes` says it
                warnings.filterwarnings("ignore", "Warning only once for all operators")
                self._library.impl(name, run, key, with_keyset=True)

    def _add(self, name: str, ours: Callable[..., Any]) -> None:
        """Registers a kernel of ours for the CPU, where PyTorch has none."""

        def run(keyset: Any, *arguments: Any, **options: Any) -> Any:
            slot = self.serving
            if slot is None:
                raise NotImplementedError(
                    f"aten::{name}: PyTorch has no kernel for the CPU; {__name__}.activate() makes "
                    "Kernelmint's answer"
                )
            return ours(slot, keyset, *arguments, **options)

        self._library.impl(name, run, "CPU", with_keyset=True)


@dataclass(eq=False)
class _Frame:
    """The state within one `with active()`, or outside of all: an activation of ours, another flash
    attention's name, or PyTorch's own."""

    thread: int | None = None
    slot: _Slot | None = None
    other: str | None = None


_kernels = _Kernels()
_frames = [_Frame()]  # the last one counts
_lock = threading.RLock()  # a lock of both, and of PyTorch's registry


def _own_frame() -> _Frame:
    """Returns the innermost frame that this thread is in."""
    return next(f for f in reversed(_frames) if f.thread in (None, threading.get_ident()))


def _settle() -> None:
    """Makes PyTorch's registry hold the flash attention of the last frame."""
    attention: Any = torch.nn.attention
    frame = _frames[-1]
    if frame.slot is not None:
        if is_active():
            _kernels.serve(frame.slot)
        else:
            attention.register_flash_attention_impl(NAME, register_fn=_kernels.start)
            attention.activate_flash_attention_impl(NAME)
    elif is_active():
        if frame.other is None:
            attention.restore_flash_attention_impl()
        else:
            attention.activate_flash_attention_impl(frame.other)


def activate(otherwise: Otherwise = "pytorch") -> Changes:
    """Makes SDPA's flash backend Kernelmint's, forward and backward, in this process.

    A call goes to a kernel of ours if one suits: its dtype and head dimension, no mask, no
    dropout, and under `is_causal` as many queries as keys. On CUDA devices the backward is
    that of `kernelmint.attention`: ours where there is a kernel, else PyTorch's; on the CPU it is
    PyTorch's.

    Args:
        otherwise: the treatment of other calls: "pytorch" leaves them to the kernel that PyTorch
            had there, "error" raises InvalidArgument with the reason.

    Returns:
        the changes; their `str()` is for people.

    Raises:
        RuntimeError: PyTorch is older than 2.11, which has no such slot.
        ValueError: `otherwise` is neither.
    """
    if otherwise not in ("pytorch", "error"):
        raise ValueError(f"otherwise: got {shown(otherwise)}, expected 'pytorch' or 'error'")
    attention: Any = torch.nn.attention
    if not hasattr(attention, "restore_flash_attention_impl"):
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no slot for another flash attention: it takes "
            "PyTorch 2.11 or later; kernelmint.attention can be called with this one"
        )
    with _lock:
        frame = _own_frame()
        frame.slot, frame.other = _Slot(otherwise), None
        _settle()
        return _kernels.changes


def deactivate() -> None:
    """Puts PyTorch's own flash attention and its order of preference back, once no other thread is
    within `active()`; without effect if ours is not active."""
    with _lock:
        if is_active():
            frame = _own_frame()
            frame.slot = frame.other = None
            _settle()


def is_active() -> bool:
    """Returns whether SDPA's flash backend is ours now."""
    return _current() == NAME


def _current() -> str | None:
    """Returns the name of the flash attention that is in PyTorch's slot; None for PyTorch's own."""
    current = getattr(torch.nn.attention, "current_flash_attention_impl", None)
    return None if current is None else current()


def calls() -> Calls:
    """Returns the counts of SDPA's flash calls since `activate`, by the kernel that computed
    them."""
    slot = _kernels.latest
    with slot.counting:
        return Calls(slot.ours, dict(slot.pytorch))


@contextlib.contextmanager
def active(otherwise: Otherwise = "pytorch") -> Iterator[Changes]:
    """Calls `activate` for the length of a with statement, then restores the earlier state: an
    activation of ours with its options and its counts, or another flash attention. If several
    overlap, in threads or ended out of order, the last begun that has not ended holds."""
    frame = _Frame(threading.get_ident())

    def leave() -> None:
        with _lock:
            _frames.remove(frame)
            _settle()

    with contextlib.ExitStack() as left:
        with _lock:  # another thread that leaves finds no frame without its activation
            if not is_active():
                _frames[-1].slot, _frames[-1].other = None, _current()
            _frames.append(frame)
            left.callback(leave)
            changes = activate(otherwise)
        yield changes
