// Atomics with the ordering that they need and no more: PTX ISA, "atom", "ld", "st".
#pragma once

namespace kernelmint::ptx {

// Adds to a counter in global memory and returns its old value. A thread that adds later sees all
// that this thread wrote or saw other threads write, and the other way round.
__device__ __forceinline__ int atomic_add_acquire_release(int* counter, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
}

// Writes before a release of a counter are seen after an acquiring load of the value that it
// stored.
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
// The same, until it is at least so much; by whole warps.
__device__ __forceinline__ void wait_for_counter(const unsigned* counter, unsigned least) {
  asm volatile(
      "{\n.reg .pred over;\n.reg .u32 value;\n"
      "wait:\n"
      "ld.acquire.gpu.global.u32 value, [%0];\n"
      "setp.ge.u32 over, value, %1;\n"
      "@!over bra.uni wait;\n}" ::"l"(counter),
      "r"(least)
      : "memory");
}
// The same, by one thread.
__device__ __forceinline__ void wait_alone_for_counter(const unsigned* counter, unsigned least) {
  while (load_acquire(counter) < least) {
  }
}
// Adds to it. The writes of all that have added are seen after an acquiring load of the sum.
__device__ __forceinline__ void add_release(unsigned* counter, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
__device__ __forceinline__ void store_release(unsigned* counter, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Four floats of each lane of a warp, in 128 of global memory that begin at a multiple of 16 bytes:
// a lane's first lies kQuadLaneStep after that of the lane before it, and its next kQuadStep
// further each. A lane's four lie side by side where one instruction adds them, from compute
// capability 9.0 on; before, the lanes' floats lie side by side. PTX ISA, "red".
#if __CUDA_ARCH__ >= 900
inline constexpr int kQuadLaneStep = 4, kQuadStep = 1;
#else
inline constexpr int kQuadLaneStep = 1, kQuadStep = 32;
#endif

__device__ __forceinline__ void add_quad(float* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + i * kQuadStep), "f"(x[i])
                 : "memory");
#endif
}

__device__ __forceinline__ void store_quad(float* to, const float (&x)[4]) {
  if constexpr (kQuadStep == 1)
    *reinterpret_cast<float4*>(to) = float4{x[0], x[1], x[2], x[3]};
  else
    for (int i = 0; i < 4; ++i) to[i * kQuadStep] = x[i];
}

// Past the L1 cache, which other multiprocessors' additions do not reach.
__device__ __forceinline__ void load_quad(float (&x)[4], const float* from) {
  if constexpr (kQuadStep == 1) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
    for (int i = 0; i < 4; ++i) x[i] = __ldcg(from + i * kQuadStep);
  }
}

}  // namespace kernelmint::ptx
