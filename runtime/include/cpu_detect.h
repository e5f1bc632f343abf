// The instruction sets of CPU kernels that this processor runs: for the runtime, and for builds
// that compile only for this machine.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kernelmint {

// Ordered from the least to the greatest; a greater one contains the lesser ones.
enum class CpuIsa { baseline, avx2, avx512, amx };

inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::baseline, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::amx};

inline const char* name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::amx:
      return "amx";
    default:
      return "baseline";
  }
}

#if defined(__x86_64__)
namespace cpu_detail {

// Bits of the registers that cpuid fills (Intel's manual, volume 2A, CPUID). The instruction is
// read here, since __builtin_cpu_supports knows only the names that its compiler knows: GCC 11 has
// no avx512fp16, Clang 14 no f16c.
struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // zero if the processor has no such leaf

  explicit Cpuid(unsigned leaf, unsigned subleaf = 0) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
  }
};

template <class... Bits>
constexpr bool has(unsigned value, Bits... bits) {
  return ((value >> bits & 1) && ...);
}

// The states of registers that the operating system saves: XCR0.
inline unsigned saved_states() {
  constexpr int kOsxsave = 27;
  if (!has(Cpuid(1).ecx, kOsxsave)) return 0;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

inline bool has_avx2() {
  const Cpuid one(1), seven(7), extended(0x80000001);
  return has(saved_states(), 1, 2) &&     // SSE, AVX
         has(one.ecx, 12, 22, 28, 29) &&  // FMA, MOVBE, AVX, F16C
         has(seven.ebx, 3, 5, 8) &&       // BMI1, AVX2, BMI2
         has(extended.ecx, 5);            // LZCNT
}

inline bool has_avx512() {
  return has_avx2() && has(saved_states(), 5, 6, 7) &&  // opmask, ZMM
         has(Cpuid(7).ebx, 16, 17, 28, 30, 31);         // AVX512F, DQ, CD, BW, VL
}

// Everything that -march=sapphirerapids lets a compiler use in vector code, since a virtual machine
// may hide a part of it.
inline bool has_amx() {
  const Cpuid seven(7);
  return has_avx512() && has(saved_states(), 17, 18) &&  // TILECFG, TILEDATA
         has(seven.ebx, 21) &&                           // AVX512_IFMA
         // VBMI, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ
         has(seven.ecx, 1, 6, 8, 9, 10, 11, 12, 14) &&
         has(seven.edx, 22, 23, 24) &&                  // AMX-BF16, AVX512_FP16, AMX-TILE
         seven.eax >= 1 && has(Cpuid(7, 1).eax, 4, 5);  // AVX-VNNI, AVX512_BF16
}

// Linux hands out the tile registers' 8 KiB of state only to a process that asks
// (Documentation/arch/x86/xstate.rst).
inline bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace cpu_detail
#endif

// True if the processor and the kernel of the operating system run `isa`. Asking for amx asks
// Linux for the permission to use its tile registers, once a process.
inline bool supported(CpuIsa isa) {
#if defined(__x86_64__)
  static const bool avx2 = cpu_detail::has_avx2();
  static const bool avx512 = cpu_detail::has_avx512();
  switch (isa) {
    case CpuIsa::avx2:
      return avx2;
    case CpuIsa::avx512:
      return avx512;
    case CpuIsa::amx: {
      static const bool amx = cpu_detail::has_amx() && cpu_detail::may_use_tiles();
      return amx;
    }
    default:
      return true;
  }
#else
  return isa == CpuIsa::baseline;
#endif
}

}  // namespace kernelmint
