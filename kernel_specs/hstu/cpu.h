// Block-sparse attention for HSTU on the CPU, in fp32 on vector registers: pool the blocks; score
// them and attend to their means; attend to the selected ones; normalise and gate. Every score is
// summed in the same order, so equal blocks tie exactly.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpu_math.h"
#include "cpu_scratch.h"
#include "cpu_vector.h"
#include "hstu/problem.h"
#include "integers.h"
#include "launch.h"
#include "parallel.h"

namespace kernelmint::hstu {
inline namespace KERNELMINT_ISA {

using cpu::F32;
using cpu::kLanes;
using cpu::splat;

KERNELMINT_ALWAYS_INLINE F32 load(const float* from) { return cpu::load_bits<F32>(from); }
KERNELMINT_ALWAYS_INLINE void store(float* to, F32 x) { cpu::store_bits(to, x); }

// x / (1 + e^-x); -0 if e^-x leaves the floats' range: the limit. NaN for -inf, as PyTorch.
KERNELMINT_ALWAYS_INLINE F32 silu(F32 x) {
  const F32 power = x * splat(-0x1.715476p0f);  // log2(e)
  const F32 kMost = splat(127.0f);
  const F32 value = x / (splat(1.0f) + cpu::exp2(power < kMost ? power : kMost));
  return power < kMost ? value : x * splat(0.0f);
}

template <int N>
KERNELMINT_ALWAYS_INLINE float dot(const float* a, const float* b) {
  F32 sum = F32{};
#pragma GCC unroll 16
  for (int i = 0; i < N; i += kLanes) sum = cpu::fma(load(a + i), load(b + i), sum);
  return cpu::reduce_add(sum);
}

// to += weight * from
template <int N>
KERNELMINT_ALWAYS_INLINE void add_scaled(float* to, float weight, const float* from) {
#pragma GCC unroll 16
  for (int i = 0; i < N; i += kLanes)
    store(to + i, cpu::fma(splat(weight), load(from + i), load(to + i)));
}

// The rank of a score in the selection: NaN and +inf are the greatest finite number.
KERNELMINT_ALWAYS_INLINE float rank(float score) {
  constexpr float kGreatest = 0x1.fffffep127f;
  return score < kGreatest ? score : kGreatest;
}

// scores[0, count) := silu(scores) * factor. `scores` has room for whole vectors.
KERNELMINT_ALWAYS_INLINE void silu_in_place(float* scores, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store(scores + i, silu(load(scores + i)) * splat(factor));
  }
}

// The problem and the target's workspace, whose shapes are in cpu.yaml.
struct CpuProblem : Problem {
  float *k_means, *v_means, *compressed;
};

template <int kA, int kL, int kBlockSize, int kBlockCount, Mode kNamed>
class Attention {
 public:
  static constexpr int A = kA, L = kL, S = kBlockCount;
  static constexpr std::int64_t kTile = 32;  // queries a task takes
  static constexpr Semantics kMode = semantics(kNamed);

  // scratch: for each worker, scratch_floats() floats.
  Attention(const CpuProblem& problem, float* scratch) : p_(problem), scratch_(scratch) {}

  static std::int64_t scratch_floats(const Problem& problem) {
    const std::int64_t blocks = ceil_div(problem.max_length, kBlockSize);
    return (blocks > kBlockSize ? blocks : kBlockSize) + 2 * 16;  // whole vectors
  }

  void run(int num_threads) const {
    const std::int64_t tiles = ceil_div(p_.max_length, kTile);
    const std::int64_t blocks = ceil_div(p_.max_length, kBlockSize);
    parallel_for(p_.sequences * blocks, num_threads,
                 [&](std::int64_t i, int) { pool(i / blocks, i % blocks); });
    parallel_for(p_.sequences * p_.heads * tiles, num_threads, [&](std::int64_t i, int worker) {
      each_row(i, tiles,
               [&](const Sequence& s, std::int64_t h, std::int64_t t)
                   __attribute__((always_inline)) { score(s, h, t, worker); });
    });
    parallel_for(p_.sequences * p_.heads * tiles, num_threads, [&](std::int64_t i, int worker) {
      each_row(i, tiles,
               [&](const Sequence& s, std::int64_t h, std::int64_t t)
                   __attribute__((always_inline)) { attend(s, h, t, worker); });
    });
    parallel_for(p_.sequences * tiles, num_threads, [&](std::int64_t i, int) {
      const Sequence sequence = p_.sequence(i / tiles, kBlockSize);
      const std::int64_t end = smaller((i % tiles + 1) * kTile, sequence.length);
      for (std::int64_t t = i % tiles * kTile; t < end; ++t) combine(sequence, t);
    });
  }

