// Which of a CPU kernel's instruction sets this processor runs.
#pragma once

#include <string>
#include <vector>

#include "registry.h"

namespace kernelmint {

// Ordered from the least to the greatest; a greater one contains the lesser ones.
enum class CpuIsa { baseline, avx2, avx512, amx };

const char* name(CpuIsa isa);

// True where the processor and the kernel of the operating system run `isa`. Asking for amx asks
// Linux for the permission to use its tile registers, once a process.
bool supported(CpuIsa isa);

// All that are supported, the least first.
std::vector<CpuIsa> supported_isas();

// The greatest instruction set that is supported, or the one that the environment variable
// KERNELMINT_CPU_ISA names. Throws InvalidArgument where that names none, and TargetUnavailable
// where it names one that the processor lacks.
CpuIsa active_isa();

// The kernel's function for the greatest instruction set up to active_isa(). Throws
// TargetUnavailable where it has none, or none for the one that KERNELMINT_CPU_ISA names.
LaunchFunction select(const KernelEntry& kernel);

}  // namespace kernelmint
