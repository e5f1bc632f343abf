// Threads for upstream's loops, which take any run of whole blocks.
#pragma once

#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::bitsandbytes {
inline namespace KERNELMINT_ISA {

// Calls body(first, count) for runs of whole blocks of `count` elements in all, on all threads.
template <class Body>
void for_blocks(std::int64_t count, std::int64_t blocksize, const LaunchContext& context,
                const Body& body) {
  const std::int64_t run = blocksize * ceil_div(32768, blocksize);
  parallel_for(ceil_div(count, run), context.num_threads, [&](std::int64_t task, int) {
    const std::int64_t first = task * run;
    body(first, first + run < count ? run : count - first);
  });
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::bitsandbytes
