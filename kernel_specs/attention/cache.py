"""Caches, and the newest keys and values that they take.

A call is checked before a cache is written: a program that goes on after an error has the cache
that it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime import tensors
from runtime.errors import InvalidArgument, unexpected
from runtime.front import is_explaining

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # found once: calls are short
Named = Mapping[str, torch.Tensor | None]


def batch_of(q: torch.Tensor, cu_seqlens_q: torch.Tensor | None) -> Any:
    """Returns the number of sequences: of queries [B, Sq, H, D], or [total, H, D] and the places
    where sequences begin."""
    if cu_seqlens_q is None:
        return tensors.extents("q", q, 4)[0]
    tensors.check("q", q, 3)
    tensors.expect("cu_seqlens_q", cu_seqlens_q, (None,), torch.int32, q.device)
    return tensors.extents("cu_seqlens_q", cu_seqlens_q, 1)[0] - 1


def table_of(tables: Named) -> torch.Tensor | None:
    """Returns the pages of each batch entry, [B, pages]: the first of `tables` that is there."""
    for name, table in tables.items():
        if table is not None:
            return table if name != "cache_batch_idx" else table[:, None]  # a cache is one page
    return None


def check_table(
    q: torch.Tensor, batch: Any, k_cache: torch.Tensor, v_cache: torch.Tensor, tables: Named
) -> None:
    """Raises InvalidArgument if several of `tables` are there, or if they or the caches do not suit
    q."""
    present = [name for name, table in tables.items() if table is not None]
    if len(present) > 1:
        raise InvalidArgument(
            f"{present[1]}: got {present[0]} beside it: pass {present[0]} or {present[1]}, not both"
        )
    dtype = None if tensors.is_autocast() else q.dtype  # autocast casts all of them
    count, size, heads, _ = tensors.extents("k_cache", k_cache, 4)
    width = tensors.extents("q", q, q.dim())[-1]
    entries = None if present else batch
    tensors.expect("k_cache", k_cache, (entries, None, None, width), dtype, q.device)
    tensors.expect("v_cache", v_cache, (count, size, heads, None), dtype, q.device)
    for name in present:
        shape = (batch,) if name == "cache_batch_idx" else (batch, None)
        tensors.expect(name, tables[name], shape, torch.int32, q.device)


def lengths_of(q: torch.Tensor, batch: Any, cache_seqlens: int | torch.Tensor | None) -> Any:
    """Returns `cache_seqlens` as a tensor, [B]."""
    if cache_seqlens is None or isinstance(cache_seqlens, torch.Tensor):
        return cache_seqlens
    if not tensors.is_integer(cache_seqlens):
        raise unexpected("cache_seqlens", cache_seqlens, "an int or a torch.Tensor")
    return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)


def check_lengths(q: torch.Tensor, batch: Any, named: Named) -> None:
    """Raises InvalidArgument for numbers that are not one for each batch entry."""
    for name, numbers in named.items():
        if numbers is not None:
            tensors.expect(name, numbers, (batch,), torch.int32, q.device)


def is_told(numbers: torch.Tensor) -> bool:
    """Returns whether numbers can be read without waiting for a device."""
    return numbers.device.type == "cpu" and tensors.is_plain(numbers)


def check_caches(cache_batch_idx: torch.Tensor | None, k_cache: torch.Tensor) -> None:
    """Raises InvalidArgument for an entry that names no cache."""
    if cache_batch_idx is not None and is_told(cache_batch_idx):
        why = "there are no more caches"
        _check_range("cache_batch_idx", cache_batch_idx, k_cache.shape[0], why)


def check_read(lengths: Any, leftpad: Any, k_cache: torch.Tensor, tables: Named) -> None:
    """Raises InvalidArgument for lengths and paddings that can be read without waiting for a device
    and that no cache has. Anything but a tensor is the kernel's to refuse."""
    for name, numbers in {"cache_seqlens": lengths, "cache_leftpad": leftpad}.items():
        if isinstance(numbers, torch.Tensor) and is_told(numbers) and numbers.numel():
            table = table_of(tables)
            keys = k_cache.shape[1] * (1 if table is None else table.shape[-1])
            _check_range(name, numbers, keys + 1, "there are no more keys")


