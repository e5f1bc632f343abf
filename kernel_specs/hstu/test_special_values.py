"""NaN and infinities among the inputs: they show in the rows that they reach, and in no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import runtime
from kernel_specs.hstu.tools.cases import Case
from kernel_specs.hstu.tools.judge import Oracle
from runtime import packs
from tests import warm_python
from tests.slow import slow_after
from tools.comparison import compare

NAMES = ("q", "k", "v", "u", "g_cmp")
NAN, INF = float("nan"), float("inf")
KEYS = [info.key for info in runtime.kernels("block_sparse", "cpu")]
BUILT_FOR = packs.of("block_sparse").isas
ISAS = [isa for isa in runtime._native.supported_cpu_isas() if isa in BUILT_FOR]
GPU_KEYS = [info.key for info in runtime.kernels("block_sparse", "sm80")]
PLACES = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.sampled_from([NAN, INF, -INF]), st.floats(0, 1, exclude_max=True)
    ),
    min_size=1,
    max_size=5,
)


def inputs(key: str, B: int, T: int, H: int, seed: int) -> list[torch.Tensor]:
    p = runtime.kernel(key).info.parameters
    g = torch.Generator().manual_seed(seed)
    sizes = [p["attention_dim"]] * 2 + [p["linear_dim"]] * 2
    return [
        *(torch.randn(B, T, H, size, generator=g) for size in sizes),
        torch.randn(B, T, H, generator=g),
    ]


def put(tensors: list[torch.Tensor], name: str, value: float, place: float) -> None:
    x = tensors[NAMES.index(name)].view(-1)
    x[int(place * x.numel())] = value


def last_of(tensors: list[torch.Tensor], name: str) -> torch.Tensor:
    """The last element of each row, [B, T, H]."""
    x = tensors[NAMES.index(name)]
    return x if x.dim() == 3 else x[..., -1]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def assert_as_the_oracle(key: str, tensors: list[torch.Tensor]) -> None:
    info = runtime.kernel(key).info
    p = info.parameters
    B, T, H, A = tensors[0].shape
    case = Case(
        "special", B, T, H, A, tensors[2].shape[3],
        block_size=p["block_size"], block_count=p["block_count"],
    )  # fmt: skip
    device = "cpu" if info.target == "cpu" else "cuda"
    o, lists = (x.cpu() for x in runtime.kernel(key)(*(x.to(device) for x in tensors)))
    oracle = Oracle(tuple(tensors), case, p["mode"])
    exact = p.get("dot") != "bf16"  # whose scores are others', and so may be the selection
    selections = oracle.compare_lists(lists, oracle.own.block_indices, "block_indices")
    assert selections.passed or not exact, selections.worst
    expected = oracle.forced(lists)
    assert torch.equal(o.isnan(), expected.isnan())
    there = expected.isfinite()
    found = compare(o.where(there, 0.0), expected.where(there, 0.0), name="o")
    assert found.passed or not exact, str(found.worst)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.sampled_from(KEYS),
    st.integers(1, 120),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2**31),
    PLACES,
)
def test_the_cpu_kernels_have_nan_where_the_oracle_has(
    key: str, T: int, H: int, seed: int, places: list[tuple[str, float, float]]
) -> None:
    tensors = inputs(key, 2, T, H, seed)
    for place in places:
        put(tensors, *place)
    assert_as_the_oracle(key, tensors)


@pytest.mark.parametrize(
    "key", [*KEYS, *(pytest.param(key, marks=pytest.mark.gpu) for key in GPU_KEYS)]
)
@pytest.mark.parametrize("value", [INF, -INF])
def test_an_infinite_gate_is_of_each_branch(key: str, value: float) -> None:
    tensors = inputs(key, 1, 90, 2, 4)
    tensors[NAMES.index("u")][:, 40:] = value
    device = "cuda" if key in GPU_KEYS else "cpu"
    o, _ = runtime.kernel(key)(*(x.to(device) for x in tensors))
    assert o.isnan().any()
    assert o.isinf().any()
    if "bf16" not in key:  # whose roundings may change a branch's sign
        assert_as_the_oracle(key, tensors)


@pytest.mark.parametrize("key", [key for key in KEYS if "literal" not in key])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["q", "k", "v", "g_cmp"])
def test_no_other_row_changes_a_bit(key: str, name: str, value: float) -> None:
    T, token = 150, 100
    healthy = inputs(key, 2, T, 2, 1)
    o, lists = runtime.kernel(key)(*healthy)
    tensors = [x.clone() for x in healthy]
    last_of(tensors, name)[1, token, 1] = value
    o_special, lists_special = runtime.kernel(key)(*tensors)
    reached = o_special[1].isnan().flatten(1).all(1)
    assert reached[token]
    assert not reached[:token].any()
    if name in ("q", "g_cmp"):
        assert not reached[token + 2 :].any()
        if name == "q" and "interleaved" in key:
            reached[token + 1] = True  # it takes the list of the row before
    else:
        assert reached[token:].all()
    assert torch.equal(o_special[0], o[0])
    assert torch.equal(o_special[1][~reached], o[1][~reached])
    assert torch.equal(lists_special[1][:, ~reached], lists[1][:, ~reached])
    assert (lists_special[1, :, token:] >= 0).any(-1).all()


def test_the_own_block_is_listed_whatever_the_scores_are() -> None:
    for key in KEYS:
        if "literal" in key:
            continue
        size = runtime.kernel(key).info.parameters["block_size"]
        tensors = inputs(key, 1, 200, 2, 3)
        tensors[1][0, :, 0] = NAN
        tensors[1][0, ::3, 1] = INF
        _, lists = runtime.kernel(key)(*tensors)
        own = torch.arange(200) // size
        assert torch.equal(lists[0, :, :, 0], own.expand(2, 200))
        assert lists[0, 0, 199].tolist() == [199 // size, 0, 1, 2]


@pytest.mark.parametrize("mode", ["fixed", "interleaved"])
@pytest.mark.parametrize("name", NAMES)
def test_jagged_sequences_have_the_same_special_values(mode: str, name: str) -> None:
    padded = runtime.kernel(f"block_sparse.cpu.a16-l32-bs16-s4-{mode}")
    (jagged,) = runtime.kernels(
        "hstu_bsa", where=f"attention_dim == 16 and mode == '{mode}'", target="cpu"
    )
    lengths = [1, 40, 0, 100, 7]
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    tensors = inputs(padded.info.key, 1, sum(lengths), 2, 5)
    last_of(tensors, name)[0, 81, 1] = NAN  # token 40 of sequence 3
    tensors = [x[0] for x in tensors]
    o, _ = runtime.kernel(jagged.key)(*tensors, offsets)
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if start == stop:
            continue
        alone, _ = padded(*(x[None, start:stop] for x in tensors))
        assert same_bits(o[start:stop], alone[0])
        assert alone.isnan().any() == (start == 41)


@pytest.mark.parametrize("isa", slow_after(0, ISAS[:-1]))  # this process runs the last
def test_on_the_other_instruction_sets(isa: str) -> None:
    """The tests of the CPU again, in a process that is held to one instruction set."""
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    tests = "cpu_kernels_have_nan_where or changes_a_bit or jagged"
    result = warm_python.run(
        program, "-qx", "-p", "no:cacheprovider", __file__, "-k", tests,
        folder=Path(__file__).parent, environment={**os.environ, "KERNELMINT_CPU_ISA": isa},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("key", GPU_KEYS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["q", "k", "g_cmp"])
def test_the_gpu_kernels_have_nan_where_the_oracle_has(key: str, name: str, value: float) -> None:
    for T, places in ((1, [0.0]), (100, [0.3, 0.8]), (700, [0.01, 0.55, 0.56, 0.99])):
        tensors = inputs(key, 2, T, 4, T)
        for place in places:
            put(tensors, name, value, place)
        put(tensors, "u", NAN, 0.5)
        assert_as_the_oracle(key, tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("key", [key for key in GPU_KEYS if "fixed" in key])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_no_other_row_changes_a_bit_on_the_gpu(key: str, name: str, value: float) -> None:
    kernel = runtime.kernel(key)
    size = kernel.info.parameters["block_size"]
    T, token = 20 * size, 17 * size + 3
    healthy = [x.cuda() for x in inputs(key, 2, T, 2, 1)]
    o, _ = kernel(*healthy)
    tensors = [x.clone() for x in healthy]
    last_of(tensors, name)[1, token, 1] = value
    o_special, _ = kernel(*tensors)
    # A product takes a step of blocks, or keys, at once: 0 times a value that is not finite is NaN
    # there, so a value may reach up to 16 blocks back.
    reached = o_special[1].isnan().flatten(1).all(1)
    assert reached[token]
    assert not reached[: 16 * size if name == "v" else token].any()
    assert reached[token + 1 :].all() if name != "q" else not reached[token + 1 :].any()
    assert torch.equal(o_special[0], o[0])
    assert torch.equal(o_special[1][~reached], o[1][~reached])
