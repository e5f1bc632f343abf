<%
instruction_types = {"bf16": "bf16", "fp16": "f16"}

def numbered(start, count):
    return ", ".join(f"%{i}" for i in range(start, start + count))

def accumulators(count):
    return ", ".join(f'"+f"(d[{i}])' for i in range(count))
%>\
#pragma once

#include <cstdint>

#include "dtypes.h"
#include "ptx/wgmma.cuh"

namespace kernelmint::ptx {
% for dtype, n, wrappers in products:
<%
count = n // 2
shape = f"m64n{n}k16.f32.{instruction_types[dtype]}.{instruction_types[dtype]}"
%>\

template <>
struct Wgmma<${dtype}, ${n}> {
% for name, layouts in (("shared_shared", "0, 0"), ("shared_transposed", "0, 1"), ("transposed_shared", "1, 0"), ("transposed_transposed", "1, 1")):
% if name in wrappers:
  __device__ __forceinline__ static void ${name}(float (&d)[${count}], std::uint64_t a,
                                                       std::uint64_t b, int accumulate) {
    asm volatile(
        "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %${count + 2}, 0;\n"
        "wgmma.mma_async.sync.aligned.${shape} "
        "{${numbered(0, count)}}, %${count}, %${count + 1}, accumulate, 1, 1, ${layouts};\n}"
        : ${accumulators(count)}
        : "l"(a), "l"(b), "r"(accumulate));
  }
% endif
% endfor
% for name, transposed in (("registers_shared", 0), ("registers_transposed", 1)):
% if name in wrappers:
  __device__ __forceinline__ static void ${name}(float (&d)[${count}],
                                                      const std::uint32_t (&a)[4],
                                                      std::uint64_t b, int accumulate) {
    asm volatile(
        "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %${count + 5}, 0;\n"
        "wgmma.mma_async.sync.aligned.${shape} "
        "{${numbered(0, count)}}, {${numbered(count, 4)}}, %${count + 4}, accumulate, 1, 1, ${transposed};\n}"
        : ${accumulators(count)}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
  }
% endif
% endfor
};
% endfor

}  // namespace kernelmint::ptx
