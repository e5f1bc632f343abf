"""A pack in slices: built once, split, installed in parts, fetched from a store."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen import scaffold
from tests import warm_python
from tools import split as splitting

from .pack_project import ROOT, PackProject

pytestmark = pytest.mark.build

FETCH = [sys.executable, "-m", "kernelmint", "fetch", "own", "--slice", "sm90", "--from"]
KEY = "added.sm80.f32-t256-n1024"
METADATA = "Metadata-Version: 2.1\nName: own-pack\nVersion: 1.0\nLicense: MIT\n\nA pack.\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"
# A process that believes that it has a GPU of this compute capability.
ON_GPU = """
import runtime
from runtime import devices, slices
devices.has_cuda = lambda: True
devices.count = lambda: 1
devices.capability_of = lambda index: {0}
devices.describe = lambda index: "{0}"
"""
SHOW = """
kernel = runtime.kernel("added.sm80.f32-t256-n1024")
print(slices.of("added", kernel.info.key).folder)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with the slices sm80 and sm90, of one kernel each."""
    root = tmp_path_factory.mktemp("sliced")
    scaffold.create("added", root / "kernel_specs")
    project = PackProject(root)
    project.build(
        "-DKERNELMINT_SLICES=ON",
        "-DCMAKE_CUDA_ARCHITECTURES=80;90",
        regenerate=("--where", "dtype == f32"),
    )
    wheel = root / "own_pack-1.0-py3-none-linux_x86_64.whl"
    info = "own_pack-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in project.pack.rglob("*") if path.is_file()):
            archive.write(path, f"own/_pack/{path.relative_to(project.pack).as_posix()}")
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", WHEEL)
        archive.writestr(f"{info}/entry_points.txt", "[kernelmint.packs]\nown = own._pack\n")
        archive.writestr(f"{info}/licenses/LICENSE", "MIT")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


class Machine:
    """The wheels split from the whole one, their store, and an environment of its own."""

    def __init__(self, folder: Path, whole: Path) -> None:
        self.folder, self.store, self.dist = folder, folder / "store", folder / "dist"
        self.cache = folder / "cache"
        written = splitting.split(whole, self.dist)
        self.wheels = {each.what: each.path for each in written}
        hashes = {splitting._sha256(each.path): each.path for each in written[1:]}
        splitting.lay_out(hashes, self.store)
        self.install("base")

    def install(self, what: str) -> None:
        """Each wheel into a folder of its own."""
        with zipfile.ZipFile(self.wheels[what]) as archive:
            archive.extractall(self.folder / "site" / what)

    @property
    def environment(self) -> dict[str, str]:
        paths = [ROOT, *sorted(self.folder.glob("site/*"))]
        path = os.pathsep.join(map(str, paths))
        return {**os.environ, "PYTHONPATH": path, "KERNELMINT_CACHE_DIR": str(self.cache)}

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return warm_python.run(
            code, folder=self.folder, environment={**self.environment, **environment}
        )

    def fetch(self, *options: str, store: str | None = None) -> subprocess.CompletedProcess[str]:
        return warm_python.run_module(
            "kernelmint", "fetch", "own", "--slice", "sm90", "--from", store or str(self.store),
            *options, folder=self.folder, environment=self.environment,
        )  # fmt: skip

    @property
    def stored(self) -> Path:
        """The file of slice sm90 in the store."""
        (path,) = self.store.glob("*/own_pack_sm90-*.whl")
        return path

    @property
    def kept(self) -> list[Path]:
        return sorted(self.cache.glob("1/packs/*"))


@pytest.fixture
def machine(tmp_path: Path, whole: Path) -> Machine:
    return Machine(tmp_path, whole)


def test_one_wheel_gives_the_same_parts_each_time(machine: Machine, whole: Path) -> None:
    again = splitting.split(whole, machine.folder / "again")
    assert {each.what for each in again} == {"base", "sm80", "sm90"}
    for each in again:
        assert each.path.read_bytes() == machine.wheels[each.what].read_bytes()
    with zipfile.ZipFile(machine.wheels["base"]) as base:
        names = base.namelist()
        metadata = base.read("own_pack-1.0.dist-info/METADATA").decode()
    assert "own/_pack/added.so" in names
    assert not any("slices" in name for name in names)
    assert 'Requires-Dist: own-pack-sm90==1.0; extra == "sm90"' in metadata
    with zipfile.ZipFile(machine.wheels["sm90"]) as part:
        assert {"own_sm90/added.so", "own_sm90/pack.json", "own_sm90/ptxas.csv"} <= {
            *part.namelist()
        }
        assert "own_pack_sm90-1.0.dist-info/licenses/LICENSE" in part.namelist()
    result = CliRunner().invoke(splitting.main, [str(machine.wheels["base"])])
    assert "was split before" in result.output


def test_without_a_slice_the_error_says_what_is_missing_and_what_to_do(machine: Machine) -> None:
    done = machine.run(ON_GPU.format(90) + SHOW)
    error = done.stderr.strip().splitlines()[-1]
    assert error == (
        f"runtime.TargetUnavailable: {KEY}: slice sm90 of pack own is not here: looked in "
        f"{machine.folder}/site/base/own/_pack/slices, in distributions with an entry point "
        f"kernelmint.slices, in the cache {machine.cache}. `pip install own-pack-sm90==1.0` "
        "installs it; `kernelmint fetch own --slice sm90 --from STORE` fetches it from a folder or "
        "an address, and KERNELMINT_SLICE_STORE=STORE does so at the first call"
    )
    on_cpu = "import runtime, torch\nprint(runtime.added(*torch.ones(2, 1, 3), alpha=2.0).sum())"
    assert machine.run(on_cpu).stdout == "tensor(9.)\n"
    assert not machine.cache.exists()


def test_the_slice_of_the_gpu_here_is_taken(machine: Machine) -> None:
    machine.install("sm80")
    machine.install("sm90")
    others = """
