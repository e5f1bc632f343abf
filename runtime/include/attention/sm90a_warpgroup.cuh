// A consumer warpgroup's products, and the buffers that they read.
#pragma once

#include <cstdint>

#include "attention/sm90a_products.cuh"
#include "attention/sm90a_shared_memory.cuh"
#include "attention/softmax.cuh"
#include "ptx/warpgroup.cuh"
#include "register_tile.cuh"

namespace kernelmint::attention::sm90a {

// Ping-pong scheduling: warpgroups take turns to give the tensor cores work, so that one's softmax
// runs beside another's products. Does nothing without Config::ping_pong.
template <class Config>
class PingPong {
  static constexpr int kThreads = 256;  // the warpgroup that waits and the warpgroup that passes

 public:
  __device__ explicit PingPong(int warpgroup)
      : mine_(1 + warpgroup),
        next_(1 + (warpgroup + 1) % Config::n_warpgroups),
        is_first_(warpgroup == 0) {
    if (Config::ping_pong && is_first_) ptx::named_barrier_arrive(mine_, kThreads);
  }

  __device__ __forceinline__ void wait() const {
    if constexpr (Config::ping_pong) ptx::named_barrier_sync(mine_, kThreads);
  }
  __device__ __forceinline__ void pass() const {
    if constexpr (Config::ping_pong) ptx::named_barrier_arrive(next_, kThreads);
  }
  // Takes back the turn that the last one passed to the first.
  __device__ __forceinline__ void end() const {
    if (Config::ping_pong && is_first_) ptx::named_barrier_sync(mine_, kThreads);
  }

 private:
  int mine_, next_;
  bool is_first_;
};

// The trace of a configuration that is not traced: nothing.
struct NoTrace {
  template <class... Values>
  __device__ void scores(const Values&...) const {}
  template <class... Values>
  __device__ void statistics(const Values&...) const {}
  template <class... Values>
  __device__ void output(const Values&...) const {}
  template <class... Values>
  __device__ void skipped_keys(const Values&...) const {}
  template <class... Values>
  __device__ void skipped_values(const Values&...) const {}
};

// Scores are made one block of keys ahead of the output. Products are requested, and run beside the
// code after them; their registers must not be read before they are waited for.
//
// ptxas names registers by the order of the members.
template <class Config, class Shared, class Context>
class Warpgroup {
 protected:
  using Scores = RegisterTile<16, Config::B_c>;
  using Output = RegisterTile<16, Config::d_head>;
  using Softmax = OnlineSoftmax<Output::kLaneRows, true>;

  template <class Problem>
  __device__ Warpgroup(const Shared& shared, int warpgroup, const Problem& problem,
                       bool changes_scores, float scale)
      : shared_(shared),
        warpgroup_(warpgroup),
        ping_pong_(warpgroup),
        context_(problem, shared, warpgroup),
        changes_scores_(changes_scores),
        softmax_(scale) {}

  // The scores of the keys at hand, and the output of the values at hand.
  __device__ __forceinline__ void request_products() {
    keys_.wait_full(shared_);
    ping_pong_.wait();
    multiply_queries_keys<Config>(scores_, left_operand(), keys());
    request_output();
    ping_pong_.pass();
  }

  __device__ __forceinline__ void request_scores() {
    keys_.wait_full(shared_);
    multiply_queries_keys<Config>(scores_, left_operand(), keys());
  }

  __device__ __forceinline__ void request_output() {
    values_.wait_full(shared_);
    multiply_probabilities_values<Config>(output_, probabilities_, values(), accumulate_);
    accumulate_ = true;
  }

  __device__ __forceinline__ void exponentiate() {
    unroll<Config::B_c / 16>([&](int i) { softmax_.exponentiate(scores_, 0, i); });
  }

  // Once no product reads the registers any more.
  __device__ __forceinline__ void pack_probabilities() {
    unroll<Config::B_c / 16>([&](int i) {
      scores_.template pack_operand<typename Config::dtype>(0, i, probabilities_[i]);
    });
  }

  // Once the product that read P is complete.
  template <class Tile>
  __device__ __forceinline__ void complete_output(const Tile& tile, int block) {
    ptx::pin(output_.accumulator(0));
    pin(probabilities_);
    context_.trace.output(tile, block, probabilities_, values(), output_);
    values_.release(shared_);
    values_.advance();
  }

  // A block of keys that the warpgroup skips: its buffers and its turn go on.
  template <class Tile>
  __device__ __forceinline__ void skip(const Tile& tile, int block) {
    skip_keys(tile, block);
    if (!Config::q_in_registers && block == tile.first_key_block)
      queries_.release(shared_, warpgroup_);
    skip_values(tile, block + 1);
  }

  template <class Tile>
  __device__ __forceinline__ void skip_keys(const Tile& tile, int block) {
    keys_.wait_full(shared_);
    context_.trace.skipped_keys(tile, block, left_operand(), keys());
    keys_.release(shared_);
    keys_.advance();
  }

  template <class Tile>
  __device__ __forceinline__ void skip_values(const Tile& tile, int block) {
    values_.wait_full(shared_);
    context_.trace.skipped_values(tile, block, values());
    values_.release(shared_);
    values_.advance();
    ping_pong_.wait();
    ping_pong_.pass();
  }

  // Q as the products read it: its registers, or the address of its slab.
  __device__ __forceinline__ decltype(auto) left_operand() {
    if constexpr (Config::q_in_registers)
      return (q_);
    else if constexpr (Context::kKeepsDescriptors)
      return queries();
    else  // plus 0, which the compiler takes for something that changes from block to block
      return queries() + (static_cast<std::uint32_t>(keys_.buffer()) >> 4);
  }

  // The tiles at hand, in shared memory.
  __device__ __forceinline__ std::uint32_t queries() const {
    return shared_.queries(queries_.buffer(), warpgroup_);
  }
  __device__ __forceinline__ std::uint32_t keys() const { return shared_.keys(keys_.buffer()); }
  __device__ __forceinline__ std::uint32_t values() const {
    return shared_.values(values_.buffer());
  }

  const Shared shared_;
  const int warpgroup_;
  const PingPong<Config> ping_pong_;
  const Context context_;  // the family's own part
  RingPosition<typename Shared::Tiles> slot_;
  RingPosition<typename Shared::Queries> queries_;
  RingPosition<typename Shared::Keys> keys_;
  RingPosition<typename Shared::Values> values_;
  const std::uint32_t changes_scores_;  // not 0 if products are not scores yet
  Softmax softmax_;
  bool accumulate_ = false;
  Scores scores_;
  Fragments<Config::B_c> probabilities_;
  Fragments<Config::d_head> q_;  // with q_in_registers
  Output output_;
};

}  // namespace kernelmint::attention::sm90a
