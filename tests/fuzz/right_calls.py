"""Right calls of the CPU's kernels against the fp64 oracles, with NaN and infinities among them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import runtime
from runtime.operators import DTYPES
from tools.comparison import Tolerance, compare
from tools.families import hook, oracle

# Of the outputs' magnitude. f32: sums of up to 300 weighted values and scores of up to 256
# products; bf16 and fp16: the weights are rounded to the dtype, too.
_ROUNDING = {"f32": 2e-5, "fp16": 2.0**-8, "bf16": 2.0**-5}
_SPECIAL = (float("nan"), float("inf"), -float("inf"))


def case(rng: random.Random) -> str:
    """Calls a random kernel with random arguments and compares every element."""
    torch.manual_seed(rng.getrandbits(32))
    torch.set_num_threads(1)  # oracles are small: threads would only wait for each other
    threads = rng.choice((1, 1, 2, 3))
    family = rng.choice(sorted(_FAMILIES))
    info = rng.choice(_kernels(family))
    special = rng.random() < 0.5
    try:
        _FAMILIES[family](rng, info, special, functools.partial(_call, threads, info))
    except AssertionError as error:
        raise AssertionError(f"{info.key}: {error}") from None
    return f"{family}{' with NaN or inf' if special else ''}"


def _call(threads: int, info: runtime.KernelInfo, *inputs: Any, **options: Any) -> Any:
    kernel = runtime.kernel(info.key)
    torch.set_num_threads(threads)
    result = kernel(*inputs, **options)
    torch.set_num_threads(1)
    return result


@functools.cache
def _kernels(family: str) -> list[runtime.KernelInfo]:
    return [info for info in runtime.kernels(family, "cpu") if info.available]


@functools.cache
def _attention() -> Any:
    return oracle("flash_forward")


def _tensor(rng: random.Random, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal values within a larger tensor of NaN, so that what lies outside would show."""
    margins = [rng.randrange(3) for _ in shape[:-1]]
    storage = torch.full([n + m for n, m in zip(shape, [*margins, 0], strict=True)], torch.nan)
    view = storage.to(dtype)
    for dim, margin in enumerate(margins):
        view = view.narrow(dim, rng.randint(0, margin), shape[dim])
    return view.copy_(torch.randn(shape) * rng.choice((0.25, 1.0, 1.0, 2.0)))


def _poison(rng: random.Random, tensors: list[torch.Tensor]) -> None:
    """Puts NaN or an infinity at one to three places."""
    for _ in range(rng.randint(1, 3)):
        tensor = rng.choice(tensors)
        if tensor.numel():
            tensor[tuple(rng.randrange(n) for n in tensor.shape)] = rng.choice(_SPECIAL)


def _agree(
    actual: torch.Tensor, expected: torch.Tensor, name: str, rtol: float, atol: float
) -> None:
    """Both NaN, or the same infinity, or within the tolerance, at each element."""
    assert actual.shape == expected.shape, f"{name}: {actual.shape} against {expected.shape}"
    if torch.allclose(actual.double(), expected, rtol, atol, equal_nan=True):
        return
    both = actual.isnan() & expected.isnan()
    found = compare(actual, expected, name=name, tolerance=Tolerance(rtol, atol), where=~both)
    raise AssertionError(
        f"{name}: {found.beyond} of {found.compared} beyond the tolerance, the worst at "
        f"{found.worst}; NaN {found.nan}, inf {found.inf}"
    )


def _flash_forward(
    rng: random.Random, info: runtime.KernelInfo, special: bool, call: Callable[..., Any]
) -> None:
    p = info.parameters
    batch, kv_heads, group = rng.choice((1, 1, 2)), rng.choice((1, 2)), rng.choice((1, 1, 3))
    longest = rng.choice((4, 40, 300))
    length_q, length_k = rng.randint(1, longest), rng.randint(1, longest)
    dtype = DTYPES[p["dtype"]]
    q = _tensor(rng, batch, length_q, kv_heads * group, p["d_head"], dtype=dtype)
    k, v = (_tensor(rng, batch, length_k, kv_heads, p["d_head"], dtype=dtype) for _ in range(2))
    scale = rng.choice((None, None, 0.0, -0.125, 0.3))
    if special:
        # A value whose weight is 0 has no say, or makes NaN: it depends on which blocks are
        # skipped. So only values that every query sees.
        first_masked = length_k - length_q + 1 if p["causal"] else length_k
        _poison(rng, [q, k, v[:, : max(0, first_masked)]] if scale != 0.0 else [q, k])
    o, lse = call(q, k, v, scale=scale, return_lse=True)
    expected, expected_lse = _attention()(q, k, v, causal=p["causal"], scale=scale, return_lse=True)
    finite = v[v.isfinite()].abs().float()
    largest = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    scores = expected_lse[expected_lse.isfinite()].abs()
    greatest = max(1.0, float(scores.max()) if scores.numel() else 0.0)
    _agree(o, expected, "o", 0.0, _ROUNDING[p["dtype"]] * largest * greatest)
    # A score of +inf makes o NaN; the log-sum-exp is then inf by definition, NaN in the kernel.
    expected_lse = expected_lse.masked_fill(expected_lse.isposinf() & lse.isnan(), torch.nan)
    _agree(lse, expected_lse, "lse", 0.0, 2e-5 * greatest)


def _inputs(rng: random.Random, p: Any, *rows: int) -> tuple[torch.Tensor, ...]:
    sizes = [p["attention_dim"]] * 2 + [p["linear_dim"]] * 2
    return *(_tensor(rng, *rows, size) for size in sizes), _tensor(rng, *rows)


def _check_selected(family: str, tensors: dict[str, torch.Tensor], results: Any, p: Any) -> None:
    """By the family's own rule."""
    problem = SimpleNamespace(tensors=tensors, parameters=p)
    for difference in hook(family, "differences")(problem, results):
        assert difference.passed, f"{difference.name}: {difference.problem or difference.worst}"


def _named(inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    return dict(zip(("q", "k", "v", "u", "g_cmp"), inputs, strict=True))


def _block_sparse(
    rng: random.Random, info: runtime.KernelInfo, special: bool, call: Callable[..., Any]
) -> None:
    p = info.parameters
    heads = rng.choice((1, 2, 4))
    inputs = _inputs(rng, p, rng.choice((1, 2)), rng.randint(1, rng.choice((3, 70, 200))), heads)
    if special:
        _poison(rng, list(inputs))
    _check_selected("block_sparse", _named(inputs), call(*inputs), p)


def _hstu_bsa(
    rng: random.Random, info: runtime.KernelInfo, special: bool, call: Callable[..., Any]
) -> None:
    p = info.parameters
    lengths = [rng.randint(0, rng.choice((3, 70, 120))) for _ in range(rng.randint(1, 3))]
    lengths[rng.randrange(len(lengths))] += 1
    inputs = _inputs(rng, p, sum(lengths), rng.choice((1, 2, 4)))
    if special:
        _poison(rng, list(inputs))
    offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    results = call(*inputs, torch.tensor(offsets), max_length=rng.choice((None, max(lengths))))
    tensors = _named(inputs) | {"x_offsets": torch.tensor(offsets)}
    _check_selected("hstu_bsa", tensors, results, p)


_FAMILIES = {"flash_forward": _flash_forward, "block_sparse": _block_sparse, "hstu_bsa": _hstu_bsa}
