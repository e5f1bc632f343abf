// Where RegisterTile says a lane's values lie, compared with where mma.sync puts them, and takes
// them from. Compiling checks that the lanes' parts make up the tile; run, on a GPU, it prints
// "right".
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

#include "dtypes.h"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "register_tile.cuh"

namespace {

using kernelmint::fp16;
using kernelmint::unroll;
constexpr int kRows = 32, kColumns = 32;  // 64 row + column is exact in fp16
using Tile = kernelmint::RegisterTile<kRows, kColumns>;

// Every element of the tile is some lane's, and no two lanes'.
constexpr bool lanes_make_up_the_tile() {
  int owners[kRows][kColumns] = {};
  for (int lane = 0; lane < 32; ++lane)
    for (int row = 0; row < Tile::kLaneRows; ++row)
      for (int column = 0; column < Tile::kLaneColumns; ++column)
        ++owners[Tile::first_row(lane) + Tile::row_of(row)]
                [Tile::first_column(lane) + Tile::column_of(column)];
  for (const auto& row : owners)
    for (const int count : row)
      if (count != 1) return false;
  return true;
}
static_assert(lanes_make_up_the_tile());

// Of the operands (PTX ISA, "Matrix Fragments for mma.m16n8k16"): a lane's pair of row `row` of A,
// from column `column` on; and its pair of column `column` of B, from row `row` on.
template <class Element>
__device__ std::uint32_t pair_of(const Element& element, int row, int column, bool along_rows) {
  return kernelmint::ptx::pack<fp16>(
      element(row, column), element(row + (along_rows ? 0 : 1), column + (along_rows ? 1 : 0)));
}

template <class A>
__device__ void load_left(std::uint32_t (&fragment)[4], int lane, const A& a) {
  for (int i = 0; i < 4; ++i)
    fragment[i] = pair_of(a, lane / 4 + i % 2 * 8, lane % 4 * 2 + i / 2 * 8, true);
}

template <class B>
__device__ void multiply(float (&sum)[4], const std::uint32_t (&left)[4], int lane, const B& b) {
  kernelmint::ptx::mma_m16n8k16<fp16>(sum, left, pair_of(b, lane % 4 * 2, lane / 4, false),
                                      pair_of(b, lane % 4 * 2 + 8, lane / 4, false));
}

__device__ bool holds_its_positions(const Tile& tile, int lane) {
  bool right = true;
  for (int row = 0; row < Tile::kLaneRows; ++row)
    for (int column = 0; column < Tile::kLaneColumns; ++column)
      right &= tile(row, column) == 64 * (Tile::first_row(lane) + Tile::row_of(row)) +
                                        Tile::first_column(lane) + Tile::column_of(column);
  return right;
}

__global__ void probe(bool* right) {
  const int lane = threadIdx.x;
  Tile product;
  product.zero();
  for (int row_tile = 0; row_tile < Tile::kRowTiles; ++row_tile)
    for (int group = 0; group < Tile::kColumnGroups; ++group) {
      std::uint32_t left[4];
      load_left(left, lane, [&](int row, int k) {
        return k == 0 ? 16.f * row_tile + row : k == 1 ? 1.f : 0.f;
      });
      multiply(product.accumulator(row_tile, group), left, lane, [&](int k, int column) {
        return k == 0 ? 64.f : k == 1 ? 8.f * group + column : 0.f;
      });
    }
  right[lane] = holds_its_positions(product, lane);

  Tile copy;  // product times the identity, 16 columns at a time
  copy.zero();
  for (int row_tile = 0; row_tile < Tile::kRowTiles; ++row_tile)
    for (int group = 0; group < Tile::kColumnGroups; ++group) {
      std::uint32_t left[4];
      product.pack_operand<fp16>(row_tile, group / 2, left);
      multiply(copy.accumulator(row_tile, group), left, lane,
               [&](int k, int column) { return k == group % 2 * 8 + column ? 1.f : 0.f; });
    }
  right[32 + lane] = holds_its_positions(copy, lane);

  int visited = 0;
  float sum = 0;
  copy.for_each([&](float& value) { ++visited, sum += value; });
  unroll<Tile::kLaneRows>(
      [&](int row) { copy.for_each(row, [&](float& value) { ++visited, sum -= value; }); });
  right[64 + lane] = visited == 2 * Tile::kLaneRows * Tile::kLaneColumns && sum == 0;

  Tile whole;  // wgmma's accumulator holds mma.sync's, one behind another
  for (int row_tile = 0; row_tile < Tile::kRowTiles; ++row_tile)
    for (int i = 0; i < kColumns / 2; ++i)
      whole.accumulator(row_tile)[i] = copy.accumulator(row_tile, i / 4)[i % 4];
  right[96 + lane] = holds_its_positions(whole, lane);
}

}  // namespace

int main() {
  bool* device = nullptr;
  bool right[128] = {};
  cudaMalloc(&device, sizeof right);
  probe<<<1, 32>>>(device);
  const cudaError_t status = cudaMemcpy(right, device, sizeof right, cudaMemcpyDeviceToHost);
  if (status != cudaSuccess) {
    std::puts(cudaGetErrorString(status));
    return 1;
  }
  const char* const claims[] = {"results of mma.sync", "operands of mma.sync", "for_each",
                                "accumulators of wgmma"};
  int wrong = 0;
  for (int claim = 0; claim < 4; ++claim)
    for (int lane = 0; lane < 32; ++lane)
      if (!right[32 * claim + lane]) {
        std::printf("wrong: %s, lane %d\n", claims[claim], lane);
        ++wrong;
      }
  if (wrong == 0) std::puts("right");
  return wrong != 0;
}
