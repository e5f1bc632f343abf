"""A comparison of the machine code of upstream's kernels here with that of its own file, compiled
with PyTorch's headers. It needs nvcc and PyTorch, and no GPU.

    python same_code.py [--architecture 90]

The code of each kernel is looked for among upstream's, byte by byte.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kernelmint.tools import same_code
from upstream_tests import HERE, upstream

FAMILIES = {
    "apex_adam": "AdamFunctor",
    "apex_adam_capturable": "AdamCapturableFunctor",
    "apex_adam_master": "AdamCapturableMasterFunctor",
}
FLAGS = ("-O3", "-std=c++20", "--expt-relaxed-constexpr")
# CUDA's libraries that a PyTorch without CUDA may lack: no kernel uses them.
HANDLES = {
    "cusparse": "cusparseHandle_t; typedef int cusparseStatus_t; "
    'enum { CUSPARSE_STATUS_SUCCESS }; extern "C" const char* cusparseGetErrorString(int)',
    "cublas_v2": "cublasHandle_t; typedef int cublasStatus_t; enum { CUBLAS_STATUS_SUCCESS }",
    "cublasLt": "cublasLtHandle_t",
    "cusolverDn": "cusolverDnHandle_t; typedef int cusolverStatus_t; "
    "enum { CUSOLVER_STATUS_SUCCESS }",
    "cusolver_common": "cusolver_unused_t",
}


def main() -> None:
    """Runs the command; exit status 1 if a kernel's code is not upstream's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--architecture", default="90")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        work, architecture = Path(folder), options.architecture
        handles = work / "handles"
        handles.mkdir()
        for header, handle in HANDLES.items():
            (handles / f"{header}.h").write_text(f"#pragma once\ntypedef void* {handle};\n")
        file = upstream() / "csrc/multi_tensor_adam.cu"
        flags = (*FLAGS, "-Xcompiler", f"-idirafter,{handles}")
        file_code = same_code.of_file(file, architecture, work, flags)
        for family, functor in FAMILIES.items():
            compiled = same_code.of_family(
                HERE / "kernel_specs", family, architecture, work, "default"
            )
            ours = compiled.named(f"{family}_sm80")
            theirs = file_code.named(f"{len(functor)}{functor}")
            same = (ours & theirs).total()
            print(f"{family}: {same} of {ours.total()} kernels are the same machine code as "
                  f"upstream's {theirs.total()}", flush=True)  # fmt: skip
            good &= same == ours.total()
    sys.exit(not good)


if __name__ == "__main__":
    main()
