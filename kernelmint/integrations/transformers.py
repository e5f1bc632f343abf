"""Hugging Face transformers on Kernelmint's kernels.

    from kernelmint.integrations import transformers as models

    models.activate()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="kernelmint")

Masks become lengths: of a pattern (causal, sliding window, bidirectional, packed sequences) and a
padding mask, the mask function makes a few numbers for each sequence, which stay on the device.
Any other mask is an error.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

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
    """The keys that queries see: the number of keys before and after their own (-1: all, -2: none
    at all), within their sequence.

    The tensors describe pairs of neighbours, bool, [B, S - 1], or None: whether both belong to one
    sequence; whether the second's position is the first's plus 1; whether their sequences are in
    order.
    """

    left: int = -1
    right: int = -1
    joined: torch.Tensor | None = None
    steps: torch.Tensor | None = None
    ordered: torch.Tensor | None = None
    unknown: str = ""  # an operation of a mask function on positions beyond these

    def both(self, other: _Pattern) -> _Pattern:
        def least(a: int, b: int) -> int:
            return max(a, b) if -1 in (a, b) and -2 not in (a, b) else min(a, b)

        def each(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
            return b if a is None else a if b is None else a & b

        return _Pattern(
            least(self.left, other.left), least(self.right, other.right),
            each(self.joined, other.joined), each(self.steps, other.steps),
            each(self.ordered, other.ordered), self.unknown or other.unknown,
        )  # fmt: skip


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str | None = None,
    config: Any = None,
    **_: Any,
) -> torch.Tensor:
    """Returns the tensor that `attention` takes in place of a mask; transformers calls `mask` once
    for each pattern.

    Args:
        batch_size: B.
        q_length: the number of queries of each sequence; the first is at position `q_offset`.
        kv_length: the number of keys; the first is at position `kv_offset`.
        q_offset: the number of positions before the queries.
        kv_offset: the number of positions that a sliding cache has dropped.
        mask_function: transformers' function for the layers' pattern; causal if None.
        attention_mask: true for tokens, false for padding, bool, [B, positions]; None: no padding.
        device: the model's.
        config: the model's.

    Returns:
        numbers of each sequence, int32, [n, kind, left + 2, B]: its first key, the end of its keys,
        and, if some sequence ends in padding, its number of queries. n is 0 if all lengths are
        whole; then B is 0 if `attention_mask` says so: positions do not count beside it (else 1, if
        no key is hidden). `kind` is 1, and 1 more if the pattern is causal. For packed sequences
        the numbers are where these begin, and where the last one ends, [1, kind + 2, left + 2, N +
        1]; in a graph, whether no row is packed, [1, kind + 4, left + 2, 1]. The second and third
        extent say the pattern to the host; all along them is the same.

    Raises:
        InvalidArgument: the pattern is another, there are tokens after padding, the model's
            layers compute attention themselves, or torch.jit.trace records the call.
    """
    _check_attention(config)
    if not torch.compiler.is_compiling() and torch._C._is_tracing():
        raise runtime.InvalidArgument(
            "mask: got a call that torch.jit.trace records, expected torch.export: traced programs "
            "drop the assertions by which a graph refuses masks of other patterns"
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
    joined, is_one = _joined(pattern)
    if joined is not None and is_one is None:
        kind += 4
        numbers = joined.all().to(torch.int32).view(1, 1)
    elif joined is not None and not is_one:
        kind += 2
        numbers = _places(joined)[None]
    else:
        # Queries of all that are aligned with their keys are at the end of these.
        end = q_offset + q_length - kv_offset if causal or pattern.left >= 0 else kv_length
        numbers = _lengths(batch_size, q_length, kv_length, kv_offset, end, attention_mask, device)
        if not causal and pattern.left < 0:
            numbers = numbers[:2]
            if not len(numbers):  # a bias that a model adds to it is still one, and refused
                numbers = numbers[:, :1]
    tensor = numbers[:, None, None].expand(-1, kind, pattern.left + 2, -1)
    _tell_keys(tensor, kv_length, kv_offset, attention_mask)
    return tensor


def _check_attention(config: Any) -> None:
    """Refuses models of transformers whose layers compute attention themselves, with masks."""
    name = type(config).__module__
    if torch.compiler.is_compiling() or not name.startswith("transformers.models."):
        return
    module = sys.modules.get(name.replace(".configuration_", ".modeling_"))
    if module is None or hasattr(module, "ALL_ATTENTION_FUNCTIONS"):
        return
    own = [each for each in vars(module) if each.endswith("Attention")]
    if own:
        raise runtime.InvalidArgument(
            f'attn_implementation: got "{NAME}" for a model whose layers compute attention '
            f"themselves ({own[0]}), expected one whose layers take an implementation; use "
            'attn_implementation="eager"'
        )


def _tell_keys(
    tensor: Any, kv_length: int, kv_offset: int, attention_mask: torch.Tensor | None
) -> None:
    """Notes the number of keys that a mask is made for; `attention` compares it with the keys of
    its call. Models ask for masks of the wrong layer's keys, which matters if there is padding."""
    if attention_mask is None:
        return
    has_others = attention_mask.shape[1] > kv_offset + kv_length
    if has_others and not _is_recorded(tensor) and attention_mask.all():
        return
    tensor.keys = kv_length


