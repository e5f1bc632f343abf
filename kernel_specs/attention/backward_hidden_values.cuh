// Values that are not finite, at positions that some queries of a block see and others do not: 0
// times such a value is NaN, so that K and V would reach dQ of queries that do not see the key, and
// Q and dO would reach dK and dV of keys that they do not see.
//
// The products of the main kernel take no notice. A thread block of the kernel after it has a block
// of queries. If a row of dQ is not finite, or a query may have values that are not finite, it
// looks at its rows and at the keys near them, and makes anew the elements of dQ, dK and dV that
// are not finite, of the pairs that see each other. Thread blocks that make the same row of dK
// write the same bits.
#pragma once

#include <cstdint>
#include <new>

#include "attention/dropout.cuh"
#include "integers.h"
#include "ptx/math.cuh"
#include "register_tile.cuh"
#include "tensor_view.h"

namespace kernelmint::attention_backward {

// A range of positions of a sequence.
struct Positions {
  int first, end;
};

// A block of queries of one head, and the sequence that has it. Positions are counted from the
// sequence's first rows.
struct QueriesOfHead {
  int head, group, sequence;
  int query_entry, query_row, first_query, end_query;  // entry and row in the tensors; used rows
  int key_entry, key_row, first_key, end_key;
  int first_row;              // the block's
  int left, right;            // how many keys a query sees before its own, and after it
  std::int64_t sums, stride;  // where log-sum-exps and D of the first head begin; from head to head
  int columns, value_columns;
  float scale, cap;  // cap 0: none
  ConstTensorView<1> slopes;

  __device__ int own_key(int query) const { return query + end_key - end_query; }
  __device__ Positions keys_of(int query) const {
    return {max(first_key, own_key(query) - left), min(end_key, own_key(query) + right + 1)};
  }
  __device__ Positions queries_of(int key) const {
    const int own = key - (end_key - end_query);
    return {max(first_query, own - right), min(end_query, own + left + 1)};
  }
  __device__ bool sees(int query, int key) const {
    const Positions keys = keys_of(query);
    return key >= keys.first && key < keys.end;
  }
};

// Values that neither are infinite or NaN nor make products so.
__device__ __forceinline__ bool is_usual(float x) { return fabsf(x) < 0x1p56f; }

template <class Element>
__device__ __forceinline__ bool are_usual(const Element* eight) {
  const uint4 values = *reinterpret_cast<const uint4*>(eight);
  bool usual = true;
  for (const std::uint32_t pair : {values.x, values.y, values.z, values.w}) {
    const float2 x = ptx::unpack<Element>(pair);
    usual &= is_usual(x.x) && is_usual(x.y);
  }
  return usual;
}

// True if a query's sums say that its Q or dO may be unusual, or cannot say it, since it sees no
// key.
template <class Problem>
__device__ __forceinline__ bool has_unusual_sums(const Problem& problem, const QueriesOfHead& at,
                                                 int query) {
  const std::int64_t row = at.sums + at.head * at.stride + query;
  const Positions keys = at.keys_of(query);
  return keys.end <= keys.first || !is_usual(problem.log_sums[row]) ||
         !is_usual(problem.deltas[row]);
}

// True if hidden values may have reached gradients, as a thread of the block sees it. A capped
// score of an infinite product leaves no trace in sums.
template <class Config, int kThreads, class Problem>
__device__ __forceinline__ bool may_be_reached(const Problem& problem, const QueriesOfHead& at) {
  using Element = typename Config::dtype;
  static_assert(kThreads >= Config::B_r);
  const int query = at.first_row + static_cast<int>(threadIdx.x);
  bool reached = threadIdx.x < Config::B_r && query >= at.first_query && query < at.end_query &&
                 has_unusual_sums(problem, at, query);
  if (at.cap > 0) {
    const int begin = max(at.first_row, at.first_query), chunks = at.columns / 8;
    const int rows = min(at.first_row + Config::B_r, at.end_query) - begin;
    for (int i = threadIdx.x; i < rows * chunks; i += kThreads)
      reached |= !are_usual(problem.args.q.template at<const Element>(
                                at.query_entry, at.query_row + begin + i / chunks, at.head) +
                            i % chunks * 8);
  }
  return reached;
}

// Makes gradients anew, by all threads of a block. It lies in shared memory, and its loops stay
// small, so that it takes few registers of a kernel that seldom calls it.
template <class Config, int kThreads, class Problem>
class Remake {
  using Element = typename Config::dtype;
  static constexpr int kLaneColumns = ceil_div(Config::d_head, 32);  // every 32nd of a row
  static constexpr int kWarps = kThreads / 32;
  // The keys near the block that some of its rows do not see are fewer, on either side.
  static constexpr int kMostKeys = Config::B_r + Config::B_c;

