"""What is built is made of what its sources are: contents decide, whatever the times say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import runtime
from runtime import finding
from runtime.ondemand import compilers, kernels
from runtime.ondemand.cache import content

from .test_ondemand import NVCC

FOUND = "#define FACTOR {}\n"


def value(family) -> float:
    """What the kernel writes that is asked for now."""
    zero = torch.zeros(1, 1)
    return runtime.kernel(family.key(), build=True)(zero, zero, alpha=0.0).item()


def library(folder: Path, factor: int) -> None:
    """libfactor.a, whose function returns the factor."""
    folder.mkdir(exist_ok=True)
    code = f'extern "C" float factor() {{ return {factor}; }}'
    command = f"echo '{code}' | c++ -x c++ -fPIC -c - -o f.o && ar rcs libfactor.a f.o && rm f.o"
    subprocess.run(command, shell=True, check=True, cwd=folder)


WRAPPER = """#!/bin/sh
c++ "$@" || exit
case " $* " in *" kernel.o "*) [ -e '{once}' ] || {{ touch '{once}'; {replace}; }} ;; esac
"""


@pytest.mark.parametrize(
    "replace",
    [
        "mv '{new}/factor.h' '{old}/factor.h'",
        "cp -p '{new}/factor.h' '{old}/factor.h'",
        "mv '{old}' '{old}-before' && mv '{new}' '{old}'",
    ],
)
def test_a_header_that_is_replaced_while_the_compiler_runs(
    family, cache, write, tmp_path, monkeypatch, replace
):
    """By one with an older time; then what is stored is compiled of it."""
    old, new = family.folder / "parts", family.specs / "new"
    for folder, factor in ((old, 1), (new, 2)):
        folder.mkdir()
        (folder / "factor.h").write_text(FOUND.format(factor))
        os.utime(folder / "factor.h", (1, 1))
    compiler = tmp_path / "replacing-c++"
    replaced = replace.format(old=old, new=new)
    compiler.write_text(WRAPPER.format(once=tmp_path / "once", replace=replaced))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    write(f'#include "{family.name}/parts/factor.h"')
    assert value(family) == 2


def test_quick_edits_that_keep_size_and_time(tmp_path):
    path = tmp_path / "header.h"
    hashes = {}
    for number in range(50):
        text = str(number % 2)
        path.write_text(text)
        os.utime(path, (1, 1))
        assert content(path) == hashes.setdefault(text, content(path))
    assert len(set(hashes.values())) == 2


def test_a_header_that_would_now_be_found_first(family, cache, write):
    for folder in ("first", "second"):
        (family.specs.parent / folder).mkdir()
    (family.specs.parent / "second/factor.h").write_text(FOUND.format(1))
    write("#include <factor.h>", build="{include: [../first, ../second]}")
    assert value(family) == 1
    (family.specs.parent / "first/factor.h").write_text(FOUND.format(2))
    assert value(family) == 2
    (family.specs.parent / "first/factor.h").unlink()
    assert value(family) == 1


def test_has_include_that_turned_true(family, cache, write):
    (family.specs.parent / "first").mkdir()
    write(
        "#if __has_include(<extra/factor.h>)\n#include <extra/factor.h>\n#else\n"
        f"{FOUND.format(1)}#endif",
        build="{include: [../first]}",
    )
    assert value(family) == 1
    (family.specs.parent / "first/extra").mkdir()
    (family.specs.parent / "first/extra/factor.h").write_text(FOUND.format(2))
    assert value(family) == 2


def test_a_library_that_is_built_anew_or_found_elsewhere(
    family, cache, write, tmp_path, monkeypatch
):
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("LIBRARY_PATH", f"{first}:{second}")
    library(second, 1)
    write('extern "C" float factor();', "factor()", "{libraries: [factor]}")
    assert value(family) == 1
    library(second, 2)
    assert value(family) == 2
    library(first, 3)
    assert value(family) == 3


def test_a_script_that_calls_the_compiler(family, cache, write, tmp_path, monkeypatch):
    compiler = tmp_path / "script-c++"
    monkeypatch.setenv("CXX", str(compiler))
    for factor in (1, 2):
        compiler.write_text(f'#!/bin/sh\nexec c++ -DFACTOR={factor} "$@"\n')
        compiler.chmod(0o755)
        compilers._cxx.cache_clear()  # as in a new process
        write("")
        assert value(family) == factor


@pytest.mark.skipif(shutil.which("g++") is None, reason="clang++ has neither")
def test_a_program_that_the_compiler_runs_is_replaced(family, cache, write, tmp_path, monkeypatch):
    """The compiler proper, without a change of the driver or of what that says."""
    monkeypatch.setenv("CXX", "g++")
    asked = ["g++", "-print-prog-name=cc1plus"]
    proper = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("COMPILER_PATH", str(tmp_path / "programs"))
    program = tmp_path / "programs/cc1plus"
    program.parent.mkdir()
    write("#ifndef FACTOR\n#define FACTOR 0\n#endif")
    assert value(family) == 0
    for factor in (1, 2):
        program.write_text(f'#!/bin/sh\nexec "{proper}" "$@" -DFACTOR={factor}\n')
        program.chmod(0o755)
        compilers._cxx.cache_clear()  # as in a new process
        assert value(family) == factor


@pytest.mark.parametrize("name", ["as", "ld"])
def test_an_assembler_or_a_linker_that_is_first_on_path(tmp_path, cache, monkeypatch, name):
    identities = [compilers.cxx().identity]
    program = tmp_path / name
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for text in ("exec /usr/bin/false", "exec /usr/bin/true"):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        compilers._cxx.cache_clear()
        identities.append(compilers.cxx().identity)
    assert len(set(identities)) == 3


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("program", ["bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc"])
def test_a_program_of_the_toolkit_is_replaced(tmp_path, cache, monkeypatch, program):
    """nvcc's own file and what it says stay."""
    toolkit = compilers.toolkit().root
    monkeypatch.setenv("CUDACXX", str(tmp_path / "bin/nvcc"))
    for name in ("bin", "nvvm/bin"):
        (tmp_path / name).mkdir(parents=True)
        for path in (toolkit / name).iterdir():
            (tmp_path / name / path.name).symlink_to(path)
    for path in toolkit.iterdir():
        if not (tmp_path / path.name).exists():
            (tmp_path / path.name).symlink_to(path)
    for name in ("nvcc", "nvcc.profile"):  # which looks beside itself
        (tmp_path / "bin" / name).unlink()
        shutil.copy(toolkit / "bin" / name, tmp_path / "bin" / name)
    identities = [compilers.toolkit().nvcc.identity]
    (tmp_path / program).unlink()
    (tmp_path / program).write_text(f'#!/bin/sh\nexec "{toolkit / program}" "$@"\n')
    (tmp_path / program).chmod(0o755)
    compilers._toolkit.cache_clear()
    identities.append(compilers.toolkit().nvcc.identity)
    assert identities[0] != identities[1]


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_the_compiler_that_nvcc_calls(tmp_path, cache, monkeypatch):
    identities = []
    for flag in ("-DONE", "-DTWO"):
        compiler = tmp_path / flag / "g++"
        compiler.parent.mkdir()
        compiler.write_text(f'#!/bin/sh\nexec g++ {flag} "$@"\n')
        compiler.chmod(0o755)
        monkeypatch.setenv("NVCC_CCBIN", str(compiler))
        identities.append(compilers.toolkit().nvcc.identity)
    assert identities[0] != identities[1]


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_what_the_environment_tells_nvcc(family, cache, tmp_path, monkeypatch):
    """A header that a folder of NVCC_PREPEND_FLAGS hides; an option that hides dependencies."""
    first, second = (tmp_path / name for name in ("first", "second"))
    for folder in (first, second):
        folder.mkdir()
    (second / "factor.h").write_text(FOUND.format(1))
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", f"-I{first} -I{second}")
    family.edit("#pragma once", "#pragma once\n#include <factor.h>", "sm80.cuh")
    runtime.load(family.folder)
    key = f"{family.name}.sm80.f32-t256-n1024"

    def built() -> Path:
        return kernels.build([key], ["80"])[key].folder

    before = built()
    assert built() == before
    (first / "factor.h").write_text(FOUND.format(2))
    assert built() != before
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-MMD")
    with pytest.raises(runtime.BuildError, match=r"the option -MMD .* hides"):
        built()


