"""This pack beside upstream's own library, on one device: results bit for bit, and times.

    python compare.py [--device cuda] [--library libbitsandbytes_cuda130.so]

The library is that of the device in the installed bitsandbytes. Its functions are called through
ctypes, so bitsandbytes' Python is not needed. Upstream has no 4-bit quantiser for the CPU in its
library.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bnb_pack
import torch
from kernelmint.tools.bench import print_times
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
KINDS = ("nf4", "fp4")
BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SIZES = (1, 2, 63, 64, 65, 1000, 4096, 4097, 100_001, 1 << 20)


class Upstream:
    """Upstream's library, for tensors of one device."""

    def __init__(self, path: Path, device: str) -> None:
        self.library = ctypes.CDLL(str(path))
        self.on_cpu = device == "cpu"
        self.device = device

    def _call(self, name: str, tensors: list[Tensor | None], *numbers: int) -> None:
        pointers = [ctypes.c_void_p(0 if t is None else t.data_ptr()) for t in tensors]
        count = ctypes.c_longlong if self.on_cpu else ctypes.c_int32
        extra = []
        if not self.on_cpu and "dequantize" in name:
            extra = [ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)]
        getattr(self.library, name)(*pointers, *map(count, numbers), *extra)

    def quantize(self, x: Tensor, code: Tensor | None, blocksize: int, kind: str) -> Any:
        """Returns codes and absmax of x [N]; `kind`: nf4, fp4 or, with a table, nothing."""
        dtype = next(name for name, dtype in DTYPES.items() if dtype == x.dtype)
        size = x.numel() if code is not None else (x.numel() + 1) // 2
        codes = torch.empty(size, dtype=torch.uint8, device=self.device)
        absmax = torch.empty(-(-x.numel() // blocksize), device=self.device)
        suffix = f"_{kind}" if kind else ""
        name = f"cquantize_blockwise{'_cpu' if self.on_cpu else ''}_{dtype}{suffix}"
        self._call(name, [code, x, absmax, codes], blocksize, x.numel())
        return codes, absmax

    def dequantize(
        self, codes: Tensor, absmax: Tensor, code: Tensor | None, blocksize: int, kind: str,
        n: int, dtype: str,
    ) -> Tensor:  # fmt: skip
        """Returns the n numbers of codes."""
        y = torch.empty(n, dtype=DTYPES[dtype], device=self.device)
        if not self.on_cpu:
            name = f"cdequantize_blockwise_{dtype}{f'_{kind}' if kind else ''}"
            self._call(name, [code, codes, absmax, y], blocksize, n)
        elif kind:
            name = f"cdequantize_blockwise_cpu_{kind}_{dtype}"
            self._call(name, [codes, absmax, y], blocksize, 1, n)
        else:
            name = f"cdequantize_blockwise_cpu_{dtype}"
            self._call(name, [code, codes, absmax, y], blocksize, n)
        return y


def inputs(n: int, dtype: str, device: str) -> Iterator[Tensor]:
    """Makes numbers of several kinds: normal, of far magnitudes, and with a block of zeros."""
    torch.manual_seed(n)
    x = torch.randn(n)
    yield x.to(DTYPES[dtype]).to(device)
    yield (x * torch.logspace(-4, 4, n)).to(DTYPES[dtype]).to(device)
    x[n // 2 :] = 0
    yield x.to(DTYPES[dtype]).to(device)


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Returns whether two tensors have the same bits, or NaN at the same places."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return torch.equal(ours.nan_to_num(9e9), theirs.nan_to_num(9e9)) and torch.equal(
        ours.isnan(), theirs.isnan()
    )


def table(device: str) -> Tensor:
    """Returns a table of 256 numbers in [-1, 1], as upstream's dynamic map is spaced."""
    half = torch.cat([10.0 ** torch.linspace(-6, 0, 127)])
    return torch.cat([-half.flip(0), torch.zeros(2), half]).to(device)


def compare(upstream: Upstream) -> bool:
    """Compares all functions; prints a line for each, and returns whether all are the same."""
    device, all_same = upstream.device, True
    code = table(device)
    for name in ("quantize 4bit", "dequantize 4bit", "quantize 8bit", "dequantize 8bit"):
        equal = count = 0
        four, quantizes = "4" in name, name.startswith("q")
        if four and quantizes and upstream.on_cpu:
            continue
        for kind in KINDS if four else ("",):
            for dtype in DTYPES:
                for blocksize in BLOCKSIZES if four else BLOCKSIZES[1:]:
                    for n in SIZES:
                        for x in inputs(n, dtype, device):
                            equal += one(upstream, x, code, blocksize, kind, quantizes, dtype)
                            count += 1
        print(f"{name}: {equal} of {count} results are upstream's bit for bit", flush=True)
        all_same &= equal == count
    return all_same


def one(
    upstream: Upstream, x: Tensor, code: Tensor, blocksize: int, kind: str, quantizes: bool,
    dtype: str,
) -> bool:  # fmt: skip
    """Returns whether one result is the same."""
    if kind:
        codes, absmax = bnb_pack.quantize_4bit(x, blocksize, kind)
    else:
        codes, absmax = bnb_pack.quantize_blockwise(x, code, blocksize)
    if quantizes:
        theirs = upstream.quantize(x, None if kind else code, blocksize, kind)
        return same(codes.view(-1), theirs[0]) and same(absmax, theirs[1])
    wanted = DTYPES[dtype]
    if kind:
        ours = bnb_pack.dequantize_4bit(codes, absmax, blocksize, kind, x.shape, wanted)
    else:
        ours = bnb_pack.dequantize_blockwise(codes, absmax, code, blocksize, wanted)
    table_ = None if kind else code
    return same(ours, upstream.dequantize(codes, absmax, table_, blocksize, kind, len(x), dtype))


def times(upstream: Upstream) -> None:
    """Prints the times of a weight of 4096 x 4096, bf16, blocks of 64 (8-bit: 256)."""
    x = torch.randn(4096 * 4096, dtype=torch.bfloat16, device=upstream.device)
    code, n = table(upstream.device), len(x)
    four, of_four = bnb_pack.quantize_4bit(x, 64, "nf4")
    eight, of_eight = bnb_pack.quantize_blockwise(x, code, 256)
    cells = {
        "dequantize nf4": (
            lambda: bnb_pack.dequantize_4bit(four, of_four, 64, "nf4", x.shape, x.dtype),
            lambda: upstream.dequantize(four, of_four, None, 64, "nf4", n, "bf16"),
        ),
        "dequantize 8bit": (
            lambda: bnb_pack.dequantize_blockwise(eight, of_eight, code, 256, x.dtype),
            lambda: upstream.dequantize(eight, of_eight, code, 256, "", n, "bf16"),
        ),
        "quantize 8bit": (
            lambda: bnb_pack.quantize_blockwise(x, code, 256)[0],
            lambda: upstream.quantize(x, code, 256, "")[0],
        ),
        "quantize nf4": (
            lambda: bnb_pack.quantize_4bit(x, 64, "nf4")[0].view(-1),
            lambda: upstream.quantize(x, None, 64, "nf4")[0],
        ),
    }
    if upstream.on_cpu:
        del cells["quantize nf4"]
    print_times(
        "4096 x 4096, bf16",
        [(name, {"bnb_pack": a, "bitsandbytes": b}) for name, (a, b) in cells.items()],
        torch.device(upstream.device),
    )


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--library", type=Path)
    options = parser.parse_args()
    path = options.library
    if path is None:
        spec = importlib.util.find_spec("bitsandbytes")
        if spec is None or spec.origin is None:
            parser.error("bitsandbytes is not installed: name its library by --library")
        version = (torch.version.cuda or "").replace(".", "")
        name = "cpu" if options.device == "cpu" else f"cuda{version}"
        path = Path(spec.origin).parent / f"libbitsandbytes_{name}.so"
    upstream = Upstream(path, options.device)
    all_same = compare(upstream)
    times(upstream)
    return 0 if all_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