 public:
  // Find()(problem) is the block.
  template <class Find>
  __device__ Remake(const Problem& problem, const Find& find)
      : problem_(problem), at_(find(problem)) {
    // Keys of the blocks that the rows' keys lie in, of which some rows see the last, or the first.
    const int last_row = min(at_.first_row + Config::B_r, at_.end_query) - 1;
    rows_ = {max(at_.first_row, at_.first_query), last_row + 1};
    const Positions of_first = at_.keys_of(rows_.first), of_last = at_.keys_of(last_row);
    const int begin = max(of_first.first / Config::B_c * Config::B_c, at_.first_key);
    const int end = min(ceil_div(max(of_last.end, 0), Config::B_c) * Config::B_c, at_.end_key);
    before_ = {begin, min(of_last.first, end)};
    after_ = {max(max(of_first.end, before_.end), begin), end};
  }

  __device__ void run() {
    bool found = false;
#pragma unroll 1
    for (int i = warp(); i < count(rows_) + hidden_keys(); i += kWarps) {
      const bool of_lane = i < count(rows_) ? is_unusual_query(rows_.first + i)
                                            : is_unusual_key(nth_key(i - count(rows_)));
      const bool is_any = __any_sync(~0u, of_lane);
      if (lane() == 0)
        (i < count(rows_) ? unusual_queries_[i] : unusual_keys_[i - count(rows_)]) = is_any;
      found |= is_any;
    }
    if (!__syncthreads_or(found)) return;
#pragma unroll 1
    for (int i = warp(); i < count(rows_) + 2 * hidden_keys(); i += kWarps) {
      if (i < count(rows_))
        remake(Of::kQuery, rows_.first + i);
      else
        remake(i % 2 == 0 ? Of::kKey : Of::kValue, nth_key((i - count(rows_)) / 2));
    }
  }

 private:
  enum class Of { kQuery, kKey, kValue };

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ static int warp() { return threadIdx.x / 32; }
  __device__ static int count(const Positions& range) { return max(range.end - range.first, 0); }
  __device__ int hidden_keys() const { return count(before_) + count(after_); }
  __device__ int nth_key(int i) const {
    return i < count(before_) ? before_.first + i : after_.first + i - count(before_);
  }

  template <class View>
  __device__ const Element* row(const View& tensor, int query, int head) const {
    return tensor.template at<const Element>(at_.query_entry, at_.query_row + query, head);
  }
  template <class View>
  __device__ const Element* key_row(const View& tensor, int key) const {
    return tensor.template at<const Element>(at_.key_entry, at_.key_row + key,
                                             at_.head / at_.group);
  }

  __device__ bool is_unusual_query(int query) const {
    return has_unusual_sums(problem_, at_, query) ||
           is_unusual_row(row(problem_.args.q, query, at_.head), at_.columns) ||
           is_unusual_row(row(problem_.args.dout, query, at_.head), at_.value_columns);
  }
  __device__ bool is_unusual_key(int key) const {
    return is_unusual_row(key_row(problem_.args.k, key), at_.columns) ||
           is_unusual_row(key_row(problem_.args.v, key), at_.value_columns);
  }
  __device__ static bool is_unusual_row(const Element* values, int columns) {
    return lane() * 8 < columns && !are_usual(values + lane() * 8);
  }

  // True if a hidden key may have reached dQ of a query, or a query dK and dV of a key that it does
  // not see.
  __device__ bool is_reached(bool is_query, int position) const {
    bool reached = is_query && unusual_queries_[position - rows_.first];
    for (int i = lane(); i < (is_query ? hidden_keys() : count(rows_)); i += 32)
      reached |= is_query ? unusual_keys_[i] && !at_.sees(position, nth_key(i))
                          : unusual_queries_[i] && !at_.sees(rows_.first + i, position);
    return __any_sync(~0u, reached);
  }