def _joined(pattern: _Pattern) -> tuple[torch.Tensor | None, bool | None]:
    """Returns whether neighbours belong to one sequence, and whether all do; the second is None in
    a graph, which reads nothing. Returns None for both if the mask function looked nothing up.

    Raises:
        InvalidArgument: positions go on within a sequence by another step than 1, or a sequence
            has parts that are not beside each other.
    """
    joined, steps, ordered = pattern.joined, pattern.steps, pattern.ordered
    if joined is None and steps is None:
        return None, None
    joined = steps if joined is None else joined
    assert joined is not None
    if _is_recorded(joined):
        return joined if steps is None else joined & steps, None
    sound = torch.ones_like(joined) if ordered is None else ordered
    if steps is not None:
        sound = sound & (steps if pattern.joined is None else steps | ~joined)
    is_sound, is_one = torch.stack([sound.all(), joined.all()]).tolist()
    if not is_sound:
        raise _unknown("positions that do not count up within each sequence")
    return joined, is_one


def _is_recorded(tensor: torch.Tensor) -> bool:
    """Returns whether PyTorch or CUDA makes a graph, or only shapes are computed: nothing is read
    then."""
    if torch.compiler.is_compiling() or isinstance(tensor, torch._subclasses.FakeTensor):
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _is_known_to_be(number: Any, other: Any) -> bool:
    """Returns whether two sizes are equal, for symbols at all values: a graph must not hold for
    some values only."""
    if isinstance(number, torch.Tensor):
        return False
    symbols = any(isinstance(n, torch.SymInt) for n in (number, other))
    if symbols and not torch.compiler.is_dynamo_compiling():  # a change that makes another graph
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(number == other)
    return bool(number == other)


def _may_be(number: Any, other: Any) -> bool:
    """Returns whether two sizes can be equal."""
    if isinstance(number, torch.SymInt) and not torch.compiler.is_dynamo_compiling():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return not statically_known_true(number != other)
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
    """Returns the numbers of sequences that are not packed; `end` is after the last query's own
    key."""
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
        "attention_mask: got tokens after padding, expected padding only at the ends of "
        'sequences; pad on the left to generate (padding_side="left"), or use another '
        "attn_implementation"
    )
    if _is_recorded(whole):
        torch._assert_async(whole, message)
        return numbers if q_length > 1 else numbers[:2]
    facts = torch.stack([whole, ends_in_padding, (first != 0).any(), (last != kv_length).any()])
    is_whole, is_cut, *is_less = facts.tolist()
    if not is_whole:
        raise runtime.InvalidArgument(message)
    if not any(is_less):
        return numbers[:0, :0]
    return numbers if is_cut else numbers[:2]


def _places(joined: torch.Tensor) -> torch.Tensor:
    """Returns the places where packed sequences begin, all rows one after the other, and where the
    last one ends."""
    begins = torch.nn.functional.pad(~joined, (1, 0), value=True)
    places = begins.flatten().nonzero()[:, 0]
    return torch.nn.functional.pad(places, (0, 1), value=begins.numel()).to(torch.int32)


