// Attention backward of sequences of any lengths on the CPU: cpu_backward.h's loop.
#pragma once

#include <type_traits>

#include "attention/cpu_backward.h"
#include "attention/cpu_scores.h"
#include "attention/cpu_sequences.h"
#include "attention/slopes.h"
#include "attention/softcap.h"
#include "launch.h"

namespace kernelmint::flash_prefill_backward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention_backward;
using attention::within;

// Packed sequences or a batch of them, of which parts may be used; windows, caps, biases and sinks.
template <class Arguments, class T>
class AnyLengths {
 public:
  using Args = Arguments;
  using Trace = NoTrace;
  static constexpr bool kPads = true;
  const Args& args;

  explicit AnyLengths(const Args& arguments)
      : args(arguments), cap_(usable_cap(arguments.softcap)) {}

  std::int64_t sequences() const {
    return args.cu_seqlens_q.data != nullptr ? args.Cq - 1 : args.Nq;
  }
  std::int64_t batch() const { return args.Nq; }
  std::int64_t rows() const { return args.Tq; }
  std::int64_t columns() const { return args.D; }
  std::int64_t value_columns() const { return args.Dv; }
  float scale() const { return args.softmax_scale; }

  Sequence find(std::int64_t index) const {
    const attention::SequencePlace place = attention::place_of(args, index);
    return {.index = index,
            .entry = place.entry,
            .first_row = place.first_row,
            .queries = place.queries,
            .key_entry = place.key_entry,
            .first_key = place.first_key + place.begin,
            .keys = place.end - place.begin,
            .own_key = place.end - place.queries - place.begin};
  }
  // The keys of a sequence before those of `find`.
  std::int64_t padding(const Sequence& of) const {
    return attention::place_of(args, of.index).begin;
  }
  std::int64_t first_query(const Sequence& of, std::int64_t key) const {
    return args.window_right < 0 ? 0 : larger(0, key - of.own_key - args.window_right);
  }
  std::int64_t end_query(const Sequence& of, std::int64_t key) const {
    if (args.window_left < 0) return of.queries;
    return within(key - of.own_key + args.window_left + 1, 0, of.queries);
  }
  KERNELMINT_ALWAYS_INLINE Seen seen(const Sequence& of, std::int64_t query, std::int64_t first,
                                     int count) const {
    const std::int64_t own = of.own_key + query - first;
    return {args.window_left < 0 ? 0 : static_cast<int>(within(own - args.window_left, 0, count)),
            args.window_right < 0
                ? count
                : static_cast<int>(within(own + args.window_right + 1, 0, count))};
  }
  // Adds dS times the distance to `of_slope`, if the call gives slopes' gradients.
  KERNELMINT_ALWAYS_INLINE auto row(const Sequence& of, std::int64_t head, std::int64_t query,
                                    std::int64_t first, Seen seen, float lse, float sum,
                                    F32* of_slope) const {
    float slope = 0;
    if (args.alibi_slopes.data != nullptr)
      slope = *args.alibi_slopes.template at<const float>(of.index, head);
    // A row whose scores are all -inf has no probabilities.
    const float subtracted = lse == -__builtin_inff() ? __builtin_inff() : lse;
    const auto own = static_cast<std::int32_t>(of.own_key + query - first);
    return [factor = splat(args.softmax_scale), cap = cap_, slope, own, seen, subtracted, sum,
            of_slope](F32 score, F32 dp, int key) __attribute__((always_inline)) {
      F32 scaled = score * factor, slant = splat(1.0f);
      if (cap > 0) {
        const F32 whole = attention::capped(scaled, cap);
        const F32 share = whole * (1 / cap);  // tanh
        slant = (1.0f - share) * (1.0f + share);
        scaled = whole;
      }
      const I32 lane = lane_numbers() + key;
      if (slope != 0) {
        const I32 ahead = own - lane;
        scaled -= slope * __builtin_convertvector(ahead < 0 ? -ahead : ahead, F32);
      }
      const F32 p = exp(scaled - subtracted);
      const F32 of_score = p * (dp - splat(sum)), ds = of_score * slant;
      if constexpr (attention::GivesSlopes<Args>) {
        const I32 ahead = own - lane;
        const F32 distance = __builtin_convertvector(ahead < 0 ? -ahead : ahead, F32);
        const auto is_seen = (lane >= seen.begin) & (lane < seen.end);
        *of_slope += is_seen ? of_score * distance : F32{};
      }
      if (key >= seen.begin && key + kLanes <= seen.end) return Differentiated{p, ds};
      const auto is_seen = (lane >= seen.begin) & (lane < seen.end);
      return Differentiated{is_seen ? p : F32{}, is_seen ? ds : F32{}};
    };
  }

  // Rows and keys of no sequence have gradients of 0.
  void clear_rest(int threads) const {
    if (args.cu_seqlens_q.data != nullptr || args.seqused_q.data != nullptr)
      clear(args.dq, args.Nq, args.Tq, args.H, args.D, threads);
    if (args.cu_seqlens_k.data != nullptr || args.seqused_k.data != nullptr ||
        args.leftpad_k.data != nullptr) {
      clear(args.dk, args.Nk, args.Tk, args.Hk, args.D, threads);
      clear(args.dv, args.Nk, args.Tk, args.Hk, args.Dv, threads);
    }
  }

  // A sink's probability is of no value: of its score's gradient only -P D is left.
  void sum_sinks(const float* row_sums, int threads) const {
    if (args.ds_aux.data == nullptr) return;
    parallel_for(args.H, threads, [&](std::int64_t head, int) {
      float gradient = 0;
      if (args.s_aux.data != nullptr) {
        const float sink = load_some(args.s_aux.template at<const T>(head), 1)[0];
        for (std::int64_t s = 0; s < sequences(); ++s) {
          const Sequence of = find(s);
          const float* lse = args.lse.template at<const float>(of.entry, head, of.first_row);
          const float* sums = row_sums + (of.entry * args.H + head) * args.Tq + of.first_row;
          float sum = 0;
          for (std::int64_t row = 0; row < of.queries; ++row)
            sum += exp(splat(sink - lse[row]))[0] * sums[row];
          gradient -= sum;
        }
      }
      store_some(args.ds_aux.template at<T>(head), splat(gradient), 1);
    });
  }

 private:
  template <class View>
  static void clear(const View& view, std::int64_t entries, std::int64_t rows, std::int64_t heads,
                    std::int64_t columns, int threads) {
    parallel_for(entries * rows, threads, [&](std::int64_t index, int) {
      for (std::int64_t head = 0; head < heads; ++head) {
        __builtin_memset(view.template at<T>(index / rows, index % rows, head), 0,
                         static_cast<std::size_t>(columns) * sizeof(T));
      }
    });
  }

  float cap_;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_prefill_backward

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  using Args = typename Config::Args;
  const flash_prefill_backward::AnyLengths<Args, typename Config::dtype> call(
      *static_cast<const Args*>(pointer));
  return attention_backward::run_backward<typename Config::dtype, Config::d_head, Config::B_r,
                                          Config::B_c>(call, context);
}

}  // namespace kernelmint
