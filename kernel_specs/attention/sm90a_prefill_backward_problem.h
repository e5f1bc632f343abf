// The arguments of a call's kernels on Hopper.
#pragma once

#include "attention/prefill_backward_problem.h"
#include "attention/sm90a_tensor_maps.cuh"

namespace kernelmint::flash_prefill_backward::sm90a {

using attention::sm90a::MappedTensor;

struct TensorMaps {
  MappedTensor q, dout;  // [Nq, H, Tq, D], in boxes of B_r rows by 64 columns
  MappedTensor k, v;     // [Nk, Hk, Tk, D], in boxes of B_c rows by 64 columns
  // If the main kernel makes D: [Nq, H, Tq, Dv], in boxes of kRowsOfBox rows by 64 columns.
  MappedTensor o_rows, dout_rows;
};

// The order in which a call's blocks are worked on: sequence after sequence, those with the most
// keys first. Places count the blocks of one head in this order. The kernel ahead of the main one
// makes it.
struct Order {
  int* sequences;                              // [sequences] in their order
  int *key_sequences, *query_sequences;        // [key_blocks], [query_blocks]: a place's sequence
  int *first_key_places, *first_query_places;  // [sequences]: the place of its first block
  int* counts;                                 // [2]: places of keys, and of queries
};

template <class Arguments>
struct Problem : flash_prefill_backward::Problem<Arguments, TensorMaps> {
  // All of these if there are queries. The first tile that no thread block has; and [sequences,
  // Hk], how many tiles of each key/value head are done.
  unsigned *next_tile, *tiles_done;
  // If the main kernel makes D: the first block of queries whose D nobody makes yet, in the order;
  // and [sequences, Hk], how many blocks of queries of each key/value head have it.
  unsigned *next_sums, *sums_done;
  Order order;
  int tiles;            // all blocks of keys, at most
  int multiprocessors;  // each has one thread block of the main kernel
};

}  // namespace kernelmint::flash_prefill_backward::sm90a