 private:
  static std::int64_t blocks_of(const Sequence& sequence) {
    return ceil_div(sequence.length, kBlockSize);
  }

  template <class Body>
  KERNELMINT_ALWAYS_INLINE void each_row(std::int64_t task, std::int64_t tiles,
                                         const Body& body) const {
    const Sequence sequence = p_.sequence(task / tiles / p_.heads, kBlockSize);
    const std::int64_t end = smaller((task % tiles + 1) * kTile, sequence.length);
    for (std::int64_t t = task % tiles * kTile; t < end; ++t) {
      body(sequence, task / tiles % p_.heads, t);
    }
  }

  void pool(std::int64_t b, std::int64_t c) const {
    const Sequence sequence = p_.sequence(b, kBlockSize);
    if (c >= blocks_of(sequence)) return;
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      mean<A>(p_.k, sequence, c, h, p_.k_means);
      mean<L>(p_.v, sequence, c, h, p_.v_means);
    }
  }

  template <int N>
  void mean(const Rows<const float>& x, const Sequence& sequence, std::int64_t c, std::int64_t h,
            float* means) const {
    const std::int64_t begin = c * kBlockSize;
    const std::int64_t end = smaller(begin + kBlockSize, sequence.length);
    float* to = means + ((sequence.first_block + c) * p_.heads + h) * N;
    for (int i = 0; i < N; i += kLanes) {
      F32 sum = F32{};
      for (std::int64_t j = begin; j < end; ++j) {
        sum += load(x.at(sequence.index, sequence.first_token + j, h) + i);
      }
      store(to + i, sum * splat(1.0f / kBlockSize));
    }
  }

  // The compressed branch of one row, and its list.
  void score(const Sequence& sequence, std::int64_t h, std::int64_t t, int worker) const {
    const std::int64_t token = sequence.first_token + t, current = t / kBlockSize;
    const std::int64_t blocks = blocks_of(sequence);
    const bool open = kMode.open_first_rows && t < kBlockSize - 1;
    const std::int64_t seen = open ? blocks : (t + 1) / kBlockSize;
    const float* q = p_.q.at(sequence.index, token, h);
    float scaled[A];
    for (int i = 0; i < A; i += kLanes) store(scaled + i, load(q + i) * splat(float{A}));
    float* scores = scratch_ + worker * scratch_floats(p_);
    for (std::int64_t c = 0; c < seen; ++c) {
      scores[c] = dot<A>(scaled, p_.k_means + ((sequence.first_block + c) * p_.heads + h) * A);
    }
    silu_in_place(scores, seen, 1.0f / A);

    float* out = p_.compressed + ((sequence.first + t) * p_.heads + h) * L;
    for (int i = 0; i < L; i += kLanes) store(out + i, F32{});
    for (std::int64_t c = 0; c < seen; ++c) {
      add_scaled<L>(out, scores[c], p_.v_means + ((sequence.first_block + c) * p_.heads + h) * L);
    }
    const float gate = *p_.g_cmp.at(sequence.index, token, h);
    for (int i = 0; i < L; i += kLanes) store(out + i, load(out + i) * splat(gate));

    if (kMode.share_heads && h % 2 == 1) return;  // the even head writes both lists
    if (kMode.share_time && t % 2 == 1) return;   // likewise the even position
    float best[S];
    std::int64_t index[S];
    int found = 0;
    // Equal scores keep the order of their indices.
    const auto offer = [&](float x, std::int64_t c) __attribute__((always_inline)) {
      if (found == S && !(x > best[S - 1])) return;
      int place = found < S ? found++ : S - 1;
      for (; place > 0 && x > best[place - 1]; --place) {
        best[place] = best[place - 1];
        index[place] = index[place - 1];
      }
      best[place] = x;
      index[place] = c;
    };
    const std::int64_t end = kMode.rank_unseen ? blocks : current + 1;
    for (std::int64_t c = 0; c < end; ++c) {
      if (c == current) {
        offer(kMode.local_rank, c);
      } else if (c < seen || kMode.rank_unseen) {
        offer(c < seen ? rank(scores[c]) : 0.0f, c);
      }
    }
    std::int64_t* list = p_.lists.at(sequence.index, token, h);
    const int listed = p_.offsets != nullptr || blocks > S ? S : static_cast<int>(blocks);
    for (int s = 0; s < listed; ++s) {
      const std::int64_t entry = s < found && index[s] <= current ? index[s] : -1;
      list[s] = entry;
      if (kMode.share_heads && h + 1 < p_.heads) list[p_.lists.head + s] = entry;
      if (kMode.share_time && t + 1 < sequence.length) list[p_.lists.token + s] = entry;
    }
  }

