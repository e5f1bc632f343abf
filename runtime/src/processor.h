// The choice among a CPU kernel's instruction sets.
#pragma once

#include <string>
#include <vector>

#include "cpu_detect.h"
#include "registry.h"

namespace kernelmint {

// All supported instruction sets, the least first.
std::vector<CpuIsa> supported_isas();

// The instruction set that the environment variable KERNELMINT_CPU_ISA names, or the greatest
// supported instruction set. Throws InvalidArgument if the variable names no instruction set, and
// TargetUnavailable if the processor lacks the named instruction set.
CpuIsa active_isa();

// The kernel's function for the greatest instruction set up to active_isa(). Throws
// TargetUnavailable if the kernel has no such function, or if KERNELMINT_CPU_ISA is set and the
// kernel has no function for its instruction set.
LaunchFunction select(const KernelEntry& kernel);

}  // namespace kernelmint
