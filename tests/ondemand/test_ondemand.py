"""Kernels are built when they are first asked for, from specs on disk, and found again."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import runtime
from runtime import devices, ondemand, packs
from runtime.ondemand import kernels
from tests.slow import slow_after
from tests.tools import forward_alone

from .conftest import in_new_process

NVCC = shutil.which(os.environ.get("CUDACXX", "nvcc"))


def nan_like(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, float("nan"))


def check_right(kernel, alpha: float = 0.75) -> None:
    """Against fp64: one rounding of the product's sum, as f32's fma makes it."""
    x, y = torch.randn(2, 3, 1000)
    z = kernel(x, y, alpha=alpha, out=nan_like(x))
    expected = alpha * x.double() + y.double()
    assert ((z - expected).abs() <= 2**-24 * expected.abs() + 1e-30).all()


def test_a_folder_that_no_pack_was_built_from(family, cache, compilations):
    """Its kernels are listed, built at first use and called; so are keys that are in no set."""
    listed = runtime.load(family.folder)
    assert family.key() in [info.key for info in listed]
    assert not compilations.take()
    state = {i.key: (i.built, i.available) for i in runtime.kernels(family.name, "cpu")}
    assert set(state.values()) == {(False, True)}
    check_right(runtime.kernel(family.key()))
    assert len(compilations.take()) == 2  # the host's part and the kernel
    state = {i.key: (i.built, i.available) for i in runtime.kernels(family.name, "cpu")}
    assert state.pop(family.key()) == (True, True)
    assert set(state.values()) == {(False, True)}

    assert family.key(4096) not in state
    kernel = runtime.kernel(family.key(4096))
    check_right(kernel)
    assert runtime.kernel(family.key(4096)) is kernel
    assert kernel.info.parameters == {"dtype": "f32", "segment": 4096}
    assert len(compilations.take()) == 2
    x, y = torch.randn(2, 3, 1000)
    torch.testing.assert_close(getattr(runtime, family.name)(x, y, alpha=2.0), 2 * x + y)


def test_the_front_takes_the_row_that_was_tuned_for_its_sizes(family, cache):
    family.edit("segment: [8192]", "segment: [8192, 4096]", "cpu.yaml")
    rows = [
        {
            "device": devices.name(torch.device("cpu")), "parameters": {"dtype": "f32"},
            "range": {"N": [1, 999], "M": [1, 8]}, "take": family.key(4096), "milliseconds": 1.0,
            "sizes": {"M": 1, "N": 1}, "toolchain": "c++", "code": "0",
        }
    ]  # fmt: skip
    (family.folder / "cpu.tuned.yaml").write_text(json.dumps({"tuned": rows}))
    runtime.load(family.folder)
    front = getattr(runtime, family.name)

    def built():
        return [i.key for i in runtime.kernels(family.name, where="dtype == f32") if i.built]

    for width, expected in ((500, [4096]), (1000, [8192, 4096])):
        x, y = torch.randn(2, 3, width)
        torch.testing.assert_close(front(x, y, alpha=2.0), 2 * x + y)
        assert built() == [family.key(segment) for segment in expected]
        compiled = torch.compile(front, fullgraph=True, backend="aot_eager", dynamic=True)
        torch.testing.assert_close(compiled(x, y, alpha=2.0), 2 * x + y)
    with pytest.raises(runtime.InvalidArgument, match="x: got shape"):
        front(torch.randn(3), torch.randn(3))


def test_torch_compile_builds_while_it_traces_and_never_in_a_graph(family, cache, compilations):
    runtime.load(family.folder)
    key = family.key()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def called(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(runtime.kernel(key)(x, y, alpha=2.0))

    x, y = torch.randn(2, 3, 1000)
    operator = getattr(torch.ops.kernelmint, family.name)
    with pytest.raises(runtime.KernelNotFound, match=r"call runtime.kernel\(.*\) before"):
        operator(key, x, y, alpha=2.0)
    assert not compilations.take()
    torch.testing.assert_close(called(x, y), torch.relu(2 * x + y))
    assert len(compilations.take()) == 2
    torch.testing.assert_close(operator(key, x, y, alpha=2.0), 2 * x + y)


WARM = """
import sys
import runtime, torch
runtime.load(sys.argv[1])
kernel = runtime.kernel(sys.argv[2])
x, y = torch.randn(2, 3, 1000)
torch.testing.assert_close(kernel(x, y, alpha=2.0), 2 * x + y)
print(*sys.modules)
"""


def test_another_process_compiles_nothing_and_imports_nothing_that_only_builds_need(
    family, cache, compilations
):
    runtime.load(family.folder)
    runtime.build(family.name, "target == 'cpu' and dtype == f32")
    assert len(compilations.take()) == 2
    shown = in_new_process(WARM, family.folder, family.key())
    needless = {"mako", "pydantic", "yaml", "codegen.ptxas.collect", "runtime.ondemand.diagnose"}
    needless |= {"codegen.sources.archives"}
    assert not needless & set(shown.stdout.split())
    assert not compilations.take()


def test_the_cache_and_the_specs_may_lie_in_another_folder(
    family, cache, compilations, tmp_path, monkeypatch
):
    """As on another machine, or in a container: no absolute path and no time counts."""
    runtime.load(family.folder)
    runtime.kernel(family.key())
    assert compilations.take()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(family.specs, elsewhere / "specs")  # new times
    shutil.move(cache, elsewhere / "cache")
    shutil.rmtree(family.specs)
    environment = {"KERNELMINT_CACHE_DIR": str(elsewhere / "cache")}
    in_new_process(WARM, elsewhere / "specs" / family.name, family.key(), **environment)
    assert not compilations.take()


def test_an_edited_header_is_told_and_built_anew_when_asked(family, cache, compilations):
    runtime.load(family.folder)
    first = runtime.kernel(family.key())
    check_right(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runtime.kernel(family.key()) is first
        assert runtime.kernel(family.key(), build=True) is first
    compilations.take()
    before = family.header.read_text()
    family.edit("splat(args_.alpha)", "splat(2 * args_.alpha)")
    with pytest.warns(RuntimeWarning, match=rf"{family.header} has changed since it was built: "):
        assert runtime.kernel(family.key()) is first
    assert not compilations.take()
    second = runtime.kernel(family.key(), build=True)
    assert len(compilations.take()) == 2
    x, y = torch.randn(2, 3, 1000)
    torch.testing.assert_close(second(x, y, alpha=0.5), x + y)
    torch.testing.assert_close(first(x, y, alpha=0.5), 0.5 * x + y)  # who holds it keeps it
    assert runtime.kernel(family.key()) is second
    family.header.write_text(before)  # what was built of it is there still
    assert runtime.kernel(family.key(), build=True) is not second
    check_right(runtime.kernel(family.key()))
    assert not compilations.take()


def test_an_edited_spec_is_another_kernel_and_an_edited_family_says_to_start_anew(
    family, cache, compilations
):
    runtime.load(family.folder)
    runtime.kernel(family.key())
    compilations.take()
    family.edit("segment % 16 == 0", "segment % 32 == 0", "cpu.yaml")
    with pytest.raises(runtime.KernelNotFound, match=r"cpu\.yaml:6:5: segment % 32 == 0: "):
        runtime.kernel(family.key(16))
    with pytest.warns(RuntimeWarning, match=r"cpu\.yaml has changed since it was built: "):
        runtime.kernel(family.key())
    runtime.kernel(family.key(), build=True)
    assert len(compilations.take()) == 2
    family.edit("alpha: {scalar: f32", "alpha: {scalar: f64", "family.yaml")
    with pytest.raises(runtime.BuildError, match=f"the arguments of {family.name} are not those"):
        runtime.load(family.folder)


# Children of one process that has imported what they need, so that they start at once.
TOGETHER = """
import os, sys
import runtime, torch
folder, key, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
children = []
for _ in range(count):
    child = os.fork()
    if not child:
        runtime.load(folder)
        x, y = torch.randn(2, 3, 1000)
        good = torch.equal(runtime.kernel(key)(x, y, alpha=1.0), x + y)
        os._exit(0 if good else 1)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_eight_processes_at_once_on_an_empty_cache_compile_once(family, cache, compilations):
    in_new_process(TOGETHER, family.folder, family.key(), "8")
    assert len(compilations.take()) == 2
    assert not list((cache / "1/tmp").iterdir())


