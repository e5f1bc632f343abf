"""What is not a dense tensor, or not a text, at each public function: refused by its name."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import runtime

A, L, H, T = 32, 64, 2, 40
SIZES = {"q": A, "k": A, "v": L, "u": L}
Q, K, V = torch.randn(3, 1, 8, 2, 64).unbind()
KEY = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and not causal")[0].key
SPARSE = {n: torch.randn(1, T, H, size) for n, size in SIZES.items()}
SPARSE["g_cmp"] = torch.rand(1, T, H)
JAGGED = {n: torch.randn(T, H * size) for n, size in SIZES.items()} | {
    "num_heads": H, "attention_dim": A, "linear_dim": L, "x_offsets": torch.tensor([0, T]),
    "invalid_attn_mask": torch.zeros(T, T), "gate_model": lambda q: 3 * (q.mean(-1),),
}  # fmt: skip
FUNCTIONS = {
    "attention": (runtime.attention, {"q": Q, "k": K, "v": V}),
    "attention_bhsd": (
        functools.partial(runtime.attention, layout="bhsd"),
        {name: t.transpose(1, 2) for name, t in (("q", Q), ("k", K), ("v", V))},
    ),
    "forward": (functools.partial(runtime.forward, KEY), {"q": Q, "k": K, "v": V}),
    "forward_timed": (functools.partial(runtime.forward_timed, KEY), {"q": Q, "k": K, "v": V}),
    "kernel": (runtime.kernel(KEY), {"q": Q, "k": K, "v": V}),
    "block_sparse_attention": (runtime.block_sparse_attention, SPARSE),
    "hstu_attention_with_bsa": (runtime.hstu_attention_with_bsa, JAGGED),
}
WRONG = {
    "array": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "number": lambda t: 3.5,
    "none": lambda t: None,
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "nested": lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    "complex": lambda t: t.to(torch.complex64),
}
CASES = [
    (function, name)
    for function, (_, arguments) in FUNCTIONS.items()
    for name, value in arguments.items()
    if isinstance(value, torch.Tensor) and name != "invalid_attn_mask"
]


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(("function", "name"), CASES)
def test_what_is_no_dense_tensor_is_refused_by_name(function, name, kind) -> None:
    call, arguments = FUNCTIONS[function]
    call(**arguments)
    own = (runtime.InvalidArgument, runtime.KernelNotFound)
    with pytest.raises(own, match=rf"^{name}\b|^no \w+ kernel for dtype "):
        call(**{**arguments, name: WRONG[kind](arguments[name])})


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (function, name)
        for function, options in (
            ("attention", ("causal", "layout", "return_lse")),
            ("block_sparse_attention", ("block_count", "block_size", "mode", "target", "dot",
                                        "schedule")),
            ("hstu_attention_with_bsa", ("num_heads", "attention_dim", "linear_dim", "gate_model",
                                         "invalid_attn_mask", "block_size", "mode", "schedule")),
            ("kernel", ("scale", "return_lse")),
        )
        for name in options
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [[], {}, np.zeros(3), torch.tensor([1, 2]), object(), 1j, b"x"])
def test_an_option_of_another_type_is_refused_by_name(function, name, value) -> None:
    call, arguments = FUNCTIONS[function]
    with pytest.raises(runtime.InvalidArgument, match=rf"\b{name}\b"):
        call(**{**arguments, name: value})


@pytest.mark.parametrize("value", [3, [], np.zeros(3), torch.zeros(2), {}, 1.5, b"cpu"])
def test_what_is_no_name_or_filter_is_refused(value) -> None:
    for name in ("family", "target", "where"):
        with pytest.raises(runtime.InvalidArgument, match=f"^{name}: got an? "):
            runtime.kernels(**{name: value})
    with pytest.raises((runtime.InvalidArgument, runtime.KernelNotFound)):
        runtime.kernel(value)
