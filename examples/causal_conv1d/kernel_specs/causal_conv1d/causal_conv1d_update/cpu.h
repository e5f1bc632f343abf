// The convolution of the newest elements, on the CPU: a task is a channel of a batch entry.
#pragma once

#include "causal_conv1d/cpu_channel.h"

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext& context) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  using T = typename Config::dtype;
  using S = causal_conv1d::Sum<T>;
  constexpr std::int64_t kStates = Config::width - 1;
  const i32* const indices = args.conv_state_indices.template as<const i32>();
  for (std::int64_t b = 0; indices != nullptr && b < args.B; ++b) {
    const std::int64_t entry = indices[b * args.conv_state_indices.stride[0]];
    if (entry >= args.N)
      return {.error = "there are not so many states",
              .argument = "conv_state_indices",
              .index = b,
              .value = entry,
              .least = INT32_MIN,
              .most = args.N - 1};
  }
  return causal_conv1d::for_each<S>(
      args.B * args.D, kStates + 3 * args.L, context, [&](auto index, S* scratch) {
        const std::int64_t b = index / args.D, d = index % args.D;
        const std::int64_t step = args.conv_state.stride[2];
        const std::int64_t entry =
            indices == nullptr ? b : indices[b * args.conv_state_indices.stride[0]];
        const T* const from = args.x.template at<const T>(b, d);
        T* const to = args.y.template at<T>(b, d);
        S *x = scratch, *y = x + kStates + args.L;
        if (entry < 0) {
          for (std::int64_t l = 0; l < args.L; ++l) y[l] = 0;
          causal_conv1d::write(y, args.L, to, args.y.stride[2]);
          return;
        }
        T* const state = args.conv_state.template at<T>(entry, d);
        const bool is_ring = args.cache_seqlens.data != nullptr;
        // The place of the newest element in a ring; in a shifted state, the place after its end.
        const std::int64_t first =
            is_ring ? (*args.cache_seqlens.template at<const i32>(b) % args.S + args.S) % args.S
                    : args.S;
        for (std::int64_t i = 0; i < kStates; ++i) {
          const std::int64_t place = first - kStates + i;
          causal_conv1d::read<T>(state + (place < 0 ? place + args.S : place) * step, step, 1,
                                 x + i);
        }
        causal_conv1d::read(from, args.x.stride[2], args.L, x + kStates);
        causal_conv1d::Channel<Config>(args, d).forward(x, args.L, args.silu, y, y + args.L);
        if (!is_ring)
          for (std::int64_t i = args.L; i < args.S; ++i)
            state[(i - args.L) * step] = state[i * step];
        for (std::int64_t l = is_ring || args.L < args.S ? 0 : args.L - args.S; l < args.L; ++l) {
          const std::int64_t place = is_ring ? (first + l) % args.S : args.S - args.L + l;
          state[place * step] = from[l * args.x.stride[2]];
        }
        causal_conv1d::write(y, args.L, to, args.y.stride[2]);
      });
}

}  // namespace kernelmint