# Eight processes at a time, all but a few killed while they build; what one of them finished goes.
KILLED = """
import os, random, signal, sys, time
import runtime, runtime.ondemand.emit
from runtime.ondemand import kernels
folder, key, span, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
most = int(sys.argv[5])
moments = random.Random(seed)
killed = 0
while killed < most:
    children = []
    for _ in range(8):
        child = os.fork()
        if not child:
            runtime.load(folder)
            runtime.kernel(key)
            os._exit(0)
        children.append((moments.uniform(0, span), child))
    begin = time.monotonic()
    for moment, child in sorted(children):
        time.sleep(max(0, begin + moment - time.monotonic()))
        os.kill(child, signal.SIGKILL)  # its compilers go on
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        killed += status == signal.SIGKILL
    kernels.cache().prune(0, 0.0)
"""

# Compiles what it has not compiled yet, else copies it: what a build takes is mostly Kernelmint's.
REMEMBERING = """#!/bin/sh
case " $* " in *" -c "*) ;; *) exec c++ "$@" ;; esac
for word; do case "$word" in *.o) name="${{word%.o}}" ;; esac; done
if [ ! -e '{memory}'/"$name.o" ]; then
  c++ "$@" && cp "$name.d" "$name.o" '{memory}'
else
  cp '{memory}'/"$name.d" '{memory}'/"$name.o" .
fi
"""


