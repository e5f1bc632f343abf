// How many heads with keys of their own are worked on together if dQ has to be the same each time.
#pragma once

#include "attributes.h"

namespace kernelmint::attention_backward {

// The heads of a section, of so many blocks of keys each, by so many thread blocks at a time. The
// blocks of keys of a head come to a block of queries one after another, and the later ones wait:
// fewer do if a section has more tiles than are at work at a time. It has twice as many without a
// mask, and one and a half times as many with it, but for wide heads, whose steps are long.
template <class Config>
KERNELMINT_HOST_DEVICE inline int heads_in_turn(int places, int blocks, bool masked) {
  const int halves = Config::d_head > (masked ? 128 : 192) ? 2 : masked ? 3 : 4;
  // The most heads whose Q, dO and dQ L2 holds if each has a thousand queries.
  const int all = 2048 / Config::d_head, most = !masked ? all : all < 16 ? 8 : all / 2;
  const int heads = (halves * places + blocks) / (2 * blocks);
  return heads < 1 ? 1 : heads < most ? heads : most;
}

// The last section, which has all heads that are left: half of a section at least.
KERNELMINT_HOST_DEVICE inline int last_section_in_turn(int heads, int section_heads) {
  const int before = heads - (section_heads + 1) / 2;
  return before > 0 ? before / section_heads : 0;
}

// True if a call's last section does not go from the diagonal on, though the others do: the last
// tiles of a head, which are its longest ones, would end the kernel alone.
KERNELMINT_HOST_DEVICE inline bool last_section_goes_back(int places, int blocks) {
  return blocks >= places / 8;
}

}  // namespace kernelmint::attention_backward
