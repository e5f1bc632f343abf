// A channel on the CPU: its elements as f32 (as f64 if they are that), convolved, and back.
#pragma once

#include <type_traits>

#include "cpu_convert.h"
#include "cpu_math.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::causal_conv1d {
inline namespace KERNELMINT_ISA {

// The type of sums.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, f64>, f64, f32>;

// `count` elements that are `stride` apart.
template <class T>
void read(const T* from, std::int64_t stride, std::int64_t count, Sum<T>* to) {
  if constexpr (std::is_same_v<T, Sum<T>>) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
  } else {
    for (std::int64_t i = 0; i < count; i += cpu::kLanes) {
      const std::int64_t size = count - i < cpu::kLanes ? count - i : cpu::kLanes;
      T some[cpu::kLanes] = {};
      f32 values[cpu::kLanes];
      for (std::int64_t j = 0; j < size; ++j) some[j] = from[(i + j) * stride];
      cpu::store(values, cpu::load(some));
      for (std::int64_t j = 0; j < size; ++j) to[i + j] = values[j];
    }
  }
}

template <class T>
void write(const Sum<T>* from, std::int64_t count, T* to, std::int64_t stride) {
  if constexpr (std::is_same_v<T, Sum<T>>) {
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = from[i];
  } else {
    for (std::int64_t i = 0; i < count; i += cpu::kLanes) {
      const std::int64_t size = count - i < cpu::kLanes ? count - i : cpu::kLanes;
      f32 values[cpu::kLanes] = {};
      T some[cpu::kLanes];
      for (std::int64_t j = 0; j < size; ++j) values[j] = from[i + j];
      cpu::store(some, cpu::load(values));
      for (std::int64_t j = 0; j < size; ++j) to[(i + j) * stride] = some[j];
    }
  }
}

// 1 / (1 + exp(-x)), of an x of any size.
inline void sigmoid(const f64* x, std::int64_t count, f64* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = 1 / (1 + __builtin_exp(-x[i]));
}
inline void sigmoid(const f32* x, std::int64_t count, f32* to) {
  for (std::int64_t i = 0; i < count; i += cpu::kLanes) {
    const std::int64_t size = count - i < cpu::kLanes ? count - i : cpu::kLanes;
    f32 values[cpu::kLanes] = {};
    for (std::int64_t j = 0; j < size; ++j) values[j] = x[i + j];
    const cpu::F32 v = cpu::load(values);
    const cpu::F32 small = cpu::exp2(-0x1.715476p0f * cpu::max(v, -v));  // exp(-|x|)
    cpu::store(values, (v < 0 ? small : cpu::splat(1.0f)) / (1.0f + small));
    for (std::int64_t j = 0; j < size; ++j) to[i + j] = values[j];
  }
}

// The weights of a channel, and its computation. Elements are counted from the first state on: x[W
// - 1 + l] is the element l. `sequence`, if present, has the sequence of each element, and `before`
// that of the states.
template <class Config>
struct Channel {
  using T = typename Config::dtype;
  using Weight = typename Config::weight_dtype;
  using S = Sum<T>;
  static constexpr int W = Config::width;

  S weight[W];
  S bias = 0;
  const i32* sequence = nullptr;
  i32 before = -1;

  template <class Args>
  Channel(const Args& args, std::int64_t d) {
    read(args.weight.template at<const Weight>(d), args.weight.stride[1], W, weight);
    if (args.bias.data != nullptr) read(args.bias.template at<const Weight>(d), 1, 1, &bias);
  }

  // Returns whether element l sees the element that weight w belongs to.
  bool sees(std::int64_t l, int w) const {
    if (sequence == nullptr) return true;
    const std::int64_t other = l - (W - 1) + w;
    return sequence[l] >= 0 && sequence[l] == (other < 0 ? before : sequence[other]);
  }

  // y[l], before silu.
  void convolve(const S* x, std::int64_t length, S* y) const {
    if (sequence == nullptr) {
      for (std::int64_t l = 0; l < length; ++l) {
        S sum = bias;
        for (int w = 0; w < W; ++w) sum += weight[w] * x[l + w];
        y[l] = sum;
      }
      return;
    }
    for (std::int64_t l = 0; l < length; ++l) {
      y[l] = sequence[l] < 0 ? 0 : bias;
      for (int w = 0; w < W; ++w) y[l] += sees(l, w) ? weight[w] * x[l + w] : 0;
    }
  }

  // y[l]; `scratch` has `length` elements.
  void forward(const S* x, std::int64_t length, bool silu, S* y, S* scratch) const {
    convolve(x, length, y);
    if (!silu) return;
    sigmoid(y, length, scratch);
    for (std::int64_t l = 0; l < length; ++l) y[l] *= scratch[l];
  }

  // Adds to the gradients of the weights, of the bias and of x, states among them, from y's, `dy`,
  // which is changed; `scratch` has 2 * `length` elements.
  void backward(const S* x, S* dy, std::int64_t length, bool silu, S* dx, S* dweight, S* dbias,
                S* scratch) const {
    if (silu) {
      S* const before_silu = scratch + length;
      convolve(x, length, before_silu);
      sigmoid(before_silu, length, scratch);
      for (std::int64_t l = 0; l < length; ++l)
        dy[l] *= scratch[l] * (1 + before_silu[l] * (1 - scratch[l]));
    }
    for (std::int64_t l = 0; l < length; ++l) {
      if (sequence != nullptr && sequence[l] < 0) continue;
      *dbias += dy[l];
      for (int w = 0; w < W; ++w) {
        if (!sees(l, w)) continue;
        dweight[w] += dy[l] * x[l + w];
        dx[l + w] += dy[l] * weight[w];
      }
    }
  }
};

