"""The shared cache: machines are caches of their own; what fails in the store costs time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
import tracemalloc
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

import runtime
from kernelmint.__main__ import main
from runtime import packs
from runtime.ondemand import shared as shared_caches
from runtime.ondemand.cache import Cache, Dependencies, Roots
from runtime.ondemand.shared import PLACE, SIGNERS, SIZE, WRITE, Settings, Shared
from runtime.ondemand.stores import FolderStore

from .conftest import in_new_process
from .test_ondemand import check_right


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return f'kernelmint namespaces="kernelmint" {path.with_suffix(".pub").read_text()}'


@pytest.fixture
def signed(tmp_path) -> dict[str, str]:
    """Settings by which files are signed."""
    (tmp_path / "signers").write_text(make_key(tmp_path / "key"))
    return {"write": str(tmp_path / "key"), "signers": str(tmp_path / "signers")}


@pytest.fixture(params=["owned", "signed", "url"])
def settings(request, tmp_path) -> Settings:
    """Settings of a writer."""
    if request.param == "owned":
        return Settings(str(tmp_path / "store"), write="1")
    own = request.getfixturevalue("signed")
    return Settings(f"memory:/{tmp_path}" if request.param == "url" else f"{tmp_path}/store", **own)


class Machine:
    """A cache, and the shared one as its user sees it."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.cache = Cache(folder / "cache")
        self.shared = Shared(settings)
        self.roots = Roots({"specs": folder.parent})

    def build(self, request: str = "request", size: int = 0):
        """Puts a pack into the cache, as a build does, and offers it."""
        names = Dependencies(files=("specs:source.h",))
        with self.cache.work() as (work, _):
            (work / "pack").mkdir()
            (work / "pack/pack.json").write_text(" " * size)
            name = self.cache.identify(request, names, self.roots)
            entry = self.cache.publish(request, names, self.roots, name, work / "pack")
        self.shared.offer(request, entry)
        return entry

    def fetch(self, request: str = "request"):
        return self.shared.fetch(request, self.roots, self.cache)


@pytest.fixture
def machine(tmp_path, settings):
    """machine(name, **changed): a machine with these settings."""
    (tmp_path / "source.h").write_text("int a;\n")
    return lambda name, **changed: Machine(
        tmp_path / name, Settings(**{**vars(settings), **changed})
    )


def environ(monkeypatch, settings: Settings, machine: Path) -> None:
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(machine))
    for name, value in ((PLACE, settings.place), (WRITE, settings.write),
                        (SIGNERS, settings.signers)):  # fmt: skip
        monkeypatch.setenv(name, value)


def test_a_kernel_is_built_on_one_machine_and_read_on_others(
    family, compilations, tmp_path, monkeypatch, settings
):
    environ(monkeypatch, settings, tmp_path / "builds")
    runtime.load(family.folder)
    runtime.build(family.name, keys=[family.key()])
    assert len(compilations.take()) == 2
    packs._registry().singles.pop(family.name)  # as in a new process
    reader = Settings(settings.place, signers=settings.signers)
    environ(monkeypatch, reader, tmp_path / "reads")
    check_right(runtime.kernel(family.key()))
    assert not compilations.take()
    assert list((tmp_path / "reads/1/packs").glob("*/*.so"))


