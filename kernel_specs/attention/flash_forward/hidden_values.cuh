// Values that are not finite, in a block of keys that some rows see only in part: 0 times such a
// value is NaN, so that a masked key would reach the rows before it.
//
// The products take no notice. Their result is NaN, and stays NaN: one warp makes a row of the
// output with an element that is not finite anew, of the keys that the row sees.
#pragma once

#include <cstdint>

#include "attention/hidden_values.cuh"
#include "attention/softmax.cuh"
#include "ptx/math.cuh"
#include "ptx/special_registers.cuh"
#include "register_tile.cuh"

namespace kernelmint::flash_forward {

using namespace attention;

// Row `query` of a head under the causal mask, by all lanes of a warp: store(i, x) gets its columns
// from `first_column` on, kColumns of them; nothing if no hidden value reached it. Seldom called:
// its loops stay small.
template <class Config, int kColumns, class Store>
__device__ __forceinline__ void remake_row(const typename Config::Args& args, int batch, int head,
                                           int query, int first_column, const Store& store) {
  using Element = typename Config::dtype;
  constexpr int kLaneColumns = kColumns / 32;
  // Made when it is needed: ahead of the loop over tiles it would take registers.
  const int lane = ptx::reread_thread_index() % 32;
  const unsigned group = ptx::recomputed(args.H) / ptx::recomputed(args.Hk);
  const float scale = __uint_as_float(ptx::recomputed(__float_as_uint(args.scale)));
  const int kv_head = static_cast<unsigned>(head) / group;
  const int keys = query + 1 + static_cast<int>(args.Sk - args.Sq);
  const Element* q = args.q.template at<const Element>(batch, query, head);
  const Element* k = args.k.template at<const Element>(batch, 0, kv_head);
  const Element* v = args.v.template at<const Element>(batch, 0, kv_head, first_column + lane);
  bool is_reached = false;  // by one of the keys after its own that its blocks may hold
#pragma unroll 1
  for (int key = max(keys, 0);
       key < min(keys + Config::B_r + Config::B_c, static_cast<int>(args.Sk)); ++key)
    unroll<kLaneColumns>([&](int column) {
      const float x = static_cast<float>(v[key * args.v.stride[1] + 32 * column]);
      is_reached |= !is_finite(x);
    });
  if (!__any_sync(~0u, is_reached)) return;
  // With a scale of 0 a score of -inf stays -inf.
  const float factor = fmaxf(fabsf(scale), 1e-30f) * kLog2E;
  float maximum = kNoMaximum, sum = 0, output[kLaneColumns] = {};
#pragma unroll 1
  for (int first_key = 0; first_key < keys; first_key += 32) {
    float score = -kInfinity;  // each lane's score, of one key
    if (first_key + lane < keys) {
      const Element* y = k + (first_key + lane) * args.k.stride[1];
      float product = 0;
#pragma unroll 1
      for (int i = 0; i < Config::d_head; i += 2) {
        const float2 a = ptx::unpack<Element>(*reinterpret_cast<const std::uint32_t*>(q + i));
        const float2 b = ptx::unpack<Element>(*reinterpret_cast<const std::uint32_t*>(y + i));
        product = fmaf(a.y, b.y, fmaf(a.x, b.x, product));
      }
      score = scale < 0 ? -product : product;
    }
    float greatest = fmaxf(maximum, score);
    for (int distance = 1; distance < 32; distance *= 2)
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, distance));
    add_keys<Element>(maximum, sum, output, score, greatest, factor, first_key, keys,
                      [&](int key, const auto& add) {
                        const Element* values = v + key * args.v.stride[1];
                        unroll<kLaneColumns>([&](int column) { add(column, values[32 * column]); });
                      });
    bool is_known = maximum != kNoMaximum;  // NaN stays NaN
    unroll<kLaneColumns>([&](int i) { is_known &= output[i] != output[i]; });
    if (__all_sync(~0u, is_known)) break;
  }
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  const float normalizer = sum == 0 ? 0.f : __frcp_rn(sum);
  unroll<kLaneColumns>([&](int i) {
    store(lane + 32 * i, static_cast<Element>(sum == 0 ? 0.f : output[i] * normalizer));
  });
}

}  // namespace kernelmint::flash_forward