// Calls body(index, scratch) for each index in [0, count), with `size` elements of scratch memory.
template <class S, class Body>
LaunchResult for_each(std::int64_t count, std::int64_t size, const LaunchContext& context,
                      const Body& body) {
  const std::int64_t stride = round_up(size, 64 / sizeof(S));
  const Allocation memory = context.allocate(context.num_threads * stride * sizeof(S));
  if (memory.error != nullptr) return {memory.error};
  parallel_for(count, context.num_threads, [&](std::int64_t index, int worker) {
    body(index, static_cast<S*>(memory.data) + worker * stride);
  });
  return {};
}

// A channel's elements in a tensor [B, D, L] or [B, L, D], and the distance between neighbours.
template <bool kChannelLast, class T, class View>
T* channel(const View& view, std::int64_t b, std::int64_t d) {
  return kChannelLast ? view.template at<T>(b, 0, d) : view.template at<T>(b, d);
}
template <bool kChannelLast, class View>
std::int64_t apart(const View& view) {
  return view.stride[kChannelLast ? 1 : 2];
}

// Reads batch entry b's channel d, after its states, and the sequences of its elements.
template <class Config, bool kChannelLast, class S>
void prepare(const typename Config::Args& args, std::int64_t b, std::int64_t d,
             Channel<Config>& weights, S* x) {
  using T = const typename Config::dtype;
  for (int i = 0; i < Config::width - 1; ++i) x[i] = 0;
  read(channel<kChannelLast, T>(args.x, b, d), apart<kChannelLast>(args.x), args.L,
       x + Config::width - 1);
  if constexpr (kChannelLast) {
    if (args.initial_states.data != nullptr)
      read(channel<true, T>(args.initial_states, b, d), args.initial_states.stride[1],
           Config::width - 1, x);
    if (args.seq_idx.data != nullptr && args.L != 0) {
      weights.sequence = args.seq_idx.template at<const i32>(b);
      weights.before = args.initial_states.data != nullptr ? *weights.sequence : -1;
    }
  }
}

// A task is a channel of a batch entry.
template <class Config, bool kChannelLast>
LaunchResult forward(const typename Config::Args& args, const LaunchContext& context) {
  using T = typename Config::dtype;
  using S = Sum<T>;
  const std::int64_t states = Config::width - 1;
  return for_each<S>(args.B * args.D, states + 3 * args.L, context, [&](auto index, S* scratch) {
    const std::int64_t b = index / args.D, d = index % args.D;
    S *x = scratch, *y = x + states + args.L;
    Channel<Config> weights(args, d);
    prepare<Config, kChannelLast>(args, b, d, weights, x);
    weights.forward(x, args.L, args.silu, y, y + args.L);
    write(y, args.L, channel<kChannelLast, T>(args.y, b, d), apart<kChannelLast>(args.y));
    if constexpr (kChannelLast)
      if (args.final_states.data != nullptr)
        write(x + args.L, states, channel<true, T>(args.final_states, b, d),
              args.final_states.stride[1]);
  });
}

// A task is a channel of all batch entries, one after the other: so sums are in one order.
template <class Config, bool kChannelLast>
LaunchResult backward(const typename Config::Args& args, const LaunchContext& context) {
  using T = typename Config::dtype;
  using Weight = typename Config::weight_dtype;
  using S = Sum<T>;
  const std::int64_t length = Config::width - 1 + args.L;
  return for_each<S>(args.D, 2 * length + 3 * args.L, context, [&](auto d, S* scratch) {
    S *x = scratch, *dx = x + length, *dy = dx + length;
    S dweight[Config::width] = {}, dbias = 0;
    for (std::int64_t b = 0; b < args.B; ++b) {
      Channel<Config> weights(args, d);
      prepare<Config, kChannelLast>(args, b, d, weights, x);
      read(channel<kChannelLast, const T>(args.dy, b, d), apart<kChannelLast>(args.dy), args.L, dy);
      for (std::int64_t i = 0; i < length; ++i) dx[i] = 0;
      if constexpr (kChannelLast)
        if (args.dfinal_states.data != nullptr)
          read(channel<true, const T>(args.dfinal_states, b, d), args.dfinal_states.stride[1],
               Config::width - 1, dx + args.L);
      weights.backward(x, dy, args.L, args.silu, dx, dweight, &dbias, dy + args.L);
      write(dx + Config::width - 1, args.L, channel<kChannelLast, T>(args.dx, b, d),
            apart<kChannelLast>(args.dx));
      if constexpr (kChannelLast)
        if (args.dinitial_states.data != nullptr)
          write(dx, Config::width - 1, channel<true, T>(args.dinitial_states, b, d),
                args.dinitial_states.stride[1]);
    }
    write(dweight, Config::width, args.dweight.template at<Weight>(d), 1);
    if (args.dbias.data != nullptr) write(&dbias, 1, args.dbias.template at<Weight>(d), 1);
  });
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::causal_conv1d
