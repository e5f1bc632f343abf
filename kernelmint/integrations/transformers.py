"""Hugging Face transformers on Kernelmint's kernels.

    from kernelmint.integrations import transformers as models

    models.activate()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="kernelmint")

Masks become lengths: of a pattern (causal, sliding window, bidirectional, packed sequences) and a
padding mask, the mask function makes a few numbers for each sequence, which stay on the device.
What is neither is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import runtime

NAME = "kernelmint"


def activate() -> None:
    """Makes attn_implementation="kernelmint" known to transformers, in this process.

    Raises:
        RuntimeError: transformers is not installed, or is older than 5.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise RuntimeError(
            f"transformers cannot be used: {error}; it takes transformers 5 or later: "
            "pip install 'transformers>=5'"
        ) from None
    AttentionInterface.register(NAME, attention)
    AttentionInterface.register(f"paged|{NAME}", paged_attention)
    AttentionMaskInterface.register(NAME, mask)


class _Pattern(NamedTuple):
    """What queries see: so many keys before and after their own (-1: all), of their sequence."""

    left: int = -1
    right: int = -1
    joined: torch.Tensor | None = None  # whether two neighbours are of one sequence, [B, S - 1]
    unknown: str = ""  # what a mask function does with positions that is none of these

    def both(self, other: _Pattern) -> _Pattern:
        def least(a: int, b: int) -> int:
            return max(a, b) if -1 in (a, b) else min(a, b)

        joined = self.joined if other.joined is None else other.joined
        left, right = least(self.left, other.left), least(self.right, other.right)
        return _Pattern(left, right, joined, self.unknown or other.unknown)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str | None = None,
    use_vmap: bool = False,
    **_: Any,
) -> torch.Tensor:
    """What `attention` takes in the place of a mask; transformers calls it once for each pattern.

    Args:
        batch_size: B.
        q_length: how many queries each sequence has; the first is at position `q_offset`.
        kv_length: how many keys; the first is at position `kv_offset`.
        q_offset: how many positions are before the queries.
        kv_offset: how many positions a sliding cache has dropped.
        mask_function: what transformers made of the layers' pattern; causal if None.
        attention_mask: what is not padding, bool, [B, positions]; all if None.
        device: where the model is.
        use_vmap: that parts of `mask_function` are the model's or the caller's own.

    Returns:
        numbers of each sequence, int32, [n, kind, left + 2, B]: its first key, the end of its keys,
        and, if some sequence ends in padding, how many queries it has. n is 0 if nothing is to be
        said of lengths; B is 0 then, too, if `attention_mask` says so: positions do not count
        beside it. `kind` is 1, and 1 more if the pattern is causal. For packed sequences the
        numbers are where these begin, and where the last one ends, [1, kind + 2, left + 2, N + 1];
        in a graph, whether there are none, [1, kind + 4, left + 2, 1].
        The second and third extent say the pattern to the host; all along them is the same.

    Raises:
        InvalidArgument: the pattern is none of these, there are tokens behind padding, or
            torch.jit.trace records the call.
    """
    if not torch.compiler.is_compiling() and torch._C._is_tracing():
        raise runtime.InvalidArgument(
            "mask: got a call that torch.jit.trace records, expected torch.export: traced programs "
            "drop the assertions by which a graph refuses masks that are none of its patterns"
        )
    if device is None:
        device = torch.device("cpu") if attention_mask is None else attention_mask.device
    pattern = _Pattern(right=0)
    if mask_function is not None:
        pattern = _read(mask_function, batch_size, q_length, device)
    if pattern.unknown:
        raise _unknown(f"a pattern that takes {pattern.unknown!r} of positions")
    causal = pattern.right == 0
    if not causal and pattern.left != pattern.right:
        raise _unknown(f"a window of {pattern.left} keys before and {pattern.right} after")
    kind = 1 + causal
    if pattern.joined is not None and _is_recorded(pattern.joined):
        if use_vmap and torch.compiler.is_compiling():  # what was looked up cannot be told then
            raise _unknown("a function of the model's or the caller's own, in a compiled graph")
        kind += 4
        numbers = pattern.joined.all().to(torch.int32).view(1, 1)
    elif pattern.joined is not None and not pattern.joined.all():
        kind += 2
        numbers = _places(pattern.joined)[None]
    else:
        # Queries of all that are aligned with their keys are at the end of these.
        end = q_offset + q_length - kv_offset if causal or pattern.left >= 0 else kv_length
        numbers = _lengths(batch_size, q_length, kv_length, kv_offset, end, attention_mask, device)
        if not causal and pattern.left < 0:
            numbers = numbers[:2]
    return numbers[:, None, None].expand(-1, kind, pattern.left + 2, -1)


