"""This pack beside upstream's own build, on a GPU: results bit for bit, and times.

    python compare.py [--no-times]

Upstream's csrc/multi_tensor_adam.cu is compiled with PyTorch's headers, which takes a minute. Each
function changes clones of the same lists: of every dtype, in both modes, with and without bias
correction and decay, over few and many tensors, small and large, some channels last.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import apex_pack
import torch
from kernelmint.tools.bench import print_times
from torch import Tensor
from torch.utils import cpp_extension
from upstream_tests import upstream

BINDING = """\
#include <torch/extension.h>
using Lists = std::vector<std::vector<at::Tensor>>;
#define LISTS int chunk_size, at::Tensor noop_flag, Lists tensor_lists
#define NUMBERS const float beta1, const float beta2, const float epsilon
#define REST const int mode, const int bias_correction, const float weight_decay
void multi_tensor_adam_cuda(LISTS, const float lr, NUMBERS, const int step, REST);
void multi_tensor_adam_capturable_cuda(LISTS, at::Tensor lr, NUMBERS, at::Tensor step, REST,
                                       at::Tensor inv_scale);
void multi_tensor_adam_capturable_master_cuda(LISTS, at::Tensor lr, NUMBERS, at::Tensor step, REST,
                                              at::Tensor inv_scale);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("multi_tensor_adam", &multi_tensor_adam_cuda);
  m.def("multi_tensor_adam_capturable", &multi_tensor_adam_capturable_cuda);
  m.def("multi_tensor_adam_capturable_master", &multi_tensor_adam_capturable_master_cuda);
}
"""
# Macros of setup.py go with each file.
FLAGS = ["-O3", "-w", "-DVERSION_GE_1_1", "-DVERSION_GE_1_3", "-DVERSION_GE_1_5"]
FUNCTIONS = (
    "multi_tensor_adam", "multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master"
)  # fmt: skip
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# The tensors of a call, by how many there are of each shape.
SIZES = {
    "one": [(1, (5,))],
    "odd": [(1, (3,)), (1, ()), (1, (64, 33)), (1, (0,)), (1, (65536,)), (1, (65537,))],
    "channels last": [(3, (8, 3, 5, 5)), (2, (16,))],
    "many": [(400, (33,)), (30, (1000, 7))],
    "large": [(2, (3000, 3000)), (1, (70000, 100))],
}
NUMBERS = (0.9, 0.999, 1e-8)  # both betas, epsilon


def build() -> Any:
    """Compiles upstream's file; returns the extension."""
    folder = upstream() / "csrc"
    binding = cpp_extension._get_build_directory("apex_upstream", verbose=False) + "/binding.cpp"
    with open(binding, "w", encoding="utf-8") as file:
        file.write(BINDING)
    return cpp_extension.load(
        "apex_upstream",
        [binding, str(folder / "multi_tensor_adam.cu")],
        extra_cflags=FLAGS,
        extra_cuda_cflags=FLAGS,
        extra_include_paths=[str(folder)],
    )


def lists_of(function: str, size: str, dtype: torch.dtype) -> list[list[Tensor]]:
    """Makes the lists of a call: gradients, parameters, means, means of squares, master weights."""
    torch.manual_seed(len(size))
    shapes = [shape for count, shape in SIZES[size] for _ in range(count)]
    kept = [dtype, dtype, torch.float32, torch.float32, torch.float32]
    lists = []
    for of in kept if function.endswith("master") else kept[:4]:
        tensors = [torch.randn(shape, device="cuda").to(of) for shape in shapes]
        if size == "channels last":
            last = torch.channels_last
            tensors = [t.to(memory_format=last) if t.dim() == 4 else t for t in tensors]
        lists.append(tensors)
    lists[3] = [tensor.abs() for tensor in lists[3]]
    return lists


def call(
    module: Any, function: str, lists: list[list[Tensor]], options: Sequence[Any], noop: int = 0
) -> Callable[[], Tensor]:
    """Returns a call of a function of upstream's or of this pack, which returns a gradient."""
    mode, correction, decay, step = options
    flag = torch.tensor([noop], dtype=torch.int32, device="cuda")
    lr: Any = 1e-2
    scale = []
    if function != FUNCTIONS[0]:  # on the GPU
        lr, step = torch.tensor(lr, device="cuda"), torch.full_like(flag, step)
        scale = [torch.tensor([0.25], device="cuda")]
    run = getattr(module, function)

    def step_once() -> Tensor:
        run(65536, flag, lists, lr, *NUMBERS, step, mode, correction, decay, *scale)
        return lists[0][0]

    return step_once


def bits(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor."""
    return tensor.reshape(-1).view(torch.uint8)


def compare(theirs: Any) -> int:
    """Prints how many results are the same; returns the number that differ."""
    print(f"{'function':38} {'dtype':10} {'calls':>5} {'tensors':>8} {'the same bits':>13}")
    wrong = 0
    for function, dtype in itertools.product(FUNCTIONS, DTYPES):
        calls = counted = same = 0
        for size, mode, correction, decay, step, noop in itertools.product(
            SIZES, (0, 1), (0, 1), (0.0, 0.1), (1, 7), (0, 1)
        ):
            if noop and (function == FUNCTIONS[0] or step == 7):
                continue
            lists = lists_of(function, size, dtype)
            both = [[[t.clone() for t in tensors] for tensors in lists] for _ in range(2)]
            for module, cloned in zip((apex_pack, theirs), both, strict=True):
                call(module, function, cloned, (mode, correction, decay, step), noop)()
            calls += 1
            for ours, upstreams in zip(*both, strict=True):
                counted += len(ours)
                pairs = zip(map(bits, ours), map(bits, upstreams), strict=True)
                same += sum(a.equal(b) for a, b in pairs)
        wrong += counted - same
        print(f"{function:38} {str(dtype)[6:]:10} {calls:5} {counted:8} {same:13}", flush=True)
    return wrong


def times(theirs: Any) -> bool:
    """Prints the times of a step; returns whether results agree."""
    device, good = torch.device("cuda"), True
    for function in FUNCTIONS[:1]:
        cells = []
        for size in ("one", "many", "large"):
            lists = lists_of(function, size, torch.float32)
            both = {"here": apex_pack, "upstream": theirs}
            cells.append(
                (size, {n: call(m, function, lists, (1, 1, 0.0, 1)) for n, m in both.items()})
            )
        good &= print_times(f"{function}, the host", cells[:2], device, host=True)
        good &= print_times(function, cells, device)
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-times", action="store_true")
    arguments = parser.parse_args()
    extension = build()
    differing = compare(extension)
    agree = arguments.no_times or times(extension)
    raise SystemExit(1 if differing or not agree else 0)
