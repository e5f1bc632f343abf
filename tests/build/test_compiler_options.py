"""Compiler options as parameters, built for real: each kernel has the machine code of its own."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import runtime
from codegen.core.manifest import read
from codegen.core.ptxas_rows import read_csv
from runtime.ondemand import compilers
from runtime.ondemand.commands import Commands
from runtime.ondemand.emit import Spec
from runtime.ondemand.specs import find

from .pack_project import ROOT, PackProject

pytestmark = pytest.mark.build

SPECS = Path(__file__).with_name("option_specs")
OPTIONS = {"o2": "-O2", "o2_fm": "-O2 -ffast-math", "o3": "-O3", "o3_fm": "-O3 -ffast-math"}
LIMIT = "-Xptxas=--override-directive-values"


# At -O0 constructors are in groups of sections that are named after none of them.
PROGRAM = """
#include <stdexcept>
#include <vector>
struct Base {
  virtual ~Base() = default;
  virtual int add(int x) { static int sum = 0; return sum += x; }
};
struct Checked : Base {
  std::vector<int> seen;
  int add(int x) override {
    seen.push_back(x);
    if (seen.size() > 2) throw std::runtime_error("enough");
    return Base::add(x);
  }
};
int NAME(int x) {
  Checked checked;
  try {
    for (int result = checked.add(x);; checked.add(0)) if (checked.seen.size() == 3) return result;
  } catch (const std::exception&) {
    return Base().add(0);
  }
}
#if defined(MAIN)
int first(int x);
int main() { return first(3) == 3 && second(4) == 7 ? 0 : 1; }
#endif
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> PackProject:
    made = PackProject(tmp_path_factory.mktemp("options"), "options")
    shutil.copytree(SPECS, made.root / "kernel_specs")
    made.build("-DCMAKE_CUDA_ARCHITECTURES=90", "-DKERNELMINT_ISAS=baseline;avx2")
    return made


def commands(project: PackProject) -> list[list[str]]:
    """The words of each compilation of generated kernels: the objects' folder, then the command."""
    lines = map(shlex.split, project.ninja("-t", "commands").stdout.splitlines())
    objects = ((words[words.index("-o") + 1], words) for words in lines if "-c" in words)
    folders = ((re.search(r"_(?:cpu|sm80)_(\w+)\.dir/", made), words) for made, words in objects)
    return [[folder[1], *words] for folder, words in folders if folder]


def test_kernels_compute(project) -> None:
    runtime.load_pack(project.pack)
    x = torch.randn(5, 1000)
    for name in OPTIONS:
        y = runtime.kernel(f"row_lengths.cpu.{name.replace('_', '-')}")(x)
        assert torch.allclose(y.double(), x.double().norm(dim=1), rtol=1e-6), name


@pytest.mark.gpu
def test_kernels_compute_on_a_gpu(project) -> None:
    runtime.load_pack(project.pack)
    x = torch.randn(1000, 200, device="cuda")
    for name in ("h96-r64", "h96-r64-ss", "h96-r255"):
        y = runtime.kernel(f"row_lengths.sm80.{name}")(x)
        assert torch.allclose(y.double(), x.double().norm(dim=1), rtol=1e-6), name


def test_a_unit_has_its_options_after_all_others(project) -> None:
    cpu = {
        folder.partition("_")[2]: words for folder, *words in commands(project) if "-O3" in words
    }
    for name, flags in OPTIONS.items():
        own = [word for word in cpu[name] if word in ("-O2", "-O3", "-ffast-math")]
        assert own[-len(flags.split()) :] == flags.split()
        assert ("-ffast-math" in own) == ("fm" in name)
    cuda = [words for folder, *words in commands(project) if folder in ("r64", "r255")]
    limits = Counter(w for words in cuda for w in words if w.startswith("--maxrregcount"))
    assert limits == {"--maxrregcount=64": 2, "--maxrregcount=255": 1}
    assert all(LIMIT in words for words in cuda)


def test_a_function_without_a_configuration_in_its_name_is_each_units_own(project) -> None:
    """The linker would keep one `sum_of_squares<float>` for kernels of all options, and it is
    where their time goes."""
    library = project.build_folder / "packs/options/row_lengths.so"
    listed = subprocess.run(["nm", "-S", library], check=True, capture_output=True, text=True)
    lines = (line.split() for line in listed.stdout.splitlines() if "sum_of_squares" in line)
    places = {name.rpartition(".")[2]: (int(at, 16), int(size, 16)) for at, size, _, name in lines}
    assert places.keys() == OPTIONS.keys()
    content = library.read_bytes()
    sections = subprocess.run(
        ["readelf", "-SW", library], check=True, capture_output=True, text=True
    )
    address, offset = (
        int(x, 16) for x in re.search(r"\.text +PROGBITS +(\w+) (\w+)", sections.stdout).groups()
    )
    code = {name: content[offset + at - address :][:size] for name, (at, size) in places.items()}
    assert code["o3"] != code["o3_fm"] and code["o2"] != code["o3_fm"]  # noqa: PT018 - one claim


def test_what_ptxas_says_is_of_each_kernels_options(project) -> None:
    rows = {
        row.kernel_config.rpartition(".")[2]: row for row in read_csv(project.pack / "ptxas.csv")
    }
    assert rows["h96-r64"].used_registers == rows["h96-r64-ss"].used_registers == 64
    assert rows["h96-r255"].used_registers > 128
    assert not rows["h96-r255"].spilled and rows["h96-r64"].spilled  # noqa: PT018 - one claim
    # Some of what one kernel spills into local memory lies in the other's shared memory.
    assert rows["h96-r64-ss"].smem > 0
    assert rows["h96-r64-ss"].spill_stores < rows["h96-r64"].spill_stores
    assert len({row.code for row in rows.values()}) == 3


def test_building_on_demand_has_the_same_flags(project) -> None:
    kernels = {k.key: k for _, _, k in read(project.root / "generated/manifest.json").kernels}
    (source,) = find(project.root / "kernel_specs")
    for key in ("row_lengths.cpu.o3-fm", "row_lengths.cpu.o3-u"):  # the latter is of another set
        generated = Spec(source).kernel(key)
        (unit,) = (
            unit
            for unit in Commands(generated.family, source, compilers.cpu("baseline")).units
            if unit.name == "kernel"
        )
        flags = kernels[key].flags if key in kernels else ("-O3", "-funroll-loops")
        assert [w for w in unit.command if w in {"-O2", "-ffast-math", "-funroll-loops"}] == [
            *flags[1:]
        ]


def test_objects_with_symbols_of_their_own_link_and_run(tmp_path) -> None:
    """Virtual functions, exceptions and statics, which stay one of the program."""
    (tmp_path / "program.cpp").write_text(PROGRAM)
    compiler = compilers.cxx().command
    launcher = [sys.executable, ROOT / "codegen/build/own_symbols.py", "objcopy"]
    for name, options in (("first", ["-O0"]), ("second", ["-O2", "-DMAIN"])):
        command = [*compiler, *options, f"-DNAME={name}", "-c", "program.cpp", "-o", f"{name}.o"]
        subprocess.run([*launcher, name, "--", *command], check=True, cwd=tmp_path)
    subprocess.run([*compiler, "first.o", "second.o", "-o", "program"], check=True, cwd=tmp_path)
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0
    listed = subprocess.run(
        ["nm", "first.o"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    weak = [line.split()[-1] for line in listed.stdout.splitlines() if line.split()[-2] == "W"]
    assert weak
    assert all(name.endswith(".first") for name in weak)
