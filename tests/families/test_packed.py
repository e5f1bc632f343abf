"""Tensors with two elements in a byte: extents are counted in elements, and memory in bytes."""

from __future__ import annotations

import pytest
import torch

import runtime
from tools import problem

from .conftest import kernel

pytestmark = pytest.mark.usefixtures("families")
PAIRS = getattr(torch, "float4_e2m1fn_x2", None)
STORED = {"u8": torch.uint8, **({"e2m1x2": PAIRS} if PAIRS else {})}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("K", [8, 5])
def test_the_last_of_an_odd_number_of_elements_has_a_byte(stored, K):
    w = torch.randint(256, (3, -(-K // 2)), dtype=torch.uint8)
    unpacked = kernel("unpacked", "cpu", stored=stored)
    y, back = unpacked(w.view(STORED[stored]), torch.zeros(K), return_back=True)
    codes = torch.stack([w & 15, w >> 4], -1).flatten(1)[:, :K]
    assert torch.equal(y, codes.float())
    assert back.dtype == STORED[stored]
    assert torch.equal(back.view(torch.uint8), w)


def test_the_number_of_bytes_is_checked():
    with pytest.raises(
        runtime.InvalidArgument,
        match=r"^w: got shape \[3, 8\], expected \[M, ceil_div\(K, 2\)\]: dimension 1 must be 4"
        r".*here K = 8",
    ):
        runtime.unpacked(torch.zeros(3, 8, dtype=torch.uint8), torch.zeros(8))


@pytest.mark.parametrize("stored", STORED)
def test_in_one_graph(stored):
    def call(w, bias):
        return runtime.unpacked(w.view(STORED[stored]), bias, return_back=True)[0] + 1

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    w = torch.randint(256, (3, 4), dtype=torch.uint8)
    for K in (7, 8):
        assert torch.equal(compiled(w, torch.ones(K)), call(w, torch.ones(K)))


@pytest.mark.parametrize("stored", STORED)
def test_verifying_makes_random_codes(stored):
    info = kernel("unpacked", "cpu", stored=stored).info
    case = problem.Case({"M": 3, "K": 7}, {}, {"return_back": True})
    made = problem.of_case(info, case, torch.device("cpu"))
    assert made.tensors["w"].dtype == STORED[stored]
    assert made.tensors["w"].view(torch.uint8).unique().numel() > 5
    assert all(difference.passed for difference in made.check(runtime.kernel(info.key)))
    assert not any(difference.passed for difference in made.check(lambda **arguments: None))
