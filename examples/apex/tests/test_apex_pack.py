"""The functions, on a GPU, against PyTorch's Adam in fp64."""

from __future__ import annotations

import apex_pack
import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SHAPES = [(3,), (64, 33), (), (70_000,), (8, 3, 5, 5)]
BETAS, EPSILON, LR = (0.9, 0.999), 1e-8, 1e-2


def lists(dtype: torch.dtype) -> list[list[Tensor]]:
    """Returns gradients, parameters, and means of 0."""
    torch.manual_seed(0)
    g, p = ([torch.randn(s, device="cuda").to(dtype) for s in SHAPES] for _ in "gp")
    return [g, p, *([torch.zeros(s, device="cuda") for s in SHAPES] for _ in "mv")]


def expected(g: list[Tensor], p: list[Tensor], steps: int, decoupled: bool) -> list[Tensor]:
    """Returns the parameters after some steps with these gradients, in fp64."""
    parameters = [torch.nn.Parameter(t.double()) for t in p]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind(parameters, lr=LR, betas=BETAS, eps=EPSILON, weight_decay=0.1)
    for parameter, gradient in zip(parameters, g, strict=True):
        parameter.grad = gradient.double()
    for _ in range(steps):
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def near(got: list[Tensor], want: list[Tensor]) -> None:
    """Checks within some roundings of f32 a step."""
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 1])
def test_steps_are_adams(mode: int) -> None:
    tensors = lists(torch.float32)
    want = expected(*tensors[:2], 3, bool(mode))
    noop = torch.zeros(1, dtype=torch.int32, device="cuda")
    for step in (1, 2, 3):
        apex_pack.multi_tensor_adam(65536, noop, tensors, LR, *BETAS, EPSILON, step, mode, 1, 0.1)
    near(tensors[1], want)


def test_steps_in_a_graph() -> None:
    """The step, the rate and the scale are in the GPU's memory: a replay is another step."""
    tensors = lists(torch.float32)
    want = expected(*tensors[:2], 3, True)
    noop, step = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
    lr, scale = torch.tensor(LR, device="cuda"), torch.ones(1, device="cuda")

    def call() -> None:
        step.add_(1)
        apex_pack.multi_tensor_adam_capturable(
            65536, noop, tensors, lr, *BETAS, EPSILON, step, 1, 1, 0.1, scale
        )

    kept = [[t.clone() for t in some] for some in tensors]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    for some, before in zip(tensors, kept, strict=True):
        torch._foreach_copy_(some, before)
    step.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for _ in range(3):
        graph.replay()
    near(tensors[1], want)


def test_parameters_are_copies_of_master_weights() -> None:
    tensors = lists(torch.bfloat16)
    masters = [t.float() for t in tensors[1]]
    want = expected(tensors[0], masters, 1, True)
    noop = torch.zeros(1, dtype=torch.int32, device="cuda")
    lr, scale = torch.tensor(LR, device="cuda"), torch.ones(1, device="cuda")
    apex_pack.multi_tensor_adam_capturable_master(
        65536, noop, [*tensors, masters], lr, *BETAS, EPSILON, noop + 1, 1, 1, 0.1, scale
    )
    near(masters, want)
    assert all(map(torch.equal, tensors[1], (t.bfloat16() for t in masters)))


def test_a_message_names_the_tensor() -> None:
    tensors = lists(torch.float32)
    tensors[2][3] = tensors[2][3][1:]
    noop = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match=r"^m\[3\]: got 69999 elements, expected N = 70000 as in"):
        apex_pack.multi_tensor_adam(65536, noop, tensors, LR, *BETAS, EPSILON, 1, 1, 1, 0.1)
