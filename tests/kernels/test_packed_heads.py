"""How heads that share keys become rows of a tile (flash_forward's sm90a), on the host."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("c++")
# An installed Kernelmint is tested on machines without one, too.
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

# A line for each row of a slab that is used, and for each question, what it answers.
PROBE = """
#include <cstdint>
#include <cstdio>

#include "attention/flash_forward/sm90a_slab.h"

using namespace kernelmint::flash_forward::sm90a;

int main() {
  for (int heads = 1; heads <= PackedRows::kSlabRows; ++heads) {
    const PackedRows rows(heads);
    for (int row = 0; row < PackedRows::kSlabRows; ++row)
      std::printf("%d %d %d %d %d\\n", heads, row, rows.query(row), rows.head(row),
                  row < rows.used());
  }
  long long seq_len_q, group;
  int slabs;
  while (std::scanf("%lld %lld %d", &seq_len_q, &group, &slabs) == 3)
    std::printf("%d\\n", heads_to_pack(seq_len_q, group, slabs));
}
"""
LENGTHS = (1, 2, 5, 8, 16, 17, 63, 64, 65, 100, 128, 129, 200, 500, 4000, 4096, 2**30 - 1)
GROUPS = (1, 2, 3, 4, 6, 7, 8, 12, 16, 60, 64, 67, 96, 128, 2**20)
QUESTIONS = [
    (length, group, slabs) for length in LENGTHS for group in GROUPS for slabs in (1, 2, 3)
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    assert COMPILER is not None
    folder = tmp_path_factory.mktemp("packed_heads")
    (folder / "probe.cpp").write_text(PROBE)
    includes = [f"-I{ROOT / name}" for name in ("runtime/include", "kernel_specs")]
    options = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    command = [COMPILER, *options, *includes, "-o", folder / "probe", folder / "probe.cpp"]
    subprocess.run(command, check=True)
    asked = "\n".join(" ".join(map(str, question)) for question in QUESTIONS)
    done = subprocess.run(
        [folder / "probe"], input=asked, capture_output=True, text=True, check=True, timeout=60
    )
    assert not done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def test_rows_are_queries_by_heads(answers: list[list[int]]) -> None:
    """A slab has as many whole queries as fit, all heads of one after another's."""
    for heads in range(1, 65):
        queries = 64 // heads
        of_heads = answers[64 * (heads - 1) : 64 * heads]
        places = [(query, head) for query in range(queries) for head in range(heads)]
        assert [(query, head) for _, _, query, head, used in of_heads if used] == places
        assert [row for _, row, _, _, used in of_heads if used] == list(range(len(places)))


def tiles(length: int, group: int, slabs: int, heads: int) -> int:
    """Of `slabs` slabs each, where `heads` of the `group` heads of a key head share a slab."""
    return -(-length // (slabs * (64 // heads))) * (group // heads)


def test_heads_are_packed_where_that_makes_fewer_tiles(answers: list[list[int]]) -> None:
    """The least number of heads among those that make the fewest tiles."""
    for question, (packed,) in zip(QUESTIONS, answers[64 * 64 :], strict=True):
        _, group, _ = question
        possible = [heads for heads in range(1, 65) if group % heads == 0]
        assert packed == min(possible, key=lambda heads: tiles(*question, heads)), question


def test_a_decoding_step_of_eight_heads_over_one_is_one_tile(answers: list[list[int]]) -> None:
    packed = dict(zip(QUESTIONS, (answer for (answer,) in answers[64 * 64 :]), strict=True))
    assert packed[1, 8, 2] == 8
    assert packed[4096, 8, 2] == 1  # whole tiles of one head are as few