@pytest.mark.parametrize("most", slow_after(1, [20, 200]))
def test_processes_killed_at_random_moments_leave_nothing_in_the_way(
    family, cache, tmp_path, monkeypatch, most
):
    memory, compiler = tmp_path / "memory", tmp_path / "remembering-c++"
    memory.mkdir()
    compiler.write_text(REMEMBERING.format(memory=memory))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    runtime.load(family.folder)
    runtime.kernel(family.key())
    kernels.cache().prune(0, 0.0)
    begin = time.monotonic()
    runtime.kernel(family.key(), build=True)
    span, seed = 2 * (time.monotonic() - begin), random.randrange(2**32)
    kernels.cache().prune(0, 0.0)
    given = str(span), str(seed), str(most)
    done = in_new_process(KILLED, family.folder, family.key(), *given, check=False)
    assert done.returncode == 0, (seed, done.stderr)
    left = list((cache / "1/tmp").iterdir())
    for folder in left:  # of the killed: the next build removes what is a minute old
        os.utime(folder, (0, 0))
    in_new_process(WARM, family.folder, family.key())
    assert left
    assert not list((cache / "1/tmp").iterdir())


def test_a_damaged_pack_is_built_anew(family, cache, compilations):
    runtime.load(family.folder)
    runtime.kernel(family.key())
    compilations.take()
    (library,) = cache.glob("1/packs/*/*.so")
    copy = library.with_name("copy")  # the library itself is mapped by this process
    shutil.copy(library, copy)
    with copy.open("r+b") as file:
        file.truncate(1000)
    copy.replace(library)
    in_new_process(WARM, family.folder, family.key())
    assert len(compilations.take()) == 2


def test_a_compilers_error_has_its_authors_line_first_and_comes_once(family, cache, capfd):
    runtime.load(family.folder)
    family.edit("cpu::store(z,", "cpu::stow(z,")
    line = next(
        n for n, text in enumerate(family.header.read_text().splitlines(), 1) if "stow" in text
    )
    with pytest.raises(runtime.BuildError) as caught:
        runtime.build(family.name, "target == 'cpu'")  # three kernels with one error
    first, in_kernel, command = str(caught.value).splitlines()
    assert first.startswith(f"{family.header}:{line}:")
    assert "stow" in first
    assert f"in {family.name}.cpu." in in_kernel
    shown = os.popen(f"{command.split('`')[1]} 2>&1").read()
    assert "stow" in shown
    assert capfd.readouterr() == ("", "")


SHOWN = """
import os, pty, sys
import runtime
parent, child = pty.openpty()
sys.stderr = os.fdopen(child, "w")
runtime.load(sys.argv[1])
runtime.kernel(sys.argv[2])
sys.stderr.close()
shown = b""
try:
    while part := os.read(parent, 1000):
        shown += part
except OSError:  # how Linux ends a terminal that no process writes to
    pass
print(shown.decode())
"""


def test_a_build_of_more_than_a_second_shows_itself_on_a_terminal(family, cache, tmp_path):
    slow = tmp_path / "slow-c++"
    slow.write_text('#!/bin/sh\ncase " $* " in *" -c "*) sleep 1.5 ;; esac\nexec c++ "$@"\n')
    slow.chmod(0o755)
    shown = in_new_process(SHOWN, family.folder, family.key(), CXX=str(slow)).stdout
    assert f"kernelmint: building {family.key()} (" in shown
    again = in_new_process(SHOWN, family.folder, family.key(), CXX=str(slow)).stdout
    assert "building" not in again


