"""The package as installed: codes and numbers, dtypes, odd counts, under torch.compile."""

from __future__ import annotations

import bnb_pack
import pytest
import torch

import kernelmint

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
@pytest.mark.parametrize("blocksize", [32, 64, 128, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_come_back_within_half_a_step(device, quant_type, blocksize, dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 1001, device=device).to(dtype)  # an odd number, and a part of a block
    codes, absmax = bnb_pack.quantize_4bit(x, blocksize, quant_type)
    assert codes.shape == (1502, 1)
    y = bnb_pack.dequantize_4bit(codes, absmax, blocksize, quant_type, x.shape, torch.float32)
    scale = absmax.repeat_interleave(blocksize)[: x.numel()].view(x.shape)
    assert ((y - x.float()).abs() / scale).max() <= 0.1672  # half of the widest gap, 1 - 2/3
    largest = x.float().abs() == scale
    assert torch.equal(y[largest], x.float()[largest])


@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_each_code_has_its_number_in_every_dtype(quant_type) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    dequantize = kernelmint.bnb_dequantize_4bit
    numbers = dequantize(codes, torch.ones(8), quant_type=quant_type)
    assert numbers.dtype == torch.float32
    assert numbers.view(-1, 2)[:, 1].view(16, 16).eq(numbers.view(-1, 2)[:16, 1]).all()
    assert numbers.unique().numel() == (16 if quant_type == "nf4" else 15)  # fp4 has two zeros
    for dtype in DTYPES[:2]:
        other = dequantize(codes, torch.ones(8), quant_type=quant_type, dtype=dtype)
        assert torch.equal(other, numbers.to(dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_of_256(device, dtype) -> None:
    code = torch.linspace(-1, 1, 256, device=device)
    x = torch.randn(5, 1001, device=device).to(dtype)
    codes, absmax = bnb_pack.quantize_blockwise(x, code, 256)
    assert codes.shape == x.shape
    out = torch.empty_like(x)
    y = bnb_pack.dequantize_blockwise(codes, absmax, code, 256, dtype, out)
    assert y.data_ptr() == out.data_ptr()
    scale = absmax.repeat_interleave(256)[: x.numel()].view(x.shape)
    assert ((y - x).float().abs() / scale).max() < 1.02 / 255 + torch.finfo(dtype).eps


def test_codes_and_their_absmax_are_held_to_the_count() -> None:
    codes, absmax = bnb_pack.quantize_4bit(torch.randn(128), 64, "nf4")
    with pytest.raises(kernelmint.InvalidArgument, match="a byte holds two codes"):
        bnb_pack.dequantize_4bit(codes, absmax, 64, "nf4", (126,), torch.float32)
    with pytest.raises(kernelmint.InvalidArgument, match="each block has its absmax"):
        bnb_pack.dequantize_4bit(codes, absmax[:1], 64, "nf4", (128,), torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_in_one_graph(device) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        codes, absmax = bnb_pack.quantize_4bit(x * 2, 64, "nf4")
        return bnb_pack.dequantize_4bit(codes, absmax, 64, "nf4", x.shape, torch.bfloat16) + 1

    x = torch.randn(4, 129, device=device)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), call(x))
