// A cluster takes a row, each of its blocks a part; the first adds up what the others hold.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

namespace kernelmint::cluster_sum {

template <class Config>
__global__ void __launch_bounds__(32 * Config::warps)
    cluster_sum_sm90a(const typename Config::Args args) {
  const auto cluster = cooperative_groups::this_cluster();
  if (cluster.num_blocks() != Config::blocks) return;  // y stays as it was
  __shared__ float of_warp[Config::warps], of_block;
  const int lane = threadIdx.x, warp = threadIdx.y, threads = 32 * Config::warps;
  const float* x = args.x.template at<const float>(blockIdx.y);
  float sum = 0;
  for (std::int64_t i = blockIdx.x * threads + warp * 32 + lane; i < args.N;
       i += Config::blocks * threads)
    sum += x[i];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  if (lane == 0 && warp == 0) {
    of_block = 0;
    for (const float part : of_warp) of_block += part;
  }
  cluster.sync();
  if (cluster.block_rank() == 0 && lane == 0 && warp == 0) {
    float total = 0;
    for (int rank = 0; rank < Config::blocks; ++rank)
      total += *cluster.map_shared_rank(&of_block, rank);
    *args.y.template at<float>(blockIdx.y) = total;
  }
  cluster.sync();  // no block ends while its memory is read
}

}  // namespace kernelmint::cluster_sum
