// All blocks of a round see the sums of all: the grid waits for itself once a round.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

namespace kernelmint::grid_sums {

template <class Config>
__global__ void __launch_bounds__(Config::threads) grid_sums(const typename Config::Args args) {
  const auto grid = cooperative_groups::this_grid();
  const auto* x = args.x.template at<const unsigned>(0);
  auto* y = args.y.template at<unsigned>(0);
  auto* sums = reinterpret_cast<unsigned*>(args.workspace.sums);  // zeros, one each round
  const std::int64_t first = grid.thread_rank(), step = grid.num_threads();
  for (std::int64_t i = first; i < args.N; i += step) y[i] = x[i];
  for (int round = 0; round < args.rounds; ++round) {
    unsigned sum = 0;
    for (std::int64_t i = first; i < args.N; i += step) sum += y[i];
    atomicAdd(&sums[round], sum);
    grid.sync();
    sum = *static_cast<volatile unsigned*>(&sums[round]);
    for (std::int64_t i = first; i < args.N; i += step) y[i] += sum;
  }
}

}  // namespace kernelmint::grid_sums
