// Thread blocks of a cluster: their barrier, and stores to each other's shared memory. Compute
// capability 9.0 and later.
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

// This block's number in its cluster. PTX ISA, "%cluster_ctarank".
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A barrier of all threads of a cluster, in two halves, by whole warps: threads that have waited
// see the writes of a thread before it arrived. PTX ISA, "barrier.cluster".
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Says that this thread runs, and nothing about its writes.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;");
}

// The address at which block `rank` has the data that this block has at a shared `address`. PTX
// ISA, "mapa".
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address, unsigned rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Stores to such an address. PTX ISA, "st", ".shared::cluster".
__device__ __forceinline__ void store_cluster(std::uint32_t address, float2 value) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x),
               "f"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_cluster(std::uint32_t address, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

}  // namespace kernelmint::ptx