def _of_positions(
    position_ids: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor | None:
    """Returns the places where packed sequences begin and the last one ends, by their positions;
    None if each row is one sequence. Some models pass their masks no positions, such as gpt-oss.

    `mask` keeps the result: it belongs to one call of the model, which computes it once for all
    layers.
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
    places: torch.Tensor | None = kept.places
    return places


_PACKED_IN_A_GRAPH = (
    "position_ids: got packed sequences in a compiled graph, expected one sequence in each row; "
    "also pass cu_seq_lens_q and the rest"
)


class _Term(torch.Tensor):
    """A symbol in a call of a mask function: a query's position, a key's, or a value looked up
    there, plus a number; without any of these it is a condition. It notes its comparisons.

    torch.compile follows such a call, although it does not show the contents of a function.
    """

    side: str  # "query", "key"; "" for a condition
    offset: int
    table: torch.Tensor | None  # in which it was looked up
    at: torch.Tensor  # the value for each two neighbours, without the offset, [S - 1] or [B, S - 1]
    seen: list[_Pattern]  # to which all that come of one call add

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = _FUNCTIONS.get(function)
        this: Any = args[0]
        with torch._C.DisableTorchFunction():
            if name == "device" or (name is None and function.__name__ == "__get__"):
                return function(this)
            if name == "to":
                return this
            if name == "new_ones":  # and_masks begins with all that there is
                return _term("", this.seen)
            if isinstance(this, cls) and len(args) == 2:
                term = _combined(this, name, args[1])
                if term is not None:
                    return term
            seen = next(each.seen for each in args if isinstance(each, cls))
            return _noted(seen, _Pattern(unknown=name or "another operator"))


class _Distance:
    """A distance in a call of a mask function: sign * (a query's position - a key's + offset), or
    the absolute value of the difference, and the offset.

    It is no tensor: torch.compile does not ask tensors for their absolute value.
    """

    def __init__(
        self, query: _Term, key: _Term, offset: int, sign: int = 1, is_absolute: bool = False
    ) -> None:
        self.query, self.key = query, key
        self.offset, self.sign, self.is_absolute = offset, sign, is_absolute

    def __abs__(self) -> _Distance:
        if self.offset:
            self._noted(_Pattern(unknown="abs"))
        return _Distance(self.query, self.key, 0, is_absolute=True)

    abs = __abs__

    def __add__(self, number: int) -> _Distance:
        offset = self.offset + self.sign * number
        return _Distance(self.query, self.key, offset, self.sign, self.is_absolute)

    def __sub__(self, number: int) -> _Distance:
        return self + -number

    def __le__(self, most: int) -> _Term:
        return self._at_most(most) if self.sign > 0 else self._at_least(-most)

    def __lt__(self, end: int) -> _Term:
        return self <= end - 1

    def __ge__(self, least: int) -> _Term:
        return self._at_least(least) if self.sign > 0 else self._at_most(-least)

    def __gt__(self, number: int) -> _Term:
        return self >= number + 1

    def _at_most(self, most: int) -> _Term:
        left = most - self.offset
        left = left if left >= 0 else -2
        return self._noted(_Pattern(left, left if self.is_absolute else -1))

    def _at_least(self, least: int) -> _Term:
        right = self.offset - least
        if right < 0 or self.is_absolute:
            return self._noted(_Pattern(unknown="a distance"))
        return self._noted(_Pattern(right=right))

    def _noted(self, pattern: _Pattern) -> _Term:
        if self.query.table is not None:
            pattern = pattern._replace(steps=self.query.at - self.key.at == 1)
        return _noted(self.query.seen, pattern)


class _LookUps(TorchFunctionMode):
    """A follower of positions into tensors; torch.compile does not ask an index what to do."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if _FUNCTIONS.get(function) == "getitem" and isinstance(args[1], tuple):
            table, index = args
            terms = [each for each in index if isinstance(each, _Term)]
            if terms:
                term = terms[0]
                if len(terms) > 1 or term.table is not None or term.offset or not term.side:
                    return _noted(term.seen, _Pattern(unknown="getitem"))
                at = table[tuple(i.at if isinstance(i, _Term) else i for i in index)]
                return _term(term.side, term.seen, table=table, at=at)
        return function(*args, **(kwargs or {}))


_EMPTY = torch.empty(0)


def _term(
    side: str, seen: list[_Pattern], offset: int = 0, table: Any = None, at: Any = None
) -> _Term:
    if torch.compiler.is_dynamo_compiling():
        term = (torch.empty(0) if at is None else at).as_subclass(_Term)
    else:  # as_subclass asks the dispatch modes, and cannot change what they give, a fake tensor
        term = torch.Tensor._make_subclass(_Term, _EMPTY)
    term.side, term.seen, term.offset, term.table, term.at = side, seen, offset, table, at
    return term


def _noted(seen: list[_Pattern], pattern: _Pattern) -> _Term:
    """Returns a condition that a mask function evaluated, and notes it."""
    seen.append(pattern)
    return _term("", seen)


def _combined(a: _Term, name: str | None, b: Any) -> Any:
    """Returns a sum, a difference, a comparison or a conjunction of two terms; None for other
    operations."""
    if isinstance(b, _Term):
        if name == "and" and not a.side and not b.side:
            return a
        if {a.side, b.side} != {"query", "key"} or a.table is not b.table:
            return None
        query, key, sign = (a, b, 1) if a.side == "query" else (b, a, -1)
        offset = query.offset - key.offset
        if name == "eq" and a.table is not None and not offset:
            ahead = query.at - key.at
            return _noted(a.seen, _Pattern(joined=ahead == 0, ordered=ahead >= 0))
        distance = _Distance(query, key, offset, sign)
        if name == "sub":
            return distance
        return _COMPARISONS[name](distance, 0) if name in _COMPARISONS else None
    if type(b) is not int or not a.side:
        return None
    if name in ("add", "sub"):
        number = b if name == "add" else -b
        return _term(a.side, a.seen, a.offset + number, a.table, a.at)
    if (name, b - a.offset) in (("ge", 0), ("gt", -1)) and a.table is None:
        return _noted(a.seen, _Pattern())  # visible keys of every position
    return None


_COMPARISONS = {name: getattr(operator, name) for name in ("ge", "gt", "le", "lt")}
_FUNCTIONS = {
    torch.Tensor.device.__get__: "device",
    torch.Tensor.to: "to",
    torch.Tensor.new_ones: "new_ones",
    torch.Tensor.__getitem__: "getitem",
    torch.Tensor.__and__: "and",
    torch.Tensor.logical_and: "and",
    torch.logical_and: "and",
    # torch.export(strict=True) passes them so
    operator.getitem: "getitem",
    operator.and_: "and",
}
for _name in ("eq", "ge", "gt", "le", "lt", "sub", "add"):
    for _where in (torch, torch.Tensor, operator):
        _FUNCTIONS[getattr(_where, _name)] = _name
    _FUNCTIONS[getattr(torch.Tensor, f"__{_name}__")] = _name


def _read(
    function: Callable[..., Any], batch_size: int, length: int, device: torch.device | str
) -> _Pattern:
    """Returns the pattern of keys that a mask function of transformers.masking_utils lets queries
    see."""
    seen: list[_Pattern] = []
    rows = torch.arange(batch_size, device=device)[:, None]
    head = torch.zeros(1, 1, dtype=torch.int64, device=device)
    at = torch.arange(length, device=device)
    # Each query beside the key before its own, which tells where a sequence begins.
    query, key = _term("query", seen, at=at[1:]), _term("key", seen, at=at[:-1])
    try:
        with _LookUps():
            result = function(rows, head, query, key)
    except (AttributeError, TypeError) as error:  # a distance has few operators
        return _Pattern(unknown=str(error))
    pattern = _Pattern()
    for each in seen:
        pattern = pattern.both(each)
    if not isinstance(result, _Term) or result.side:
        return pattern.both(_Pattern(unknown="no comparison"))
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
    """Computes attention of a layer of transformers' models.

    Args:
        module: the layer; without a mask, its `is_causal` counts.
        query: [B, H, Sq, D].
        key: [B, Hk, Sk, D].
        value: [B, Hk, Sk, Dv].
        attention_mask: the result of `mask`, which has the keys that queries see; None: no mask was
            made.
        dropout: how probably a probability is dropped.
        scaling: the factor on q k^T; D ** -0.5 if None.
        sliding_window: the number of keys a query sees, its own the last, if no mask was made.
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
        InvalidArgument: an argument is wrong, or no kernel computes it.
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
            raise _unknown(f"a tensor of {attention_mask.dtype}, {list(attention_mask.shape)}")
        keys = getattr(attention_mask, "keys", None)
        if keys is not None and not _may_be(keys, key.shape[2]):
            raise runtime.InvalidArgument(
                f"attention_mask: the model's mask was made for {keys} keys, but its layer has "
                f"{key.shape[2]}, and with padding it matters which: no attn_implementation is "
                "right then; pass no padding"
            )
        n, kind, window, count = attention_mask.shape
        if not window:  # models with an unused window of 0 make such a mask, and layers none
            raise _unknown("a window of no keys")
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
            "cu_seq_lens_q: got packed sequences and padding: pass one of the two"
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
    """Computes attention of a layer in continuous batching, attn_implementation="paged|kernelmint".

    Args:
        module: the layer.
        query: [1, H, total, D], the queries of all requests, one after the other.
        key: the newest keys, [1, Hk, total, D].
        value: the newest values, [1, Hk, total, Dv].
        attention_mask: None.
        cache: transformers' PagedAttentionCache, which takes them, and gives all of each request.
        cu_seq_lens_q: the beginnings of the requests' queries, and the end of the last, int32.
        cu_seq_lens_k: the same of keys, or of those of each kind of layer.
        read_index, write_index: the cache's.

    The other arguments, and the errors, are those of `attention`.

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
