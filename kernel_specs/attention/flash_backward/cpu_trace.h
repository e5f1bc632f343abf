// The values that a traced configuration writes: every intermediate of every step, as family.yaml's
// `trace:` lists them.
#pragma once

#include <cstdint>
#include <cstring>

#include "flash_backward/trace.h"

namespace kernelmint::flash_backward {
inline namespace KERNELMINT_ISA {

// The record of one step, of so many rows and keys, of which the first `used` keys have scores.
// Elements that the step does not reach are 0.
template <class Config>
class Trace {
  using Record = TraceRecord<Config>;
  static constexpr int D = Config::d_head;

 public:
  Trace(const typename Config::Args& args, std::int64_t entry, std::int64_t head,
        std::int64_t block, std::int64_t first_key, int rows, int keys, int used)
      : rows_(rows), keys_(keys), used_(used), record_(nullptr) {
    if (args.trace.data == nullptr) return;
    record_ = args.trace.template at<Record>(entry, head, block, first_key / Config::B_c);
    std::memset(static_cast<void*>(record_), 0, sizeof(Record));
  }

  // Before scores become probabilities.
  template <class Products>
  void scores(const Products& products) const {
    write(&Record::S, rows_, used_, [&](int r, int key) { return products.score(r, key); });
    write(&Record::dP, rows_, used_, [&](int r, int key) { return products.product(r, key); });
  }

  // Before the step's part is added to dQ.
  template <class Products>
  void inputs(const Products& products, const float* lse, const float* sums,
              const float* dq) const {
    if (record_ == nullptr) return;
    write(&Record::Q, rows_, D, [&](int r, int d) { return products.query(r, d); });
    write(&Record::K, keys_, D, [&](int i, int d) { return products.key(i, d); });
    write(&Record::V, keys_, D, [&](int i, int d) { return products.value(i, d); });
    write(&Record::dO, rows_, D, [&](int r, int d) { return products.out_gradient(r, d); });
    std::memcpy(record_->L, lse, sizeof(float) * rows_);
    std::memcpy(record_->D, sums, sizeof(float) * rows_);
    write(&Record::dQ, rows_, D, [&](int r, int d) { return dq[r * D + d]; });
  }

  // Once the step's products are added.
  template <class Products>
  void gradients(const Products& products, const float* dq, float* dk, float* dv) const {
    write(&Record::P, rows_, used_, [&](int r, int key) { return products.probability(r, key); });
    write(&Record::dS, rows_, used_,
          [&](int r, int key) { return products.score_gradient(r, key); });
    write(&Record::dV, keys_, D, [&](int i, int d) { return Products::of_key(dv, i, d); });
    write(&Record::dQ, rows_, D, [&](int r, int d) { return dq[r * D + d] - record_->dQ[r][d]; });
    write(&Record::dK, keys_, D, [&](int i, int d) { return Products::of_key(dk, i, d); });
  }

 private:
  template <int kRows, int kColumns, class F>
  void write(float (Record::*tensor)[kRows][kColumns], int rows, int columns,
             const F& value) const {
    if (record_ == nullptr) return;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) (record_->*tensor)[r][c] = value(r, c);
    }
  }

  const int rows_, keys_, used_;
  Record* record_;
};

// Lengths with a trace.
template <class Config, class Lengths>
struct Traces : Lengths {
  using Trace = flash_backward::Trace<Config>;
};

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::flash_backward
