"""Wrong calls: a right call of a public function or a kernel, with some arguments made wrong."""

from __future__ import annotations

import functools
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import runtime
from tools.families import oracle

_OWN = (runtime.InvalidArgument, runtime.KernelNotFound, runtime.TargetUnavailable)


@dataclass(frozen=True)
class _Call:
    """A function and arguments that suit it, by name."""

    function: Callable[..., Any]
    arguments: dict[str, Any]


# Python's words, with a kernel's key or a public function's name.
_NAMES_THE_CALL = re.compile(
    r"(\w+\.\w+\.\S+ takes \(.*\): __call__|attention|forward|forward_timed|kernel|kernels"
    r"|block_sparse_attention|hstu_attention_with_bsa)\(\) .*|attention: unknown argument .*"
)


def case(rng: random.Random) -> str:
    """Makes one to three arguments of a call wrong: it succeeds or ends in an error of ours.

    In one case of ten an argument is left out, or there is one that the function does not know.
    """
    torch.manual_seed(rng.getrandbits(32))
    call = rng.choice(_calls())
    arguments = dict(call.arguments)
    for name in rng.sample(sorted(arguments), min(len(arguments), rng.choice((1, 1, 1, 2, 3)))):
        arguments[name] = _wrong(rng, arguments[name])
    misnamed = rng.random() < 0.1
    if misnamed:
        if rng.random() < 0.5:
            arguments.pop(rng.choice(sorted(arguments)))
        else:
            arguments[rng.choice(("foo", "retrun_lse", "Q", "o_", "", "a" * 500))] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call.function(**arguments)
        except _OWN as error:
            message, outcome = str(error), type(error).__name__
        except TypeError as error:
            message, outcome = str(error), "TypeError"
            if not misnamed or not _NAMES_THE_CALL.fullmatch(message):
                raise
        else:
            message, outcome = "", "succeeded"
    assert len(message) < 20_000, "a message of more than 20,000 characters"
    return outcome


@functools.cache
def _calls() -> list[_Call]:
    calls = [
        _Call(runtime.kernels, {"family": None, "target": None, "where": "d_head == 64"}),
        _Call(runtime.kernel, {"key": runtime.kernels()[0].key}),
    ]
    q, k, v = torch.randn(3, 2, 9, 4, 64).unbind()
    attention = {"causal": False, "scale": None, "layout": "bshd", "return_lse": False, "out": None}
    calls += 2 * [_Call(runtime.attention, {"q": q, "k": k, "v": v, **attention})]
    bhsd = {name: t.transpose(1, 2) for name, t in (("q", q), ("k", k), ("v", v))}
    calls.append(_Call(runtime.attention, {**bhsd, **attention, "layout": "bhsd"}))
    flash = _available("flash_forward", "dtype == f32 and d_head == 64 and not causal")
    forward = {"kernel": flash.key, "q": q, "k": k, "v": v, "o": None, "scale": 1.0}
    calls += [_Call(f, dict(forward)) for f in (runtime.forward, runtime.forward_timed)]
    kernel = runtime.kernel(flash.key)
    own = {"q": q, "k": k, "v": v, "scale": None, "return_lse": True, "out": None}
    calls += [_Call(kernel, own), _Call(kernel.timed, dict(own))]
    calls += _hstu_calls()
    return calls


def _available(family: str, where: str | None = None) -> runtime.KernelInfo:
    return next(info for info in runtime.kernels(family, "cpu", where) if info.available)


def _hstu_calls() -> list[_Call]:
    fixed = _available("block_sparse", "mode == fixed")
    p = fixed.parameters
    A, L, T = p["attention_dim"], p["linear_dim"], 41
    named = {"q": A, "k": A, "v": L, "u": L}
    tensors: dict[str, Any] = {name: torch.randn(2, T, 2, size) for name, size in named.items()}
    tensors["g_cmp"] = torch.rand(2, T, 2)
    options = {"block_count": p["block_count"], "block_size": p["block_size"], "mode": "fixed"}
    chosen = {**options, "target": None, "dot": None, "schedule": None}
    jagged: dict[str, Any] = {name: torch.randn(T, 2 * size) for name, size in named.items()}
    offsets = torch.tensor([0, 30, T])
    whole = {
        "num_heads": 2, "attention_dim": A, "linear_dim": L, **jagged, "x_offsets": offsets,
        "invalid_attn_mask": torch.zeros(40, 40, dtype=torch.bool),
        "gate_model": oracle("hstu_bsa", "GateMLP")(A).requires_grad_(False),
        **chosen,
    }  # fmt: skip
    rows = {name: t.view(T, 2, -1) for name, t in jagged.items()}
    raw = {**rows, "g_cmp": torch.rand(T, 2), "x_offsets": offsets, "max_length": 30, "out": None}
    fixed_jagged = _available("hstu_bsa", "mode == fixed")

    return [
        _Call(runtime.block_sparse_attention, {**tensors, **chosen}),
        _Call(runtime.kernel(fixed.key), {**tensors, "out": None}),
        _Call(runtime.hstu_attention_with_bsa, whole),
        _Call(runtime.kernel(fixed_jagged.key), raw),
    ]


