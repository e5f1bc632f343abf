"""Caches, and the newest keys and values that they take.

All that may be wrong with a call is refused before a cache is written: a program that goes on after
an error has the cache that it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime import tensors
from runtime.errors import InvalidArgument

Named = Mapping[str, torch.Tensor | None]


def batch_of(q: torch.Tensor, cu_seqlens_q: torch.Tensor | None) -> Any:
    """How many sequences there are, of queries [B, Sq, H, D], or [total, H, D] and where they
    begin."""
    if cu_seqlens_q is None:
        return tensors.extents("q", q, 4)[0]
    tensors.check("q", q, 3)
    tensors.expect("cu_seqlens_q", cu_seqlens_q, (None,), torch.int32, q.device)
    return tensors.extents("cu_seqlens_q", cu_seqlens_q, 1)[0] - 1


def table_of(tables: Named) -> torch.Tensor | None:
    """The pages of each batch entry, [B, pages], by the one of `tables` that is there."""
    for name, table in tables.items():
        if table is not None:
            return table if name != "cache_batch_idx" else table[:, None]  # a cache is one page
    return None


def check_table(
    q: torch.Tensor, batch: Any, k_cache: torch.Tensor, v_cache: torch.Tensor, tables: Named
) -> None:
    """Raises InvalidArgument if several of `tables` are there, or if they or the caches do not suit
    q."""
    given = [name for name, table in tables.items() if table is not None]
    if len(given) > 1:
        raise InvalidArgument(f"{given[1]}: got {given[0]}, too, expected one of them")
    dtype = None if tensors.is_autocast() else q.dtype  # which casts all of them
    count, size, heads, _ = tensors.extents("k_cache", k_cache, 4)
    width = tensors.extents("q", q, q.dim())[-1]
    entries = None if given else batch
    tensors.expect("k_cache", k_cache, (entries, None, None, width), dtype, q.device)
    tensors.expect("v_cache", v_cache, (count, size, heads, None), dtype, q.device)
    for name in given:
        shape = (batch,) if name == "cache_batch_idx" else (batch, None)
        tensors.expect(name, tables[name], shape, torch.int32, q.device)


def lengths_of(q: torch.Tensor, batch: Any, cache_seqlens: int | torch.Tensor | None) -> Any:
    """`cache_seqlens` as a tensor, [B]."""
    if not isinstance(cache_seqlens, tensors.INTEGERS):
        return cache_seqlens
    return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)


def check_lengths(q: torch.Tensor, batch: Any, named: Named) -> None:
    """Raises InvalidArgument for what has not a number for each batch entry."""
    for name, numbers in named.items():
        if numbers is not None:
            tensors.expect(name, numbers, (batch,), torch.int32, q.device)


def check_values(cache_batch_idx: torch.Tensor | None, k_cache: torch.Tensor) -> None:
    """Raises InvalidArgument for an entry that names no cache."""
    if cache_batch_idx is not None:
        count = tensors.extents("k_cache", k_cache, 4)[0]
        _check_values("cache_batch_idx", cache_batch_idx, count, "there are no more caches")


def check_room(
    k: torch.Tensor,
    k_cache: torch.Tensor,
    table: torch.Tensor | None,
    cache_seqlens: torch.Tensor,
) -> None:
    """Raises InvalidArgument for newest keys that would lie behind the cache's end."""
    new, size = tensors.extents("k", k, 4)[1], tensors.extents("k_cache", k_cache, 4)[1]
    keys = size if table is None else size * tensors.extents("table", table, 2)[1]
    why = "the newest keys come behind, within the cache"
    _check_values("cache_seqlens", cache_seqlens, keys - new + 1, why)


# Calls that were found right: a decoding makes the same one for each token and layer.
_RIGHT: set[Any] = set()
_MOST_KEPT = 4096