@pytest.mark.parametrize("changed", [{"write": ""}, {"place": "{}/absent", "write": ""}])
def test_a_reader_writes_nothing(machine, tmp_path, settings, changed):
    reader = machine("reads", **{k: v.format(tmp_path) for k, v in changed.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an absent store is told of
        reader.build()
        assert reader.shared.lease("request", "a kernel") is None
        assert reader.fetch() is None
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "absent").exists()


def test_a_file_is_read_only_for_the_contents_that_it_was_built_from(machine, tmp_path):
    built = machine("builds").build()
    assert machine("reads").fetch().folder.name == built.folder.name
    (tmp_path / "source.h").write_text("int b;\n")
    assert machine("other").fetch() is None


# A machine's eight processes; each is a fork, as if it had started by itself. With
# KERNELMINT_TEST_MOUNTS, folders where one NFS server's folder is mounted, machines have one each.
MACHINES = """
import os, sys, time
import runtime, runtime.ondemand.emit, runtime.ondemand.kernels
folder, top, *keys = sys.argv[1:]
mounts = os.environ.get("KERNELMINT_TEST_MOUNTS", "").split()
runtime.load(folder)
runtime.ondemand.kernels.recipe(keys[0], None)  # the compiler is asked once
children = []
for number in range(64):
    if child := os.fork():
        children.append(child)
        continue
    os.environ["KERNELMINT_CACHE_DIR"] = f"{top}/machine{number % 8}"
    if mounts:
        os.environ["KERNELMINT_SHARED_CACHE"] = f"{mounts[number % len(mounts)]}/store"
    for key in keys if number % 2 else reversed(keys):
        assert runtime.kernel(key).info.built
    os._exit(0)
print(*(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.slow
def test_64_processes_on_8_machines_compile_each_kernel_once(
    family, compilations, tmp_path, monkeypatch
):
    environ(monkeypatch, Settings(f"{tmp_path}/store", write="1"), tmp_path)
    monkeypatch.setenv("CXXFLAGS", "-O0")
    keys = [family.key(segment) for segment in (4096, 8192)]
    done = in_new_process(MACHINES, family.folder, tmp_path, *keys)
    assert set(done.stdout.split()) == {"0"}, done.stderr
    assert len(compilations.take()) == 2 * len(keys)
    assert len(list(tmp_path.glob("machine*/1/packs/*/*.so"))) == 8 * len(keys)
    assert not list(tmp_path.glob("store/1/*/lease"))


def test_a_lease_is_of_one_process_until_it_is_given_back(machine):
    first, second = machine("first"), machine("second")
    assert first.shared.lease("request", "a kernel") is None
    assert re.search(rf"process {os.getpid()}, which builds a kernel",
                     second.shared.lease("request", "it too"))  # fmt: skip
    first.shared.release("request")
    assert second.shared.lease("request", "it too") is None
    first.shared.release("request")  # it is another's
    assert first.shared.lease("request", "a kernel") is not None


def test_a_lease_of_a_machine_that_died_expires_and_of_one_that_lives_does_not(
    machine, monkeypatch
):
    monkeypatch.setattr(shared_caches, "_EXPIRY", 0.6)
    first, second = machine("first"), machine("second")
    assert first.shared.lease("request", "a kernel") is None
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert second.shared.lease("request", "it too") is not None
        time.sleep(0.05)
    first.shared._leases._held.clear()  # nobody renews it
    while second.shared.lease("request", "it too") is not None:
        assert time.monotonic() < end + 60
        time.sleep(0.05)


DAMAGES = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "a bit": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "no JSON": lambda data: b"\xff" * 500,
    "deep": lambda data: b"[" * 10**5,
    "other JSON": lambda data: b'{"a": 5}\n',
    "no pack": lambda data: b'["request", "name", [[], [], []], {"../x": 1}]\nx',
}


@pytest.mark.parametrize("file", ["files", "pack"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_not_read_and_a_writer_replaces_it(machine, file, damage):
    builds = machine("builds")
    builds.build(size=1000)
    store = builds.shared._store
    (name,) = (item.name for item in store.items() if f"/{file}-" in item.name)
    store.write(name, damage(store.read(name)))
    with pytest.warns(RuntimeWarning, match=rf"{name}\b.*the kernel is built anew"):
        assert machine("reads").fetch() is None
    builds.build(size=1000)
    assert machine("reads").fetch() is not None


def test_a_file_that_nobody_trusted_signed_is_not_read(tmp_path, signed):
    (tmp_path / "source.h").write_text("int a;\n")
    make_key(tmp_path / "foreign")
    other = Machine(tmp_path / "other", Settings(f"{tmp_path}/store", f"{tmp_path}/foreign",
                                                 signed["signers"]))  # fmt: skip
    other.build()
    reader = Machine(tmp_path / "reads", Settings(f"{tmp_path}/store", signers=signed["signers"]))
    with pytest.warns(RuntimeWarning, match=r"no key of .*signers signed"):
        assert reader.fetch() is None
    Machine(tmp_path / "own", Settings(f"{tmp_path}/store", "1")).build()  # not signed at all
    with pytest.warns(RuntimeWarning, match=r"no key of .*signers signed"):
        assert reader.fetch() is None
    Machine(tmp_path / "right", Settings(f"{tmp_path}/store", **signed)).build()
    assert reader.fetch() is not None


def test_a_signed_file_of_another_name_is_not_believed(machine):
    builds = machine("builds")
    builds.build("one")
    store = builds.shared._store
    files = {item.name: store.read(item.name) for item in store.items()}
    builds.build("two")
    (other,) = (data for name, data in files.items() if "/pack-" in name)
    (name,) = (i.name for i in store.items("two") if "/pack-" in i.name)
    store.write(name, other)
    with pytest.warns(RuntimeWarning, match=rf"damaged file, {name}"):
        assert machine("reads").fetch("two") is None


@pytest.mark.parametrize("path", [".", "1", "1/request", "1/request/pack-*"])
def test_a_store_that_others_may_write_is_refused(tmp_path, path):
    """With the command that puts it right."""
    (tmp_path / "source.h").write_text("int a;\n")
    settings = Settings(f"{tmp_path}/store", "1")
    Machine(tmp_path / "builds", settings).build()
    (found,) = (tmp_path / "store").glob(path) if "*" in path else [tmp_path / "store" / path]
    found.chmod(0o775)
    reader = Machine(tmp_path / "reads", settings)
    with pytest.raises(runtime.BuildError, match=r"in KERNELMINT_SHARED_CACHE, or ") as caught:
        reader.fetch()
    command = re.search("fix it with `(.*?)`", str(caught.value))
    assert command, str(caught.value)
    subprocess.run(command[1], shell=True, check=True)
    assert reader.fetch() is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="a file can be given away by root alone")
def test_a_store_of_another_user_is_refused_unless_it_is_signed(tmp_path, signed):
    (tmp_path / "source.h").write_text("int a;\n")
    Machine(tmp_path / "builds", Settings(f"{tmp_path}/store", **signed)).build()
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        os.chown(path, 12345, 12345)
    with pytest.raises(runtime.BuildError, match=r"belongs to another user"):
        Machine(tmp_path / "reads", Settings(f"{tmp_path}/store")).fetch()
    reader = Settings(f"{tmp_path}/store", signers=signed["signers"])
    assert Machine(tmp_path / "reads", reader).fetch() is not None


@pytest.mark.parametrize("at", ["1", "1/request"])
def test_a_link_in_a_store_that_others_may_write_leads_nowhere(tmp_path, signed, at):
    """Neither what is read, nor what is written, nor what is removed."""
    (tmp_path / "source.h").write_text("int a;\n")
    machine = Machine(tmp_path / "builds", Settings(f"{tmp_path}/store", **signed))
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "request").mkdir(parents=True)
    (elsewhere / "request/mine").write_text("")
    (tmp_path / "store" / at).parent.mkdir(exist_ok=True)
    (tmp_path / "store" / at).symlink_to(elsewhere / at[2:])
    before = sorted(elsewhere.rglob("*"))
    assert machine.fetch() is None
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        machine.build()
    with contextlib.suppress(OSError):
        machine.shared.evict(0, time.time())
    assert sorted(elsewhere.rglob("*")) == before


FULL = """
import ctypes, os, subprocess, sys, warnings
import runtime
folder, key, store, size = sys.argv[1:]
ctypes.CDLL(None).unshare(0x00020000)  # CLONE_NEWNS: mounts of its own
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", store], check=True)
runtime.load(folder)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    print(runtime.kernel(key).info.built, *(entry.message for entry in told), sep="\\n")
print(*(file for _, _, files in os.walk(store) for file in files))
"""


def test_a_full_store_is_told_of_and_kernels_are_built(family, tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    environ(monkeypatch, Settings(f"{tmp_path}/store", write="1"), tmp_path / "cache")
    monkeypatch.setenv("CXXFLAGS", "-O0")
    done = in_new_process(FULL, family.folder, family.key(), tmp_path / "store", "12k")
    built, told, left = done.stdout.rstrip("\n").split("\n")
    assert built == "True"
    assert re.search(r"cannot be written \(No space left on device\): kernels are built", told)
    assert left == "lease"  # it expires: nothing can be written for a while


def test_an_absent_store_is_told_of_and_kernels_are_built(tmp_path):
    (tmp_path / "source.h").write_text("int a;\n")
    (tmp_path / "file").write_text("")
    for place, write, why in (
        ("absent", "", r"cannot be read \(No such file or directory\)"),
        ("file/store", "1", r"cannot be read \(Not a directory\)"),
    ):
        absent = Machine(tmp_path / "reads", Settings(f"{tmp_path}/{place}", write))
        with pytest.warns(RuntimeWarning, match=why):
            assert absent.fetch() is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert absent.shared.lease("request", "a kernel") is None
            absent.build()


def test_a_store_that_hangs_is_left_alone_for_a_while(tmp_path, monkeypatch):
    (tmp_path / "source.h").write_text("int a;\n")
    monkeypatch.setattr(shared_caches, "_PATIENCE", 0.1)
    hangs, asked = threading.Event(), []

    def hang(store, folder=None):
        asked.append(folder)
        hangs.wait()

    monkeypatch.setattr(FolderStore, "items", hang)
    slow = Machine(tmp_path / "reads", Settings(f"{tmp_path}/store", "1"))
    with pytest.warns(RuntimeWarning, match=r"cannot be read \(nothing from it in 0.1 s\)"):
        assert slow.fetch("first") is None
    assert slow.fetch("second") is None
    assert asked == ["first"]
    hangs.set()


def test_a_file_system_of_fsspecs_may_raise_anything(tmp_path, signed, monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    (tmp_path / "source.h").write_text("int a;\n")
    machine = Machine(tmp_path / "builds", Settings(f"memory:/{tmp_path}", **signed))

    def fail(*arguments, **named):
        raise KeyError("no credentials")

    for name in ("find", "pipe_file"):
        monkeypatch.setattr(MemoryFileSystem, name, fail)
    with pytest.warns(RuntimeWarning, match=r"cannot be read \(KeyError: 'no credentials'\)"):
        assert machine.fetch() is None
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(KeyError: 'no credentials'\)"):
        assert machine.shared.lease("request", "a kernel") is None
    machine.build()  # it is left alone


def test_a_key_that_does_not_sign_is_told_of(tmp_path, signed):
    (tmp_path / "source.h").write_text("int a;\n")
    (tmp_path / "key").write_text("no key\n")
    (tmp_path / "key").chmod(0o600)
    with pytest.warns(RuntimeWarning, match=rf"{WRITE}={tmp_path}/key: .* key"):
        Machine(tmp_path / "builds", Settings(f"{tmp_path}/store", **signed)).build()
    assert not list((tmp_path / "store").rglob("pack-*"))


def used(machine: Machine) -> list[str]:
    names = [item.name for item in machine.shared.usages()]
    return sorted(name.partition("/")[0] for name in names if "/pack-" in name)


def test_the_longest_unused_files_go_when_the_size_is_reached(tmp_path):
    (tmp_path / "source.h").write_text("int a;\n")
    writer = Machine(tmp_path / "builds", Settings(f"{tmp_path}/store", "1", size=30_000))
    for number, name in enumerate("abcd"):
        writer.build(name, 7000)
        for path in (tmp_path / "store/1" / name).iterdir():
            os.utime(path, (number, number))
    assert used(writer) == ["a", "b", "c", "d"]
    assert Machine(tmp_path / "reads", Settings(f"{tmp_path}/store")).fetch("b") is not None
    writer.build("e", 9000)
    assert used(writer) == ["b", "d", "e"]
    assert not (tmp_path / "store/1/a").exists()


def test_a_read_allocates_what_the_file_holds(tmp_path):
    store = FolderStore(tmp_path, is_owned=True)
    store.write("request/file", b"content")
    tracemalloc.start()
    try:
        assert store.read("request/file") == b"content"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_files_of_killed_processes_go(tmp_path):
    (tmp_path / "source.h").write_text("int a;\n")
    machine = Machine(tmp_path / "builds", Settings(f"{tmp_path}/store", "1"))
    machine.build()
    for name, age in (("lease", 0), ("x.part", 0), ("old.part", 2e5)):
        path = tmp_path / "store/1/request" / name
        path.write_text("")
        os.utime(path, (time.time() - age,) * 2)
    assert [item.name for item in machine.shared.evict(10**6, 0.0)] == ["request/old.part"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({PLACE: "s3://bucket"}, f"name the file of the signers' keys in {SIGNERS}"),
        ({PLACE: "none://x", SIGNERS: "{}/s"}, r"none://x: Protocol not known: none: a URL takes"),
        ({SIGNERS: "{}/s", WRITE: "1"}, f"{WRITE}=1: .*takes the file of an ssh key"),
        ({SIGNERS: "{}/no"}, f"{SIGNERS}=.*/no: there is no such file"),
        ({WRITE: "yes"}, f"{WRITE}=yes: there is no such file"),
        ({SIZE: "big"}, f"{SIZE}: got 'big', expected a size such as 500M or 2G"),
    ],
)
def test_settings_that_are_wrong_are_told_of(tmp_path, monkeypatch, changed, told):
    (tmp_path / "s").write_text("")
    for name, value in {PLACE: str(tmp_path), **changed}.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    with pytest.raises(runtime.BuildError, match=told):
        shared_caches.of_environment()
    done = CliRunner().invoke(main, ["cache", "--shared"])
    assert done.exit_code == 2
    assert re.search(told, done.output)


def test_the_command_lists_and_prunes_the_shared_cache(machine, monkeypatch, settings, tmp_path):
    machine("builds").build(size=2_000_000)
    environ(monkeypatch, settings, tmp_path / "cache")
    listed = CliRunner().invoke(main, ["cache", "--shared"]).output
    assert re.search(r"  2\.00 MB  request/pack-\w+\n", listed)
    assert "2 files, 2.0 MB, in " in listed
    items = json.loads(CliRunner().invoke(main, ["cache", "--shared", "--json"]).stdout)
    assert len(items) == 2
    pruned = CliRunner().invoke(main, ["cache", "--shared", "--prune", "1M"]).output
    assert pruned.startswith("removed 1 file, 2.0 MB, from ")