def _wrong(rng: random.Random, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and rng.random() < 0.7:
        return _changed(rng, value)
    return rng.choice(_VALUES)(rng)


def _changed(rng: random.Random, tensor: torch.Tensor) -> Any:
    try:
        return rng.choice(_TENSORS)(tensor)
    except Exception:  # not every tensor can be made wrong in every way
        return None


class _Subclass(torch.Tensor):
    pass


class _Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # its defaults are for PyTorch
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return NotImplemented


class _Failing:
    """An object that refuses whatever it is asked."""

    def _refuse(self, *arguments: Any) -> Any:
        raise ValueError("refused")

    __bool__ = __len__ = __iter__ = __eq__ = __hash__ = _refuse
    __float__ = __int__ = __index__ = __str__ = __repr__ = _refuse


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode() as mode:
        return mode.from_tensor(tensor)


def _misaligned(tensor: torch.Tensor) -> torch.Tensor:
    memory = bytearray(tensor.numel() * tensor.element_size() + 1)
    return torch.frombuffer(memory, dtype=tensor.dtype, offset=1).view(tensor.shape)


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone()
    copy.untyped_storage().resize_(0)
    return copy


def _permuted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(*reversed(range(tensor.dim())))


_TENSORS: list[Callable[[torch.Tensor], Any]] = [
    *(
        functools.partial(torch.Tensor.to, dtype=dtype)
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.int8,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.complex128,
            torch.float8_e5m2,
        )
    ),
    lambda t: t.to("meta"),
    lambda t: t.to_sparse(),
    lambda t: t.reshape(t.shape[0], -1).to_sparse_csr(),
    lambda t: torch.nested.nested_tensor([t, t]),
    lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    lambda t: torch.nested.nested_tensor(list(t.unbind())) if t.dim() > 1 else t,
    lambda t: t.float().to_mkldnn() if torch.backends.mkldnn.is_available() else t,  # type: ignore[no-untyped-call]
    _fake,
    lambda t: t.as_subclass(_Subclass),
    lambda t: torch.Tensor._make_wrapper_subclass(_Dispatching, t.shape, dtype=t.dtype),
    lambda t: torch.nn.Parameter(t.float()),
    lambda t: t.float().requires_grad_(),
    lambda t: torch.complex(t.float(), t.float()).conj().imag,
    lambda t: t.to(torch.complex64).conj(),
    lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    lambda t: t[:0],
    lambda t: t[..., :0],
    lambda t: t[..., :-1],
    lambda t: t[1:],
    lambda t: t[:, :1] if t.dim() > 1 else t[:1],
    lambda t: t[0],
    lambda t: t[None],
    lambda t: t[(None,) * 9],
    lambda t: t.sum(),
    lambda t: t.flatten(),
    lambda t: t.new_zeros(1).expand(t.shape),
    lambda t: t[:1].expand(t.shape),
    lambda t: -t if t.dtype == torch.int64 else t.new_zeros(1).expand(3, *t.shape[1:]),
    lambda t: t.flip(0),
    lambda t: t * 1000,
    lambda t: t - 7,
    _permuted,
    _misaligned,
    _freed,
    lambda t: t.numpy(),
    lambda t: t.tolist(),
    lambda t: [t, t],
    lambda t: (t,),
    lambda t: torch.empty(0),
    lambda t: torch.empty(0, 0, 0, 0),
    lambda t: t.clone(),
    lambda t: t.as_strided(t.shape, (1,) * t.dim()),
]

_VALUES: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice((
        None, True, False, 0, 1, -1, 2, 7, 64, 2**31, -(2**31), 2**63, -(2**63), 2**64, 10**5000,
        0.0, -0.0, 0.5, 1.5, 1e300, float("nan"), float("inf"), -float("inf"), 1j, Fraction(1, 2),
        "", "x", "cpu", "cuda", "sm80", "sm90a", "fixed", "literal", "ieee", "tiles", "blocks",
        "bf16", "flash_forward", "d_head == 64", "d_head ==", "9**9**9 > 1", "[0] * 10**9 == 3",
        "1 // 0 == 1", "a" * 10_000, "\0", "\ud800", "(FP16, 128", b"cpu", bytearray(b"x"),
        "flash_forward.cpu.", "flash_forward.cpu.f32-d64-r64-c128-w9", "flash_forward", "..", "é",
        (), [], {}, set(), frozenset(), range(3), slice(None), object(), ...,
        NotImplemented, ValueError("x"), torch, torch.float32, torch.float64, torch.strided,
        torch.device("cpu"), torch.device("meta"), torch.device("cuda:99"), torch.Size([2, 3]),
        torch.Generator(), _Failing(),
    )),
    lambda rng: rng.choice((
        np.zeros(()), np.zeros(3), np.zeros((2, 9, 4, 64)), np.float32(2), np.float64("nan"),
        np.int64(3), np.bool_(True), np.str_("cpu"), np.array("cpu"), np.array(["cpu"]),
        np.array([None]), np.zeros((2, 9, 4, 64), dtype=np.float32), np.datetime64("2020-01-01"),
    )),
    lambda rng: rng.choice((
        torch.zeros(()), torch.tensor(1), torch.tensor(True), torch.tensor([1, 2]), torch.zeros(0),
        torch.zeros(2, 9, 4, 64), torch.zeros(2, 4, 9, 64), torch.zeros(1, 1, 1, 1),
    )),
    lambda rng: [_changed(rng, torch.randn(2, 9, 4, 64)) for _ in range(rng.randrange(4))],
    lambda rng: tuple(torch.randn(2, 9, 4, 64) for _ in range(rng.randrange(4))),
    lambda rng: {
        rng.choice(("d_head", "dtype", "family", "target", "nothing", 3, None)): rng.choice(
            (64, "cpu", None, torch.float32, np.int64(64), [], torch.zeros(2), 2.5, _Failing())
        )
        for _ in range(rng.randrange(4))
    },
    lambda rng: lambda *arguments, **options: rng.choice((None, 3, arguments, torch.zeros(3))),
]  # fmt: skip
