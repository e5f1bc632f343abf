#include "processor.h"

#include <cstdlib>

#include "errors.h"

namespace kernelmint {
namespace {

constexpr char kRebuild[] =
    "; rebuild its pack in its project, `pip install . -C cmake.define.KERNELMINT_ISAS=all`";

std::string names(const std::vector<CpuIsa>& isas) {
  std::string result;
  for (CpuIsa isa : isas) result += text(result.empty() ? "" : ", ", name(isa));
  return result;
}

// The value of KERNELMINT_CPU_ISA; null if it is unset.
const char* named_isa() {
  const char* value = std::getenv("KERNELMINT_CPU_ISA");
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

std::vector<CpuIsa> supported_isas() {
  std::vector<CpuIsa> result;
  for (CpuIsa isa : kCpuIsas)
    if (supported(isa)) result.push_back(isa);
  return result;
}

CpuIsa active_isa() {
  const std::vector<CpuIsa> here = supported_isas();
  const char* wanted = named_isa();
  if (wanted == nullptr) return here.back();
  for (CpuIsa isa : kCpuIsas) {
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
  for (CpuIsa isa : kCpuIsas) {
    const LaunchFunction function = functions[static_cast<int>(isa)];
    if (function == nullptr) continue;
    built.push_back(isa);
    if (isa <= active) best = function;
  }
  if (named_isa() != nullptr && functions[static_cast<int>(active)] == nullptr)
    throw TargetUnavailable(text("KERNELMINT_CPU_ISA=", named_isa(), ": ", kernel.key,
                                 " was not compiled for it, but for: ", names(built), kRebuild));
  if (best == nullptr)
    throw TargetUnavailable(text(kernel.key, ": compiled for ", names(built),
                                 ", but this processor runs ", names(supported_isas()), kRebuild));
  return best;
}

}  // namespace kernelmint
