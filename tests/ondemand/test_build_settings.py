"""`build:` of a spec counts for kernels that are built on demand as for those of a pack."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
import torch

import runtime
from runtime import ondemand, packs
from runtime.ondemand import kernels

from .test_ondemand import NVCC

SPECS = Path(__file__).parents[1] / "build/specs/foreign_axpy"
HEADER = """\
#pragma once
#if defined(__CUDACC__)
__host__ __device__
#endif
inline float combine(float alpha, float x, float y) { return alpha * x + y; }
"""
_names = (f"on_demand_axpy_{number}" for number in itertools.count())  # operators stay


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """The family, by a name of its own, beside the folders of headers that it names."""
    name = next(_names)
    folder = tmp_path / "kernel_specs" / name
    shutil.copytree(SPECS, folder)
    shutil.copytree(SPECS.parents[1] / "upstream", tmp_path / "upstream")
    for path in (*folder.iterdir(), tmp_path / "upstream/csrc/bias.cpp"):
        text = path.read_text().replace("{url: , sha256: }", "{folder: ../upstream}")
        path.write_text(text.replace("foreign_axpy", name))
    for path, text in (
        ("python/axpy_headers/__init__.py", "raise RuntimeError('imported')\n"),
        ("python/axpy_headers/include/axpy/combine.h", HEADER),
        ("third_party/offset.h", "constexpr float third_party_offset = 0.5f;\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "python")
    yield name, tmp_path
    registry = packs._registry()
    registry.singles.pop(name, None)
    ondemand.sources.pop(name, None)
    registry.packs.pop(registry.by_family.pop(name).name)


def test_flags_definitions_headers_libraries_and_sources_count(foreign, cache, compilations):
    name, root = foreign
    runtime.load(root / "kernel_specs" / name)
    key = f"{name}.cpu.twice"
    x, y = torch.randn(2, 1001)
    z = runtime.kernel(key)(x, y, alpha=0.3, out=torch.full_like(x, torch.nan))
    expected = 2 * (0.3 * x.double() + y.double() + 0.25 + 0.5)
    assert torch.allclose(z.double(), expected, rtol=1e-6, atol=1e-6)
    assert len(compilations.take()) == 4  # the host's part, the kernel, two sources

    offset = root / "third_party/offset.h"
    offset.write_text(offset.read_text().replace("0.5f", "1.5f"))
    with pytest.warns(RuntimeWarning, match=f"{offset} has changed since it was built"):
        runtime.kernel(key)
    z = runtime.kernel(key, build=True)(x, y, alpha=0.3, out=torch.full_like(x, torch.nan))
    assert torch.allclose(z.double(), expected + 2, rtol=1e-6, atol=1e-6)

    excerpted = root / "upstream/csrc/twice.cu"
    excerpted.write_text(excerpted.read_text().replace("FACTOR 2", "FACTOR 4"))
    with pytest.warns(RuntimeWarning, match=f"{excerpted} has changed since it was built"):
        runtime.kernel(key)
    z = runtime.kernel(key, build=True)(x, y, alpha=0.3, out=torch.full_like(x, torch.nan))
    assert torch.allclose(z.double(), 2 * (expected + 2), rtol=1e-6, atol=1e-6)
    text = excerpted.read_text()
    excerpted.write_text(text.replace("T twice(T x)", "Wrong twice(T x)"))
    with pytest.raises(runtime.BuildError, match=r"^\S*csrc/twice\.cu:6:1: error: .*Wrong"):
        runtime.kernel(key, build=True)  # not the header, where `twice` is not defined then
    excerpted.write_text("\nnamespace {\n")
    with pytest.raises(runtime.BuildError, match=r"twice\.cu: 'namespace \{' is never closed"):
        runtime.kernel(key, build=True)

    shutil.rmtree(root / "python")
    with pytest.raises(runtime.BuildError, match=r'no Python package axpy_headers.*"axpy-headers'):
        runtime.kernel(f"{name}.cpu.default")


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_plain_cuda_sources_are_compiled_too(foreign, cache):
    name, root = foreign
    runtime.load(root / "kernel_specs" / name)
    (pack,) = kernels.build([f"{name}.sm80.t128"], ["80"]).values()
    assert pack.architectures == ("80",)
    assert "axpy_kernel" in pack.ptxas.read_text()
