// The values that a traced configuration writes: every intermediate of every block, as
// family.yaml's `trace:` lists them.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu_vector.h"
#include "flash_forward/trace.h"

namespace kernelmint::flash_forward {
inline namespace KERNELMINT_ISA {

using namespace kernelmint::attention;

// The records of one tile and one block of keys. What the block does not reach is 0: probabilities
// of keys that no row of a strip sees, rows past the last query.
template <class Config, class Tile>
class Trace {
  static constexpr int D = Config::d_head;

 public:
  Trace(const typename Config::Args& args, const Tile& tile, std::int64_t block)
      : args_(args), tile_(tile), block_(block) {}

  template <class Products>
  void inputs(const Products& products, int count) const {
    if (args_.trace.data == nullptr) return;
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      Record& record = record_of(tile_.first_head + head);
      std::memset(&record, 0, sizeof(record));
      for (int i = 0; i < count; ++i) {
        for (int d = 0; d < D; ++d) {
          record.K[i][d] = products.key(i, d);
          record.V[i][d] = products.value(i, d);
        }
      }
    }
    for (int r = 0; r < tile_.rows; ++r) {
      for (int d = 0; d < D; ++d) record_of_row(r).Q[row_of(r)][d] = products.query(r, d);
    }
  }

  // A strip's scores before its softmax, rows first to first + rows.
  template <class Products>
  void scores(const Products& products, int first, int rows, int count) const {
    if (args_.trace.data == nullptr) return;
    for (int i = 0; i < rows; ++i) {
      float* row = record_of_row(first + i).S_pre_scaling[row_of(first + i)];
      for (int key = 0; key < count; ++key) row[key] = products.scores[i][key];
    }
  }

  template <class Products>
  void probabilities(const Products& products, int first, int rows, int count) const {
    if (args_.trace.data == nullptr) return;
    for (int i = 0; i < rows; ++i) {
      float* row = record_of_row(first + i).P[row_of(first + i)];
      for (int key = 0; key < count; ++key) row[key] = products.probability(i, key);
    }
  }

  // All rows, after the block. Maxima are written as of unscaled scores.
  template <class Products, class Statistics>
  void results(const Products& products, const Statistics& statistics, float scale_log2) const {
    if (args_.trace.data == nullptr) return;
    for (int r = 0; r < tile_.rows; ++r) {
      Record& record = record_of_row(r);
      const std::int64_t row = row_of(r);
      record.M[row] = statistics.maximum[r] / scale_log2;
      record.L[row] = reduce_add(load_bits<F32>(statistics.sum[r]));
      record.O_scale[row] = statistics.rescale[r];
      for (int d = 0; d < D; ++d) record.O[row][d] = products.out[r][d];
    }
  }

 private:
  using Record = TraceRecord<Config>;

  Record& record_of(std::int64_t head) const {
    return *args_.trace.template at<Record>(tile_.batch, head, tile_.first_query / Config::B_r,
                                            block_);
  }

  // The record of a tile's row r, which belongs to a head of the tile and to that head's block of
  // queries.
  Record& record_of_row(int r) const { return record_of(tile_.head(r)); }
  std::int64_t row_of(int r) const { return tile_.row(r) - tile_.first_query; }

  const typename Config::Args& args_;
  const Tile& tile_;
  std::int64_t block_;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_forward
