"""`pip install .` in each of the ways it is promised, with real compilers, on a few kernels."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from codegen.build import jobs
from tests.build.few_kernels import FAST, pack_alone
from tests.tools import forward_alone

pytestmark = pytest.mark.build

ROOT = Path(__file__).resolve().parents[2]
# One kernel of each target.
FEW = (
    "family == 'flash_forward' and d_head == 64 and B_r == 64 and causal"
    " and (dtype == 'f32' if target == 'cpu' else dtype == 'bf16')"
)
CPU = FEW + " and target == 'cpu'"
PACKAGES = ("codegen", "kernelmint", "runtime")  # what a wheel installs


def hidden_nvcc_path(folder: Path) -> str:
    """A PATH that holds what a build needs (a compiler, coreutils, git) and no nvcc."""
    folder.mkdir()
    for entry in os.environ["PATH"].split(os.pathsep):
        if not Path(entry).is_dir():
            continue
        for tool in sorted(Path(entry).iterdir()):
            if tool.name not in {"nvcc", "cmake", "ninja"} and not os.path.lexists(
                folder / tool.name
            ):
                (folder / tool.name).symlink_to(tool)
    return str(folder)


def run(
    *command: str | Path, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"CUDACXX", "CMAKE_ARGS", "PYTHONPATH"}}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


def flash_forward(tmp_path: Path) -> Path:
    """A folder of specs of the test's own, with flash_forward alone."""
    specs = tmp_path / "specs"
    forward_alone.copy(specs)
    return specs


def generate(tmp_path: Path, where: str = FEW) -> Path:
    """A generated tree of its own, with the few kernels that `where` leaves."""
    specs, out = tmp_path / "specs", tmp_path / "generated"
    if not specs.exists():
        flash_forward(tmp_path)
    done = run(
        *(sys.executable, "-m", "codegen", "regenerate", "--specs", specs),
        *("--out", out, "--where", where),
    )
    assert done.returncode == 0, done.stdout
    return out


def wheel(
    tmp_path: Path,
    *settings: str,
    extension: bool = False,
    checkout: Path = ROOT,
    **environment: str,
) -> Path:
    """Build a wheel, its extension too or the checkout's taken; the log is on stdout of a failing
    test."""
    build = tmp_path / "build"
    done = run(
        *(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--verbose"),
        *("--wheel-dir", tmp_path / "dist", *FAST),
        *(["-C", f"build-dir={build}"] if extension else pack_alone(build)),
        *(part for setting in settings for part in ("-C", setting)),
        cwd=checkout,
        **environment,
    )
    (tmp_path / "log").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:]
    (built,) = (tmp_path / "dist").glob("kernelmint-*.whl")
    return built


def unpack(built: Path, tmp_path: Path) -> Path:
    site = tmp_path / "site"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    return site


ATTEND = """
import sys
# Not the checkout's editable install, whose finder comes before every path.
sys.meta_path = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
import torch, runtime
q, k, v = torch.randn(3, 2, 47, 4, 64)
keys = [info.key for info in runtime.kernels(target="cpu")]
o = runtime.kernel(keys[0])(q, k, v)
f = lambda t: t.double().transpose(1, 2)
want = torch.nn.functional.scaled_dot_product_attention(f(q), f(k), f(v), is_causal=True)
error = (o.double() - want.transpose(1, 2)).abs().max().item()
assert error < 1e-5, error  # fp32 sums of 47 products of standard normals
print("error", error, runtime.__file__)
"""


