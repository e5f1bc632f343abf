"""What CMake makes of folders' names, of edited generators, and of trees written meanwhile."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from codegen.build import toolkits
from codegen.core import advice, manifest
from codegen.ptxas.fingerprints import Manifest, SourceFingerprint
from runtime import _native

pytestmark = pytest.mark.build

ROOT = Path(__file__).resolve().parents[2]
CMAKE = Path(sys.executable).with_name("cmake")
ONE = (
    "family == 'flash_forward' and target == 'cpu' and d_head == 64 and B_r == 64 and causal"
    " and dtype == 'f32'"
)
LIBRARY = "CMakeFiles/kernelmint_flash_forward.dir/{out}/flash_forward/library.cpp.o"
# Not the checkout's editable install, whose finder comes before every path.
CODEGEN = """
import sys
sys.meta_path = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
from codegen.__main__ import main
main()
"""


@dataclass
class Checkout:
    """A copy of the sources, with a tree of one kernel, and a build folder."""

    root: Path
    build: Path
    out: str = "generated"
    specs: str = "kernel_specs"
    path: str = os.environ["PATH"]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "PATH": self.path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def regenerate(self, where: str = ONE) -> None:
        specs = ("--specs", self.specs, "--out", self.out)
        done = self.run(sys.executable, "-c", CODEGEN, "regenerate", *specs, "--where", where)
        assert done.returncode == 0, done.stdout

    def configure(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            *(CMAKE, "-S", ".", "-B", self.build, "-G", "Ninja", "-DKERNELMINT_CUDA=OFF", *options),
            *(f"-DPython_EXECUTABLE={sys.executable}",),
            f"-DKERNELMINT_GENERATED_DIR={self.root / self.out}",
        )

    def ninja(self, *targets: str) -> subprocess.CompletedProcess[str]:
        options = [word for target in targets for word in ("--target", target)]
        return self.run(CMAKE, "--build", self.build, *options)


def copied(root: Path, build: Path, out: str, specs: str) -> Checkout:
    root.mkdir(parents=True)
    for name in ("CMakeLists.txt", "pyproject.toml", "codegen", "kernelmint", "runtime", "tools"):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, root / name, ignore=ignored)
        else:
            shutil.copy(source, root / name)
    shutil.copytree(ROOT / "kernel_specs", root / specs)
    return Checkout(root, build, out, specs)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout that tests add folders to."""
    folder = tmp_path_factory.mktemp("generated")
    made = copied(folder / "checkout", folder / "build", "generated", "kernel_specs")
    made.regenerate()
    return made


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = copied(tmp_path / "checkout", tmp_path / "build", "generated", "kernel_specs")
    made.regenerate()
    done = made.configure()
    assert done.returncode == 0, done.stdout
    return made


def test_a_bare_ninja_after_an_edit_refuses_the_stale_tree(checkout) -> None:
    done = checkout.ninja("build.ninja")
    assert done.returncode == 0, done.stdout
    spec = checkout.root / "kernel_specs/attention/flash_forward/cpu.yaml"
    spec.write_text(spec.read_text() + "# edited\n")
    done = checkout.ninja("build.ninja")
    assert done.returncode != 0
    assert "the generated tree is stale" in done.stdout
    assert "fix it with: kernelmint regenerate" in done.stdout
    checkout.regenerate()
    assert checkout.ninja("build.ninja").returncode == 0


def test_a_tree_written_while_cmake_configured_does_not_build(checkout) -> None:
    """As if the new tree came between CMake's reading of the old one and its build files."""
    checkout.regenerate(ONE.replace(" and causal", ""))
    for path in [*(checkout.root / "generated").rglob("*")]:
        os.utime(path, (1, 1))
    library = LIBRARY.format(out="generated")
    done = checkout.ninja(library)
    assert done.returncode != 0
    assert "is not the one that CMake configured: run cmake again" in done.stdout
    assert checkout.configure().returncode == 0
    assert checkout.ninja(library).returncode == 0


def test_folders_with_spaces_build(tmp_path: Path) -> None:
    made = copied(tmp_path / "a (b) #1", tmp_path / "the build", "my tree", "my specs #2")
    made.regenerate()
    done = made.configure("-DKERNELMINT_ISAS=native", "-DCMAKE_CXX_FLAGS_RELEASE=-O0")
    assert done.returncode == 0, done.stdout
    done = made.ninja()
    assert done.returncode == 0, done.stdout
    assert list(made.build.glob("_native*.so"))
    assert (made.build / "packs/kernelmint/flash_forward.so").is_file()
    assert "no work to do" in made.ninja().stdout
    (made.root / "runtime/include/registry.h").open("a").write("// edited\n")
    assert "library.cpp" in made.ninja(LIBRARY.format(out="my_tree")).stdout


