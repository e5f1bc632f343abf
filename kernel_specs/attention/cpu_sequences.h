// Sequences of any lengths on the CPU: packed ones, or a batch's.
#pragma once

#include "dtypes.h"
#include "integers.h"
#include "launch.h"

namespace kernelmint::attention {
inline namespace KERNELMINT_ISA {

// The place of a sequence in q and k.
struct SequencePlace {
  std::int64_t index = 0;
  std::int64_t entry = 0, first_row = 0;  // within q
  std::int64_t rows = 0, queries = 0;     // rows after the queries are unused
  std::int64_t key_entry = 0, first_key = 0, begin = 0, end = 0;  // within k: keys [begin, end)
};

inline std::int64_t within(std::int64_t value, std::int64_t low, std::int64_t high) {
  return larger(low, smaller(value, high));
}

// Lengths out of bounds count as the nearest.
template <class Args>
SequencePlace place_of(const Args& args, std::int64_t index) {
  const auto number = [](const ConstTensorView<1>& of, std::int64_t i) {
    return std::int64_t{*of.at<const i32>(i)};
  };
  SequencePlace place{
      .index = index, .entry = index, .rows = args.Tq, .key_entry = index, .end = args.Tk};
  if (args.cu_seqlens_q.data != nullptr) {
    place.entry = 0;
    place.first_row = within(number(args.cu_seqlens_q, index), 0, args.Tq);
    place.rows =
        within(number(args.cu_seqlens_q, index + 1), place.first_row, args.Tq) - place.first_row;
  }
  place.queries = place.rows;
  if (args.seqused_q.data != nullptr)
    place.queries = within(number(args.seqused_q, index), 0, place.rows);
  if (args.cu_seqlens_k.data != nullptr) {
    place.key_entry = 0;
    place.first_key = within(number(args.cu_seqlens_k, index), 0, args.Tk);
    place.end =
        within(number(args.cu_seqlens_k, index + 1), place.first_key, args.Tk) - place.first_key;
  } else if constexpr (requires { args.block_table; }) {
    if (args.block_table.data != nullptr) place.end = args.pages * args.Tk;
  }
  if (args.seqused_k.data != nullptr)
    place.end = within(number(args.seqused_k, index), 0, place.end);
  if (args.leftpad_k.data != nullptr)
    place.begin = within(number(args.leftpad_k, index), 0, place.end);
  return place;
}

}  // namespace KERNELMINT_ISA
}  // namespace kernelmint::attention
