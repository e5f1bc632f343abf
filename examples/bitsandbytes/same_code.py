"""A comparison of the machine code of upstream's kernels here with that of its own file. It needs
nvcc and PyTorch, and no GPU.

    python same_code.py [--architecture 90] [quantize_4bit dequantize_4bit …]

Upstream's file, with all its other kernels, takes minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kernelmint.tools import same_code
from upstream_tests import SPECS, upstream

FAMILIES = ("quantize_4bit", "dequantize_4bit", "quantize_8bit", "dequantize_8bit")
# Names of cuBLAS, which nvcc's packages lack: no kernel uses them.
CUBLAS = """\
#pragma once
#include <cuda_runtime.h>
#include <library_types.h>
typedef int cublasStatus_t;
enum { CUBLAS_STATUS_SUCCESS };
typedef struct cublasContext* cublasHandle_t;
inline cublasStatus_t cublasCreate_v2(cublasHandle_t*) { return 0; }
"""
CUBLAS_LT = """\
#pragma once
#include <cublas_v2.h>
typedef struct cublasLtContext* cublasLtHandle_t;
typedef struct cublasLtDesc* cublasLtMatmulDesc_t;
typedef cublasLtMatmulDesc_t cublasLtMatrixLayout_t, cublasLtMatmulPreference_t;
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t*) { return 0; }
"""


def main() -> None:
    """Runs the command; exit status 1 if a kernel's code is not upstream's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*", default=FAMILIES, metavar="FAMILY")
    parser.add_argument("--architecture", default="90")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        work, handles = Path(folder), Path(folder) / "handles"
        handles.mkdir()
        (handles / "cublas_v2.h").write_text(CUBLAS)
        (handles / "cublasLt.h").write_text(CUBLAS_LT)
        flags = ("-O3", "-std=c++17", "--use_fast_math", "-Xcompiler", f"-idirafter,{handles}")
        csrc = upstream() / "csrc"
        theirs = same_code.of_file(csrc / "kernels.cu", options.architecture, work, flags, [csrc])
        for family in options.families:
            name = f"bnb_{family}"
            ours = same_code.of_family(SPECS, name, options.architecture, work, "default")
            kernel = "kDequantizeBlockwise" if family.startswith("de") else "kQuantizeBlockwise"
            mine, their = ours.named(f"{name}_sm80"), theirs.named(kernel)
            same = (mine & their).total()
            print(f"{name}: {same} of {mine.total()} kernels are upstream's machine code",
                  flush=True)  # fmt: skip
            good &= same == mine.total()
    sys.exit(not good)


if __name__ == "__main__":
    main()
