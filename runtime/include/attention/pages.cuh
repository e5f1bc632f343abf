// The pages of a cache, which a table names.
#pragma once

#include <cstdint>

#include "attributes.h"
#include "dtypes.h"

namespace kernelmint::attention {

// The nearest of `count` pages: a table lies on the device, where nothing can be refused.
__device__ __forceinline__ std::int64_t page_within(i32 page, std::int64_t count) {
  return max(min(page, static_cast<i32>(count) - 1), 0);
}

}  // namespace kernelmint::attention