def _is_recorded(tensor: torch.Tensor) -> bool:
    """Whether a graph is being made, by PyTorch or of CUDA, or shapes alone: nothing is read."""
    if torch.compiler.is_compiling() or isinstance(tensor, torch._subclasses.FakeTensor):
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _is_known_to_be(number: Any, other: Any) -> bool:
    """Whether they are the same, of symbols at all values: no graph is to be for some alone."""
    if isinstance(number, torch.Tensor):
        return False
    symbols = any(isinstance(n, torch.SymInt) for n in (number, other))
    if symbols and not torch.compiler.is_dynamo_compiling():  # which makes another graph
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(number == other)
    return bool(number == other)


def _lengths(
    batch_size: int,
    q_length: int,
    kv_length: int,
    kv_offset: int,
    end: int | torch.Tensor,
    attention_mask: torch.Tensor | None,
    device: torch.device | str,
) -> torch.Tensor:
    """The numbers of sequences that are not packed; `end` is behind the last query's own key."""
    if attention_mask is None:
        if _is_known_to_be(end, kv_length):
            return torch.empty(0, batch_size, dtype=torch.int32, device=device)
        last = torch.zeros(batch_size, dtype=torch.int32, device=device) + end
        return torch.stack([torch.zeros_like(last), last])
    there = attention_mask[:, kv_offset : kv_offset + kv_length].to(device=device, dtype=torch.bool)
    slots = torch.arange(there.shape[1], device=device)
    there = there & (slots < end)
    count = there.sum(1)
    first = there.to(torch.int8).argmax(1)
    last = first + count
    whole = (there == ((slots >= first[:, None]) & (slots < last[:, None]))).all()
    ends_in_padding = ((last != end) & (count > 0)).any()
    queries = (last - (end - q_length)).clamp(0, q_length)
    numbers = torch.stack([first, last, queries]).to(torch.int32)
    message = (
        "attention_mask: got tokens behind padding, expected padding at the ends of sequences "
        'alone; pad on the left to generate (padding_side="left"), or use another '
        "attn_implementation"
    )
    if _is_recorded(whole):
        torch._assert_async(whole, message)
        return numbers if q_length > 1 else numbers[:2]
    known = torch.stack([whole, ends_in_padding, (first != 0).any(), (last != kv_length).any()])
    is_whole, is_cut, *is_less = known.tolist()
    if not is_whole:
        raise runtime.InvalidArgument(message)
    if not any(is_less):
        return numbers[:0, :0]
    return numbers if is_cut else numbers[:2]


def _places(joined: torch.Tensor) -> torch.Tensor:
    """Where packed sequences begin, all rows one after the other, and where the last one ends."""
    begins = torch.nn.functional.pad(~joined, (1, 0), value=True)
    places = begins.flatten().nonzero()[:, 0]
    return torch.nn.functional.pad(places, (0, 1), value=begins.numel()).to(torch.int32)


