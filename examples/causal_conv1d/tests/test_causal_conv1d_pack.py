"""The package, as installed: its functions against PyTorch's own operators."""

from __future__ import annotations

import importlib.metadata
import itertools
import subprocess
import sys

import causal_conv1d_pack
import pytest
import torch
from causal_conv1d_pack import (
    causal_conv1d_fn,
    causal_conv1d_update,
    causal_conv1d_varlen_states,
)
from torch import Tensor
from torch.nn import functional

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
DTYPES = {"cpu": torch.float64, "cuda": torch.float32}
NEAR = {torch.float64: 1e-12, torch.float32: 1e-4}
device_of_test = pytest.mark.parametrize("device", DEVICES)
# Of a channel-last x: whether there are sequences, states before it, and states asked for.
CALLS = [(False, False, False), (False, True, True), (True, False, False), (True, True, False)]


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    seq_idx: Tensor | None = None,
    states: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """By functional.conv1d, of each sequence by itself; and the last states."""
    before = x.new_zeros(*x.shape[:2], weight.shape[1] - 1) if states is None else states
    whole = torch.cat([before, x], dim=-1)

    def of(piece: Tensor) -> Tensor:
        return functional.conv1d(piece, weight[:, None], bias, groups=len(bias))

    y = of(whole) if seq_idx is None else None
    rows = []
    for b, row in enumerate(seq_idx.tolist() if seq_idx is not None else ()):
        pieces, begin = [], 0
        for which, group in itertools.groupby(row):
            end = begin + len(list(group))
            first = before[b] if begin == 0 else torch.zeros_like(before[b])
            piece = of(torch.cat([first, x[b, :, begin:end]], dim=-1)[None])[0]
            pieces.append(piece if which >= 0 else torch.zeros_like(piece))
            begin = end
        rows.append(torch.cat(pieces, dim=-1))
    y = torch.stack(rows) if y is None else y
    return functional.silu(y) if activation else y, whole[..., x.shape[-1] :]


def operands(device: str, length: int = 21, channel_last: bool = True) -> dict[str, Tensor]:
    """x [2, 16, length] and what belongs to it, which requires grad."""
    torch.manual_seed(length)
    dtype = DTYPES[device]
    x = torch.randn(2, length, 16, dtype=dtype).transpose(1, 2)
    found = {
        "x": x if channel_last else x.contiguous(),
        "weight": torch.randn(16, 4, dtype=dtype),
        "bias": torch.randn(16, dtype=dtype),
        "states": torch.randn(2, 3, 16, dtype=dtype).transpose(1, 2),
    }
    return {name: tensor.to(device).requires_grad_() for name, tensor in found.items()}


def ids(device: str, length: int = 21, padding: int = 0) -> Tensor:
    """Which sequence an element is of, int32 [2, length]."""
    found = torch.tensor([[0] * 5 + [1] * (length - 5), [3] + [2] * (length - 1)])
    found[0, length - padding :] = -1
    return found.int().to(device)


def check_gradients(got: Tensor, want: Tensor, of: list[Tensor]) -> None:
    """Of a random function of the results."""
    torch.manual_seed(1)
    gradient = torch.randn(got.shape, dtype=got.dtype).to(got.device)
    ours, theirs = (torch.autograd.grad(y, of, gradient) for y in (got, want))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=NEAR[a.dtype], atol=10 * NEAR[a.dtype])


@device_of_test
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("length", [1, 8, 21])
def test_elements_side_by_side(device: str, length: int, activation: str | None) -> None:
    x, weight, bias, _ = operands(device, length, channel_last=False).values()
    got = causal_conv1d_fn(x, weight, bias, activation=activation)
    want, _ = conv1d(x, weight, bias, activation=activation)
    torch.testing.assert_close(got, want, rtol=NEAR[x.dtype], atol=NEAR[x.dtype])
    check_gradients(got, want, [x, weight, bias])


@device_of_test
@pytest.mark.parametrize("activation", [None, "swish"])
@pytest.mark.parametrize(("sequences", "states", "final"), CALLS)
def test_channels_side_by_side(device, sequences, states, final, activation) -> None:
    x, weight, bias, before = operands(device).values()
    seq_idx = ids(device) if sequences else None
    before = before if states else None
    got = causal_conv1d_fn(x, weight, bias, seq_idx, before, final, None, activation)
    want, end = conv1d(x, weight, bias, seq_idx, before, activation)
    if final:
        got, got_end = got
        assert torch.equal(got_end, end)
        got, want = (torch.cat([a, b], dim=-1) for a, b in ((got, got_end), (want, end)))
    torch.testing.assert_close(got, want, rtol=NEAR[x.dtype], atol=NEAR[x.dtype])
    check_gradients(got, want, [x, weight, bias, *([before] if states else [])])


