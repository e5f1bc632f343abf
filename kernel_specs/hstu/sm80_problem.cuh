// The arguments of each schedule's kernels: the problem, and the target's workspace as it is used,
// whose shapes are in sm80.yaml.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "hstu/problem.h"
#include "hstu/sm80_products.cuh"

namespace kernelmint::hstu {

enum class Schedule { blocks, tiles };

// The properties of a configuration that the kernels need, so that two families can share the
// kernels. In all kernels Config is the type that names them.
template <int kA, int kL, int kBlockSize, int kBlockCount, Mode kMode, Dot kDotPrecision,
          Schedule kSchedule, int kWarps>
struct Shape {
  static constexpr int A = kA;
  static constexpr int L = kL;
  static constexpr int block_size = kBlockSize;
  static constexpr int block_count = kBlockCount;
  static constexpr Semantics semantics = hstu::semantics(kMode);
  static constexpr Dot dot = kDotPrecision;
  static constexpr Schedule schedule = kSchedule;
  static constexpr int warps = kWarps;
  static constexpr int threads = 32 * kWarps;
  static constexpr int tile = 16 * kWarps;  // queries of a thread block
  static constexpr int step = 16;           // blocks that a product takes at once
  // True if blocks are also laid out as right operands, ready to multiply with.
  static constexpr bool packs = kSchedule == Schedule::tiles && kDotPrecision == Dot::bf16;
  // The type of the means, of a block's contribution to a query, and of the compressed branch: as
  // exact as the products that they go into or come from.
  using Partial = std::conditional_t<kDotPrecision == Dot::bf16, bf16, float>;
};

template <class Config>
using ShapeOf =
    Shape<Config::attention_dim, Config::linear_dim, Config::block_size, Config::block_count,
          mode_of<Config>(), Config::dot == Config::dot_type::bf16 ? Dot::bf16 : Dot::tf32x3,
          Config::schedule == Config::schedule_type::tiles ? Schedule::tiles : Schedule::blocks,
          Config::n_warps>;

// {mean, squared deviations} of the compressed branch of one head's row, then of the selected one.
using Moments = float4;

// For each sequence and head: mean keys and values of its blocks; bf16 has them packed
// (PackedRows).
template <class Shape>
struct MeansProblem : Problem {
  typename Shape::Partial *k_means, *v_means;
};

template <class Shape>
struct BlocksProblem : MeansProblem<Shape> {
  typename Shape::Partial* compressed;     // [rows, heads, L]: that branch before LayerNorm
  typename Shape::Partial* contributions;  // [rows, heads, S, L]: of each listed block
  std::int32_t* entry_starts;  // for each sequence and head [blocks + 1]: where a block's begin
  std::int32_t* entries;       // for each sequence and head [length * S]: t * S + s, by block
};

// A query's branches before LayerNorm.
template <class Shape>
struct TileRow {
  typename Shape::Partial compressed[Shape::L];
  typename Shape::Partial own_block[Shape::L];  // the contribution of the query's own block
  float selected[Shape::L];                     // all its blocks, if a head did not wait
};

template <class Shape>
struct TilesProblem : MeansProblem<Shape> {
  TileRow<Shape>* rows;     // [rows, heads]
  Moments* moments;         // [rows, heads]
  std::uint32_t* arrivals;  // one for each tile of each sequence
  uint4* packed_blocks;     // [blocks, heads, kPackedBlock<Shape>], if Shape::packs

  // How many: tile number i of sequence b, which begins at row r of all, has r / tile + b + i.
  __device__ std::int64_t num_arrivals() const {
    const std::int64_t rows_of_all = this->offsets == nullptr ? this->sequences * this->max_length
                                                              : this->offsets[this->sequences];
    return rows_of_all / Shape::tile + this->sequences;
  }
};

template <class Shape>
using ProblemOf = std::conditional_t<Shape::schedule == Schedule::blocks, BlocksProblem<Shape>,
                                     TilesProblem<Shape>>;

// The parts of the workspace that this schedule and precision use.
template <class Shape, class Workspace>
void take_workspace(ProblemOf<Shape>& problem, const Workspace& workspace) {
  using Partial = typename Shape::Partial;
  if constexpr (Shape::dot == Dot::bf16) {
    problem.k_means = workspace.packed_k_means;
    problem.v_means = workspace.packed_v_means;
  } else {
    problem.k_means = workspace.k_means;
    problem.v_means = workspace.v_means;
  }
  if constexpr (Shape::schedule == Schedule::blocks) {
    problem.compressed = reinterpret_cast<Partial*>(workspace.compressed);
    problem.contributions = reinterpret_cast<Partial*>(workspace.contributions);
    problem.entry_starts = workspace.entry_starts;
    problem.entries = workspace.entries;
  } else {
    problem.rows = reinterpret_cast<TileRow<Shape>*>(workspace.tile_rows);
    problem.moments = reinterpret_cast<Moments*>(workspace.moments);
    problem.arrivals = reinterpret_cast<std::uint32_t*>(workspace.arrivals);
    problem.packed_blocks = reinterpret_cast<uint4*>(workspace.packed_blocks);
  }
}

}  // namespace kernelmint::hstu
