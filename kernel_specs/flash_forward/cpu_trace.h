// What a traced configuration writes: every intermediate of every block, in the layout of trace.h.
#pragma once

#include <cstdint>

#include "cpu_vector.h"
#include "flash_forward/trace.h"

namespace kernelmint::flash_forward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::cpu;

// Whether a configuration is traced. Where it is not, nothing of this file is in its code.
template <class Config>
concept Traced = requires { requires Config::trace; };

// The records of one task and one block of keys, in args.steps [B, H, blocks of queries, blocks of
// keys, floats]. What the block does not reach stays 0: probabilities of keys that no row of a
// strip sees, rows past the last query.
template <class Config, class Task>
class Trace {
  using Record = TraceRecord<Config::B_r, Config::B_c, Config::d_head>;
  static constexpr int D = Config::d_head, B_c = Config::B_c;

 public:
  Trace(const typename Config::Args& args, const Task& task, std::int64_t block)
      : args_(args), task_(task), block_(block) {}

  template <class Products>
  void inputs(const Products& products, int count) const {
    if (args_.steps.data == nullptr) return;
    for (std::int64_t head = 0; head < task_.heads; ++head) {
      float* record = record_of(task_.first_head + head);
      for (int i = 0; i < Record::kFloats; ++i) record[i] = 0;
      for (int i = 0; i < count; ++i) {
        for (int d = 0; d < D; ++d) {
          record[Record::kK + i * D + d] = products.key(i, d);
          record[Record::kV + i * D + d] = products.value(i, d);
        }
      }
    }
    for (int r = 0; r < task_.rows; ++r) {
      for (int d = 0; d < D; ++d) *at(Record::kQ, r, D, d) = products.query(r, d);
    }
  }

  // A strip's scores before its softmax, rows first to first + rows.
  template <class Products>
  void scores(const Products& products, int first, int rows, int count) const {
    if (args_.steps.data == nullptr) return;
    for (int i = 0; i < rows; ++i) {
      for (int key = 0; key < count; ++key) {
        *at(Record::kScores, first + i, B_c, key) = products.scores[i][key];
      }
    }
  }

  template <class Products>
  void probabilities(const Products& products, int first, int rows, int count) const {
    if (args_.steps.data == nullptr) return;
    for (int i = 0; i < rows; ++i) {
      for (int key = 0; key < count; ++key) {
        *at(Record::kProbabilities, first + i, B_c, key) = products.probability(i, key);
      }
    }
  }

  // All rows, after the block. Maxima are written as of unscaled scores.
  template <class Products, class Statistics>
  void results(const Products& products, const Statistics& statistics, float scale_log2) const {
    if (args_.steps.data == nullptr) return;
    for (int r = 0; r < task_.rows; ++r) {
      *at(Record::kMaximum, r, 1, 0) = statistics.maximum[r] / scale_log2;
      *at(Record::kSum, r, 1, 0) = reduce_add(load_bits<F32>(statistics.sum[r]));
      *at(Record::kRescale, r, 1, 0) = statistics.rescale[r];
      for (int d = 0; d < D; ++d) *at(Record::kOutput, r, D, d) = products.out[r][d];
    }
  }

 private:
  float* record_of(std::int64_t head) const {
    return args_.steps.template at<float>(task_.batch, head, task_.first_query / Config::B_r,
                                          block_);
  }

  // Element `column` of the row, in a tensor of `width` columns that starts at `offset`.
  float* at(int offset, int row, int width, int column) const {
    const std::int64_t local_row = task_.query(row) - task_.first_query;
    return record_of(task_.head(row)) + offset + local_row * width + column;
  }

  const typename Config::Args& args_;
  const Task& task_;
  std::int64_t block_;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_forward
