"""The package as installed: its functions, their gradients, under torch.compile."""

from __future__ import annotations

import pytest
import scatter_pack
import torch
from torch.autograd import gradcheck, gradgradcheck

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
INDPTR = torch.tensor([[0, 2, 5, 5, 9]])
INDEX = torch.tensor([[0, 0, 1, 1, 1, 3, 3, 3, 3]])
CALLS = {
    "segment_csr": lambda src, reduce: scatter_pack.segment_csr(
        src, INDPTR.to(src.device), None, reduce
    ),
    "segment_coo": lambda src, reduce: scatter_pack.segment_coo(
        src, INDEX.to(src.device), None, 4, reduce
    ),
    "scatter": lambda src, reduce: scatter_pack.scatter(
        src, INDEX[0].to(src.device), 1, None, 4, reduce
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_three_ways_to_one_result_and_gradient(device, reduce) -> None:
    found = []
    for call in CALLS.values():
        torch.manual_seed(0)
        src = torch.randn(2, 9, 5, device=device, dtype=torch.float64, requires_grad=True)
        result = call(src, reduce)
        (gradient,) = torch.autograd.grad((result * result).sum(), src)
        found.append((result, gradient))
    for result, gradient in found[1:]:
        torch.testing.assert_close(result, found[0][0])
        torch.testing.assert_close(gradient, found[0][1])


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_gradients_are_right_and_have_gradients(reduce) -> None:
    src = torch.randn(2, 9, 2, dtype=torch.float64, requires_grad=True)
    some = torch.tensor([[1, 2, 5, 5, 8]])  # and what these leave out has a gradient of 0
    calls = {**CALLS, "some": lambda src, reduce: scatter_pack.segment_csr(src, some, None, reduce)}
    for call in calls.values():
        assert gradcheck(lambda src, c=call: c(src, reduce), src)
        assert gradgradcheck(lambda src, c=call: c(src, reduce), src)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("name", list(CALLS))
def test_in_one_graph_with_its_gradient(device, name, reduce) -> None:
    src = torch.randn(2, 9, 5, device=device, requires_grad=True)

    def loss(src: torch.Tensor) -> torch.Tensor:
        return (CALLS[name](src * 2, reduce) ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(src), loss(src))
    (found,) = torch.autograd.grad(compiled(src), src)
    torch.testing.assert_close(found, torch.autograd.grad(loss(src), src)[0])


# PyTorch 2.4 breaks a graph at int(tensor); 2.13 and 2.14 were seen not to.
@pytest.mark.skipif(VERSION < (2, 13), reason="a graph of an extent that a tensor says")
@pytest.mark.parametrize(
    "function",
    [
        lambda src, index: scatter_pack.scatter(src, index, 1, reduce="max"),
        lambda src, index: scatter_pack.scatter_logsumexp(src, index, 1),
        *(
            lambda src, index, r=reduce: scatter_pack.segment_coo(src, index[None], reduce=r)
            for reduce in ("sum", "mean", "max")
        ),
    ],
)
def test_in_one_graph_that_is_not_told_the_extent(function) -> None:
    torch.compiler.reset()
    src = torch.randn(2, 9, 5, requires_grad=True)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for index in (INDEX[0], INDEX[0] + 1):
        torch.testing.assert_close(compiled(src, index), function(src, index))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_gathered_is_what_was_reduced(device) -> None:
    values = torch.randn(2, 4, 5, device=device, dtype=torch.float64, requires_grad=True)
    by_pointer = scatter_pack.gather_csr(values, INDPTR.to(device))
    by_index = scatter_pack.gather_coo(values, INDEX.to(device))
    assert torch.equal(by_pointer, by_index)
    assert torch.equal(by_index, values[:, INDEX[0]])
    (gradient,) = torch.autograd.grad(by_index.sum(), values)
    assert torch.equal(gradient[0, :, 0].cpu(), torch.tensor([2.0, 3.0, 0.0, 4.0]).double())


@pytest.mark.skipif(DEVICES != ["cpu"], reason="kernels of a GPU do not look")
def test_an_index_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"index.*got 7"):
        scatter_pack.scatter_max(torch.randn(3), torch.tensor([0, 7, 1]), dim_size=4)
