"""driver_function.h, by toolkits that lack what it calls."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = """
#define CUDART_VERSION {version}
enum cudaError_t {{ cudaSuccess, cudaErrorUnknown }};
enum cudaDriverEntryPointQueryResult {{ cudaDriverEntryPointSuccess }};
constexpr unsigned long long cudaEnableDefault = 0;
inline cudaError_t {function}(const char* name, void** function, {parameter}unsigned long long,
                              cudaDriverEntryPointQueryResult*) {{
  *function = const_cast<char*>(name);
  return name[0] == 'c' ? cudaSuccess : cudaErrorUnknown;
}}
"""
CALLER = """
#include "driver_function.h"
int main() {
  return kernelmint::driver_function<void()>("cuInit", 12000) == nullptr ||
         kernelmint::driver_function<void()>("nothing", 12000) != nullptr;
}
"""


@pytest.mark.parametrize(
    ("version", "function", "parameter"),
    [
        (12040, "cudaGetDriverEntryPoint", ""),
        (12050, "cudaGetDriverEntryPointByVersion", "unsigned, "),
    ],
)
def test_a_toolkit_is_asked_by_the_function_that_it_has(tmp_path, version, function, parameter):
    header = RUNTIME.format(version=version, function=function, parameter=parameter)
    (tmp_path / "cuda_runtime.h").write_text(header)
    caller = tmp_path / "caller"
    folders = [f"-I{tmp_path}", f"-I{ROOT / 'runtime/include'}"]
    command = ["c++", "-std=c++20", *folders, "-x", "c++", "-", "-o", caller]
    subprocess.run(command, input=CALLER, text=True, check=True)
    subprocess.run([caller], check=True)
