"""The benchmark's floors: operations and bytes, counted by hand for a small problem."""

from __future__ import annotations

from kernel_specs.hstu.tools.bench import RATES, Shape


def test_operations_are_those_of_what_each_row_sees() -> None:
    shape = Shape(B=2, T=10, H=3, A=4, L=6, block_size=4, block_count=2)
    blocks = keys = 0
    for t in range(10):
        blocks += sum(c * 4 + 3 <= t for c in range(3))
        own = t % 4 + 1
        keys += own + (4 if t >= 4 else 0)  # its own block up to itself, and one before
    assert shape.sparse_flops() == 2 * 2 * 3 * (blocks + keys) * (4 + 6)
    assert shape.dense_flops() == 2 * 2 * 3 * sum(range(1, 11)) * (4 + 6)


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    shape = Shape(B=2, T=10, H=3, A=4, L=6, block_count=2)
    rows = 2 * 10 * 3
    assert shape.sparse_bytes() == 4 * rows * (4 + 4 + 6 + 6 + 1 + 6) + 8 * rows * 2
    assert shape.dense_bytes(2) == 2 * rows * (4 + 4 + 6 + 6)


def test_the_floor_is_the_longer_of_moving_and_computing() -> None:
    shape = Shape(B=2, T=10, H=3, A=4, L=6, block_size=4, block_count=2)
    for bandwidth, bound in ((1e3, "bytes"), (1e18, "FLOP")):
        floors = shape.floors(bandwidth)
        assert {by for _, by in floors.values()} == {bound}
    assert floors["sparse, bf16"][0] == 1e3 * shape.sparse_flops() / RATES["bf16"]
