// The 64 rows of a warpgroup's slab.
#pragma once

#include <cstdint>

#include "attributes.h"
#include "integers.h"

namespace kernelmint::flash_forward::sm90a {

// Queries of one head; or, packed, of `heads` heads that share their keys: a slab's row r is query
// r / heads of head r % heads. Rows past the last whole query are unused.
struct PackedRows {
  static constexpr int kSlabRows = 64;

  explicit PackedRows(int heads)
      : heads(heads), queries(kSlabRows / heads), reciprocal(ceil_div(1 << kShift, heads)) {}

  KERNELMINT_HOST_DEVICE int query(int row) const { return row * reciprocal >> kShift; }
  KERNELMINT_HOST_DEVICE int head(int row) const { return row - query(row) * heads; }
  // How many of the slab's rows there are queries for.
  KERNELMINT_HOST_DEVICE int used() const { return queries * heads; }

  int heads, queries;  // the slab's

 private:
  // Rounded up, as all rows are below 2^16 / heads.
  static constexpr int kShift = 16;
  int reciprocal;
};

// The number of the `group` heads that share their keys that a slab should hold: it makes the
// fewest tiles, of `slabs` slabs each.
inline int heads_to_pack(std::int64_t seq_len_q, std::int64_t group, int slabs) {
  int best = 1;
  std::int64_t fewest = 0;
  for (int heads = 1; heads <= smaller(group, PackedRows::kSlabRows); ++heads) {
    if (group % heads != 0) continue;
    const std::int64_t queries = std::int64_t{slabs} * PackedRows(heads).queries;
    const std::int64_t tiles = ceil_div(seq_len_q, queries) * (group / heads);
    if (heads > 1 && tiles >= fewest) continue;
    best = heads;
    fewest = tiles;
  }
  return best;
}

}  // namespace kernelmint::flash_forward::sm90a
