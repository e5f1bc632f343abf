#pragma once

#include "segment_sums/segments.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& /*context*/) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  segment_sums::Segments segments;
  const LaunchResult found = segment_sums::find_segments(args, segments);
  if (found.error != nullptr) return found;
  for (std::int64_t s = 0; s < args.S; ++s) {
    float sum = 0;
    for (std::int64_t i = segments.begin[s]; i < segments.begin[s + 1]; ++i)
      sum += *args.x.template at<const float>(i);
    *args.y.template at<float>(s) = sum;
  }
  return {};
}

}  // namespace kernelmint
