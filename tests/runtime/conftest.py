"""Libraries built from probe.cpp, whose families exercise the binder."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
import torch

from runtime import _native
from tests import warm_python

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "c++")
# As kernelmint_add_pack links (kernelmint/cmake/pack.cmake).
LINK = (
    "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL",
    f"-Wl,--version-script={ROOT / 'kernelmint/cmake/exports.map'}",
)  # fmt: skip


def _compile(source, folder, flags):
    """Compiles one source unless an object for the same text and headers is there already."""
    headers = [*(ROOT / "runtime/include").glob("*.h"), *(ROOT / "runtime/pack").glob("*.h")]
    digest = hashlib.sha256(" ".join(flags).encode())
    for path in (*sorted(headers), source):
        digest.update(path.read_bytes())
    built = folder / f"{source.stem}-{digest.hexdigest()[:16]}.o"
    if not built.exists():
        partial = built.with_suffix(f".{os.getpid()}")
        subprocess.run([COMPILER, "-c", *flags, str(source), "-o", str(partial)], check=True)
        partial.rename(built)
    return built


class Probe:
    """The probe families, each in a library of its own, as a pack's are."""

    def __init__(self, libraries):
        self.libraries = libraries
        self._loaded = {family: _native.Library(str(p)) for family, p in libraries.items()}

    def kernel(self, key, parameters=None, dispatched=None):
        """The kernel of a key."""
        library = self._loaded[key.partition(".")[0]]
        return library.kernel(key, parameters or {}, dispatched)


@pytest.fixture(scope="session")
def probe():
    """The libraries of the probe families; their objects are kept in build/probe."""
    folder = ROOT / "build/probe"
    folder.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{ROOT / 'runtime' / name}" for name in ("include", "pack")]
    flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", *includes]
    flags.append("-DKERNELMINT_ISA_baseline")
    libraries = {}
    for family, entry in (("probe", "kProbe"), ("threads", "kThreads")):
        own = [*flags, f"-DPROBE_FAMILY={entry}"]
        sources = [ROOT / "runtime/pack/library.cpp", Path(__file__).parent / "probe.cpp"]
        objects = [str(_compile(source, folder, own)) for source in sources]
        digest = hashlib.sha256(" ".join((*objects, *LINK)).encode()).hexdigest()[:16]
        library = libraries[family] = folder / f"{family}-{digest}.so"
        if not library.exists():
            partial = library.with_suffix(f".{os.getpid()}")
            subprocess.run([COMPILER, "-shared", *objects, *LINK, "-o", str(partial)], check=True)
            partial.rename(library)  # another test process may be loading it
    return Probe(libraries)


@pytest.fixture(params=["exchange", "attributes"])
def native(request, probe):
    """The probe families, tensors read by the exchange table and then by Python attributes."""
    if request.param == "exchange" and not _native.has_exchange_api():
        pytest.skip("this PyTorch has no DLPack exchange table")
    _native.use_exchange_api(request.param == "exchange")
    yield probe
    _native.use_exchange_api(True)


@pytest.fixture
def run_python():
    """Runs a script in a fresh interpreter, elsewhere than in the checkout's root."""

    def run(script, tmp_path, check=True, **environment):
        environment = {**os.environ, **environment}
        return warm_python.run(script, folder=tmp_path, environment=environment, check=check)

    return run


def nan(*shape, **options):
    """A poisoned tensor: what a kernel does not write stays NaN."""
    return torch.full(shape, float("nan"), **options)
