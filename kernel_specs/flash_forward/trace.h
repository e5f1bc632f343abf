// What a kernel with `trace` writes for each block of queries and each block of keys it meets: one
// record of f32, the tensors of reference.py's `simulate` one behind another, row by row. Mirrored
// by tools/debug/record.py. A step that the kernel does not take leaves its record as it was.
#pragma once

namespace kernelmint::flash_forward {

template <int B_r, int B_c, int d_head>
struct TraceRecord {
  static constexpr int kQ = 0;                           // [B_r, d_head] as the kernel holds it
  static constexpr int kK = kQ + B_r * d_head;           // [B_c, d_head] likewise
  static constexpr int kScores = kK + B_c * d_head;      // [B_r, B_c] before scale and mask
  static constexpr int kMaximum = kScores + B_r * B_c;   // [B_r] after this block
  static constexpr int kSum = kMaximum + B_r;            // [B_r] after this block
  static constexpr int kProbabilities = kSum + B_r;      // [B_r, B_c]
  static constexpr int kV = kProbabilities + B_r * B_c;  // [B_c, d_head] as the kernel holds it
  static constexpr int kRescale = kV + B_c * d_head;     // [B_r] the factor on what came before
  static constexpr int kOutput = kRescale + B_r;         // [B_r, d_head] after this block
  static constexpr int kFloats = kOutput + B_r * d_head;
};

}  // namespace kernelmint::flash_forward
