"""A comparison of the machine code of upstream's kernels here with that of its own files, compiled
with PyTorch's headers. It needs nvcc and PyTorch, and no GPU.

    python same_code.py [--architecture 90] [gather_csr segment_csr gather_coo segment_coo scatter]

Upstream's three files take two minutes and 3 GB. Its kernels of segment_coo hold assertions, which
are compiled out here, and its kernels of segment_csr leave args to a pass before them.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

import torch
import yaml
from kernelmint.tools import same_code

from codegen.sources import archives

HERE = Path(__file__).resolve().parent
SPECS = HERE / "kernel_specs"
FILES = {"gather_csr": "segment_csr", "gather_coo": "segment_coo"}  # else as the family
TYPES = {
    "bf16": "N3c108BFloat16E", "fp16": "N3c104HalfE", "f32": "f", "f64": "d", "i32": "i", "i64": "l"
}  # fmt: skip
REDUCTIONS = ["sum", "mean", "mul", "div", "min", "max"]
OURS = re.compile(
    r"\d([a-z_]+)_sm80INS_7configs\d+\w+?4sm80\d+([a-z0-9]+)_(?:([a-z]+))?E(?:Li(\d+))?"
)
# CUDA's libraries that a PyTorch without CUDA may lack: no kernel uses them.
HANDLES = {
    "cusparse.h": "cusparseContext* cusparseHandle_t",
    "cublas_v2.h": "cublasContext* cublasHandle_t",
    "cublasLt.h": "cublasLtContext* cublasLtHandle_t",
    "cusolverDn.h": "cusolverDnContext* cusolverDnHandle_t",
    "cusolver_common.h": "",
}
STATUS = "typedef int {0}Status_t; enum {{ {1}_STATUS_SUCCESS }};\n"
SPARSE = 'extern "C" const char* cusparseGetErrorString(int);\n'
NO_OPERATORS = [  # PyTorch compiles all extensions so
    f"-D__CUDA_NO_{what}__"
    for what in (
        "HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS"
    )
]  # fmt: skip


def upstream() -> Path:
    """Returns upstream's source distribution, unpacked."""
    pin = yaml.safe_load((SPECS / "torch_scatter/sm80.yaml").read_text())
    archive = pin["build"]["archives"]["upstream"]
    return archives.folder(f"pypi:{archive['pypi']}=={archive['version']}", archive["sha256"])


def theirs_of(symbol: str) -> str | None:
    """Returns the beginning of the symbol of upstream's kernel that one of ours calls, or None."""
    match = OURS.search(symbol)
    if match is None or match[1] == "divide_coo":
        return None
    name, dtype, reduce, number = match.groups()
    reduced = f"L13ReductionType{REDUCTIONS.index(reduce)}E" if reduce else ""
    parameters = {
        "gather_csr": "Li4E",
        "scatter": reduced,
        "segment_csr": f"{reduced}Li1E",
        "segment_csr_broadcast": reduced,
        "segment_coo": f"{reduced}Lb1E",
        "segment_coo_broadcast": f"{reduced}Li{number}E",
        "count_coo": "L13ReductionType0ELb0E",
    }.get(name, "")
    kernel = f"{name.replace('count', 'segment')}_kernel"
    return f"_Z{len(kernel)}{kernel}I{TYPES[dtype]}{parameters}Ev"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    families = ["gather_coo", "segment_coo", "gather_csr", "segment_csr", "scatter"]
    parser.add_argument("families", nargs="*", default=families, metavar="FAMILY")
    parser.add_argument("--architecture", default="90")
    options = parser.parse_args()
    files: dict[str, same_code.Compiled] = {}
    with tempfile.TemporaryDirectory() as folder:
        work, handles = Path(folder), Path(folder) / "handles"
        handles.mkdir()
        for header, handle in HANDLES.items():
            library = re.sub(r"(_.*|Lt|Dn)?\.h", "", header)
            text = f"#pragma once\ntypedef struct {handle};\n" if handle else "#pragma once\n"
            if handle and "Lt" not in header:
                text += STATUS.format(library, library.upper())
            (handles / header).write_text(text + (SPARSE if library == "cusparse" else ""))
        flags = ("-O3", "-std=c++20", "--expt-relaxed-constexpr", "-DWITH_CUDA", *NO_OPERATORS)
        flags += ("-Xcompiler", f"-idirafter,{handles}")
        include = Path(torch.__file__).parent / "include/torch/csrc/api/include"
        for family in options.families:
            name = FILES.get(family, family)
            if name not in files:
                file = upstream() / f"csrc/cuda/{name}_cuda.cu"
                files[name] = same_code.of_file(file, options.architecture, work, flags, [include])
            compiled = same_code.of_family(
                SPECS, f"torch_scatter_{family}", options.architecture, work, "default"
            )
            same, ratios = 0, []
            for symbol, code in compiled.code.items():
                start = theirs_of(symbol)
                if start is None:
                    continue
                (other,) = (c for s, c in files[name].code.items() if s.startswith(start))
                same += code == other
                ratios.append(len(code) / len(other))
            print(
                f"{family}: of {len(ratios)} kernels {same} are upstream's machine code, and "
                f"{ratios.count(1.0)} as long; the longest is {max(ratios):.3f} of upstream's, the "
                f"shortest {min(ratios):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
