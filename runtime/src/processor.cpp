#include "processor.h"

#include <cstdlib>

#include "errors.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kernelmint {
namespace {

constexpr CpuIsa kAll[] = {CpuIsa::baseline, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::amx};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// Everything that -march=sapphirerapids lets a compiler use in vector code, since a virtual machine
// may hide a part of it.
bool has_amx() {
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
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::string names(const std::vector<CpuIsa>& isas) {
  std::string result;
  for (CpuIsa isa : isas) result += text(result.empty() ? "" : ", ", name(isa));
  return result;
}

}  // namespace

const char* name(CpuIsa isa) {
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

std::vector<CpuIsa> built_isas() {
  return {
#if defined(KERNELMINT_ISA_baseline)
      CpuIsa::baseline,
#endif
#if defined(KERNELMINT_ISA_avx2)
      CpuIsa::avx2,
#endif
#if defined(KERNELMINT_ISA_avx512)
      CpuIsa::avx512,
#endif
#if defined(KERNELMINT_ISA_amx)
      CpuIsa::amx,
#endif
  };
}

bool supported(CpuIsa isa) {
#if defined(__x86_64__)
  static const bool avx2 = has_avx2();
  static const bool avx512 = has_avx512();
  switch (isa) {
    case CpuIsa::avx2:
      return avx2;
    case CpuIsa::avx512:
      return avx512;
    case CpuIsa::amx: {
      static const bool amx = has_amx() && may_use_tiles();
      return amx;
    }
    default:
      return true;
  }
#else
  return isa == CpuIsa::baseline;
#endif
}

CpuIsa active_isa() {
  const std::vector<CpuIsa> built = built_isas();
  const char* wanted = std::getenv("KERNELMINT_CPU_ISA");
  if (wanted != nullptr && *wanted != '\0') {
    for (CpuIsa isa : kAll) {
      if (std::string(wanted) != name(isa)) continue;
      bool is_built = false;
      for (CpuIsa other : built) is_built = is_built || other == isa;
      if (!is_built)
        throw TargetUnavailable(text("KERNELMINT_CPU_ISA=", wanted, ": this build has no ", wanted,
                                     " kernels; it has: ", names(built)));
      if (!supported(isa))
        throw TargetUnavailable(
            text("KERNELMINT_CPU_ISA=", wanted, ": this processor does not run it"));
      return isa;
    }
    throw InvalidArgument(text("KERNELMINT_CPU_ISA=", wanted,
                               ": not an instruction set; use one of baseline, avx2, avx512, amx"));
  }
  CpuIsa best = CpuIsa::baseline;
  for (CpuIsa isa : built)
    if (supported(isa)) best = isa;
  return best;
}

LaunchFunction select(const KernelEntry& kernel, CpuIsa isa) {
  if (isa >= CpuIsa::amx && kernel.amx != nullptr) return kernel.amx;
  if (isa >= CpuIsa::avx512 && kernel.avx512 != nullptr) return kernel.avx512;
  if (isa >= CpuIsa::avx2 && kernel.avx2 != nullptr) return kernel.avx2;
  return kernel.baseline;
}

}  // namespace kernelmint