  // The selected branch of one row, before LayerNorm, into o.
  void attend(const Sequence& sequence, std::int64_t h, std::int64_t t, int worker) const {
    std::int64_t owner = h, listed_token = t;
    if constexpr (kMode.reinterpret_lists) {
      const std::int64_t position = t * p_.heads + h;
      owner = position / sequence.length;
      listed_token = position % sequence.length;
    }
    const std::int64_t* list =
        p_.lists.at(sequence.index, sequence.first_token + listed_token, owner);
    const int listed = static_cast<int>(smaller(blocks_of(sequence), S));
    const float* q = p_.q.at(sequence.index, sequence.first_token + t, h);
    float* out = p_.o.at(sequence.index, sequence.first_token + t, h);
    float* weights = scratch_ + worker * scratch_floats(p_);
    for (int i = 0; i < L; i += kLanes) store(out + i, F32{});
    for (int s = 0; s < listed; ++s) {
      if (list[s] < 0) continue;
      const std::int64_t begin = list[s] * kBlockSize;
      const std::int64_t count = smaller(kBlockSize, t + 1 - begin);
      const std::int64_t first = sequence.first_token + begin;
      for (std::int64_t j = 0; j < count; ++j) {
        weights[j] = dot<A>(q, p_.k.at(sequence.index, first + j, h));
      }
      silu_in_place(weights, count, 1.0f / A);
      for (std::int64_t j = 0; j < count; ++j) {
        add_scaled<L>(out, weights[j], p_.v.at(sequence.index, first + j, h));
      }
    }
  }

  struct Normal {
    float mean, factor;
  };

  // Over all heads' rows of L: `at(h)` is head h's.
  template <class At>
  Normal normal(At at) const {
    const float width = static_cast<float>(p_.heads * L);
    F32 sum = F32{};
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      for (int i = 0; i < L; i += kLanes) sum += load(at(h) + i);
    }
    const float mean = cpu::reduce_add(sum) / width;
    F32 squares = F32{};
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      for (int i = 0; i < L; i += kLanes) {
        const F32 x = load(at(h) + i) - splat(mean);
        squares = cpu::fma(x, x, squares);
      }
    }
    return {mean, 1.0f / __builtin_sqrtf(cpu::reduce_add(squares) / width + 1e-6f)};
  }

  void combine(const Sequence& sequence, std::int64_t t) const {
    const std::int64_t token = sequence.first_token + t;
    const float* o_cmp = p_.compressed + (sequence.first + t) * p_.heads * L;
    const auto compressed = [&](std::int64_t h) { return o_cmp + h * L; };
    const auto selected = [&](std::int64_t h) { return p_.o.at(sequence.index, token, h); };
    const Normal x = normal(compressed), y = normal(selected);
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      const float* u = p_.u.at(sequence.index, token, h);
      float* o = selected(h);
      for (int i = 0; i < L; i += kLanes) {
        const F32 gate = load(u + i);  // for both branches: an infinite gate makes NaN of two signs
        const F32 first = (load(compressed(h) + i) - splat(x.mean)) * splat(x.factor);
        const F32 second = (load(o + i) - splat(y.mean)) * splat(y.factor);
        store(o + i, first * gate + second * gate);
      }
    }
  }

  const CpuProblem& p_;
  float* scratch_;
};

// `read_arguments` is the family's: problem.h.
template <class Config>
LaunchResult block_sparse_attention(const typename Config::Args& args,
                                    const LaunchContext& context) {
  using Kernel = Attention<Config::attention_dim, Config::linear_dim, Config::block_size,
                           Config::block_count, mode_of<Config>()>;
  CpuProblem problem{};
  const LaunchResult checked = read_arguments(problem, args, /* is_readable: */ true);
  if (checked.error != nullptr) return checked;
  problem.k_means = args.workspace.k_means;
  problem.v_means = args.workspace.v_means;
  problem.compressed = args.workspace.compressed;
  const std::int64_t floats = Kernel::scratch_floats(problem) * context.num_threads;
  auto* scratch =
      reinterpret_cast<float*>(cpu::Scratch::of_thread().reserve(sizeof(float) * floats));
  if (scratch == nullptr) return {"no memory for the scores of that many threads"};
  Kernel(problem, scratch).run(context.num_threads);
  return {};
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::hstu

namespace kernelmint {

template <class Config, class Isa>
LaunchResult launch(const void* args, const LaunchContext& context) {
  static_assert(std::is_same_v<Isa, isa::KERNELMINT_ISA>, "one instruction set a translation unit");
  return hstu::block_sparse_attention<Config>(*static_cast<const typename Config::Args*>(args),
                                              context);
}

}  // namespace kernelmint
