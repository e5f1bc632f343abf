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

// What KERNELMINT_CPU_ISA says; null where it says nothing.
const char* named_isa() {
  const char* value = std::getenv("KERNELMINT_CPU_ISA");
  return value == nullptr || *value == '\0' ? nullptr : value;
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

std::vector<CpuIsa> supported_isas() {
  std::vector<CpuIsa> result;
  for (CpuIsa isa : kAll)
    if (supported(isa)) result.push_back(isa);
  return result;
}

CpuIsa active_isa() {
  const std::vector<CpuIsa> here = supported_isas();
  const char* wanted = named_isa();
  if (wanted == nullptr) return here.back();
  for (CpuIsa isa : kAll) {
    if (std::string(wanted) != name(isa)) continue;
    if (!supported(isa))
      throw TargetUnavailable(text("KERNELMINT_CPU_ISA=", wanted,
                                   ": this processor does not run it; it runs: ", names(here)));
    return isa;
  }
  throw InvalidArgument(text("KERNELMINT_CPU_ISA=", wanted,
                             ": not an instruction set; use one of baseline, avx2, avx512, amx"));
}

LaunchFunction select(const KernelEntry& kernel) {
  const CpuIsa active = active_isa();
  const LaunchFunction functions[] = {kernel.baseline, kernel.avx2, kernel.avx512, kernel.amx};
  std::vector<CpuIsa> built;
  LaunchFunction best = nullptr;
  for (CpuIsa isa : kAll) {
    const LaunchFunction function = functions[static_cast<int>(isa)];
    if (function == nullptr) continue;
    built.push_back(isa);
    if (isa <= active) best = function;
  }
  if (named_isa() != nullptr && functions[static_cast<int>(active)] == nullptr)
    throw TargetUnavailable(text("KERNELMINT_CPU_ISA=", named_isa(), ": ", kernel.key,
                                 " was not compiled for it, but for: ", names(built)));
  if (best == nullptr)
    throw TargetUnavailable(
        text(kernel.key, ": not compiled for an instruction set up to ", name(active)));
  return best;
}

}  // namespace kernelmint
