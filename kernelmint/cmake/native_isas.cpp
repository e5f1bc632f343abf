// Prints the instruction sets that this processor runs, the least first: KERNELMINT_ISAS=native.
#include <cstdio>

#include "cpu_detect.h"

int main() {
  for (kernelmint::CpuIsa isa : kernelmint::kCpuIsas)
    if (kernelmint::supported(isa)) std::printf("%s;", kernelmint::name(isa));
}