def attend(site: Path) -> str:
    """Run a cpu kernel of an unpacked wheel, away from the checkout, where no GPU shows."""
    done = subprocess.run(
        [sys.executable, "-c", ATTEND],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout
    return done.stdout


def assert_stands_alone(site: Path) -> None:
    """No library needs the driver's, cudart's, PyTorch's or another C++ library; a pack's exports
    its entry and nothing else."""
    (extension,) = (site / "runtime").glob("_native*.so")
    libraries = sorted((site / "kernelmint/_pack").glob("*.so"))
    assert [library.name for library in libraries] == ["flash_forward.so"]
    for path in (extension, *libraries):
        needed = read("ldd", path)
        assert "libc.so" in needed
        for foreign in ("libcuda", "libtorch", "libc10", "libstdc++"):
            assert foreign not in needed, path
    for path in libraries:
        needed = read("ldd", path)
        assert "libpython" not in needed
        assert "libgcc" not in needed
        exported = read("nm", "-D", "--defined-only", "--format=posix", path).splitlines()
        assert [line.split()[0] for line in exported] == ["kernelmint_library"]


def read(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_isolated_without_a_toolkit_takes_nvcc_from_pypi(tmp_path: Path) -> None:
    out = generate(tmp_path)
    built = wheel(
        tmp_path,
        f"cmake.define.KERNELMINT_GENERATED_DIR={out}",
        "cmake.define.CMAKE_CUDA_ARCHITECTURES=80;90",
        PATH=hidden_nvcc_path(tmp_path / "bin"),
    )
    log = (tmp_path / "log").read_text()
    assert "(from PyPI)" in log
    assert "Collecting torch" not in log
    site = unpack(built, tmp_path)
    attend(site)
    assert_stands_alone(site)
    rows = (site / "kernelmint/_pack/ptxas.csv").read_text().splitlines()
    assert any(",sm_80," in row for row in rows)
    assert any(",sm_90," in row for row in rows)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_nvcc_on_path_is_taken_and_named(tmp_path: Path) -> None:
    out = generate(tmp_path)
    wheel(tmp_path, f"cmake.define.KERNELMINT_GENERATED_DIR={out}")
    log = (tmp_path / "log").read_text()
    assert f"(on PATH): {shutil.which('nvcc')}" in log
    assert "Kernelmint: building pack kernelmint: " in log
    logs = list((tmp_path / "build/packs/kernelmint/ptxas").rglob("*.ptxas.log"))
    assert logs
    assert all("Compiling entry function" in text.read_text() for text in logs)


def objects(build: Path) -> dict[Path, int]:
    """When each object of a build folder was compiled."""
    return {path: path.stat().st_mtime_ns for path in build.glob("**/*.dir/**/*.o")}


def another_checkout(folder: Path) -> Path:
    """A copy of what a build takes, with a module that the checkout of this environment's editable
    install does not have."""
    for name in ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", *PACKAGES, "tools"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / "codegen/another.py").write_text("")
    return folder


def test_cuda_off_needs_no_nvcc_and_an_isolated_build_compiles_nothing_twice(tmp_path) -> None:
    """In a checkout beside the one that is installed here, as git worktree makes it."""
    out = generate(tmp_path, CPU)
    (tmp_path / "checkout").mkdir()

    def build() -> Path:
        return wheel(
            tmp_path,
            f"cmake.define.KERNELMINT_GENERATED_DIR={out}",
            "cmake.define.KERNELMINT_CUDA=OFF",
            extension=True,
            checkout=checkout,
            PATH=path,
        )

    checkout = another_checkout(tmp_path / "checkout")
    path = hidden_nvcc_path(tmp_path / "bin")
    build()
    before = objects(tmp_path / "build")
    assert before
    built = build()
    assert objects(tmp_path / "build") == before
    assert "Kernelmint: nvcc" not in (tmp_path / "log").read_text()
    assert "nvidia" not in (tmp_path / "log").read_text()
    site = unpack(built, tmp_path)
    assert (site / "codegen/another.py").is_file()
    attend(site)
    assert_stands_alone(site)
    assert_packages(site)


def assert_packages(site: Path) -> None:
    """PACKAGES and no others, the tools among them; none of the checkout's own files."""
    names = {entry.name for entry in site.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == set(PACKAGES)
    assert (site / "kernelmint/tools/ptx_report/page.html.mako").is_file()
    assert (site / "kernelmint/py.typed").is_file()
    assert not list(site.glob("**/test_*.py"))
    done = subprocess.run(
        [sys.executable, "-S", "-m", "kernelmint", "sanity-check"],
        cwd=site.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), *(p for p in sys.path if "-packages" in p)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_no_nvcc_and_no_isolation_says_what_to_do(tmp_path: Path) -> None:
    out = generate(tmp_path)
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    tools = ["scikit-build-core", "nanobind", "cmake", "ninja"]
    done = run(environment / "bin" / "python", "-m", "pip", "install", "-q", *tools)
    assert done.returncode == 0, done.stdout
    done = run(
        *(environment / "bin" / "python", "-m", "pip", "wheel", ".", "--no-deps"),
        *("--no-build-isolation", "--wheel-dir", tmp_path / "dist"),
        *("-C", f"build-dir={tmp_path / 'build'}"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={out}"),
        PATH=f"{environment / 'bin'}:{hidden_nvcc_path(tmp_path / 'bin')}",
    )
    assert done.returncode != 0
    assert "Kernelmint: no nvcc" in done.stdout, done.stdout
    assert "KERNELMINT_CUDA=OFF" in done.stdout


def test_a_failing_object_shows_its_output_and_its_log(tmp_path: Path) -> None:
    specs = flash_forward(tmp_path)
    header = specs / "attention/flash_forward/cpu.h"
    header.write_text(header.read_text() + "\n#error planted: this header does not compile\n")
    out = generate(tmp_path, CPU)
    done = run(
        *(sys.executable, "tools/build/install.py", "--target", tmp_path / "site"),
        *("-C", f"build-dir={tmp_path / 'build'}"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={out}"),
        *("-C", "cmake.define.KERNELMINT_CUDA=OFF"),
        KERNELMINT_INSTALL_LOG=str(tmp_path / "install.log"),
    )
    assert done.returncode != 0
    assert "#error planted" in done.stdout
    assert f"its whole log is {tmp_path / 'install.log'}" in done.stdout


def test_configuring_over_a_stale_tree_is_refused(tmp_path: Path) -> None:
    specs = flash_forward(tmp_path)
    out = generate(tmp_path, CPU)
    spec = specs / "attention/flash_forward/cpu.yaml"
    spec.write_text(spec.read_text() + "# edited since\n")
    done = run(
        *(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", tmp_path / "dist", "-C", f"build-dir={tmp_path / 'build'}"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={out}"),
        *("-C", "cmake.define.KERNELMINT_CUDA=OFF"),
    )
    assert done.returncode != 0
    assert "stale" in done.stdout
    assert "kernelmint regenerate" in done.stdout
    assert "cpu.yaml" in done.stdout


def test_an_editable_install_rebuilds_what_changed(tmp_path: Path) -> None:
    """In a checkout of a few kernels: an import refuses what is not its own checkout's."""
    (tmp_path / "checkout").mkdir()
    checkout = another_checkout(tmp_path / "checkout")
    generate(checkout, CPU)
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    (site,) = (environment / "lib").glob("python*/site-packages")
    # This test's own environment supplies torch and the build tools to the new one.
    parents = [path for path in sys.path if path.endswith("site-packages")]
    (site / "parents.pth").write_text("\n".join(parents))
    done = run(
        *(python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "-e", "."),
        *("-C", "editable.rebuild=true", "-C", f"build-dir={tmp_path / 'build'}", *FAST),
        *("-C", "cmake.define.KERNELMINT_CUDA=OFF"),
        cwd=checkout,
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )
    assert done.returncode == 0, done.stdout
    ask = "import runtime; print(runtime.kernels()[0].built)"
    first = run(python, "-c", ask, cwd=checkout)
    assert first.returncode == 0, first.stdout
    assert "no work to do" in first.stdout
    header = checkout / "specs/attention/flash_forward/cpu.h"
    header.write_text(header.read_text() + "\n#error planted: rebuilt at import\n")
    second = run(python, "-c", ask, cwd=checkout)
    assert "planted: rebuilt at import" in second.stdout


def kill_once(
    command: list[str | Path], environment: dict[str, str], appears: Path, glob: str
) -> bool:
    """Kill a command and its children as soon as a file of that name is there; False: it ended."""
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as started:
        while started.poll() is None:
            with suppress(FileNotFoundError):  # a folder that vanished while it was searched
                if any(appears.glob(glob)):
                    os.killpg(started.pid, signal.SIGKILL)
                    return True
            time.sleep(0.002)
    return False


def assert_whole(site: Path) -> None:
    """What is installed is what pip recorded, each file with its hash; nothing else lies about."""
    (record,) = site.glob("kernelmint-*.dist-info/RECORD")
    recorded = {name: digest for name, digest, _ in csv.reader(record.read_text().splitlines())}
    for name, digest in recorded.items():
        if digest:
            algorithm, _, value = digest.partition("=")
            found = hashlib.new(algorithm, (site / name).read_bytes()).digest()
            assert base64.urlsafe_b64encode(found).decode().rstrip("=") == value, name
    for folder in PACKAGES:
        there = {str(p.relative_to(site)) for p in (site / folder).rglob("*") if p.is_file()}
        assert {name for name in there if not name.endswith(".pyc")} <= recorded.keys()


def test_an_install_mends_what_a_killed_one_left(tmp_path: Path) -> None:
    where = FEW if shutil.which("nvcc") else CPU
    out, build = generate(tmp_path, where), tmp_path / "build"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    command: list[str | Path] = [
        *(tmp_path / "venv" / "bin" / "python", "-m", "pip", "install", ".", "--no-deps"),
        *("-C", f"build-dir={build}", "-C", f"cmake.define.KERNELMINT_GENERATED_DIR={out}", *FAST),
        *(() if where == FEW else ("-C", "cmake.define.KERNELMINT_CUDA=OFF")),
    ]
    (tmp_path / "tmp").mkdir()
    environment = {"TMPDIR": str(tmp_path / "tmp"), "CCACHE_DISABLE": "1"}
    moments = [
        (build, "CMakeCache.txt"),
        (build, "CMakeFiles/kernelmint_flash_forward_*.dir/**/*.o"),  # being written
        (build, "CMakeFiles/_native.dir/**/*.o"),
        (build, "_native*.so"),  # being linked
        (build, "packs/kernelmint/*.so"),
        (site, "runtime/*.py"),  # being installed
    ]
    for folder, glob in moments:
        assert kill_once(command, {**os.environ, **environment}, folder, glob), glob
    done = run(*command, **environment)
    assert done.returncode == 0, done.stdout[-6000:]
    assert_whole(site)
    attend(site)
    rows = (site / "kernelmint/_pack/ptxas.csv").read_text().splitlines()
    assert len(rows) == 1 + (where == FEW)


def test_the_job_pool_is_bounded_by_memory_and_by_max_jobs(tmp_path: Path) -> None:
    assert jobs.jobs(mib_per_job=1 << 40) == 1
    assert jobs.jobs(mib_per_job=1) == len(os.sched_getaffinity(0))
    assert run(sys.executable, "codegen/build/jobs.py", MAX_JOBS="7").stdout.strip() == "7"
    (tmp_path / "x.cu.sm80.cost.json").write_text('{"mib": 4000000}')  # of an earlier build
    assert run(sys.executable, "codegen/build/jobs.py", tmp_path).stdout.strip() == "1"
    refused = run(sys.executable, "codegen/build/jobs.py", MAX_JOBS="many")
    assert refused.returncode != 0
    assert "MAX_JOBS" in refused.stdout


@pytest.mark.skipif(
    shutil.which("ccache") is None or shutil.which("nvcc") is None, reason="needs ccache and nvcc"
)
def test_what_ccache_replays_measures_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    monkeypatch.delenv("CCACHE_DISABLE", raising=False)
    (tmp_path / "x.cu").write_text("__global__ void x() {}\n")
    command = [sys.executable, ROOT / "codegen/build/compile_logged.py", "--log-dir", "logs"]
    command += ["--root", ".", "--target", "sm80", "--", "ccache", "nvcc", "-Xptxas=-v"]
    command += ["-gencode", "arch=compute_80,code=sm_80", "-c", "x.cu", "-o", "x.o"]
    cost, log = tmp_path / "logs/x.cu.sm80.cost.json", tmp_path / "logs/x.cu.sm80.ptxas.log"
    subprocess.run(command, cwd=tmp_path, check=True)
    assert json.loads(cost.read_text())["seconds"] > 0
    lines = log.read_text()
    cost.write_text("as it was")
    log.unlink()
    subprocess.run(command, cwd=tmp_path, check=True)
    assert log.read_text() == lines
    assert cost.read_text() == "as it was"
    assert not list((tmp_path / "logs").glob("*.ccache"))


def test_compiler_launchers_that_are_named_run_every_compiler(tmp_path: Path) -> None:
    """CMake's variables for both languages; nvcc's comes behind the one that keeps its log."""
    out, build = generate(tmp_path), tmp_path / "build"
    launchers = [
        f"-DCMAKE_{language}_COMPILER_LAUNCHER=/usr/bin/env;LAUNCHED={language}"
        for language in ("CXX", "CUDA")
    ]
    done = run(
        *(Path(sys.executable).parent / "cmake", "-S", ROOT, "-B", build, "-G", "Ninja"),
        *(f"-DKERNELMINT_GENERATED_DIR={out}", f"-DPython_EXECUTABLE={sys.executable}"),
        *(f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}", *launchers),
    )
    assert done.returncode == 0, done.stdout
    commands = run(Path(sys.executable).parent / "ninja", "-C", build, "-t", "commands").stdout
    compiling = [line for line in commands.splitlines() if " -c " in line]
    cuda = [line for line in compiling if "compile_logged.py" in line]
    assert cuda
    assert all("-- /usr/bin/env LAUNCHED=CUDA " in line for line in cuda)
    assert all("/usr/bin/env LAUNCHED=CXX " in line for line in compiling if line not in cuda)


def test_a_wheels_nvcc_that_is_named_is_told_where_its_libraries_are(tmp_path: Path) -> None:
    """The nvcc.profile of 13.0 and 13.1 looks for lib64; a wheel has lib."""
    out, toolkit, flags = generate(tmp_path), tmp_path / "cu13", tmp_path / "flags"
    for name in ("bin/nvcc", "lib/libcudart_static.a"):
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).write_text(f'#!/bin/sh\necho "$NVCC_APPEND_FLAGS" > {flags}\nexit 1\n')
    (toolkit / "bin/nvcc").chmod(0o755)
    run(
        *(
            Path(sys.executable).parent / "cmake",
            "-S",
            ROOT,
            "-B",
            tmp_path / "build",
            "-G",
            "Ninja",
        ),
        *(f"-DKERNELMINT_GENERATED_DIR={out}", f"-DPython_EXECUTABLE={sys.executable}"),
        f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}",
        f"-DCMAKE_CUDA_COMPILER={toolkit / 'bin/nvcc'}",
    )
    assert flags.read_text().split() == [f"-L{toolkit / 'lib'}"]