for capability in (86, 80):
    devices.capability_of = lambda index: capability
    devices.why_unavailable.cache_clear()
    devices.why_unsuitable.cache_clear()
    print(slices.of("added", kernel.info.key).folder)
"""
    done = machine.run(ON_GPU.format(90) + SHOW + others)
    taken = [f"{machine.folder}/site/{name}/own_{name}" for name in ("sm90", "sm80", "sm80")]
    assert done.stdout.splitlines() == taken, done.stderr


def test_a_slice_of_another_major_version_is_not_taken(machine: Machine) -> None:
    machine.install("sm80")
    done = machine.run(ON_GPU.format(90) + SHOW)
    assert "slice sm90 of pack own is not here" in done.stderr
    done = machine.run(ON_GPU.format(120) + SHOW)
    assert (
        "has slices sm80, sm90 of target sm80, and this machine's devices run none" in done.stderr
    )
    told = warm_python.run_module(
        "kernelmint", "info", folder=machine.folder, environment=machine.environment
    )
    assert f"slice sm80: {machine.folder}/site/sm80/own_sm80\n" in told.stdout
    assert "slice sm90: not here\n" in told.stdout
    table = warm_python.run_module(
        "kernelmint.tools.ptx_report", "--installed", "--csv", "-", folder=machine.folder,
        environment=machine.environment,
    )  # fmt: skip
    assert [line for line in table.stdout.splitlines() if line.startswith(f"{KEY},")]
    code = "import runtime\n(it,) = runtime.kernels('added', 'sm80')\nprint(it.built, it.reason)"
    assert machine.run(code).stdout == "True no CUDA device\n"


def test_a_slice_of_another_build_is_refused(machine: Machine) -> None:
    machine.install("sm90")
    path = machine.folder / "site/sm90/own_sm90/pack.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "fingerprint": "0" * 32}))
    done = machine.run(ON_GPU.format(90) + SHOW)
    assert f"it is of the build {'0' * 32}, but pack own" in done.stderr
    assert "install both of one version" in done.stderr


def test_a_slice_is_fetched_when_a_store_is_named(machine: Machine) -> None:
    code = ON_GPU.format(90) + SHOW
    first = machine.run(code, KERNELMINT_SLICE_STORE=str(machine.store))
    assert first.returncode == 0, first.stderr
    assert f"fetching slice sm90 of own from {machine.store}" in first.stderr
    (kept,) = machine.kept
    assert first.stdout == f"{kept}\n"
    shutil.rmtree(machine.store)
    assert machine.run(code).stdout == first.stdout  # from now on without a store
    listed = warm_python.run_module(
        "kernelmint", "cache", folder=machine.folder, environment=machine.environment
    )
    assert "own, slice sm90  (sm_90)" in listed.stdout


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-1])
    return "it was cut short, or is another file"


def damage(path: Path) -> str:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return "it is damaged, or of another build"


def another(path: Path) -> str:
    (other,) = path.parents[1].glob("*/own_pack_sm80-*.whl")
    shutil.copy(other, path)
    return "or is another file"


def gone(path: Path) -> str:
    path.unlink()
    return "No such file or directory"


def test_a_file_that_is_not_the_slice_is_refused(machine: Machine) -> None:
    path = machine.stored
    good = path.read_bytes()
    for spoil in (cut, damage, another, gone):
        says = spoil(path)
        done = machine.fetch()
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{path} " in done.stderr or f"{path}: " in done.stderr
        assert says in done.stderr
        assert machine.kept == []
        path.write_bytes(good)
    assert machine.fetch().returncode == 0
    (kept,) = machine.kept
    path.unlink()
    (kept / "added.so").chmod(0o644)
    (kept / "added.so").write_bytes(b"")  # a damaged slice in the cache is not used
    assert "is not here" in machine.run(ON_GPU.format(90) + SHOW).stderr


def test_two_processes_fetch_once(machine: Machine) -> None:
    processes = [
        subprocess.Popen(
            [*FETCH, machine.store], cwd=machine.folder, env=machine.environment, text=True,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in processes]
    (kept,) = machine.kept
    assert (
        outputs
        == [f"slice sm90 of own: {machine.stored.stat().st_size / 1e6:.2f} MB, {kept}\n"] * 2
    )


class _Halves(http.server.SimpleHTTPRequestHandler):
    """Sends half of a file, and then nothing."""

    whole = False

    def copyfile(self, source, outputfile) -> None:
        content = source.read()
        outputfile.write(content if self.whole else content[: len(content) // 2])
        outputfile.flush()
        while not self.whole:
            time.sleep(0.05)

    def log_message(self, *_) -> None: ...


def test_a_fetch_that_is_killed_half_way_leaves_nothing_behind(machine: Machine) -> None:
    handler = functools.partial(_Halves, directory=machine.store)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = f"http://127.0.0.1:{server.server_port}"
    killed = subprocess.Popen([*FETCH, store], cwd=machine.folder, env=machine.environment)
    while not any(path.stat().st_size for path in machine.cache.glob("1/tmp/*/received/*")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert machine.kept == []
    _Halves.whole = True
    done = machine.fetch(store=store)
    assert done.returncode == 0, done.stderr
    server.shutdown()
    assert len(machine.kept) == 1


def test_a_mirror_serves_a_machine_without_a_network(machine: Machine) -> None:
    mirror = machine.folder / "mirror"
    assert machine.fetch("--to", str(mirror)).returncode == 0
    assert machine.kept == []
    assert machine.fetch(store=str(mirror)).returncode == 0
    assert [path.name for path in mirror.rglob("*.whl")] == [machine.stored.name]