def test_a_header_without_launch_says_so_by_its_name(family, cache):
    runtime.load(family.folder)
    family.edit("LaunchResult launch(", "LaunchResult lunch(")
    with pytest.raises(runtime.BuildError, match=rf"^{family.header}: it defines no `.* launch\("):
        runtime.kernel(family.key())


def test_a_key_that_no_configuration_has_says_why(family, cache, compilations):
    runtime.load(family.folder)
    with pytest.raises(runtime.KernelNotFound, match=r"cpu\.yaml:6:5: segment % 16 == 0: "):
        runtime.kernel(family.key(8))
    with pytest.raises(runtime.KernelNotFound, match="is not a valid key: it ends before"):
        runtime.kernel(f"{family.name}.cpu.f32")
    with pytest.raises(runtime.KernelNotFound, match=r"expected family\.target\.parameters"):
        runtime.kernel(family.name)
    assert not compilations.take()


def test_a_folder_without_families_and_a_family_of_another_pack_are_refused(
    family, cache, tmp_path
):
    (tmp_path / "empty").mkdir()
    with pytest.raises(runtime.InvalidArgument, match="no families here"):
        runtime.load(tmp_path / "empty")
    with pytest.raises(
        runtime.InvalidArgument, match=r"'flash_forwrd' \(did you mean 'flash_forward'\?\); known: "
    ):
        runtime.build("flash_forwrd")
    forward_alone.copy(family.specs)
    with pytest.raises(
        runtime.PackError, match=r"flash_forward of .* is already in pack kernelmint"
    ):
        runtime.load(family.specs)
    assert family.name not in runtime.families()


def test_a_family_brings_the_one_that_gives_its_gradients_and_follows_its_changes(tmp_path, cache):
    for name in ("csr_sum", "csr_gather"):
        shutil.copytree(Path(__file__).parents[1] / "families" / name, tmp_path / "specs" / name)
    code = """if True:
        import pathlib, sys, runtime
        print(*sorted({info.family for info in runtime.load(f"{sys.argv[1]}/csr_sum")}))
        other = pathlib.Path(sys.argv[1], "csr_gather/family.yaml")
        other.write_text(other.read_text().replace("rows", "count"))
        try:
            runtime.load(f"{sys.argv[1]}/csr_sum")
        except runtime.BuildError as error:
            print(error)
    """
    lines = in_new_process(code, tmp_path / "specs").stdout.splitlines()
    assert lines[0] == "csr_gather csr_sum"
    assert "csr_sum/family.yaml:11:" in lines[1]
    assert "the family csr_gather needs 'count'" in lines[1]


def test_a_folder_of_an_installed_pack_is_its_own_families_and_their_gradients(cache, monkeypatch):
    monkeypatch.setattr(ondemand, "sources", {})
    specs = packs.owner("flash_forward").specs["kernel_specs"]
    for folder, families in (
        ("attention/flash_forward", {"flash_forward", "flash_backward"}),  # its gradients
        ("hstu", {"block_sparse", "hstu_bsa"}),
    ):
        assert {info.family for info in runtime.load(specs / folder)} == families


def test_a_kernel_of_an_installed_family_that_no_pack_holds(cache, compilations, monkeypatch):
    """By build=True, or with KERNELMINT_BUILD=missing; else it is not found, as ever."""
    key = "flash_forward.cpu.f32-d64-r64-c32"
    with pytest.raises(
        runtime.KernelNotFound, match=r"not this one\..* build=True\) builds it now"
    ):
        runtime.kernel(key)
    assert not compilations.take()
    monkeypatch.setenv("KERNELMINT_BUILD", "missing")
    kernel = runtime.kernel(key)
    try:
        q, k, v = torch.randn(3, 1, 100, 2, 64)
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(t.double().transpose(1, 2) for t in (q, k, v))
        ).transpose(1, 2)
        assert (kernel(q, k, v, out=nan_like(q)) - expected).abs().max() < 1e-5
        monkeypatch.delenv("KERNELMINT_BUILD")
        assert runtime.kernel(key, build=True) is kernel
    finally:
        packs._registry().singles.pop("flash_forward")
    monkeypatch.setenv("KERNELMINT_BUILD", "all")
    with pytest.raises(runtime.InvalidArgument, match="KERNELMINT_BUILD=all: expected `missing`,"):
        runtime.kernel("flash_forward.cpu.f32-d64-r64-c16")


