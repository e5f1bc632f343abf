// Where segments begin and end, as the host's lengths say.
#pragma once

#include <cstdint>

#include "launch.h"
#include "segment_sums/args.h"

namespace kernelmint::segment_sums {

struct Segments {
  std::int64_t begin[65];
};

// Fills `segments`, or says which length is wrong.
inline LaunchResult find_segments(const Args& args, Segments& segments) {
  const std::int64_t* lengths = args.lengths.as<const std::int64_t>();
  segments.begin[0] = 0;
  for (std::int64_t i = 0; i < args.S; ++i) {
    const std::int64_t left = args.N - segments.begin[i], least = i + 1 < args.S ? 0 : left;
    if (lengths[i] < least || lengths[i] > left)
      return {.error = "the segments are all of x",
              .argument = "lengths",
              .index = i,
              .value = lengths[i],
              .least = least,
              .most = left};
    segments.begin[i + 1] = segments.begin[i] + lengths[i];
  }
  return {};
}

}  // namespace kernelmint::segment_sums
