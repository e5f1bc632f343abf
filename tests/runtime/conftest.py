"""A second extension, built from runtime/src and probe.cpp, whose families exercise the binder."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import nanobind
import pytest
import torch

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "c++")


def _compile(source, folder, flags):
    """Compiles one source unless an object for the same text and headers is there already."""
    headers = [*(ROOT / "runtime/include").glob("*.h"), *(ROOT / "runtime/src").glob("*.h")]
    digest = hashlib.sha256(" ".join(flags).encode())
    for path in (*sorted(headers), source):
        digest.update(path.read_bytes())
    built = folder / f"{source.stem}-{digest.hexdigest()[:16]}.o"
    if not built.exists():
        partial = built.with_suffix(f".{os.getpid()}")
        subprocess.run([COMPILER, "-c", *flags, str(source), "-o", str(partial)], check=True)
        partial.rename(built)
    return built


@pytest.fixture(scope="session")
def probe():
    """The `_native` module of the probe families; its objects are kept in build/probe."""
    folder = ROOT / "build/probe"
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(nanobind.__file__).parent
    flags = [
        "-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-pthread",
        f"-I{ROOT / 'runtime/include'}", f"-I{ROOT / 'runtime/src'}",
        f"-I{nanobind.include_dir()}", f"-I{package / 'ext/robin_map/include'}",
        f"-I{sysconfig.get_path('include')}", "-DNB_DOMAIN=probe", "-DKERNELMINT_WITH_CUDA=0",
        "-DKERNELMINT_DEBUG=0", '-DKERNELMINT_NVCC_VERSION=""', "-DKERNELMINT_ISA_baseline",
        '-DKERNELMINT_CUDA_ARCHITECTURES=""',
    ]  # fmt: skip
    sources = [
        *sorted((ROOT / "runtime/src").glob("*.cpp")),
        Path(__file__).parent / "probe.cpp",
        package / "src/nb_combined.cpp",
    ]
    objects = [str(_compile(source, folder, flags)) for source in sources]
    digest = hashlib.sha256(" ".join(objects).encode()).hexdigest()[:16]
    extension = folder / f"_native-{digest}.so"
    if not extension.exists():
        partial = extension.with_suffix(f".{os.getpid()}")
        linked = [COMPILER, "-shared", "-pthread", *objects, "-o", str(partial)]
        subprocess.run(linked, check=True)
        partial.rename(extension)  # another test process may be loading it
    spec = importlib.util.spec_from_file_location("kernelmint_probe._native", extension)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["exchange", "attributes"])
def native(request, probe):
    """The probe extension, reading tensors by the exchange table and then by Python attributes."""
    if request.param == "exchange" and not probe.has_exchange_api():
        pytest.skip("this PyTorch has no DLPack exchange table")
    probe.use_exchange_api(request.param == "exchange")
    yield probe
    probe.use_exchange_api(True)


@pytest.fixture
def run_python():
    """Runs a script in a fresh interpreter, elsewhere than in the checkout's root."""

    def run(script, tmp_path, check=True, **environment):
        return subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=check,
            timeout=300,
        )

    return run


def nan(*shape, **options):
    """A poisoned tensor: what a kernel does not write stays NaN."""
    return torch.full(shape, float("nan"), **options)