def _of_positions(
    position_ids: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor | None:
    """Where packed sequences begin and the last one ends, by their positions; None if each row is
    one sequence. For models that pass their masks no positions, as gpt-oss.

    `mask` keeps what was found: it is one call's of the model, which looks but once for all layers.
    """
    if position_ids is None or position_ids.dim() != 2:
        return None
    queries = query.shape[2]
    if queries == 1 or not _is_known_to_be(key.shape[2], queries):
        return None
    if not _is_known_to_be(position_ids.shape[1], queries):
        return None
    joined = position_ids.diff(dim=1) == 1
    if _is_recorded(joined):
        torch._assert_async(joined.all(), _PACKED_IN_A_GRAPH)
        return None
    kept: Any = mask
    if not hasattr(kept, "places"):
        kept.places = None if joined.all() else _places(joined.expand(query.shape[0], -1))
    found: torch.Tensor | None = kept.places
    return found


_PACKED_IN_A_GRAPH = (
    "position_ids: got packed sequences in a compiled graph, expected one sequence in each row; "
    "pass cu_seq_lens_q and the rest, too"
)


class _Distance:
    """From queries to keys, in a call of a mask function."""

    def __init__(self, of: _Positions) -> None:
        self.of = of

    def __abs__(self) -> _Distance:
        return self

    def __le__(self, most: int) -> _Positions:
        self.of.seen.append(_Pattern(most, most))
        return self.of


class _Positions(torch.Tensor):
    """Stands for positions in a call of a mask function, and notes what they are compared with.

    torch.compile follows such a call, while it does not tell what a function holds.
    """

    role: str
    number: int | None  # that was subtracted
    at: torch.Tensor  # positions, or what was found there
    seen: list[_Pattern]  # to which all that come of one call add

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = _FUNCTIONS.get(function)
        this: Any = args[0]
        other: Any = args[1] if len(args) > 1 else None
        with torch._C.DisableTorchFunctionSubclass():
            if name == "device" or (name is None and function.__name__ == "__get__"):
                return function(this)
            if name in ("to", "new_ones"):  # and_masks begins with all that there is
                return this
            if name == "getitem":  # (a compiled graph does not pass this here)
                index = tuple(i.at if isinstance(i, cls) else i for i in other)
                return _positions("sequence", other[-1].seen, at=this[index])
            kind = other.role if isinstance(other, cls) else type(other).__name__
            step = (this.role, name, kind)
            if step == ("query", "sub", "key"):
                return _Distance(this)
            if step == ("query", "sub", "int"):
                return _positions("query - n", this.seen, number=other)
            if step == ("key", "le", "query"):
                this.seen.append(_Pattern(right=0))
            elif step == ("key", "gt", "query - n"):
                this.seen.append(_Pattern(left=other.number - 1))
            elif step == ("sequence", "eq", "sequence"):
                this.seen.append(_Pattern(joined=this.at == other.at))
            elif name == "and" and kind == "Tensor" and other.dim() == 2:
                this.seen.append(_Pattern(joined=other))  # of a compiled graph
            elif step != ("query", "ge", "int") and (name != "and" or kind == "Tensor"):
                this.seen.append(_Pattern(unknown=name or "another operator"))
            return this


_FUNCTIONS = {
    torch.Tensor.device.__get__: "device",
    torch.Tensor.to: "to",
    torch.Tensor.new_ones: "new_ones",
    torch.Tensor.__getitem__: "getitem",
    torch.Tensor.__and__: "and",
    **{getattr(torch.Tensor, name): name for name in ("eq", "ge", "gt", "le", "sub")},
    **{getattr(torch.Tensor, f"__{name}__"): name for name in ("eq", "ge", "gt", "le", "sub")},
    # as torch.export(strict=True) passes them
    operator.getitem: "getitem",
    operator.and_: "and",
    **{getattr(operator, name): name for name in ("eq", "ge", "gt", "le", "sub")},
}


_EMPTY = torch.empty(0)


def _positions(role: str, seen: list[_Pattern], number: Any = None, at: Any = None) -> _Positions:
    if torch.compiler.is_dynamo_compiling():
        made = (torch.empty(0) if at is None else at).as_subclass(_Positions)
    else:  # as_subclass asks the dispatch modes, and cannot change what they give, a fake tensor
        made = torch.Tensor._make_subclass(_Positions, _EMPTY)
    made.role, made.seen, made.number, made.at = role, seen, number, at
    return made


def _read(
    function: Callable[..., Any], batch_size: int, length: int, device: torch.device | str
) -> _Pattern:
    """What a mask function of transformers.masking_utils lets queries see."""
    seen: list[_Pattern] = []
    rows = torch.arange(batch_size, device=device)[:, None]
    head = torch.zeros(1, 1, dtype=torch.int64, device=device)
    at = torch.arange(length, device=device)
    # Each query beside the key before its own, which tells where a sequence begins.
    function(rows, head, _positions("query", seen, at=at[1:]), _positions("key", seen, at=at[:-1]))
    pattern = _Pattern()
    for each in seen:
        pattern = pattern.both(each)
    return pattern


def _unknown(what: str) -> runtime.InvalidArgument:
    return runtime.InvalidArgument(
        f"mask: got {what}, expected causal, a sliding window, padding or packed sequences: no "
        'kernel takes another mask; use attn_implementation="sdpa"'
    )


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    position_ids: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a layer of transformers' models.

    Args:
        module: the layer; without a mask, its `is_causal` counts.
        query: [B, H, Sq, D].
        key: [B, Hk, Sk, D].
        value: [B, Hk, Sk, Dv].
        attention_mask: what `mask` made, which says what queries see; None: no mask was made.
        dropout: 0; no kernel drops out.
        scaling: the factor on q k^T; D ** -0.5 if None.
        sliding_window: how many keys a query sees, its own the last, if no mask was made.
        softcap: scores become softcap * tanh(score / softcap).
        is_causal: counts in the place of the module's.
        s_aux: sinks, [H].
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: packed sequences, as
            `kernelmint.flash_attn_varlen_func` takes them.
        position_ids: [B, Sq] or [1, Sq]; where they do not go on by 1, another packed sequence
            begins, if keys are as many, and no padding mask was given.

    Returns:
        the output, [B, Sq, H, Dv], and None in the place of the weights.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong, or asks for what no kernel does.
    """
    for name in ("position_bias", "cache"):
        if others.get(name) is not None:
            raise runtime.InvalidArgument(f"{name}: got a value, expected None: no kernel takes it")
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    left = -1 if sliding_window is None else sliding_window - causal
    numbers, packed = None, False
    if attention_mask is not None:
        if attention_mask.dtype != torch.int32 or attention_mask.dim() != 4:
            raise _unknown(f"a tensor of {attention_mask.dtype}, {list(attention_mask.shape)},")
        n, kind, window, count = attention_mask.shape
        causal, packed, left = kind % 2 == 0, 2 < kind < 5, window - 2
        numbers = attention_mask[:, 0, 0] if n else None
        if kind > 4:
            if cu_seq_lens_q is None:
                torch._assert_async(attention_mask.flatten()[0], _PACKED_IN_A_GRAPH)
            numbers = None
        elif kind == 2 and n == 0 and count and cu_seq_lens_q is None:
            places = _of_positions(position_ids, query, key, attention_mask)
            if places is not None:
                numbers, packed = places[None], True
    options: dict[str, Any] = {
        "dropout_p": dropout,
        "softmax_scale": scaling,
        "causal": causal,
        "window_size": (left, 0 if causal else left),
        "softcap": softcap or 0.0,
        "s_aux": None if s_aux is None else s_aux.to(query.dtype),
    }
    if cu_seq_lens_q is None and not packed:
        if numbers is not None:
            options |= dict(zip(("leftpad_k", "seqused_k", "seqused_q"), numbers, strict=False))
        return runtime.flash_attn_func(q, k, v, **options), None
    if cu_seq_lens_q is None:
        assert numbers is not None
        cu_seq_lens_q = cu_seq_lens_k = numbers[0]
    elif numbers is not None and not packed:
        raise runtime.InvalidArgument(
            "cu_seq_lens_q: got packed sequences and padding, expected one of them"
        )
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    o = runtime.flash_attn_varlen_func(
        q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, **options
    )
    return o.reshape(*query.shape[:1], query.shape[2], *o.shape[1:]), None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the cache is written
def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    *,
    cache: Any,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor | dict[str, torch.Tensor],
    read_index: list[torch.Tensor],
    write_index: list[torch.Tensor],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a layer in continuous batching, attn_implementation="paged|kernelmint".

    Args:
        module: the layer.
        query: [1, H, total, D], the queries of all requests, one after the other.
        key: the newest keys, [1, Hk, total, D].
        value: the newest values, [1, Hk, total, Dv].
        attention_mask: None.
        cache: transformers' PagedAttentionCache, which takes them, and gives all of each request.
        cu_seq_lens_q: where each request's queries begin, and where the last one's end, int32.
        cu_seq_lens_k: the same of keys, or of those of each kind of layer.
        read_index, write_index: the cache's.

    The other arguments, and what is raised: as `attention`'s.

    Returns:
        the output, [1, total, H, Dv], and None in the place of the weights.
    """
    keys, values = cache.update(
        key_states=key, value_states=value, layer_idx=module.layer_idx,
        read_index=read_index, write_index=write_index,
    )  # fmt: skip
    if isinstance(cu_seq_lens_k, dict):
        cu_seq_lens_k = cu_seq_lens_k["sliding_attention" if sliding_window else "full_attention"]
    o = runtime.flash_attn_varlen_func(
        query[0].transpose(0, 1), keys, values, cu_seq_lens_q, cu_seq_lens_k, dropout_p=dropout,
        softmax_scale=scaling, causal=True, softcap=softcap or 0.0,
        window_size=(sliding_window - 1 if sliding_window else -1, 0),
        s_aux=None if s_aux is None else s_aux.to(query.dtype),
    )  # fmt: skip
    return o[None], None