  // Makes anew the elements of a row that are not finite, by a warp.
  __device__ void remake(Of of, int position) const {
    const bool is_query = of == Of::kQuery;
    const int columns = of == Of::kValue ? at_.value_columns : at_.columns;
    Element* const to = result(of, position);
    unsigned missing = 0;  // a bit for each of the lane's columns
    unroll<kLaneColumns>([&](int i) {
      if (lane() + 32 * i < columns && !is_finite(to[lane() + 32 * i])) missing |= 1u << i;
    });
    if (!__any_sync(~0u, missing != 0) || !is_reached(is_query, position)) return;
    const int heads = is_query ? 1 : at_.group;
    const Positions others = is_query ? at_.keys_of(position) : at_.queries_of(position);
    float sums[kLaneColumns] = {};
#pragma unroll 1
    for (int i = 0; i < heads; ++i) {
      const int head = is_query ? at_.head : at_.head / at_.group * at_.group + i;
#pragma unroll 1
      for (int first = others.first; first < others.end; first += 32) {
        float weight = 0;
        if (const int other = first + lane(); other < others.end)
          weight = is_query ? weight_of(of, head, position, other)
                            : weight_of(of, head, other, position);
#pragma unroll 1
        for (int other = first; other < min(first + 32, others.end); ++other) {
          const Element* const values = is_query         ? key_row(problem_.args.k, other)
                                        : of == Of::kKey ? row(problem_.args.q, other, head)
                                                         : row(problem_.args.dout, other, head);
          const float of_other = __shfl_sync(~0u, weight, other - first);
          unroll<kLaneColumns>([&](int j) {
            if (missing >> j & 1)
              sums[j] = fmaf(of_other, static_cast<float>(values[lane() + 32 * j]), sums[j]);
          });
        }
        bool is_open = false;  // NaN stays NaN
        unroll<kLaneColumns>([&](int j) { is_open |= (missing >> j & 1) && sums[j] == sums[j]; });
        if (!__any_sync(~0u, is_open)) i = heads, first = others.end - 32;
      }
    }
    const float factor =
        (of == Of::kValue ? 1 : at_.scale) * attention::keep_scale_of(problem_.args);
    unroll<kLaneColumns>([&](int i) {
      if (missing >> i & 1) to[lane() + 32 * i] = static_cast<Element>(sums[i] * factor);
    });
  }
  __device__ Element* result(Of of, int position) const {
    const auto& args = problem_.args;
    if (of == Of::kQuery)
      return args.dq.template at<Element>(at_.query_entry, at_.query_row + position, at_.head);
    const auto& tensor = of == Of::kKey ? args.dk : args.dv;
    return tensor.template at<Element>(at_.key_entry, at_.key_row + position, at_.head / at_.group);
  }
  __device__ static bool is_finite(Element value) { return static_cast<float>(value) * 0 == 0; }

  // P of a query that sees a key, or the gradient of their product times the scale.
  __device__ float weight_of(Of of, int head, int query, int key) const {
    constexpr float kLog2E = 1.4426950408889634f;
    const std::int64_t sums = at_.sums + head * at_.stride + query;
    float score = at_.scale * product(row(problem_.args.q, query, head),
                                      key_row(problem_.args.k, key), at_.columns);
    float slope = 1;
    if (at_.cap > 0) {
      const float tanh = tanhf(score / at_.cap);
      score = at_.cap * tanh;
      slope = (1 - tanh) * (1 + tanh);
    }
    if (at_.slopes.data != nullptr)
      score -= *at_.slopes.template at<const float>(head) *
               static_cast<float>(abs(at_.own_key(query) - key));
    const float probability = ptx::exp2(score * kLog2E - problem_.log_sums[sums]);
    bool kept = true;
    if constexpr (attention::DropsOut<decltype(problem_.args)>)
      kept = attention::is_kept(attention::dropout_of(problem_.args, at_.sequence, head),
                                attention::drop_threshold(problem_.args.dropout_p), query, key);
    if (of == Of::kValue) return kept ? probability : 0;
    const float of_probability = kept ? product(row(problem_.args.dout, query, head),
                                                key_row(problem_.args.v, key), at_.value_columns)
                                      : 0;
    return probability * slope * (of_probability - problem_.deltas[sums]);
  }
  __device__ static float product(const Element* a, const Element* b, int columns) {
    float sum = 0;
#pragma unroll 1
    for (int column = 0; column < columns; column += 4) {
      const uint2 left = *reinterpret_cast<const uint2*>(a + column),
                  right = *reinterpret_cast<const uint2*>(b + column);
      const auto add = [&](std::uint32_t x, std::uint32_t y) {
        const float2 p = ptx::unpack<Element>(x), q = ptx::unpack<Element>(y);
        sum = fmaf(p.y, q.y, fmaf(p.x, q.x, sum));
      };
      add(left.x, right.x), add(left.y, right.y);
    }
    return sum;
  }

  const Problem& problem_;
  const QueriesOfHead at_;
  Positions rows_;
  Positions before_, after_;  // keys near the block that some of its rows do not see
  bool unusual_queries_[Config::B_r], unusual_keys_[2 * kMostKeys];
};

// The same out of line; shared memory has sizeof(Remake<...>) bytes.
template <class Config, int kThreads, class Find, class Problem>
__device__ __noinline__ void remake(const Problem& problem) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  using Work = Remake<Config, kThreads, Problem>;
  if (threadIdx.x == 0) new (shared_memory) Work(problem, Find());
  __syncthreads();
  reinterpret_cast<Work*>(shared_memory)->run();
}

}  // namespace kernelmint::attention_backward