def check_values(
    q: torch.Tensor,
    k: torch.Tensor,
    k_cache: torch.Tensor,
    tables: Named,
    lengths: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor | None,
    leftpad: torch.Tensor | None,
    rotary_cos: torch.Tensor | None,
    rotary_seqlens: torch.Tensor | None,
    follow: bool,
    left: Any,
) -> bool:
    """Returns whether `lengths` can be read without waiting for a device.

    Raises InvalidArgument for values that can be read, of a call whose tensors are right: newest
    keys beyond the cache's end, pages that are not there among those that are read or written, and
    positions beyond the cosines.

    Args:
        q, k, k_cache, tables, lengths, cu_seqlens_q, rotary_cos, rotary_seqlens: as the call has
            them.
        leftpad: `cache_leftpad`.
        follow: whether later queries are rotated by later positions.
        left: how many keys before its own a query sees; -1: all.
    """
    if not is_told(lengths):
        return False
    new, size = k.shape[1], k_cache.shape[1]
    table = table_of(tables)
    keys = size if table is None else size * table.shape[1]
    why = "the newest keys come behind, within the cache"
    _check_range("cache_seqlens", lengths, keys - new + 1, why)
    if (table is None or tables["cache_batch_idx"] is not None) and rotary_cos is None:
        return True
    queries = q.shape[1] if cu_seqlens_q is None else cu_seqlens_q.diff()
    if table is not None and tables["cache_batch_idx"] is None and is_told(table):
        name = "page_table" if tables["block_table"] is None else "block_table"
        first = _first_seen(lengths + new - queries, left, leftpad)
        first = torch.zeros_like(lengths) if first is None else lengths.minimum(first)
        begin_of_page = torch.arange(0, table.shape[1] * size, size)
        end = (lengths + new)[:, None]
        used = (begin_of_page + size > first[:, None]) & (begin_of_page < end)
        _check_range(name, table[used], k_cache.shape[0], "there are no more pages")
    begins = lengths if rotary_seqlens is None else rotary_seqlens
    if rotary_cos is not None and is_told(begins) and begins.numel():
        name = "cache_seqlens" if rotary_seqlens is None else "rotary_seqlens"
        steps = torch.as_tensor(queries if follow else 1).clamp(min=new).expand_as(begins)
        most = int(steps[(begins + steps).argmax()])
        positions = rotary_cos.shape[0]
        why = f"{most} positions from there on are rotated by, and rotary_cos has {positions}"
        _check_range(name, begins, positions - most + 1, why)
    return True