@pytest.mark.parametrize(
    ("character", "what"),
    [
        *itertools.product([";", '"', "'", "$", "&", "["], ["build", "out", "specs"]),
        ("\n", "build"),  # codegen writes to no such folder
    ],
)
def test_a_folder_that_cmake_cannot_spell_is_refused_in_a_sentence(
    generated: Checkout, tmp_path: Path, character, what
) -> None:
    name = f"a{character}{what}"
    made = replace(generated, build=tmp_path / (name if what == "build" else "build"))
    if what == "out":
        made.out = shutil.copytree(made.root / made.out, made.root / name).name
    elif what == "specs":
        made.specs = shutil.copytree(made.root / made.specs, made.root / name).name
        made.out = "generated of another"
        made.regenerate()
    done = made.configure()
    assert done.returncode != 0
    words = " ".join(done.stdout.split())
    assert "CMake and ninja cannot build if a folder's name holds a quote" in words


def compiled_isas(made: Checkout) -> set[str]:
    """The instruction sets that the build would compile kernels for."""
    text = (made.build / "build.ninja").read_text()
    return set(re.findall(r"kernelmint_flash_forward_cpu_(\w+)\.dir", text))


def test_instruction_sets_are_all_native_or_those_named(checkout) -> None:
    everything, native = compiled_isas(checkout), _native.supported_cpu_isas()[-1]
    assert {"baseline", native} <= everything
    for named, expected in (
        ("native", {native}),
        ("baseline;native", {"baseline", native}),
        ("all", everything),
    ):
        done = checkout.configure(f"-DKERNELMINT_ISAS={named}")
        assert done.returncode == 0, done.stdout
        assert compiled_isas(checkout) == expected
    for wrong in ("sse9", ""):
        done = checkout.configure(f"-DKERNELMINT_ISAS={wrong}")
        assert done.returncode != 0
        assert "expected all, native, or" in " ".join(done.stdout.split())


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_without_a_gpu_cuda_is_for_all_that_targets_name_or_the_newest(tmp_path: Path) -> None:
    made = copied(tmp_path / "checkout", tmp_path / "build", "generated", "kernel_specs")
    made.regenerate(
        "family == 'flash_forward' and target != 'cpu' and d_head == 64 and causal"
        " and dtype == 'bf16'"
    )
    no_gpu = tmp_path / "bin"
    no_gpu.mkdir()
    (no_gpu / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (no_gpu / "nvidia-smi").chmod(0o755)
    made.path = f"{no_gpu}:{os.environ['PATH']}"
    for named, expected in (("all", {"80", "90", "90a"}), ("newest", {"90", "90a"})):
        done = made.configure("-DKERNELMINT_CUDA=ON", f"-DKERNELMINT_WITHOUT_GPU={named}")
        assert done.returncode == 0, done.stdout
        compiled = re.findall(r"arch=compute_(\w+),", (made.build / "build.ninja").read_text())
        assert set(compiled) == expected
    assert "-lineinfo" not in (made.build / "build.ninja").read_text()
    done = made.configure("-DKERNELMINT_CUDA=ON", "-DKERNELMINT_LINE_INFO=ON")
    assert done.returncode == 0, done.stdout
    assert "-lineinfo" in (made.build / "build.ninja").read_text()
    done = made.configure("-DKERNELMINT_CUDA=ON", "-DKERNELMINT_WITHOUT_GPU=oldest")
    assert done.returncode != 0
    assert "got 'oldest', expected all or newest" in " ".join(done.stdout.split())
    (key, *_) = (
        kernel.key
        for _, target, kernel in manifest.read(made.root / "generated/manifest.json").kernels
        if target.name == "sm80"
    )
    nvcc = toolkits.find(str(shutil.which("nvcc"))).version
    code = SourceFingerprint(Manifest(made.root / "generated/manifest.json"), []).of(key)
    wrong = advice.Row(key, "", "sm_90", nvcc, 1, 1, 0, 0, 1, 0, code, "it reads nothing")
    (made.root / "kernel_specs" / advice.NAME).write_text(advice.text([wrong]))
    done = made.configure("-DKERNELMINT_CUDA=ON", "-DKERNELMINT_WITHOUT_GPU=newest")
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert f"Kernelmint: nvcc {nvcc} compiles {key} wrongly for sm_90" in said
