"""The speed at which codegen lists and emits: a synthetic target of 50,000 configurations, ten
constraints.

    python -m tools.bench_codegen [--repeat N]

Prints configurations listed per second (YAML to keys) and instantiations emitted per second
(configurations to the text of all files), each on one core, the best of N runs.
"""

from __future__ import annotations

import argparse
import tempfile
import timeit
from pathlib import Path

from codegen.core.manifest import Selection
from codegen.emit.manifest import Inputs
from codegen.emit.tree import emit
from codegen.space.expand import expand
from codegen.spec.load import load

FAMILY = """
family: synthetic
summary: A family to measure codegen with.
arguments:
  x: {tensor: [M, N], dtype: dtype}
  y: {output: [M, N], dtype: dtype}
parameters:
  dtype: {type: dtype, values: [bf16, fp16, f32]}
  causal: {type: bool}
"""

# 2 * 2 * 5^3 * 4 * 5^2 = 50,000 combinations meet the constraints; twice as many do not.
TARGET = """
target: sm80
kernel: kernel.cuh:kernel
parameters:
  tile_m: {type: int, token: m}
  tile_n: {type: int, token: n}
  tile_k: {type: int, token: k}
  warps: {type: int, token: w}
  stages: {type: int, token: s}
  unroll: {type: int, token: u}
  swizzled: {type: bool, token: swz}
  double_buffered: {type: bool, token: buf}
  mode: {type: enum, values: [plain, split, persistent]}
constraints:
  - {that: "dtype in [bf16, fp16]", because: the matrix units take 16-bit numbers}
  - {that: tile_m % 16 == 0, because: a tile is made of 16 rows}
  - {that: tile_n % 8 == 0, because: a tile is made of 8 columns}
  - {that: tile_k % 16 == 0, because: a step reduces over 16}
  - {that: is_pow2(warps), because: warps halve the tile}
  - {that: warps <= 8, because: registers}
  - {that: threads <= 256, because: occupancy}
  - {that: smem_bytes <= 232448, because: shared memory}
  - {that: stages >= 2 or not double_buffered, because: two buffers need two stages}
  - {that: mode != persistent, because: the scheduler is not written}
derived:
  threads: 32 * warps
  smem_bytes: 2 * stages * tile_k * (tile_m + tile_n)
launch: {grid: ["ceil_div(M, tile_m)"], block: threads, shared_memory: smem_bytes}
sets:
  default:
    product:
      dtype: [bf16, fp16, f32]
      causal: [false, true]
      tile_m: [16, 32, 48, 64, 80]
      tile_n: [8, 16, 24, 32, 40]
      tile_k: [16, 32, 48, 64, 80]
      warps: [1, 2, 4, 8]
      stages: [2, 3, 4, 5, 6]
      unroll: [1, 2, 3, 4, 5]
      swizzled: [true]
      double_buffered: [true]
      mode: [plain, persistent]
"""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs; the best counts (default: 3)")
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        specs = Path(folder)
        (specs / "synthetic").mkdir()
        (specs / "synthetic/family.yaml").write_text(FAMILY)
        (specs / "synthetic/sm80.yaml").write_text(TARGET)
        (specs / "synthetic/kernel.cuh").write_text("")
        spaces = expand(load([specs]), Selection())
        count = len(spaces[0].targets[0].configurations)
        inputs = Inputs(Selection(), ("specs",), ("specs",), ())
        listed, emitted = (
            min(timeit.repeat(run, number=1, repeat=repeat))
            for run in (lambda: expand(load([specs]), Selection()), lambda: emit(spaces, inputs))
        )
        files = emit(spaces, inputs)
    size = sum(map(len, files.values())) / 1e6
    print(f"{count} configurations in {len(files)} files, {size:.0f} MB of text")
    print(f"listed:  {count / listed:9,.0f} configurations/s ({listed:.2f} s)")
    print(f"emitted: {count / emitted:9,.0f} instantiations/s ({emitted:.2f} s)")


if __name__ == "__main__":
    main()
