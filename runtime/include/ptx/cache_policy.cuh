// The L2 cache's treatment of the lines that a copy reads or writes: PTX ISA, "createpolicy".
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

enum class CachePolicy { kEvictFirst, kEvictNormal, kEvictLast };

template <CachePolicy kPolicy>
__device__ __forceinline__ std::uint64_t make_cache_policy() {
  std::uint64_t policy;
  if constexpr (kPolicy == CachePolicy::kEvictFirst)
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else if constexpr (kPolicy == CachePolicy::kEvictNormal)
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  else
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The policy that make_cache_policy<CachePolicy::kEvictLast> makes, as CUTLASS has it
// (cute/arch/copy_sm90_desc.hpp): a constant takes no registers of a thread.
inline constexpr std::uint64_t kEvictLastPolicy = 0x14F0000000000000;

}  // namespace kernelmint::ptx
