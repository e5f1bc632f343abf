// A thread counts in a row of its own, which it finds zeroed.
#pragma once

#include <algorithm>

#include "dtypes.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  if (context.facts.sm_count != context.num_threads) return {"sm_count is not the threads' number"};
  if (context.facts.max_shared_memory != 0) return {"a CPU has shared memory"};
  i32* const partial = args.workspace.partial;
  i32* const order = args.workspace.order;
  constexpr std::int64_t kChunk = 1024;
  parallel_for(ceil_div(args.N, kChunk), context.num_threads, [&](std::int64_t chunk, int worker) {
    for (std::int64_t i = chunk * kChunk; i < std::min(args.N, (chunk + 1) * kChunk); ++i) {
      order[i] = *args.x.template at<const i32>(i);
      if (order[i] >= 0 && order[i] < args.bins) ++partial[worker * args.bins + order[i]];
    }
  });
  i32* counts = args.counts.template as<i32>();
  for (std::int64_t bin = 0; bin < args.bins; ++bin) {
    i32 total = 0;
    for (int worker = 0; worker < context.num_threads; ++worker)
      total += partial[worker * args.bins + bin];
    for (int copy = 0; copy < Config::copies; ++copy) counts[copy * args.bins + bin] = total;
  }
  return {};
}

}  // namespace kernelmint