@device_of_test
def test_padding_is_0(device: str) -> None:
    """Its gradients are not, on CUDA: upstream's fault (README.md)."""
    x, weight, bias, _ = operands(device).values()
    seq_idx = ids(device, padding=4)
    got = causal_conv1d_fn(x, weight, bias, seq_idx, activation="silu")
    want, _ = conv1d(x, weight, bias, seq_idx, activation="silu")
    torch.testing.assert_close(got, want, rtol=NEAR[x.dtype], atol=NEAR[x.dtype])
    assert not got[0, :, -4:].any()
    if device == "cpu":
        check_gradients(got, want, [x, weight, bias])


def test_gradcheck() -> None:
    x, weight, bias, states = (
        one.detach()[..., :8, :].requires_grad_() if one.dim() > 1 else one.detach()[:8]
        for one in operands("cpu", 6).values()
    )

    def call(x: Tensor, weight: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        return causal_conv1d_fn(x, weight, bias, None, states, True, None, "silu")

    assert torch.autograd.gradcheck(call, (x, weight, states))
    x = x.detach().contiguous().requires_grad_()
    assert torch.autograd.gradcheck(causal_conv1d_fn, (x, weight, bias.requires_grad_()))


@device_of_test
@pytest.mark.parametrize("channel_last", [False, True])
def test_a_compiled_step_is_one_graph(device: str, channel_last: bool) -> None:
    x, weight, bias, _ = operands(device, 24, channel_last).values()

    def step(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.tanh(causal_conv1d_fn(x * 2, weight, bias, activation="silu"))

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    got, want = compiled(x, weight, bias), step(x, weight, bias)
    torch.testing.assert_close(got, want)
    check_gradients(got, want, [x, weight, bias])


@device_of_test
def test_rows_that_do_not_begin_at_multiples_of_16_bytes(device: str) -> None:
    """Which upstream reads by vectors of 16 bytes all the same."""
    x, weight = torch.randn(2, 16, 33, device=device)[..., 1:25], torch.randn(16, 4, device=device)
    want, _ = conv1d(x, weight, weight.new_zeros(16), activation="silu")
    got = causal_conv1d_fn(x, weight, activation="silu")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@device_of_test
def test_an_update_goes_on_where_a_call_ended(device: str) -> None:
    x, weight, bias, _ = (t.detach() for t in operands(device, 24).values())
    whole = causal_conv1d_fn(x, weight, bias, activation="silu")
    _, state = causal_conv1d_fn(x[..., :9], weight, bias, None, None, True, None, "silu")
    entries = x.new_zeros(5, 16, 6)
    entries[[4, 1], :, 3:] = state
    where = torch.tensor([4, 1], dtype=torch.int32, device=device)
    ring, kept = entries[[4, 1]], state.clone()  # the next element goes to the front
    for i in range(9, 24):
        new = x[..., i]
        begin = torch.full((2,), i - 9, dtype=torch.int32, device=device)
        for call in ((kept,), (entries, None, where), (ring, begin)):
            got = causal_conv1d_update(new, call[0], weight, bias, "silu", *call[1:])
            torch.testing.assert_close(got, whole[..., i])
    assert torch.equal(kept, x[..., -3:])
    assert torch.equal(entries[[4, 1]], x[..., -6:])
    assert not entries[[0, 2, 3]].any()
    where[0] = -1  # padding
    assert not causal_conv1d_update(x[..., :2], entries, weight, bias, None, None, where)[0].any()
    assert torch.equal(entries[4], x[0, :, -6:])


@device_of_test
def test_results_have_the_layout_of_x(device: str) -> None:
    x, weight, bias, _ = (t.detach() for t in operands(device, 5).values())
    state = torch.zeros(2, 16, 3, dtype=x.dtype, device=device)
    for layout in (x, x.contiguous()):
        assert causal_conv1d_fn(layout, weight, bias).stride() == layout.stride()
        assert causal_conv1d_update(layout, state, weight, bias).stride() == layout.stride()


@device_of_test
def test_states_of_several_sequences(device: str) -> None:
    x = torch.randn(9, 4, device=device)
    lengths = torch.tensor([0, 2, 9], device=device)
    states = causal_conv1d_varlen_states(x, lengths, 4)
    assert torch.equal(states[0], torch.cat([x.new_zeros(4, 2), x[:2].T], dim=-1))
    assert torch.equal(states[1], x[5:].T)


def test_what_a_layout_does_not_have_is_refused() -> None:
    x, weight, bias, states = operands("cpu", 8, channel_last=False).values()
    with pytest.raises(ValueError, match="channel-last x"):
        causal_conv1d_fn(x, weight, bias, initial_states=states)
    with pytest.raises(NotImplementedError, match="silu"):
        causal_conv1d_fn(x, weight, bias, activation="relu")


def test_the_version_is_that_of_the_functions() -> None:
    assert causal_conv1d_pack.__version__ == importlib.metadata.version("causal-conv1d-pack")


def test_an_import_takes_no_compiler() -> None:
    """torch._dynamo takes longer to import than all the rest."""
    program = "import sys, causal_conv1d_pack; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
