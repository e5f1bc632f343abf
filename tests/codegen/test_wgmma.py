"""`wgmma:` in a target's spec: what it may say, and the wrappers that are made of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from codegen.core.manifest import Selection
from codegen.core.problems import SpecError
from codegen.pipeline import generate

FAMILY = {
    "family": "product",
    "summary": "A product.",
    "arguments": {
        "a": {"tensor": ["M"], "dtype": "dtype"},
        "b": {"output": ["M"], "dtype": "dtype"},
    },
    "parameters": {"dtype": {"type": "dtype", "values": ["bf16", "fp16", "f32"]}},
}


def tree(
    folder: Path, wgmma: object, target: str = "sm90a", columns: object = (64, 96)
) -> dict[str, str]:
    """The generated files of a family whose target says `wgmma`."""
    family = folder / "specs" / "product"
    family.mkdir(parents=True)
    (family / "product.cuh").write_text("")
    (family / "family.yaml").write_text(yaml.safe_dump(FAMILY, sort_keys=False))
    spec = {
        "target": target,
        "kernel": "product.cuh",
        "parameters": {"columns": {"type": "int", "token": "n"}},
        "wgmma": wgmma,
        "sets": {"default": {"product": {"dtype": ["bf16", "fp16"], "columns": list(columns)}}},
    }
    (family / f"{target}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return generate([folder / "specs"], folder / "generated", Selection()).files


def test_each_shape_has_one_wrapper(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {
            "dtype": "dtype",
            "shared_shared": ["columns"],
            "registers_shared": [64],
            "registers_transposed": ["2 * columns", 64],
        },
    )
    text = files["product/sm90a_wgmma.cuh"]
    assert re.findall(r"struct Wgmma<(\w+), (\d+)>", text) == [
        (dtype, n) for dtype in ("bf16", "fp16") for n in ("64", "96", "128", "192")
    ]
    assert text.count("shared_shared") == 4
    assert text.count("registers_shared") == 2
    assert text.count("registers_transposed") == 6


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_the_wrappers_compile_to_the_instructions(tmp_path: Path) -> None:
    """Every product that is named is one wgmma of its shape in the compiler's PTX."""
    wrappers = ("shared_shared", "registers_shared", "registers_transposed",
                "shared_transposed", "transposed_shared", "transposed_transposed")  # fmt: skip
    files = tree(tmp_path, {"dtype": "dtype"} | {wrapper: ["columns"] for wrapper in wrappers})
    (tmp_path / "wgmma.cuh").write_text(files["product/sm90a_wgmma.cuh"])
    (tmp_path / "use.cu").write_text(
        """#include "wgmma.cuh"
        template <class T, int N> __global__ void use(float* out, unsigned long long a) {
          float d[N / 2]; unsigned fragment[4] = {1, 2, 3, 4};
          kernelmint::ptx::Wgmma<T, N>::shared_shared(d, a, a, 0);
          kernelmint::ptx::Wgmma<T, N>::registers_shared(d, fragment, a, 1);
          kernelmint::ptx::Wgmma<T, N>::registers_transposed(d, fragment, a, 1);
          kernelmint::ptx::Wgmma<T, N>::shared_transposed(d, a, a, 1);
          kernelmint::ptx::Wgmma<T, N>::transposed_shared(d, a, a, 1);
          kernelmint::ptx::Wgmma<T, N>::transposed_transposed(d, a, a, 1);
          for (int i = 0; i < N / 2; ++i) out[i] = d[i];
        }
        template __global__ void use<kernelmint::bf16, 64>(float*, unsigned long long);
        template __global__ void use<kernelmint::fp16, 96>(float*, unsigned long long);
        """
    )
    include = Path(__file__).parents[2] / "runtime" / "include"
    subprocess.run(
        [
            "nvcc",
            "-std=c++20",
            "-ptx",
            "-gencode",
            "arch=compute_90a,code=compute_90a",
            f"-I{include}",
            "-o",
            "use.ptx",
            "use.cu",
        ],
        cwd=tmp_path,
        check=True,
    )
    found = re.findall(r"wgmma\.mma_async\S+(m64n\d+k16\S+)", (tmp_path / "use.ptx").read_text())
    assert sorted(found) == ["m64n64k16.f32.bf16.bf16"] * 6 + ["m64n96k16.f32.f16.f16"] * 6


@pytest.mark.parametrize(
    ("wgmma", "message"),
    [
        ({"dtype": "dtypes", "shared_shared": [64]}, "'dtypes' is not a dtype of wgmma"),
        ({"dtype": "f32", "shared_shared": [64]}, "'f32' is not a dtype of wgmma"),
        ({"dtype": "dtype", "shared_shared": ["rows"]}, "rows"),
        ({"dtype": "dtype", "shared_shared": 64}, "must be a list"),
    ],
)
def test_what_is_wrong_is_located(tmp_path: Path, wgmma: object, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        tree(tmp_path, wgmma)
    assert all("sm90a.yaml" in str(problem.location) for problem in caught.value.problems)


def test_other_targets_have_no_wgmma(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="only sm90a has wgmma"):
        tree(tmp_path, {"dtype": "dtype", "shared_shared": ["columns"]}, target="sm80")


@pytest.mark.parametrize("columns", [[60], [264], [0]])
def test_what_the_instruction_does_not_take_is_excluded_with_the_reason(
    tmp_path: Path, columns: list[int]
) -> None:
    with pytest.raises(SpecError, match="wgmma has 8 to 256 columns, a multiple of 8"):
        tree(tmp_path, {"dtype": "dtype", "shared_shared": ["columns"]}, columns=columns)
