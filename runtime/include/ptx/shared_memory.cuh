// Shared memory by its 32-bit address: ldmatrix and vector accesses.
#pragma once

#include <cstdint>

namespace kernelmint::ptx {

// The address of `pointer` in the shared window, which the instructions below take.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8, and gets
// of matrix i, in fragment[i], elements 2 (l%4) and 2 (l%4) + 1 of row l/4. Volatile, so that no
// barrier is passed. PTX ISA, "ldmatrix".
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&fragment)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
}

// The same with each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&fragment)[4],
                                                       std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
}

// Stores four 8x8 matrices, laid out in the lanes' registers as ldmatrix_x4 reads them. PTX ISA,
// "stmatrix"; compute capability 9.0 and later.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address,
                                            const std::uint32_t (&fragment)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
}

// The same with each matrix transposed.
__device__ __forceinline__ void stmatrix_x4_transposed(std::uint32_t address,
                                                       const std::uint32_t (&fragment)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
      : "memory");
}

// Keeps the shared memory loads that follow from starting before `value` is there. The compiler
// moves loads and products freely past each other otherwise. What holds it is a store that could
// overlap with the loads; it never happens, since no `address` of a load is that high.
__device__ __forceinline__ void order_loads_after(float value, std::uint32_t address) {
  asm volatile(
      "{\n.reg .pred never;\n"
      "setp.eq.u32 never, %0, 0xfffffff0;\n"
      "@never st.shared.f32 [%0], %1;\n}" ::"r"(address),
      "f"(value)
      : "memory");
}

__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void store_shared(std::uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ std::uint32_t load_shared_4(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint2 load_shared_8(std::uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_shared_16(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace kernelmint::ptx
