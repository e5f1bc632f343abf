"""8-bit floats and the other integers: conversions are PyTorch's, for every value."""

from __future__ import annotations

import pytest
import torch

import runtime
from runtime import InvalidArgument, _native

from .conftest import TARGETS, device, kernel

DTYPES = {
    "f32": torch.float32,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i16": torch.int16,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
}
FLOATS8 = ["e4m3fn", "e5m2"]

pytestmark = [pytest.mark.usefixtures("families"), pytest.mark.parametrize("target", TARGETS)]


def run(target, x, source, result):
    """The cast of x; lengths that fill no vector, too."""
    cast = kernel("cast", target, source=source, result=result)
    whole = cast(x.to(device(target)))
    assert whole.dtype == DTYPES[result]
    part = cast(x[:-3].to(device(target)))
    assert torch.equal(part.view(torch.uint8), whole[:-3].view(torch.uint8))
    return whole.cpu()


def f32_of(high, low):
    """The numbers with these 16 high and 16 low bits."""
    bits = (high.to(torch.int64) << 16) | low
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)


def converted(x, dtype):
    """PyTorch's conversion. Before 2.12 it made NaN of what e4m3fn does not hold."""
    if dtype == torch.float8_e4m3fn:
        x = x.clamp(-448, 448)
    return x.to(dtype)


@pytest.mark.parametrize("result", FLOATS8)
def test_every_kind_of_f32_becomes_what_pytorch_makes_of_it(target, result):
    """Each sign, exponent and 7 bits of fraction, with what decides ties in the 16 below."""
    high = torch.arange(2**16)
    lows = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, *torch.randint(2**16, (10,)).tolist()]
    for low in lows:
        x = f32_of(high, low)
        got = run(target, x, "f32", result).float()
        wanted = converted(x, DTYPES[result]).float()
        assert torch.equal(got.isnan(), x.isnan())
        assert torch.equal(got.nan_to_num(9e9), wanted.nan_to_num(9e9))
        assert torch.equal(got.signbit(), x.signbit())


def test_what_is_beyond_the_range(target):
    x = torch.tensor([464.0, 465.0, 61439.9, 61440.0, 1e30, torch.inf, torch.nan, 0, 0, 0])
    assert run(target, -x, "f32", "e4m3fn").float().tolist()[:6] == [-448.0] * 6
    assert run(target, x, "f32", "e5m2").float().tolist()[2:6] == [57344.0, *[torch.inf] * 3]
    for result in FLOATS8:
        assert run(target, x, "f32", result).view(torch.uint8)[6] == 0x7F


@pytest.mark.parametrize("source", FLOATS8)
def test_every_8_bit_float_becomes_the_f32_that_it_is(target, source):
    x = torch.arange(256, dtype=torch.uint8).view(DTYPES[source])
    got, wanted = run(target, x, source, "f32"), x.float()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.nan_to_num(9e9), wanted.nan_to_num(9e9))
    assert torch.equal(got.signbit(), wanted.signbit())


@pytest.mark.parametrize("source", FLOATS8)
def test_there_and_back_is_the_same(target, source):
    bits = torch.arange(256, dtype=torch.uint8)
    x = bits.view(DTYPES[source])
    back = run(target, run(target, x, source, "f32"), "f32", source).view(torch.uint8)
    numbers = ~x.float().isnan()
    assert torch.equal(back[numbers], bits[numbers])
    assert (back[~numbers] & 0x7F == 0x7F).all()


@pytest.mark.parametrize(
    ("source", "result"), [("i16", "u32"), ("u16", "u64"), ("u32", "i16"), ("u64", "u16")]
)
def test_integers_are_told_apart_and_read_as_they_are(target, source, result):
    size = torch.iinfo(DTYPES[source]).bits // 8
    x = torch.randint(0, 256, (1000 * size,), dtype=torch.uint8).view(DTYPES[source])
    got = run(target, x, source, result)
    mask = 2 ** torch.iinfo(DTYPES[result]).bits - 1
    assert [v & mask for v in got.tolist()] == [v & mask for v in x.tolist()]


@pytest.mark.parametrize("by_exchange", [True, False])
@pytest.mark.parametrize("source", DTYPES)
def test_every_dtype_is_told_apart(target, source, by_exchange):
    """Read by PyTorch's exchange table, and by Python attributes if it has none."""
    info = next(i for i in runtime.kernels("cast", target) if i.parameters["source"] == source)
    cast = runtime.kernel(info.key)
    _native.use_exchange_api(by_exchange)
    try:
        for name, dtype in DTYPES.items():
            x = torch.zeros(8, device=device(target), dtype=dtype)
            if name == source:
                cast(x)
                continue
            with pytest.raises(InvalidArgument, match=f"^x: got dtype {dtype}, expected "):
                cast(x)
    finally:
        _native.use_exchange_api(True)


def test_complex_numbers(target):
    x = torch.randn(9, 2, dtype=torch.complex64, device=device(target))
    cast = kernel("cast", target, source="complex64", result="complex128")
    assert torch.equal(cast(x[:, 0].contiguous()), x[:, 0].to(torch.complex128))
    with pytest.raises(InvalidArgument, match=r"^x: got a lazily conjugated view .*resolve_conj"):
        cast(x[:, 0].contiguous().conj())
