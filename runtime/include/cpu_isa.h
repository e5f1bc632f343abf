// The instruction sets of a CPU kernel, for dispatch tables. CMake defines KERNELMINT_ISA_<name>
// for each that the shards were compiled for; the table's entry is null for the others.
#pragma once

#include "guarded.h"

#if defined(KERNELMINT_ISA_baseline)
#define KERNELMINT_BASELINE(...) \
  &::kernelmint::guarded<::kernelmint::launch<__VA_ARGS__, ::kernelmint::isa::baseline>>
#else
#define KERNELMINT_BASELINE(...) nullptr
#endif

#if defined(KERNELMINT_ISA_avx2)
#define KERNELMINT_AVX2(...) \
  &::kernelmint::guarded<::kernelmint::launch<__VA_ARGS__, ::kernelmint::isa::avx2>>
#else
#define KERNELMINT_AVX2(...) nullptr
#endif

#if defined(KERNELMINT_ISA_avx512)
#define KERNELMINT_AVX512(...) \
  &::kernelmint::guarded<::kernelmint::launch<__VA_ARGS__, ::kernelmint::isa::avx512>>
#else
#define KERNELMINT_AVX512(...) nullptr
#endif

#if defined(KERNELMINT_ISA_amx)
#define KERNELMINT_AMX(...) \
  &::kernelmint::guarded<::kernelmint::launch<__VA_ARGS__, ::kernelmint::isa::amx>>
#else
#define KERNELMINT_AMX(...) nullptr
#endif
