"""One chooser for all fronts: what is wanted, the rows of choices.yaml, the manifest's order."""

import pytest
import torch

import runtime
from codegen.spec.expressions import INT, parse
from runtime import choice, packs

CPU = torch.device("cpu")
F32 = {"dtype": "f32", "d_head": 64, "causal": False}


@pytest.fixture
def rows(monkeypatch):
    """Replaces flash_forward's rows; `rows(("Sq <= 64", {…}), …)`."""

    def use(*found):
        parsed = tuple((parse(when, {"Sq": INT}, "bool"), take) for when, take in found)
        monkeypatch.setattr(choice, "_rows", lambda family: parsed)

    monkeypatch.setattr(choice, "_chosen", {})
    return use


def tiles(**parameters):
    found = runtime.kernels("flash_forward", "cpu", lambda info: not info.parameters["trace"])
    suiting = [i for i in found if parameters.items() <= i.parameters.items()]
    return list(dict.fromkeys(info.parameters["B_r"] for info in suiting))


def test_without_rows_the_first_of_the_manifests_order_is_taken():
    first = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and not causal")
    assert choice.choose("flash_forward", CPU, F32).info == first[0]
    assert choice.choose("flash_forward", CPU, F32) is choice.choose("flash_forward", CPU, F32)


def test_the_first_row_that_holds_and_that_a_kernel_fits_decides(rows):
    small, large = sorted(tiles(**F32))[:2]
    rows(("Sq <= 10", {"B_r": 7}), ("Sq <= 64", {"B_r": small}), ("True", {"B_r": large}))
    for length, expected in ((9, small), (64, small), (65, large)):
        chosen = choice.choose("flash_forward", CPU, F32, {"Sq": length})
        assert chosen.info.parameters["B_r"] == expected


def test_what_is_wanted_comes_before_what_a_row_takes(rows):
    small, large = sorted(tiles(**F32))[:2]
    rows(("Sq <= 64", {"B_r": small, "no_such_parameter": 3}))
    chosen = choice.choose("flash_forward", CPU, {**F32, "B_r": large}, {"Sq": 9})
    assert chosen.info.parameters["B_r"] == large
    left_open = choice.choose("flash_forward", CPU, {**F32, "B_r": None}, {"Sq": 9})
    assert left_open.info.parameters["B_r"] == small


def test_where_nothing_suits_each_candidate_says_why(rows):
    rows(("Sq <= 64", {"B_r": 7}))
    with pytest.raises(runtime.KernelNotFound) as caught:
        choice.choose("flash_forward", CPU, {**F32, "n_warps": 4}, {"Sq": 9})
    message = str(caught.value)
    assert message.startswith("no flash_forward kernel for dtype f32, d_head 64, causal False, ")
    assert "it has no parameter n_warps, B_r is 64, not 7" in message
    assert "runs on a CUDA device" in message
    assert "of pack kernelmint, add a configuration to kernel_specs/flash_forward; then" in message
    with pytest.raises(runtime.KernelNotFound, match="its target is cpu, not sm80"):
        choice.choose("flash_forward", CPU, F32, {"Sq": 9}, target="sm80")


def test_fronts_are_found_through_the_packs():
    found = {front.function: front.module for _, front in packs.fronts()}
    assert found == {
        "attention": "kernel_specs.flash_forward.front",
        "block_sparse_attention": "kernel_specs.hstu.block_sparse.front",
        "hstu_attention_with_bsa": "kernel_specs.hstu.hstu_bsa.front",
    }
    assert set(found) <= set(runtime.__all__) & set(dir(runtime))
    with pytest.raises(AttributeError, match="module 'runtime' has no attribute 'no_such'"):
        _ = runtime.no_such


@pytest.mark.gpu
def test_few_blocks_are_taken_by_tiles_and_many_by_blocks():
    info = runtime.kernels("block_sparse", "sm80", "schedule == tiles")[0].parameters
    names = ("attention_dim", "linear_dim", "block_size", "block_count", "mode", "dot")
    wanted = {name: info[name] for name in names}
    device = torch.device("cuda", 0)
    for length, heads, schedule in ((2048, 24, "tiles"), (2049, 24, "blocks"), (64, 25, "blocks")):
        facts = {"T": length, "H": heads}
        chosen = choice.choose("block_sparse", device, wanted, facts)
        assert chosen.info.parameters["schedule"] == schedule
