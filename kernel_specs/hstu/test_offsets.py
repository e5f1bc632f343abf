"""Where hstu_bsa's sequences begin and end: called by key, a kernel checks what it relies on."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import runtime

H, A, L, N = 2, 16, 32, 60
(INFO,) = runtime.kernels("hstu_bsa", where="attention_dim == 16 and mode == 'fixed'", target="cpu")
PADDED = "block_sparse.cpu.a16-l32-bs16-s4-fixed"
ANY = st.one_of(st.integers(-3, N + 3), st.integers(-(2**63), 2**63 - 1))


def inputs() -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    rows = [torch.randn(N, H, size, generator=g) for size in (A, A, L, L)]
    return [*rows, torch.randn(N, H, generator=g)]


@pytest.mark.parametrize(
    ("offsets", "max_length", "reason"),
    [
        ([0, 40, 20, 60], 60, "x_offsets[2]: got 20, expected 40 to 60"),
        ([0, -5, 60], 60, "x_offsets[1]: got -5, expected 0 to 60"),
        ([-1, 60], 60, "x_offsets[0]: got -1, expected 0: the sequences go from the first row"),
        ([5, 60], 60, "x_offsets[0]: got 5, expected 0"),
        ([0, 50], 60, "x_offsets[1]: got 50, expected 60"),
        ([0, 61, 60], 60, "x_offsets[1]: got 61, expected 0 to 60"),
        ([0, 10, 70], 60, "x_offsets[2]: got 70, expected 60"),
        ([0, 35, 60], 30, "x_offsets[1]: got 35, expected 30: "),
        ([0, 5, 30, 60], 30, None),
        ([0, 5, 36, 60], 30, "x_offsets[2]: got 36, expected 30 to 35"),
        ([0, 30, 60], 1, "max_length: got 1, expected 30 to "),
        ([0, 60], -1, "max_length: got -1, expected 60 to "),
        ([0, 60], 2**63 - 1, None),
        ([0, 2**63 - 1, 60], 2**63 - 1, "x_offsets[1]: got 9223372036854775807, expected 0 to 60"),
        ([0, -(2**63), 60], 60, "x_offsets[1]: got -9223372036854775808, expected 0 to 60"),
    ],
)
def test_what_is_wrong_is_named(offsets: list[int], max_length: int, reason: str | None) -> None:
    kernel = runtime.kernel(INFO.key)
    call = (*inputs(), torch.tensor(offsets))
    if reason is None:
        kernel(*call, max_length=max_length)
    else:
        with pytest.raises(runtime.InvalidArgument, match=re.escape(reason)):
            kernel(*call, max_length=max_length)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(ANY, min_size=1, max_size=6), st.one_of(st.none(), ANY), st.booleans())
def test_any_offsets_are_either_refused_or_right(
    cuts: list[int], max_length: int | None, close: bool
) -> None:
    offsets = [0, *sorted(cuts), N] if close else cuts
    if len(offsets) < 2:
        offsets = [0, *offsets]
    tensors, kernel = inputs(), runtime.kernel(INFO.key)
    longest = N if max_length is None else max_length
    steps = list(itertools.pairwise(offsets))
    right = offsets[0] == 0 and offsets[-1] == N and all(0 <= b - a <= longest for a, b in steps)
    options = {} if max_length is None else {"max_length": max_length}
    if not right:
        with pytest.raises(runtime.InvalidArgument, match=r"^(x_offsets\[\d\]|max_length): got "):
            kernel(*tensors, torch.tensor(offsets), **options)
        return
    o, _ = kernel(*tensors, torch.tensor(offsets), **options)
    for start, stop in steps:
        if start < stop:
            alone, _ = runtime.kernel(PADDED)(*(x[None, start:stop] for x in tensors))
            assert torch.equal(o[start:stop], alone[0])


@pytest.mark.gpu
@pytest.mark.parametrize("key", [info.key for info in runtime.kernels("hstu_bsa", "sm80")])
def test_a_gpu_checks_what_the_host_knows(key: str) -> None:
    p = runtime.kernel(key).info.parameters
    sizes = [p["attention_dim"]] * 2 + [p["linear_dim"]] * 2
    rows = [torch.randn(N, H, size, device="cuda") for size in sizes]
    call = (*rows, torch.randn(N, H, device="cuda"), torch.tensor([0, 30, 60], device="cuda"))
    for max_length in (-1, 0, 1, 29):
        with pytest.raises(runtime.InvalidArgument, match=f"max_length: got {max_length}, "):
            runtime.kernel(key)(*call, max_length=max_length)
    o, _ = runtime.kernel(key)(*call, max_length=30)
    again, _ = runtime.kernel(key)(*call, max_length=2**63 - 1)
    assert torch.equal(o, again)
