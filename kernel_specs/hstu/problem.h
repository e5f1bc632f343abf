// Block-sparse attention for HSTU: its arguments, for kernels of every target.
//
// Sequences either lie in a padded tensor, each of max_length tokens, or one after another, and
// then `offsets` has the start of each. A row is a token's place over all sequences.
#pragma once

#include <cstdint>

#include "integers.h"
#include "tensor_view.h"

namespace kernelmint::hstu {
#if defined(KERNELMINT_ISA)  // a CPU target: every instruction set has its own copy (cpu_vector.h)
inline namespace KERNELMINT_ISA {
#endif

// A tensor [rows, heads, size] or [sequences, tokens, heads, size]; strides in elements.
template <class T>
struct Rows {
  T* data;
  std::int64_t sequence, token, head;

  KERNELMINT_HOST_DEVICE T* at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return data + b * sequence + t * token + h * head;
  }
};

// Returns whether every row starts at a multiple of 16 bytes.
template <class T>
KERNELMINT_HOST_DEVICE bool is_aligned(const Rows<T>& rows) {
  constexpr std::int64_t kElements = 16 / sizeof(T);
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.sequence % kElements == 0 &&
         rows.token % kElements == 0 && rows.head % kElements == 0;
}

struct Sequence {
  std::int64_t index;        // the sequence's number
  std::int64_t first;        // the sequence's first row, over all sequences
  std::int64_t first_token;  // the sequence's first token as Rows::at counts tokens
  std::int64_t first_block;  // the sequence's first block, over all sequences
  std::int64_t length;       // tokens
};

struct Problem {
  Rows<const float> q, k, v, u, g_cmp;
  Rows<float> o;
  Rows<std::int64_t> lists;     // S block indices of each token and head, -1: none
  const std::int64_t* offsets;  // [sequences + 1], or null
  std::int64_t sequences, heads, max_length;

  // Blocks are counted over all sequences, first_block onwards in each.
  //
  // Every sequence's blocks have room after offsets[b] / block_size + b: the sum of the earlier
  // sequences' ceil(length / block_size) is at most that.
  KERNELMINT_HOST_DEVICE Sequence sequence(std::int64_t b, int block_size) const {
    if (offsets == nullptr) {
      const std::int64_t blocks = ceil_div(max_length, block_size);
      return {b, b * max_length, 0, b * blocks, max_length};
    }
    const std::int64_t first = offsets[b], length = offsets[b + 1] - first;
    // on a GPU, it is not checked that no sequence is longer than was announced
    return {b, first, first, first / block_size + b, length < max_length ? length : max_length};
  }
};

// The points in which the modes differ (kernel_specs/hstu/block_sparse/semantics.py).
enum class Mode { fixed, literal, interleaved };

// The mode of a configuration; not every family has all modes.
template <class Config>
constexpr Mode mode_of() {
  using Modes = typename Config::mode_type;
  if constexpr (requires { Modes::literal; }) {
    if (Config::mode == Modes::literal) return Mode::literal;
  }
  return Config::mode == Modes::interleaved ? Mode::interleaved : Mode::fixed;
}

struct Semantics {
  bool reinterpret_lists, share_heads, share_time, open_first_rows, rank_unseen;
  float local_rank;
};

constexpr Semantics semantics(Mode mode) {
  const bool literal = mode == Mode::literal;
  return {.reinterpret_lists = literal,
          .share_heads = literal,
          .share_time = mode == Mode::interleaved,
          .open_first_rows = literal,
          .rank_unseen = literal,
          .local_rank = literal ? 1.0f : __builtin_inff()};
}

#if defined(KERNELMINT_ISA)
}  // namespace KERNELMINT_ISA
#endif
}  // namespace kernelmint::hstu
