// The pages of a cache, which a table names.
#pragma once

#include <cstdint>

#include "dtypes.h"
#include "launch.h"
#include "tensor_view.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

// Returns an error if keys [first, end) of a batch entry lie in a page of `size` beyond the `count`
// pages.
inline LaunchResult check_pages(const ConstTensorView<2>& table, std::int64_t entry,
                                std::int64_t first, std::int64_t end, std::int64_t size,
                                std::int64_t count) {
  if (first >= end) return {};
  for (std::int64_t page = first / size; page * size < end; ++page) {
    const i32 value = *table.at<const i32>(entry, page);
    if (value < 0 || value >= count)
      return {.error = "there are no more pages",
              .argument = "block_table",
              .value = value,
              .least = 0,
              .most = count - 1};
  }
  return {};
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
