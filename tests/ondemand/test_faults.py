"""What is built can be called; what is damaged, or not this user's, is not."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import runtime
from codegen import scaffold
from kernelmint.__main__ import main
from runtime import _native, packs
from runtime.ondemand import cache as caches
from runtime.ondemand import compilers
from tests.slow import slow_after

from .test_ondemand import check_right


@pytest.fixture
def built(family, cache, compilations) -> Path:
    """The folder of a pack that is in the cache."""
    runtime.load(family.folder)
    runtime.build(family.name, keys=[family.key()])
    assert len(compilations.take()) == 2
    packs._registry().singles.pop(family.name)  # as in a new process
    (library,) = cache.glob("1/packs/*/*.so")
    return library.parent


@pytest.mark.parametrize(
    ("name", "refused"), [("a\nb", True), ("a\\b", True), ("a\udcff b", False)]
)
def test_a_folder_of_any_name_builds_or_is_refused(family, cache, tmp_path, name, refused) -> None:
    folder = shutil.copytree(family.specs, tmp_path / name / "specs") / family.name
    runtime.load(folder)
    if refused:
        with pytest.raises(runtime.BuildError, match="holds a newline or a backslash: rename it"):
            runtime.kernel(family.key())
    else:
        check_right(runtime.kernel(family.key()))


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    copy = path.with_name("copy")  # the file itself may be mapped by this process
    copy.write_bytes(data)
    copy.replace(path)


@pytest.mark.parametrize(
    ("undefined", "build"),
    [("missing_function", "{}"), ("factor", "{libraries: [factor]}")],
    ids=["link", "load"],
)
def test_a_library_that_does_not_link_or_load_is_no_kernel(
    family,
    cache,
    write,
    tmp_path,
    monkeypatch,
    undefined,
    build,
):
    """Neither for `runtime.build` nor for `kernelmint build`; what the loader says is shown."""
    if build != "{}":  # found by the linker, and not afterwards
        code = 'extern "C" float factor() { return 1; }'
        command = f"echo '{code}' | c++ -x c++ -shared -fPIC - -o libfactor.so"
        (tmp_path / "lib").mkdir()
        subprocess.run(command, shell=True, check=True, cwd=tmp_path / "lib")
        monkeypatch.setenv("LIBRARY_PATH", str(tmp_path / "lib"))
    said = {
        "missing_function": "cpu.h: error: undefined: `missing_function'",
        "factor": "libfactor.so: cannot open shared object file",
    }[undefined]
    write(f'extern "C" float {undefined}();', f"{undefined}()", build)
    with pytest.raises(runtime.BuildError, match=re.escape(said)):
        runtime.build(family.name, keys=[family.key()])
    done = CliRunner().invoke(main, ["build", str(family.folder), "--key", family.key()])
    assert done.exit_code == 1
    assert said in done.output
    assert not list(cache.glob("1/packs/*/*.so"))


@pytest.mark.parametrize(
    "name", slow_after(2, ["{}.so", "manifest.json", "pack.json", "contents.json", "python/{}.py"])
)
def test_a_damaged_pack_is_built_anew(family, cache, compilations, built, name):
    path = built / name.format(family.name)
    flip_bit(path)
    listed = CliRunner().invoke(main, ["cache"])
    assert listed.exit_code == 0, listed.output
    assert "damaged: built anew" in listed.output
    check_right(runtime.kernel(family.key()))
    assert len(compilations.take()) == 2
    assert "damaged:" not in CliRunner().invoke(main, ["cache"]).output


@pytest.mark.parametrize("name", ["manifest.json", "pack.json"])
def test_a_pack_of_another_version_is_listed_and_pruned(cache, built, name) -> None:
    path = built / name
    changed = re.sub(r'"(version|format)": \d+', r'"\1": 999', path.read_text(), count=1)
    assert changed != path.read_text()
    path.write_text(changed)
    caches._seal(built)
    listed = CliRunner().invoke(main, ["cache"])
    assert listed.exit_code == 0, listed.output
    assert "built by another version of Kernelmint" in listed.output
    assert "removed 2 packs" in CliRunner().invoke(main, ["cache", "--prune", "0"]).output


@pytest.mark.parametrize(
    "text", slow_after(2, [b"\xff", b"[1]", b"", b"[[1]]", b'{"a": 5}', b"[" * 10**5])
)
def test_damaged_indices_are_written_anew(family, cache, compilations, built, text):
    for path in (*cache.glob("1/direct/*"), *cache.glob("1/answers/*"), cache / "1/system.json"):
        path.write_bytes(text)
    check_right(runtime.kernel(family.key()))


@pytest.mark.parametrize("folder", [".", "1", "1/packs", "{built}"])
@pytest.mark.parametrize("mode", slow_after(1, [0o775, 0o757]))
def test_a_cache_that_others_may_write_is_refused(family, cache, built, folder, mode):
    """With the command that puts it right."""
    path = cache / folder.format(built=built)
    path.chmod(mode)
    with pytest.raises(runtime.BuildError) as caught:
        runtime.kernel(family.key())
    command = re.search("fix it with `(.*?)`", str(caught.value))
    assert command, str(caught.value)
    subprocess.run(command[1], shell=True, check=True)
    check_right(runtime.kernel(family.key()))


@pytest.mark.parametrize("of", ["answers/*.json", "direct/*.json", "system.json", "packs/*/*.so"])
def test_a_file_of_the_cache_that_others_may_write_is_refused(family, cache, built, of):
    """What is noted in it decides what is compiled and loaded."""
    for path in cache.glob(f"1/{of}"):
        path.chmod(0o664)
    compilers._cxx.cache_clear()  # as in a new process
    with pytest.raises(runtime.BuildError, match="may be written by its group or by others"):
        runtime.kernel(family.key())


@pytest.mark.skipif(os.geteuid() != 0, reason="a file can be given away by root alone")
def test_an_empty_cache_of_another_user_is_refused_before_it_is_used(family, cache, compilations):
    cache.mkdir()
    os.chown(cache, 12345, 12345)
    with pytest.raises(runtime.BuildError, match=r"belongs to another user"):
        runtime.load(family.folder)
    assert not compilations.take()
    assert not list(cache.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="a file can be given away by root alone")
def test_a_library_of_another_user_is_refused(family, cache, built):
    os.chown(built / f"{family.name}.so", 12345, 12345)
    with pytest.raises(runtime.BuildError, match=r"\.so belongs to another user"):
        runtime.kernel(family.key())


@pytest.mark.skipif(os.geteuid() != 0, reason="a file can be given away by root alone")
def test_a_cache_of_another_user_is_refused(family, cache, built):
    os.chown(built.parent, 12345, 12345)
    with pytest.raises(runtime.BuildError, match=r"belongs to another user.* `chown -R 0 "):
        runtime.kernel(family.key())


def test_a_cache_is_its_users_alone_whatever_the_umask(family, cache):
    before = os.umask(0)
    try:
        runtime.load(family.folder)
        check_right(runtime.kernel(family.key()))
        runtime.build(family.name, keys=[family.key()])  # it is found, not refused
    finally:
        os.umask(before)
    read = [path for path in cache.glob("1/**/*.*") if "locks" not in path.parts]
    assert len(read) > 10
    assert not [path for path in read if stat.S_IMODE(path.stat().st_mode) & 0o022]


@pytest.mark.parametrize("flag", ["--version", "-###", "--help", "-dumpversion", "-E", "-S",
                                  "-fsyntax-only"])  # fmt: skip
@pytest.mark.parametrize("variable", ["CXX", "CXXFLAGS"])
def test_an_option_that_keeps_a_compiler_from_compiling_is_blamed(
    family, cache, monkeypatch, flag, variable
):
    monkeypatch.setenv(variable, f"c++ {flag}" if variable == "CXX" else flag)
    runtime.load(family.folder)
    with pytest.raises(runtime.BuildError, match="wrote no object") as caught:
        runtime.kernel(family.key())
    assert flag in str(caught.value)
    assert "KERNELMINT_CACHE_DIR" not in str(caught.value)


@pytest.mark.parametrize("text", ["'{0}'", "{0}", "'{0}' -DX", "{0} -DX"])
def test_a_compilers_path_may_have_spaces(family, cache, monkeypatch, tmp_path, text):
    """Beside options it is quoted, as in a shell."""
    compiler = tmp_path / "my bin/g++"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", text.format(compiler))
    runtime.load(family.folder)
    if text == "{0} -DX":
        with pytest.raises(runtime.BuildError, match="No such file"):
            runtime.kernel(family.key())
    else:
        check_right(runtime.kernel(family.key()))


@pytest.mark.parametrize("variable", ["CXX", "CXXFLAGS"])
def test_a_quote_that_is_not_closed_is_named(family, cache, monkeypatch, variable):
    monkeypatch.setenv(variable, "c++ '-DX")
    runtime.load(family.folder)
    with pytest.raises(runtime.BuildError, match=rf"{variable}=c\+\+ '-DX: No closing quotation"):
        runtime.kernel(family.key())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cache_from_which_no_code_can_be_loaded_is_named(
    family, cache, compilations, monkeypatch, when
):
    if when == "after":
        runtime.load(family.folder)
        runtime.build(family.name, keys=[family.key()])
        packs._registry().singles.pop(family.name)
        compilations.take()
    found = os.statvfs(cache.parent)
    noexec = os.statvfs_result([*found[:8], found.f_flag | os.ST_NOEXEC, found.f_namemax])
    monkeypatch.setattr(os, "statvfs", lambda _: noexec)
    with pytest.raises(runtime.BuildError, match=r"mounted noexec.*KERNELMINT_CACHE_DIR"):
        runtime.load(family.folder)
    assert not compilations.take()


def test_a_family_that_is_named_as_anothers_operator_is_refused(family, cache):
    other = f"{family.name}_out"
    scaffold.create(other, family.specs)
    with pytest.raises(runtime.PackError, match=rf"{other} .*: rename one of them"):
        runtime.load(family.specs)
    assert packs.owner(family.name) is None
    runtime.load(family.folder)
    with pytest.raises(runtime.PackError, match=rf"{other} .*: rename one of them"):
        runtime.load(family.specs / other)
    assert packs.owner(other) is None
    check_right(runtime.kernel(family.key()))


def test_a_pipe_in_the_place_of_a_library_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.so")
    with pytest.raises(runtime.PackError, match="not a shared library"):
        _native.Library(tmp_path / "pipe.so", ())


@pytest.mark.parametrize("linked", ["files", "family", "specs"])
def test_specs_that_are_links_are_built_and_their_edits_told(family, cache, tmp_path, linked):
    """As Bazel, Nix, uv and `cp -rs` lay them out."""
    store, place = tmp_path / "store/a1b2c3", tmp_path / "project/kernel_specs"
    shutil.copytree(family.specs, store)
    place.parent.mkdir()
    if linked == "specs":
        place.symlink_to(store)
    elif linked == "family":
        place.mkdir()
        (place / family.name).symlink_to(store / family.name)
    else:
        shutil.copytree(store, place, copy_function=os.symlink)
    runtime.load(place / family.name)
    check_right(runtime.kernel(family.key()))
    header = store / family.name / "cpu.h"
    header.write_text(f"{header.read_text()}// edited\n")
    with pytest.warns(RuntimeWarning, match=rf"{place}/{family.name}/cpu.h has changed"):
        runtime.kernel(family.key())


def test_paths_that_are_not_utf_8(family, tmp_path, monkeypatch):
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(family.specs, odd / "specs")
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(odd / "cache"))
    runtime.load(odd / "specs" / family.name)
    check_right(runtime.kernel(family.key()))
    header = odd / "specs" / family.name / "cpu.h"
    header.write_text("#error wrong\n")
    with pytest.raises(runtime.BuildError) as caught:
        runtime.kernel(family.key(), build=True)
    assert str(caught.value).startswith(f"{header}:1:")


def test_the_first_error_is_named_in_a_foreign_header_too(family, cache, write):
    """What follows from it in the family's own header is not."""
    foreign = family.specs.parent / "foreign"
    foreign.mkdir()
    (foreign / "factor.h").write_text("using factor_t = unknown_t;\n")
    write("#include <factor.h>\nfactor_t factor;", "factor", "{include: [../foreign]}")
    with pytest.raises(runtime.BuildError) as caught:
        runtime.kernel(family.key())
    assert re.match(rf"{foreign}/factor\.h:1:\d+: error: .*unknown_t", str(caught.value))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("c10/util/Half.h", "`include: [{shims: torch}]` of the spec's `build:` has it"),
        ("ATen/Context.h", "Kernelmint has no shim of this header of PyTorch's"),
    ],
)
def test_a_header_of_pytorchs_is_known_by_its_name(family, cache, write, header, said):
    write(f"#include <{header}>", "factor")
    with pytest.raises(runtime.BuildError, match=re.escape(f"{header}: No such file")) as caught:
        runtime.kernel(family.key())
    assert said in str(caught.value)


@pytest.mark.parametrize("tile", [1024, 4096], ids=["in a set", "in no set"])
def test_a_cuda_family_is_traced_where_there_is_no_gpu(family, cache, tile):
    """Shapes need neither a device nor the kernel itself, which is built elsewhere."""
    runtime.load(family.folder)
    x = torch.empty(2, 3, device="meta")
    operator = getattr(torch.ops.kernelmint, family.name)
    made = operator(f"{family.name}.sm80.f32-t128-n{tile}", x, x, alpha=1.0)
    assert (made.shape, made.dtype) == (x.shape, x.dtype)
