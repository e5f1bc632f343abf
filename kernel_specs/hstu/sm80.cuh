// Block-sparse attention for HSTU on tensor cores: the launches of both schedules.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda_launch.cuh"
#include "hstu/problem.h"
#include "hstu/sm80_by_blocks.cuh"
#include "hstu/sm80_by_tiles.cuh"
#include "integers.h"
#include "launch.h"
#include "mutex.h"

namespace kernelmint::hstu {

// Kernels one after another on the caller's stream, up to the first that fails. All but the first
// may start before the one ahead has ended, and wait for it themselves.
template <class Problem>
class Launches {
 public:
  Launches(const Problem& problem, const LaunchContext& context, bool can_wait)
      : problem_(problem),
        stream_(static_cast<cudaStream_t>(context.stream)),
        can_wait_(can_wait) {}

  template <class... Parameters, class... Extra>
  void run(void (*kernel)(const Problem, Parameters...), Extents grid, std::int64_t threads,
           int shared_memory, Extra... extra) {
    if (result_.error != nullptr) return;
    if (grid.x > INT32_MAX || grid.y > 65535) {
      result_ = {"the launch grid exceeds CUDA's limits (2^31-1, 65535): split the batch"};
      return;
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
    config.blockDim = static_cast<unsigned>(threads);
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_memory);
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = can_wait_ && !first_ ? 1 : 0;
    first_ = false;
    check(cudaLaunchKernelEx(&config, kernel, problem_, static_cast<Parameters>(extra)...));
  }

  void check(cudaError_t status) {
    if (result_.error == nullptr && status != cudaSuccess) result_ = {cudaGetErrorString(status)};
  }

  LaunchResult result() const { return result_; }

 private:
  const Problem& problem_;
  cudaStream_t stream_;
  bool can_wait_, first_ = true;
  LaunchResult result_;
};

template <class Config, class Shape>
void launch_by_blocks(Launches<BlocksProblem<Shape>>& launches, const Problem& problem,
                      std::int64_t blocks) {
  const std::int64_t heads = problem.sequences * problem.heads;
  const std::int64_t tiles = ceil_div(problem.max_length, Shape::tile);
  const int tokens = combined_tokens(problem.heads);
  launches.run(score_blocks<Config, Shape>, {tiles * heads}, Shape::threads, 0, tiles);
  launches.run(sort_lists<Config, Shape>, {heads}, kSortThreads, 0);
  launches.run(attend_blocks<Config, Shape>, {blocks * heads}, Shape::threads, 0, blocks);
  launches.run(combine_branches<Config, Shape>,
               {problem.sequences * ceil_div(problem.max_length, tokens)},
               (8 * tokens * problem.heads + 31) / 32 * 32, 0, tokens);
}

template <class Config, class Shape>
void launch_by_tiles(Launches<TilesProblem<Shape>>& launches, const Problem& problem) {
  const std::int64_t tiles = ceil_div(problem.max_length, Shape::tile);
  launches.run(attend_tiles<Config, Shape>, {problem.sequences * problem.heads, tiles},
               Shape::threads, sizeof(TileMemory<Shape>));
}

// The facts that a device is asked for once.
struct Prepared {
  bool can_wait = false;  // true if the machine code there can wait for the kernel ahead
  cudaError_t status = cudaSuccess;
};

template <class Config, class Shape>
Prepared prepare(int device) {
  enum : std::uint8_t { kUnknown, kPlain, kWaits };
  static Mutex mutex;
  static std::uint8_t known[64] = {};
  const Lock lock(mutex);
  std::uint8_t state = device < 64 ? known[device] : kUnknown;
  if (state != kUnknown) return {state == kWaits};
  // Code made from PTX of an older architecture cannot wait, whatever the device.
  cudaFuncAttributes attributes{};
  cudaError_t status = cudaFuncGetAttributes(&attributes, pool_blocks<Config, Shape>);
  if constexpr (Shape::schedule == Schedule::tiles) {
    if (status == cudaSuccess)
      status = cudaFuncSetAttribute(attend_tiles<Config, Shape>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    sizeof(TileMemory<Shape>));
  }
  state = attributes.ptxVersion >= 90 ? kWaits : kPlain;
  if (status == cudaSuccess && device < 64) known[device] = state;
  return {state == kWaits, status};
}

// All of it, on the caller's stream. `read_arguments` is the family's: problem.h.
template <class Config>
LaunchResult block_sparse_attention(const typename Config::Args& args,
                                    const LaunchContext& context) {
  using Shape = ShapeOf<Config>;
  static_assert(Config::tile == Shape::tile && Config::tile_row_bytes == sizeof(TileRow<Shape>));
  ProblemOf<Shape> problem{};
  const LaunchResult checked = read_arguments(problem, args, /* is_readable: */ false);
  if (checked.error != nullptr) return checked;
  take_workspace<Shape>(problem, args.workspace);
  const std::int64_t blocks = ceil_div(problem.max_length, Shape::block_size);
  const std::int64_t columns = problem.heads * ((Shape::A + Shape::L) / 4);
  const std::int64_t means =
      Shape::dot == Dot::bf16 ? ceil_div<Shape::step>(blocks) * Shape::step : blocks;
  const std::int64_t warps = ceil_div(columns, kPooledColumns<Shape>) * means * problem.sequences;
  constexpr int kMost = Shape::schedule == Schedule::blocks ? kMostBlocks : kMostTileBlocks + 1;
  if (!is_aligned(problem.q) || !is_aligned(problem.k) || !is_aligned(problem.v) ||
      !is_aligned(problem.u) || !is_aligned(problem.o))
    return {
        "rows of q, k, v, u and o must start at multiples of 16 bytes: pass contiguous tensors"};
  if (blocks >= kMost)
    return {Shape::schedule == Schedule::blocks
                ? "a sequence has 4096 blocks or more: they are counted in shared memory"
                : "a sequence has more than 1024 blocks: they are counted in shared memory"};
  DeviceScope scope(context.device);
  if (scope.error != nullptr) return {scope.error};
  const Prepared prepared = prepare<Config, Shape>(context.device);
  if (prepared.status != cudaSuccess) return {cudaGetErrorString(prepared.status)};
  Launches launches(problem, context, prepared.can_wait);
  launches.run(pool_blocks<Config, Shape>, {ceil_div(32 * warps, kPoolThreads)}, kPoolThreads, 0,
               means);
  if constexpr (Shape::schedule == Schedule::blocks)
    launch_by_blocks<Config, Shape>(launches, problem, blocks);
  else
    launch_by_tiles<Config, Shape>(launches, problem);
  return launches.result();
}

}  // namespace kernelmint::hstu

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  return hstu::block_sparse_attention<Config>(*static_cast<const typename Config::Args*>(args),
                                              context);
}

}  // namespace kernelmint
