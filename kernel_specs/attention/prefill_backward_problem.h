// The arguments of a call's kernels on a GPU, and where sequences lie. Lengths are read on the
// device; those out of bounds count as the nearest.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/dropout.h"
#include "attention/slopes.h"
#include "integers.h"
#include "tensor_view.h"

namespace kernelmint::flash_prefill_backward {

inline constexpr float kLog2E = 1.4426950408889634f;

template <class Arguments>
struct Call {
  using Args = Arguments;

  Args args;
};

struct NoTensorMaps {};

// Sums of dS times the distance, of each thread that makes scores: [thread blocks of the main
// kernel, group, threads]. Each thread adds to its own ones, so that the order is always the same.
struct SlopeSums {
  float* slope_sums;
  std::int64_t slope_sum_count;
};
struct NoSlopeSums {};

template <class Arguments, class TensorMaps = NoTensorMaps>
struct Problem : Call<Arguments>,
                 TensorMaps,
                 std::conditional_t<attention::GivesSlopes<Arguments>, SlopeSums, NoSlopeSums> {
  // For each row of scores, [H, query_blocks * B_r]: the log-sum-exp as a power of two, infinite
  // for a row without keys and for a row of no sequence; and D, the sum of dO O.
  float *log_sums, *deltas;
  // dQ without its scale, [H, query_blocks], each B_r * padded_head floats in the order of the
  // registers.
  float* dq;
  // [H, query_blocks], the target's number of them each; then its other ones. All are zero at
  // first.
  unsigned* counters;
  std::int64_t counter_count;
  // The blocks of all sequences, of one head: as many as there could be.
  int query_blocks, key_blocks;
  int group;          // query heads that share a key/value head
  int section_heads;  // key/value heads that are worked on together
  int sequences;
  float scale_log2;  // the scale, for powers of two
  // stores_first: the block of keys that comes first stores dQ, which need not be zero before; the
  // others wait. one_counter: it is the same one for all queries of a sequence, and counts what it
  // has stored: all but the last block of queries, whose dQ is zero before. from_first: blocks of
  // keys go through their queries from the first one on, and the last keys come first, so that each
  // comes to a block of queries just in time for its turn.
  bool stores_first, one_counter, from_first;
  bool heads_first;  // steps go through all blocks of a head before those of the next one
  float cap;         // softcap; 0: none
  // Where scores are changed they count caps, or ones if there is no cap: what makes a product a
  // score, a score an exponent of two, and back.
  float to_score, to_log2, from_log2;
  float* sinks;  // [H, query_blocks, 8]: sums of P D, P the probability of the sink
};

// A sequence's rows of a tensor. A packed one's blocks are counted from where the rows of all
// sequences before would fill whole blocks, so that no sequence shares a block: its first block's
// index is known without the lengths before it. The first sequence has the rows before it, and the
// last one has those after it; they are not used. With dropout the first one has not: its positions
// are counted from its first row.
struct Region {
  int entry, first_row, rows;  // within the tensor
  int begin, end;              // the used rows, counted from first_row
  int first_block;
};

__device__ __forceinline__ int within(int value, int low, int high) {
  return max(low, min(value, high));
}
__device__ __forceinline__ int number(const ConstTensorView<1>& of, int i) {
  return *of.at<const std::int32_t>(i);
}

template <int kBlock, bool kStartsAtFirst>
__device__ __forceinline__ Region find_region(const ConstTensorView<1>& cu_seqlens,
                                              const ConstTensorView<1>& used, int all_rows,
                                              int sequences, int sequence) {
  Region region{.entry = sequence, .first_row = 0, .rows = all_rows, .begin = 0, .end = all_rows};
  region.first_block = sequence * ceil_div(all_rows, kBlock);
  if (cu_seqlens.data != nullptr) {
    const int first = within(number(cu_seqlens, sequence), 0, all_rows);
    const int end = within(number(cu_seqlens, sequence + 1), first, all_rows);
    region.entry = 0;
    region.first_row = sequence == 0 && !kStartsAtFirst ? 0 : first;
    region.rows = (sequence + 1 == sequences ? all_rows : end) - region.first_row;
    region.begin = first - region.first_row;
    region.end = end - region.first_row;
    region.first_block =
        (kStartsAtFirst && sequence == 0 ? 0 : region.first_row / kBlock) + sequence;
  }
  if (used.data != nullptr)
    region.end = region.begin + within(number(used, sequence), 0, region.end - region.begin);
  return region;
}

// The sequence that has a block, if one has it: the last whose first block is not after it.
template <int kBlock>
__device__ __forceinline__ int sequence_of(const ConstTensorView<1>& cu_seqlens, int all_rows,
                                           int sequences, int block) {
  if (cu_seqlens.data == nullptr) return block / max(ceil_div(all_rows, kBlock), 1);
  int low = 0, end = sequences;
  while (end - low > 1) {
    const int middle = (low + end) / 2;
    const int first = within(number(cu_seqlens, middle), 0, all_rows) / kBlock + middle;
    (first <= block ? low : end) = middle;
  }
  return low;
}

// How many blocks all sequences may have, at most.
template <int kBlock>
inline std::int64_t most_blocks(bool is_packed, std::int64_t rows, std::int64_t sequences) {
  return is_packed ? rows / kBlock + sequences : ceil_div(rows, std::int64_t{kBlock}) * sequences;
}

template <class Config, class Args>
__device__ __forceinline__ Region queries_of(const Args& args, int sequences, int sequence) {
  return find_region<Config::B_r, attention::DropsOut<Args>>(
      args.cu_seqlens_q, args.seqused_q, static_cast<int>(args.Tq), sequences, sequence);
}

template <class Config, class Args>
__device__ __forceinline__ Region keys_of(const Args& args, int sequences, int sequence) {
  Region region = find_region<Config::B_c, attention::DropsOut<Args>>(
      args.cu_seqlens_k, args.seqused_k, static_cast<int>(args.Tk), sequences, sequence);
  if (args.leftpad_k.data != nullptr)
    region.begin += within(number(args.leftpad_k, sequence), 0, region.end - region.begin);
  return region;
}

// Gradients of rows before the first sequence, which no region has then, become zero: those of a
// head, by `threads` threads.
template <class Element>
__device__ inline void clear_rows_before(const TensorView<4>& gradient, int first_row, int head,
                                         std::int64_t columns, int thread, int threads) {
  for (int row = 0; row < first_row; ++row)
    for (std::int64_t column = thread; column < columns; column += threads)
      gradient
          .template as<Element>()[row * gradient.stride[1] + head * gradient.stride[2] + column] =
          Element(0.f);
}

}  // namespace kernelmint::flash_prefill_backward
