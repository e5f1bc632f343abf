// The instruction sets of CPU kernels that this processor runs: for the runtime, and for builds
// that compile only for this machine.
#pragma once

#if defined(__x86_64__)
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

inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe");
}

inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// Everything that -march=sapphirerapids lets a compiler use in vector code, since a virtual machine
// may hide a part of it.
inline bool has_amx() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512fp16") && __builtin_cpu_supports("avx512ifma") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bitalg") &&
         __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avxvnni") &&
         __builtin_cpu_supports("gfni") && __builtin_cpu_supports("vaes") &&
         __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16");
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
