"""What the journal knows kernels by: their machine code, as nvcc makes it."""

from __future__ import annotations

import os
import shutil

import pytest

import runtime
from codegen.core import packs
from runtime.ondemand import kernels as on_demand
from runtime.ondemand.build import build
from tests.tools.test_tune import CUDA_FILES
from tools.cluster import node
from tools.tune.code import code_hash
from tools.tune.errors import TuningError

FAMILY = "coded_rows"
KEY = f"{FAMILY}.sm80.plain-w1"


pytestmark = [
    pytest.mark.xdist_group("tune code"),  # whose kernels are compiled once
    pytest.mark.skipif(
        shutil.which(os.environ.get("CUDACXX", "nvcc")) is None, reason="needs nvcc"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The family's specs."""
    found = tmp_path_factory.mktemp("specs") / FAMILY
    found.mkdir()
    for name, text in CUDA_FILES.items():
        (found / name).write_text(text.replace("tuned_rows", FAMILY))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMINT_CACHE_DIR", str(found.parent / "cache"))
        runtime.load(found)
    return found


@pytest.fixture
def hash_of(folder, monkeypatch):
    """Builds the kernel from a template, for compute capability 8.0; the hash of what it is."""
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(folder.parent / "cache"))

    def built(old="", new="", flags=""):
        monkeypatch.setenv("CUDAFLAGS", flags)
        template = CUDA_FILES["sm80.cuh"].replace("tuned_rows", FAMILY)
        assert old in template
        (folder / "sm80.cuh").write_text(template.replace(old, new, 1))
        request = node.request(KEY, ("80",))
        made = build(on_demand.cache(), [request])[KEY]
        return code_hash(packs.read(made.folder), FAMILY)

    return built


def test_machine_code_alone_decides(hash_of):
    first = hash_of()
    unused = "// Of no kernel.\n\ninline __device__ int unused(int x) { return x; }\n"
    assert hash_of("#include <cstdint>", f"{unused}#include <cstdint>") == first
    assert hash_of("2 * x[j]", "3 * x[j]") != first
    assert hash_of("2 * x[j]", "(1 + 1) * x[j]") == first


def test_another_compilation_of_the_same_sources_is_another_kernel(hash_of):
    """As that of another ptxas is."""
    assert hash_of() != hash_of(flags="-Xptxas=-O0")


def test_code_that_is_compressed_is_an_error(hash_of):
    with pytest.raises(TuningError, match="its device code is compressed"):
        hash_of(flags="--compress-mode=size")
