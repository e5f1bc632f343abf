// Changes of scores beside a factor: softcap, ALiBi, sinks.
#pragma once

#include "attention/softcap.cuh"
#include "attention/softmax.cuh"
#include "attributes.h"
#include "ptx/math.cuh"
#include "register_tile.cuh"
#include "tensor_view.h"

namespace kernelmint::flash_prefill {

using namespace attention;

// Returns whether more than a factor makes scores of products.
template <class Args>
KERNELMINT_HOST_DEVICE inline bool changes_scores(const Args& args) {
  return args.softcap > 0 || args.alibi_slopes.data != nullptr;
}

// With a scale of 0 a masked score, -inf, must stay -inf.
inline constexpr float kLeastScale = 1e-30f;

// Products become scores. ahead(row) is how far a row's own key is ahead of the lane's first
// column.
template <class Scores, class Args, class F>
__device__ __forceinline__ void change_scores(Scores& scores, const Args& args, int sequence,
                                              int head, const F& ahead) {
  scores.for_each([&](float& score) { score *= args.softmax_scale; });
  if (args.softcap > 0) {
    const Softcap capped(args.softcap);
    scores.for_each([&](float& score) { score = capped(score); });
  }
  if (args.alibi_slopes.data != nullptr) {
    const float slope = *args.alibi_slopes.template at<const float>(sequence, head);
    unroll<Scores::kLaneRows>([&](int row) {
      const int distance = ahead(row);
      unroll<Scores::kLaneColumns>([&](int column) {
        scores(row, column) -=
            slope * static_cast<float>(abs(distance - Scores::column_of(column)));
      });
    });
  }
}

// A sink is a score without a value.
template <class Element, class Softmax, class Output, class Args>
__device__ __forceinline__ void add_sink(Softmax& softmax, Output& output, const Args& args,
                                         int head) {
  constexpr float kLeastNear = 1.f / 4096;  // a maximum nearer to 0 would look like a far row's
  const float sink = static_cast<float>(*args.s_aux.template at<const Element>(head));
  const float score = fmaxf(sink * kLog2E, kNoMaximum);
  const float maximum = fabsf(score) < kLeastNear ? kLeastNear : score;
  unroll<Output::kLaneRows>([&](int row) {
    const auto factors = softmax.merge(row, {maximum, ptx::exp2(score - maximum)});
    output.for_each(row, [&](float& value) { factors.apply(value, 0); });
  });
}

}  // namespace kernelmint::flash_prefill
