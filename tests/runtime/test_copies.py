"""A kernel in a module is copied, saved and sent to other processes by its key."""

import copy
import io
import pickle

import pytest
import torch

import runtime

KEY = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and not causal")[0].key


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))
        self.kernel = runtime.kernel(KEY)

    def forward(self, q):
        return self.kernel(q, q, q)


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved],
    ids=["copy", "deepcopy", "pickle", "torch.save"],
)
def test_a_copy_holds_the_same_kernel(copied):
    assert copied(Layer()).kernel is runtime.kernel(KEY)


def test_an_averaged_model_holds_the_same_kernel():
    average = torch.optim.swa_utils.AveragedModel(Layer())
    assert average.module.kernel is runtime.kernel(KEY)


class Items(torch.utils.data.Dataset):
    def __init__(self, kernel):
        self.kernel = kernel

    def __len__(self):
        return 2

    def __getitem__(self, index):
        q = torch.full((1, 3, 1, 64), float(index))
        return self.kernel(q, q, q)


def test_a_spawned_worker_calls_the_kernel():
    loader = torch.utils.data.DataLoader(
        Items(runtime.kernel(KEY)), num_workers=1, multiprocessing_context="spawn", batch_size=None
    )
    assert [float(item.mean()) for item in loader] == [0.0, 1.0]


def test_what_is_unpickled_where_the_kernel_is_not_says_so():
    data = pickle.dumps(runtime.kernel(KEY)).replace(b"-d64-", b"-d65-")
    with pytest.raises(runtime.KernelNotFound, match="d65"):
        pickle.loads(data)
