// The choice among a CPU kernel's instruction sets.
#pragma once

#include <string>
#include <vector>

#include "cpu_detect.h"
#include "registry.h"

namespace kernelmint {

// All that are supported, the least first.
std::vector<CpuIsa> supported_isas();

// The greatest instruction set that is supported, or the one that the environment variable
// KERNELMINT_CPU_ISA names. Throws InvalidArgument if that names no instruction set, and
// TargetUnavailable if the processor lacks it.
CpuIsa active_isa();

// The kernel's function for the greatest instruction set up to active_isa(). Throws
// TargetUnavailable if it has no such function, or none for KERNELMINT_CPU_ISA's instruction set.
LaunchFunction select(const KernelEntry& kernel);

}  // namespace kernelmint