def signature(given: tuple[Any, ...], scalars: tuple[Any, ...]) -> Any:
    """All that decides whether a call is right but for what tensors hold; None if it is not one
    that computes at once, of plain tensors."""
    if torch._C._functorch.peek_interpreter_stack() is not None or tensors.is_autocast():
        return None
    parts: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    for t in given:
        if type(t) is torch.Tensor:
            parts += t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16
            parts += t.requires_grad, t.is_inference()
        elif isinstance(t, torch.Tensor):
            return None
        else:
            parts.append(t)
    return *parts, *scalars, *map(type, scalars)


def is_right(call: Any) -> bool:
    """Whether a call of this signature was noted."""
    try:
        return call in _RIGHT
    except TypeError:  # what is no tensor may have no hash
        return False


def note(call: Any) -> None:
    """Keeps a call that was found right."""
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
    """x, [B, S, heads, D], its first columns rotated in pairs by what is at `at`, [B, S or 1]."""
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
    """q, [B, Sq, H, D] or [total, H, D], rotated from the positions `begins` on, [B, 1], or, if
    later queries do not `follow`, by these alone."""
    if cu_seqlens_q is None:
        steps = torch.arange(q.shape[1], device=q.device)
        return rotated(q, begins + steps if follow else begins, cos, sin, interleaved)
    rows = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    entry = torch.bucketize(rows, cu_seqlens_q[1:-1], right=True)
    at = begins[entry, 0]
    if follow:  # rows behind the last sequence are nobody's: any position does
        steps = rows - cu_seqlens_q[entry]
        at = at + steps.masked_fill(rows >= cu_seqlens_q[-1], 0)
    return rotated(q[None], at[None], cos, sin, interleaved)[0]


def write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    at: torch.Tensor,
    table: torch.Tensor | None,
) -> None:
    """Writes k and v, [B, Sn, Hk, D], to the positions `at`, [B, Sn], of the caches."""
    entry = torch.arange(k.shape[0], device=k.device)[:, None]
    if table is not None:
        size = k_cache.shape[1]
        entry = table.long().gather(1, at // size)
        at = at % size
    for cache, newest in ((k_cache, k), (v_cache, v)):
        # Not cache[entry, at] = newest, which torch.jit.trace records for one batch.
        cache.index_put_((entry, at), newest.to(cache.dtype))


def _check_both(pair: Named) -> None:
    missing = [name for name, tensor in pair.items() if tensor is None]
    if len(missing) == 1:
        both = " and ".join(pair)
        raise InvalidArgument(f"{missing[0]}: got None, expected a tensor: {both} come together")


def _check_no_gradient(named: Mapping[str, torch.Tensor]) -> None:
    """A cache that autograd followed would keep all keys that were ever written."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in named.items():
        if tensor.requires_grad:
            raise InvalidArgument(
                f"{name}: requires_grad is set and grad mode is on, but a cache that is written "
                f"has no gradient; call it under torch.no_grad() or pass {name}.detach()"
            )


def _check_writable(caches: Mapping[str, torch.Tensor]) -> None:
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
    positions, half = tensors.extents("rotary_cos", cos, 2)
    tensors.expect("rotary_cos", cos, (None, None), device=k.device)
    tensors.expect("rotary_sin", sin, (positions, half), device=k.device)
    if positions < keys:  # which of them are asked for is on the device
        raise InvalidArgument(
            f"rotary_cos: got {positions} positions, expected {keys}: as many as a cache has keys"
        )
    most = tensors.extents("k", k, 4)[3] // 2
    if half > most:
        raise InvalidArgument(
            f"rotary_cos: got {half} columns, expected at most {most}: half of the head dimension"
        )


def _check_values(name: str, numbers: torch.Tensor, end: Any, why: str) -> None:
    """Raises InvalidArgument for what is not in [0, end), if reading it waits for no device."""
    if numbers.device.type != "cpu" or not tensors.is_plain(numbers) or not numbers.numel():
        return
    low, high = (int(number) for number in numbers.aminmax())
    if low < 0 or high >= end:
        raise InvalidArgument(
            f"{name}: got {low if low < 0 else high}, expected from 0 to {end - 1}: {why}"
        )