@pytest.mark.parametrize(
    ("flags", "build", "before", "message"),
    [
        ("-MMD", "", "", "the option -MMD .* hides what a kernel depends on"),
        ("-Wp,-MMD,x.d", "", "", "the option -Wp,-MMD,x.d .* hides"),
        ("@options", "", "", "the option @options .* hides"),
        ("", "{flags: [-MMD]}", "", r"cpu\.yaml:\d+:\d+: .*asks for a file's dependencies itself"),
        ("", "{flags: ['-include x.h -MMD']}", "", "the option -MMD .* hides"),
        ("", "", 'asm(".incbin \\"/etc/hosts\\"");', r"cpu\.h:3: \.incbin reads a file that"),
    ],
)
def test_what_would_hide_a_dependency_is_refused(
    family, cache, write, monkeypatch, flags, build, before, message
):
    monkeypatch.setenv("CXXFLAGS", flags)

    def ask() -> None:
        write(before, "1", build)
        value(family)

    with pytest.raises(runtime.BuildError, match=message):
        ask()


def test_a_call_between_two_looks_touches_no_file(family, cache, write, monkeypatch):
    """kernel(key) is as cheap as a pack's: it looks at the sources once in a second."""
    write(FOUND.format(1))
    kernel = runtime.kernel(family.key())
    monkeypatch.setattr(finding, "_LOOK", 3600.0)
    runtime.kernel(family.key())
    monkeypatch.setattr(kernels, "contents", None)
    family.header.unlink()
    assert runtime.kernel(family.key()) is kernel
