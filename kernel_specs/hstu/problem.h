// Block-sparse attention for HSTU: what it is given, for kernels of every target.
//
// Sequences either lie in a padded tensor, each of max_length tokens, or one behind another, and
// then `offsets` says where each starts. A row is a token's place over all sequences.
#pragma once

#include <cstdint>

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

// Whether every row starts at a multiple of 16 bytes.
template <class T>
KERNELMINT_HOST_DEVICE bool is_aligned(const Rows<T>& rows) {
  constexpr std::int64_t kElements = 16 / sizeof(T);
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.sequence % kElements == 0 &&
         rows.token % kElements == 0 && rows.head % kElements == 0;
}

struct Sequence {
  std::int64_t index;        // of the sequence
  std::int64_t first;        // its first row, over all sequences
  std::int64_t first_token;  // its first token as Rows::at counts them
  std::int64_t first_block;  // of its blocks, over all sequences
  std::int64_t length;       // tokens
};

struct Problem {
  Rows<const float> q, k, v, u, g_cmp;
  Rows<float> o;
  Rows<std::int64_t> lists;     // S block indices of each token and head, -1: none
  const std::int64_t* offsets;  // [sequences + 1], or null
  std::int64_t sequences, heads, max_length;
  // Scratch, contiguous. Blocks are counted over all sequences, first_block onwards in each.
  float* k_cmp;   // [blocks, heads, A]: mean keys; on a GPU [heads, blocks, A] for each sequence,
                  // rounded to bf16 where the products are
  float* v_cmp;   // [blocks, heads, L]: mean values, likewise
  void* o_cmp;    // [rows, heads, L]: the compressed branch before LayerNorm; GPU, by tiles:
                  // [rows, heads, 4]: each head's moments
  void* partial;  // [rows, heads, S, L]: what each listed block contributes (GPU); by tiles, for
                  // each row: the compressed branch, the own block's part, and the selected
                  // branch's sum where a head did not wait
  std::int32_t* starts;  // [(blocks + sequences) * heads]: where each block's entries begin (GPU)
  std::int32_t* order;   // [rows * heads * S]: list entries t * S + s, by block (GPU)
  void* packed;          // [blocks, heads, block_size * (A + L)]: bf16 operands (GPU, by tiles)
  std::uint32_t* progress;  // [counters()] (GPU, by tiles)

  // One for each tile of each sequence: that of row r, over all sequences, of sequence b is number
  // r / tile + b.
  KERNELMINT_HOST_DEVICE std::int64_t counters(int tile) const {
    const std::int64_t rows = offsets == nullptr ? sequences * max_length : offsets[sequences];
    return rows / tile + sequences;
  }

  // Every sequence's blocks have room behind offsets[b] / block_size + b: the sum of the earlier
  // sequences' ceil(length / block_size) is at most that.
  KERNELMINT_HOST_DEVICE Sequence sequence(std::int64_t b, int block_size) const {
    if (offsets == nullptr) {
      const std::int64_t blocks = (max_length + block_size - 1) / block_size;
      return {b, b * max_length, 0, b * blocks, max_length};
    }
    const std::int64_t first = offsets[b], length = offsets[b + 1] - first;
    // on a GPU, nobody has checked that no sequence is longer than was announced
    return {b, first, first, first / block_size + b, length < max_length ? length : max_length};
  }
};

// Both families call their scratch the same.
template <class Args>
void take_scratch(Problem& p, const Args& args) {
  p.k_cmp = args.k_cmp.template as<float>();
  p.v_cmp = args.v_cmp.template as<float>();
  p.o_cmp = args.o_cmp.data;
  p.partial = args.partial.data;
  p.starts = args.starts.template as<std::int32_t>();
  p.order = args.order.template as<std::int32_t>();
  p.packed = args.packed.data;
  p.progress = args.progress.template as<std::uint32_t>();
}

// The points in which the modes differ (kernel_specs/hstu/block_sparse/semantics.py).
enum class Mode { fixed, literal, interleaved };

// That of a configuration; not every family has all of them.
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
  if (mode == Mode::literal) return {true, true, false, true, true, 1.0f};
  return {false, false, mode == Mode::interleaved, false, false, __builtin_inff()};
}

#if defined(KERNELMINT_ISA)
}  // namespace KERNELMINT_ISA
#endif
}  // namespace kernelmint::hstu
