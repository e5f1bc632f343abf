"""The memory of outputs, which PyTorch's C functions make where it has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import profile

import runtime

KEY = "flash_forward.cpu.f32-d64-r64-c128"


@pytest.fixture(params=[False, True], ids=["plain", "deterministic"])
def deterministic(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether PyTorch has to fill new memory, which torch.empty does."""
    torch.use_deterministic_algorithms(request.param)
    yield request.param
    torch.use_deterministic_algorithms(False)


def call() -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = torch.randn(3, 2, 5, 3, 64)
    o, lse = runtime.kernel(KEY)(q, k, v, return_lse=True)
    return o, lse


def storage_uses(tensor: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def test_outputs_are_tensors_as_torch_empty_makes_them(deterministic: bool) -> None:
    for tensor in call():
        like = torch.empty(tensor.shape)
        assert type(tensor) is torch.Tensor
        assert tensor.is_contiguous()
        assert tensor.stride() == like.stride()
        assert tensor.untyped_storage().nbytes() == like.untyped_storage().nbytes()
        assert storage_uses(tensor) == storage_uses(like)
        assert (tensor._version, tensor.requires_grad, tensor.is_leaf) == (0, False, True)
        assert not tensor.is_inference()
        tensor.resize_(7).requires_grad_()


def test_memory_is_freed_with_the_last_tensor(deterministic: bool) -> None:
    tensors = call()
    watched = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    assert not any(storage.expired() for storage in watched)
    del tensors
    assert all(storage.expired() for storage in watched)


def test_outputs_in_inference_mode_are_inference_tensors(deterministic: bool) -> None:
    with torch.inference_mode():
        assert all(tensor.is_inference() for tensor in call())


def test_memory_that_pytorch_has_to_fill_is_made_by_torch_empty(deterministic: bool) -> None:
    call()
    with profile() as recorded:
        call()
    names = [event.name for event in recorded.events() or ()]
    if deterministic:
        assert "aten::fill_" in names
    else:
        assert "aten::fill_" not in names


def test_an_output_that_was_not_asked_for_is_the_callers_own(deterministic: bool) -> None:
    q, k, v = torch.randn(3, 2, 5, 3, 64)
    first, second = (torch.ops.kernelmint.flash_forward(KEY, q, k, v)[1] for _ in range(2))
    assert first.shape == second.shape == (0,)
    first.resize_(3).fill_(1)
    assert second.resize_(3).data_ptr() != first.data_ptr()
