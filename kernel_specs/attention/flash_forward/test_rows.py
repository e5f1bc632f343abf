"""The rows that were tuned: each decides the calls that it covers, on the device it is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import runtime
from runtime import choice, devices, manifest, packs
from runtime.operators import DTYPES

ROWS = {t.name: t.tuned for t in manifest.family("flash_forward").targets if t.tuned}


@pytest.fixture
def call_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Gives the CPU, for which rows are then looked up, another device's name."""
    packs.changed()

    def call(name: str) -> None:
        monkeypatch.setattr(devices, "name", lambda device: name)
        packs.changed()

    yield call
    packs.changed()


def sizes_of(row: Any, end: str) -> dict[str, int]:
    """Sizes at one end of the row's ranges, of one sequence."""
    ends = {found.symbols: int(getattr(found, end)) for found in row.ranges}
    heads = ends["B", "H"]
    return {
        "B": 1, "Sq": ends["Sq",], "Sk": ends["Sk",], "H": heads,
        "Hk": ends.get(("B", "Hk"), heads), "D": row.parameters["d_head"],
    }  # fmt: skip


def test_there_are_rows() -> None:
    assert set(ROWS) == {"cpu", "sm80", "sm90a"}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_covers_the_calls_that_it_stands_for(
    name: str, call_it: Callable[[str], None]
) -> None:
    for number, row in enumerate(ROWS[name], start=1):
        call_it(row.device)
        for end in ("least", "most"):
            sizes = sizes_of(row, end)
            found = choice.explain("flash_forward", torch.device("cpu"), row.parameters, sizes)
            covering = [
                entry.what
                for entry in found.considered
                if entry.what.startswith(f"{name}.") and entry.verdict == "covers the call"
            ]
            assert covering == [f"{name}.tuned.yaml, row {number}: {row.take}"]
            if name == "cpu":
                assert found.key == row.take


@pytest.mark.parametrize("name", ROWS)
def test_the_kernel_of_a_row_is_in_the_pack(name: str) -> None:
    built = {info.key for info in runtime.kernels("flash_forward", name)}
    assert {row.take for row in ROWS[name]} <= built


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_attention_takes_the_row_of_this_gpu() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    rows = [row for row in ROWS.get("sm90a", ()) if row.device == devices.name(device)]
    if not rows:  # they were measured on other GPUs, and hold for those alone
        pytest.skip(f"there are no rows of {devices.name(device)}")
    for row in rows:
        sizes, dtype = sizes_of(row, "least"), DTYPES[row.parameters["dtype"]]
        q, k, v = (
            torch.randn(1, sizes[length], sizes[heads], sizes["D"], device=device).to(dtype)
            for length, heads in (("Sq", "H"), ("Sk", "Hk"), ("Sk", "Hk"))
        )
        causal = row.parameters["causal"]
        assert runtime.explain_choice(q, k, v, causal=causal).key == row.take
        o = runtime.attention(q, k, v, causal=causal)
        assert torch.equal(o, runtime.kernel(row.take)(q, k, v))