def _first_seen(own: torch.Tensor, left: Any, leftpad: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the first key of each sequence that a query sees, [B], if its first query is at the
    key `own`; None: all are seen."""
    if left < 0:
        return leftpad
    first: torch.Tensor = own - left
    return first if leftpad is None else first.maximum(leftpad)


# Calls that were found right: a decoding makes the same one for each token and layer.
_RIGHT: set[Any] = set()
_MOST_KEPT = 4096


def signature(tensors_of_call: tuple[Any, ...], scalars: tuple[Any, ...]) -> Any:
    """Returns all that decides whether a call is right, but for the values of tensors; None if the
    call does not compute at once, is explained, or has other arguments than plain tensors.

    (A graph that looked into the calls that are kept would be made anew when one is added.)
    """
    if _is_dynamo_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or tensors.is_autocast():
        return None
    if is_explaining():
        return None
    parts: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    for t in tensors_of_call:
        if type(t) is torch.Tensor:
            parts += t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16
            parts += t.requires_grad, t.is_inference()
        elif isinstance(t, torch.Tensor):
            return None
        else:
            parts.append(t)
    return *parts, *scalars, *map(type, scalars)


def is_right(call: Any) -> bool:
    """Returns whether a call of this signature was noted."""
    try:
        return call is not None and call in _RIGHT
    except TypeError:  # an argument has no hash
        return False


def note(call: Any) -> None:
    """Keeps the signature of a call that was found right."""
    if call is None:
        return
    if len(_RIGHT) >= _MOST_KEPT:
        _RIGHT.clear()
    _RIGHT.add(call)


def check_newest(
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    rotary: Named,
) -> None:
    """Raises InvalidArgument for keys and values that cannot be rotated and written."""
    _check_both({"k": k, "v": v})
    _check_both(rotary)
    cos, sin = rotary.values()
    if k is None or v is None:
        if cos is not None:
            raise InvalidArgument(
                "rotary_cos: got a tensor without k, expected the newest keys, too: those of the "
                "cache are rotated when they are written"
            )
        return
    if cache_seqlens is None:
        raise InvalidArgument(
            "cache_seqlens: got None, expected how many keys there are: the newest come behind"
        )
    _, size, heads, head_dim = tensors.extents("k_cache", k_cache, 4)
    value_dim = tensors.extents("v_cache", v_cache, 4)[3]
    batch = tensors.extents("cache_seqlens", cache_seqlens, 1)[0]
    new = tensors.extents("k", k, 4)[1]
    tensors.expect("k", k, (batch, None, heads, head_dim), device=k_cache.device)
    tensors.expect("v", v, (batch, new, heads, value_dim), device=k_cache.device)
    _check_no_gradient({"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache})
    if tensors.is_plain(k_cache):
        _check_writable({"k_cache": k_cache, "v_cache": v_cache})
    keys = size if table is None else size * tensors.extents("table", table, 2)[1]
    if cos is not None and sin is not None:
        _check_rotary(cos, sin, keys, k)


def rotated(
    x: torch.Tensor, at: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Returns x, [B, S, heads, D], its first columns rotated in pairs by the angles of positions
    `at`, [B, S or 1]."""
    if not is_told(at):
        at = at.clamp(0, cos.shape[0] - 1)
    c, s = (t[at].float().unsqueeze(2) for t in (cos, sin))
    columns = 2 * cos.shape[-1]
    pair = -1 if interleaved else -2
    pairs = (columns // 2, 2) if interleaved else (2, columns // 2)
    a, b = x[..., :columns].float().reshape(*x.shape[:-1], *pairs).unbind(pair)
    turned = torch.stack((a * c - b * s, a * s + b * c), pair).flatten(-2).to(x.dtype)
    return torch.cat([turned, x[..., columns:]], -1)


def rotated_queries(
    q: torch.Tensor,
    begins: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    cu_seqlens_q: torch.Tensor | None,
    follow: bool,
) -> torch.Tensor:
    """Returns q, [B, Sq, H, D] or [total, H, D], rotated from the positions `begins` on, [B, 1], or
    by the angles of `begins` if later queries do not `follow`."""
    if cu_seqlens_q is None:
        steps = torch.arange(q.shape[1], device=q.device)
        return rotated(q, begins + steps if follow else begins, cos, sin, interleaved)
    rows, entry = _sequences(q, cu_seqlens_q)
    at = begins[entry, 0]
    if follow:  # rows of no sequence are nobody's: any position does
        steps = rows - cu_seqlens_q[entry]
        at = at + steps.masked_fill(rows >= cu_seqlens_q[-1], 0).clamp(min=0)
    return rotated(q[None], at[None], cos, sin, interleaved)[0]


def _sequences(q: torch.Tensor, cu_seqlens_q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the numbers of packed queries' rows, and the sequence of each. Rows of no sequence
    get the first sequence if they are before it, else the last."""
    rows = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    return rows, torch.bucketize(rows, cu_seqlens_q[1:-1], right=True)


def by_rows(
    q: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    of_sequences: Mapping[str, Any],
    ends_at_own: bool,
) -> tuple[dict[str, Any], torch.Tensor]:
    """Returns the options of packed queries [total, H, D] as a batch of one query each, with an
    entry for each row where `of_sequences` has an entry for each sequence; and marks the rows of no
    sequence, which see no key. If `ends_at_own`, a row's keys end at its own. Nothing waits for the
    device."""
    batch = batch_of(q, cu_seqlens_q)
    options = dict(of_sequences)
    table, slopes = options["block_table"], options["alibi_slopes"]
    named = {name: options[name] for name in ("seqused_k", "leftpad_k")}
    check_lengths(q, batch, named)
    rows, sequence = _sequences(q, cu_seqlens_q)
    beyond = rows - cu_seqlens_q[1:][sequence]  # -1: the sequence's last one
    nobodys = (beyond >= 0) | (rows < cu_seqlens_q[0])
    if table is not None:
        tensors.expect("block_table", table, (batch, None), torch.int32, q.device)
    if isinstance(slopes, torch.Tensor) and slopes.dim() != 1:
        tensors.expect("alibi_slopes", slopes, (batch, q.shape[1]), torch.float32, q.device)
        options["alibi_slopes"] = slopes[sequence]
    for name, numbers in named.items():
        options[name] = None if numbers is None else numbers[sequence]
    if options["seqused_k"] is None:
        size = v_cache.shape[1] * (1 if table is None else table.shape[1])
        options["seqused_k"] = torch.full_like(rows, size)
    if ends_at_own:
        options["seqused_k"] = options["seqused_k"] + (beyond + 1)
    options["seqused_k"] = options["seqused_k"].masked_fill(nobodys, 0)
    # A cache is one page.
    options["block_table"] = sequence.int()[:, None] if table is None else table[sequence]
    return options, nobodys


def write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    at: torch.Tensor,
    table: torch.Tensor | None,
    are_checked: bool,
) -> None:
    """Writes k and v, [B, Sn, Hk, D], to the positions `at`, [B, Sn], of the caches, which were
    checked if `are_checked`. Otherwise only the device knows which rows have no place in a cache:
    these are not written."""
    extents = *tensors.extents("k", k, 4)[:2], *tensors.extents("k_cache", k_cache, 4)[:2]
    if 0 in extents or (table is not None and 0 in tensors.extents("table", table, 2)):
        return
    count, size = k_cache.shape[:2]
    entry = torch.arange(k.shape[0], device=k.device)[:, None]
    is_there = None
    if table is None and not are_checked:
        is_there = at == at % size
        at = at % size  # where no other row of the entry is written
    elif table is not None and are_checked and is_told(table):
        entry = table.long().gather(1, at // size)
        at = at % size
    elif table is not None:
        page = at // size
        entry = table.long().gather(1, page.clamp(0, table.shape[1] - 1))
        is_there = (page >= 0) & (page < table.shape[1]) & (entry == entry % count)
        row = _first_in_place_of_others(is_there)
        entry, at, is_there = (t.flatten()[row] for t in (entry % count, at % size, is_there))
        k, v = (t.flatten(0, 1)[row] for t in (k, v))
    for cache, newest in ((k_cache, k), (v_cache, v)):
        rows = newest.to(cache.dtype)
        if is_there is not None:
            rows = torch.where(is_there[..., None, None], rows, cache[entry, at])
        # Not cache[entry, at] = rows, which torch.jit.trace records for one batch.
        cache.index_put_((entry, at), rows)


def _first_in_place_of_others(is_there: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of the rows of [B, Sn]; of a row without a place that of the first row
    that `is_there`, which is then written several times, so that no other place is. If no row has
    a place, any number."""
    is_there = is_there.flatten()
    own = torch.arange(is_there.shape[0], device=is_there.device)
    return torch.where(is_there, own, is_there.int().argmax())


def _check_both(pair: Named) -> None:
    """Raises InvalidArgument if one of two tensors is there without the other."""
    missing = [name for name, tensor in pair.items() if tensor is None]
    if len(missing) == 1:
        both = " and ".join(pair)
        raise InvalidArgument(f"{missing[0]}: got None, expected a tensor: {both} come together")


def _check_no_gradient(named: Mapping[str, torch.Tensor]) -> None:
    """Raises InvalidArgument if autograd would follow a cache: it would keep all keys that were
    ever written."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in named.items():
        if tensor.requires_grad:
            raise InvalidArgument(
                f"{name}: requires_grad is set and grad mode is on, but a cache that is written "
                f"has no gradient; call it under torch.no_grad() or pass {name}.detach()"
            )


def _check_writable(caches: Mapping[str, torch.Tensor]) -> None:
    """Raises InvalidArgument for memory that cannot be written."""
    for name, tensor in caches.items():
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise InvalidArgument(
                f"{name}: got an inference tensor, which may be written within "
                "torch.inference_mode() alone; pass a clone"
            )
        strides = tensor.stride()
        if 0 in strides and any(
            stride == 0 and extent > 1 for stride, extent in zip(strides, tensor.shape, strict=True)
        ):
            raise InvalidArgument(
                f"{name}: got a tensor with elements at one place, expected a place for each: it "
                "is written; pass a clone"
            )


def _check_rotary(cos: torch.Tensor, sin: torch.Tensor, keys: Any, k: torch.Tensor) -> None:
    """Raises InvalidArgument for cosines and sines that do not suit the keys."""
    positions, half = tensors.extents("rotary_cos", cos, 2)
    tensors.expect("rotary_cos", cos, (None, None), device=k.device)
    tensors.expect("rotary_sin", sin, (positions, half), device=k.device)
    if positions < keys:  # only the device knows the positions
        raise InvalidArgument(
            f"rotary_cos: got {positions} positions, expected {keys}: as many as a cache has keys"
        )
    most = tensors.extents("k", k, 4)[3] // 2
    if half > most:
        raise InvalidArgument(
            f"rotary_cos: got {half} columns, expected at most {most}: half of the head dimension"
        )


def _check_range(name: str, numbers: torch.Tensor, end: Any, why: str) -> None:
    """Raises InvalidArgument for a number that is not in [0, end)."""
    if not numbers.numel():
        return
    low, high = map(int, numbers.aminmax())
    if low < 0 or high >= end:
        raise InvalidArgument(
            f"{name}: got {low if low < 0 else high}, expected from 0 to {end - 1}: {why}"
        )
