"""cutlass_pack: CUTLASS's GEMM kernels, called like a function or by key.

import cutlass_pack

d = cutlass_pack.cutlass_gemm(a, b)

import kernelmint

kernelmint.kernels("cutlass_gemm")                      # what there is
kernelmint.kernel(key)(a, b)
"""

from kernelmint import cutlass_gemm

__all__ = ["cutlass_gemm"]