ALWAYS = """
import sys
import runtime, torch
key = "flash_forward.cpu.f32-d64-r64-c128"
runtime.kernel(key)
print(runtime._packs.single("flash_forward", key) is not None)
"""


def test_always_builds_what_a_pack_holds_from_its_spec_as_it_is_now(cache, compilations):
    assert in_new_process(ALWAYS).stdout == "False\n"
    assert not compilations.take()
    assert in_new_process(ALWAYS, KERNELMINT_BUILD="always").stdout == "True\n"
    assert len(compilations.take()) == 2


def test_a_cache_that_cannot_be_written_is_said_and_lasts_for_the_process(
    family, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match=r"file/cache cannot be written \(Not a directory\)"):
        runtime.load(family.folder)
    check_right(runtime.kernel(family.key()))


FULL = """
import subprocess, sys
import runtime
folder, key, cache, size = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", cache], check=True)
runtime.load(folder)
try:
    runtime.kernel(key)
except runtime.BuildError as error:
    print(error)
"""


@pytest.mark.parametrize("size", slow_after(1, ["40k", "200k"]))
def test_a_full_disk_is_a_clear_error(family, cache, size):
    """Whether it is full for the cache or for a compiler, as the larger one is."""
    cache.mkdir()
    alone = ["unshare", "-m"]  # mounts of its own
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    done = subprocess.run(
        [*alone, sys.executable, "-c", FULL, family.folder, family.key(), cache, size],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(rf"{cache}.*: .*No space left on device: free some \(", done.stdout)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_cuda_kernels_are_compiled_for_a_named_architecture_without_a_gpu(family, cache):
    key = f"{family.name}.sm80.f32-t256-n1024"
    where = "target == 'sm80' and dtype == f32"
    (built,) = (i for i in runtime.build(family.folder, where, architectures=["90"]) if i.built)
    assert built.key == key
    assert built.registers > 0
    assert built.spills == 0
    (pack,) = packs.singles(family.name)
    assert pack.architectures == ("90",)
    with pytest.raises(runtime.TargetUnavailable, match=r"needs compute capability 8\.0 or later"):
        kernels.build([key], ["75"])
    if not torch.cuda.is_available():
        with pytest.raises(runtime.TargetUnavailable, match="no CUDA device to build it for"):
            runtime.kernel(f"{family.name}.sm80.f32-t128-n1024")


@pytest.mark.gpu
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_cuda_kernels_are_built_for_the_gpu_and_right(family, cache):
    """By key, in a graph and by the family's front; of a family whose pack has no CUDA kernels."""
    runtime.load(family.folder)
    kernel = runtime.kernel(f"{family.name}.sm80.f32-t128-n2048")
    x, y = torch.randn(2, 33, 1000, device="cuda")
    want = 0.5 * x.double() + y.double()
    assert ((kernel(x, y, alpha=0.5, out=nan_like(x)) - want).abs() <= 2**-23 * want.abs()).all()
    compiled = torch.compile(
        lambda x, y: runtime.kernel(f"{family.name}.sm80.f32-t256-n2048")(x, y, alpha=0.5),
        fullgraph=True,
    )
    assert ((compiled(x, y) - want).abs() <= 2**-23 * want.abs()).all()
    assert ((getattr(runtime, family.name)(x, y, alpha=0.5) - want).abs() <= 1e-6).all()
    key = "flash_forward.sm80.bf16-d128-r64-c32-w4-async-eager-swz-q0-k0-v0-opt"
    kernel = runtime.kernel(key, build=True)
    try:
        q, k, v = torch.randn(3, 2, 500, 4, 128, device="cuda").bfloat16()
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(t.transpose(1, 2).double() for t in (q, k, v))
        ).transpose(1, 2)
        # One rounding of the output and one of each probability to bf16.
        bound = 2**-8 * (expected.abs() + v.double().abs().mean())
        assert ((kernel(q, k, v, out=nan_like(q)) - expected).abs() <= 2 * bound).all()
    finally:
        packs._registry().singles.pop("flash_forward")
