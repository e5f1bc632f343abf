"""`build:` of a spec, built for real: flags, definitions, libraries, foreign headers, and sources
that are no templates."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import runtime
from codegen.core.ptxas_rows import read_csv
from codegen.ptxas.fingerprints import Manifest

from .pack_project import ROOT, PackProject

# Its project is built once, not by each of the test processes.
pytestmark = [pytest.mark.build, pytest.mark.xdist_group("build settings")]

CPU, CUDA = "-DKERNELMINT_CUDA=OFF", "-DCMAKE_CUDA_ARCHITECTURES=80;90"
HEADER = """\
#pragma once
#if defined(__CUDACC__)
__host__ __device__
#endif
inline float combine(float alpha, float x, float y) { return alpha * x + y; }
"""


def project_in(root: Path) -> PackProject:
    shutil.copytree(Path(__file__).with_name("specs"), root / "kernel_specs")
    for path, text in (
        ("python/axpy_headers/__init__.py", "raise RuntimeError('imported')\n"),
        ("python/axpy_headers/include/axpy/combine.h", HEADER),
        ("third_party/offset.h", "constexpr float third_party_offset = 0.5f;\n"),
        ("third_party/Licence", "Do as you like.\n"),
        ("third_party/.git/config", ""),
        ("kernel_specs/.env", "SECRET=1\n"),
        ("kernel_specs/foreign_axpy/notes.txt", ""),
        ("kernel_specs/foreign_axpy/.hypothesis/x.py", ""),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    made = PackProject(root, "foreign", (root / "python",))
    family = root / "kernel_specs/foreign_axpy/family.yaml"
    family.write_text(family.read_text().replace("{url: , sha256: }", archive_pin(made, "1.0")))
    return made


def archive_pin(project: PackProject, version: str) -> str:
    """What a spec says of an archive that lies in the project, and is made at the first call."""
    archive = project.root / f"upstream-{version}.tar.gz"
    if not archive.exists():
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(Path(__file__).with_name("upstream"), f"upstream-{version}")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    return f"{{url: {archive.as_uri()}, sha256: {sha256}}}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> PackProject:
    made = project_in(tmp_path_factory.mktemp("foreign"))
    made.build(CUDA, "-DKERNELMINT_ISAS=baseline;avx2")
    return made


@pytest.fixture(scope="module")
def pack(project: PackProject) -> runtime.packs.Pack:
    return runtime.load_pack(project.pack)


def compilations(project: PackProject) -> list[tuple[str, str]]:
    """The commands that compile, and their sources: of a unity file, those that it includes."""
    found = []
    for command in project.ninja("-t", "commands").stdout.splitlines():
        if " -c " not in command:
            continue
        source = command.split(" -c ")[1].split()[0]
        if "/Unity/" in source:
            unity = (project.root / "build" / source).read_text()
            found += [(command, named) for named in re.findall(r'#include "(.*)"', unity)]
        else:
            found.append((command, source))
    return found


def record(project: PackProject) -> dict[str, object]:
    return json.loads((project.pack / "pack.json").read_text())


def expected(x: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    return alpha * x.double() + y.double() + 0.25 + 0.5


@pytest.mark.parametrize("isa", ["baseline", "avx2"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_cpu_kernel_of_plain_sources_computes(pack, twice, isa, monkeypatch) -> None:
    """The target's flags and definitions reach shard and source, and so do both kinds of foreign
    headers; each instruction set has its own source and excerpt."""
    monkeypatch.setenv("KERNELMINT_CPU_ISA", isa)
    x, y = torch.randn(2, 1001)
    z = torch.full((1001,), torch.nan)
    kernel = runtime.kernel("foreign_axpy.cpu." + ("twice" if twice else "default"))
    kernel(x, y, alpha=0.3, out=z)
    want = expected(x, y, 0.3) * (2 if twice else 1)
    assert torch.allclose(z.double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [128, 256])
def test_a_plain_global_function_computes(pack, threads) -> None:
    x, y = torch.randn(2, 1001, device="cuda")
    z = torch.full_like(x, torch.nan)
    runtime.kernel(f"foreign_axpy.sm80.t{threads}")(x, y, alpha=0.3, out=z)
    assert torch.allclose(z.double(), expected(x, y, 0.3), rtol=1e-6, atol=1e-6)


def test_flags_reach_the_compiler_of_their_target_alone(project) -> None:
    commands = project.ninja("-t", "commands").stdout.splitlines()
    nvcc = [line for line in commands if " -x cu " in line]
    assert len(nvcc) == 3  # two shards and a source
    for line in nvcc:
        assert "--use_fast_math" in line
        # an option that takes a value may come twice
        assert "-Xptxas -O2" in line
        assert "-Xptxas --warn-on-spills" in line
        assert "-ffast-math" not in line
    own = [
        command for command, source in compilations(project)
        if "/cpu_" in source or source.endswith("/axpy.cpp")
        if not source.endswith("cpu_table.cpp")
    ]  # fmt: skip
    assert len(own) == 6  # two shards and a source for each of two instruction sets
    assert all("-ffast-math -include limits.h" in line for line in own)
    assert not any("--use_fast_math" in line for line in own)
    assert all("-DAXPY_IS_BUILT" in line and "-DAXPY_BIAS=0.25f" in line for line in (*nvcc, *own))


def test_cmake_says_to_the_compiler_what_the_spec_says(tmp_path: Path) -> None:
    """As building on demand does, whatever is written there."""
    project = project_in(tmp_path)
    spec = project.root / "kernel_specs/foreign_axpy/cpu.yaml"
    flags = ["-DARROW=x->y", r"-DBACK='a\b'", "-DQUOTE='it is \"so\"'"]
    values = ["x->y", r"a\b", "ends in \\", "#1", "a<b>", "it's", '"a  b"', "a,b", "%d"]
    definitions = {f"VALUE_{i}": value for i, value in enumerate(values)}
    text = spec.read_text().replace('"-include limits.h"]', f"{json.dumps(flags)[1:]}")
    defined = f"  definitions: {json.dumps(definitions)}\n  libraries:"
    spec.write_text(text.replace("  libraries:", defined))
    project.regenerate()
    project.configure(CPU)
    command = next(
        shlex.split(command) for command, source in compilations(project)
        if source.endswith("/axpy.cpp")
    )  # fmt: skip
    words = [word for flag in flags for word in shlex.split(flag)]
    words += [f"-D{name}={value}" for name, value in definitions.items()]
    assert [word for word in command if word in words] == words


def test_a_source_is_compiled_once_a_set_and_the_library_exports_its_entry_alone(
    project,
) -> None:
    compiled = [source for _, source in compilations(project)]
    for source, times in (
        ("foreign_axpy/axpy.cu", 1),
        ("foreign_axpy/axpy.cpp", 2),
        ("csrc/bias.cpp", 1),
    ):
        assert sum(path.endswith(f"/{source}") for path in compiled) == times, source
    library = project.pack / "foreign_axpy.so"
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["kernelmint_library"]


def shipped(project: PackProject) -> set[str]:
    paths = (path for path in project.pack.rglob("*") if path.is_file())
    return {path.relative_to(project.pack).as_posix() for path in paths}


def test_a_pack_ships_its_specs_and_vendored_headers_and_nothing_that_lies_beside(project) -> None:
    found = {name for name in shipped(project) if "/" in name and not name.startswith("python/")}
    axpy = "kernel_specs/foreign_axpy"
    sources = ("axpy.cpp", "axpy.cu", "axpy.cuh", "axpy.h", "cpu.h", "sm80.cuh")
    specs = ("cpu.yaml", "family.yaml", "sm80.yaml")
    assert found == {
        *(f"{axpy}/{name}" for name in (*sources, *specs)),
        "third_party/Licence",
        "third_party/offset.h",
    }


def test_kernels_are_built_on_demand_of_what_a_pack_ships(project, tmp_path, monkeypatch) -> None:
    """With the project's folder out of reach."""
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(project.pack, tmp_path / "pack")
    build = (
        f"import runtime; runtime.load({str(tmp_path / 'pack/kernel_specs')!r}); "
        "print(runtime.kernel('foreign_axpy.cpu.default', build=True).info.key)"
    )
    done = project.run(sys.executable, "-c", build)
    assert done.stdout.endswith("foreign_axpy.cpu.default\n"), done.stdout


def test_a_pack_may_ship_no_sources(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    project.build(CPU, options="NO_SOURCES")
    found = shipped(project)
    assert {"kernel_specs/foreign_axpy/family.yaml", "foreign_axpy.so"} <= found
    assert not {name for name in found if name.endswith((".h", ".cuh", ".cpp", ".cu"))}


def test_the_tree_that_slim_makes_is_built_in_place_of_the_projects(tmp_path: Path) -> None:
    """As `kernelmint slim --wheel` has it built, in a CMakeLists.txt that names `generated`."""
    project = project_in(tmp_path)
    project.build(CPU)
    (tmp_path / "used.yaml").write_text("- foreign_axpy.cpu.twice\n")
    done = project.run(sys.executable, "-m", "tools.slim", "used.yaml")
    assert done.returncode == 0, done.stdout
    project.build(CPU, f"-DKERNELMINT_GENERATED_DIR={tmp_path / 'generated-used'}")
    (family,) = json.loads((project.pack / "manifest.json").read_text())["families"]
    kernels = [kernel["key"] for target in family["targets"] for kernel in target["kernels"]]
    assert kernels == ["foreign_axpy.cpu.twice"]


def test_vendored_headers_outside_the_project_are_said_not_to_ship(tmp_path: Path) -> None:
    project = project_in(tmp_path / "a/project")
    shutil.move(project.root / "third_party", tmp_path / "a/third_party")
    family = project.root / "kernel_specs/foreign_axpy/family.yaml"
    family.write_text(family.read_text().replace("../third_party", "../../third_party"))
    project.regenerate()
    done = project.configure(CPU)
    assert done.returncode == 0, done.stdout
    words = " ".join(done.stdout.split())
    assert f"pack foreign does not carry {project.root}/generated/../kernel_specs/" in words


def test_the_shipped_specs_explain_a_key(project) -> None:
    done = project.run(
        *(sys.executable, "-m", "codegen", "explain", "foreign_axpy.sm80.t96", "--specs"),
        project.pack / "kernel_specs",
    )
    assert "is valid, but in no set" in done.stdout, done.stdout


def test_all_of_it_belongs_to_the_fingerprint(tmp_path: Path) -> None:
    """A change of any of it is another pack: the record, and a rebuild of what includes it."""
    project = project_in(tmp_path)
    project.build(CPU)
    before = record(project)
    seen = {before["fingerprint"]}
    specs = project.root / "kernel_specs/foreign_axpy"
    for path, old, new in (
        (project.root / "python/axpy_headers/include/axpy/combine.h", "+ y", "+ y + 0.f"),
        (project.root / "third_party/offset.h", "0.5f", "0.75f"),
        (specs / "family.yaml", "0.25f", "0.125f"),
        (specs / "family.yaml", archive_pin(project, "1.0"), archive_pin(project, "1.1")),
        (specs / "cpu.yaml", "-ffast-math", "-ffast-math, -fno-math-errno"),
        (specs / "cpu.yaml", "take: [twice, FACTOR, ", "take: [FACTOR, twice, "),
        (specs / "cpu.yaml", "libraries: [m]", "libraries: [m, rt]"),
    ):
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        if path.suffix == ".yaml":
            project.regenerate()
        done = project.ninja()
        assert done.returncode == 0, done.stdout
        assert "Linking" in done.stdout, f"{path} changed nothing"
        built = json.loads((project.build_folder / "packs/foreign/pack.json").read_text())
        assert built["fingerprint"] not in seen, path
        seen.add(built["fingerprint"])
    assert before["settings"]["foreign_axpy.cpu flags"] == "-ffast-math -include limits.h"
    assert "headers of package:axpy_headers:include:axpy-headers==1.*" in before["settings"]
    assert "headers of third_party" in before["settings"]
    assert any(name.startswith("headers of excerpt:twice.h:") for name in before["settings"])
    assert not any("shims" in name for name in before["settings"])  # they are among the sources
    shim = "include/shims/torch/c10/util/Half.h"
    assert any(name.endswith(shim) for name in before["sources"])
    assert (project.root / "upstream-1.0.tar.gz").as_uri() in before["settings"].values()
    assert "kernel_specs/foreign_axpy/axpy.cpp" in before["sources"]


def test_a_package_that_is_not_there_is_named_with_what_installs_it(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    project.regenerate()
    shutil.rmtree(project.root / "python/axpy_headers/include")
    words = " ".join(project.configure(CPU).stdout.split())
    assert "has no include, which a spec's `build:` names" in words
    shutil.rmtree(project.root / "python")
    done = project.configure(CPU)
    assert done.returncode != 0
    words = " ".join(done.stdout.split())
    assert "there is no Python package axpy_headers" in words
    assert 'pip install "axpy-headers==1.*"' in words


def test_headers_of_a_folder_within_the_specs_are_shipped_too(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    shutil.move(project.root / "third_party", project.root / "kernel_specs/vendor (c++)")
    family = project.root / "kernel_specs/foreign_axpy/family.yaml"
    family.write_text(family.read_text().replace("../third_party", "vendor (c++)"))
    project.build(CPU)
    assert {"kernel_specs/vendor (c++)/Licence", "kernel_specs/vendor (c++)/offset.h"} <= shipped(
        project
    )


def test_the_manifest_says_it_for_whoever_builds_without_cmake(project) -> None:
    (family,) = json.loads((project.pack / "manifest.json").read_text())["families"]
    specs = {"specs": "kernel_specs"}
    (source,) = family["build"]["sources"]
    assert source["archive"] == (project.root / "upstream-1.0.tar.gz").as_uri()
    assert source["path"] == "csrc/bias.cpp"
    assert {target["name"]: target["build"] for target in family["targets"]} == {
        "cpu": {
            "flags": ["-ffast-math", "-include", "limits.h"],
            "definitions": ["AXPY_BIAS=0.25f", "AXPY_IS_BUILT"],
            "include": [
                {"package": "axpy_headers", "path": "include", "pip": "axpy-headers==1.*"},
                {**specs, "path": "../third_party"},
                {"shims": "torch", "path": ""},
                {
                    **{name: source[name] for name in ("archive", "sha256")},
                    "path": "csrc/twice.cu",
                    "excerpt": "twice.h",
                    "take": "twice,FACTOR,has_avx2",
                    "kernels": "global",
                },
            ],
            "libraries": ["m"],
            "sources": [{**specs, "path": "foreign_axpy/axpy.cpp"}],
        },
        "sm80": {
            "flags": ["--use_fast_math", "-Xptxas", "-O2", "-Xptxas", "--warn-on-spills"],
            "definitions": ["AXPY_BIAS=0.25f", "AXPY_IS_BUILT"],
            "include": [
                {"package": "axpy_headers", "path": "include", "pip": "axpy-headers==1.*"},
                {**specs, "path": "../third_party"},
                {"shims": "torch", "path": ""},
                {
                    **{name: source[name] for name in ("archive", "sha256")},
                    "path": "csrc/twice.cu",
                    "excerpt": "plain.cuh",
                    "take": "zeros,bias_of,fill",
                    "kernels": "global",
                },
            ],
            "libraries": [],
            "sources": [{**specs, "path": "foreign_axpy/axpy.cu"}],
        },
    }


def test_its_kernels_have_rows_and_no_configuration_is_missing(project, pack) -> None:
    """A source's kernels name no configuration, and each configuration of the target runs them. An
    excerpt's kernel is its shard's."""
    rows = read_csv(pack.ptxas)
    shards = {(row.key, row.arch) for row in rows if row.kernel == "fill"}
    assert shards == {
        (f"foreign_axpy.sm80.t{threads}", arch)
        for threads in (128, 256)
        for arch in ("sm_80", "sm_90")
    }
    rows = [row for row in rows if row.kernel != "fill"]
    assert [(row.key, row.kernel, row.source, row.arch) for row in rows] == [
        (None, "axpy_kernel", "foreign_axpy/axpy.cu", arch) for arch in ("sm_80", "sm_90")
    ]
    manifest = Manifest(pack.manifest)
    assert manifest.owners(rows[0]) == [("foreign_axpy", "sm80")]
    assert manifest.absent(rows, pack.architectures) == []
    assert manifest.absent([], pack.architectures) == [
        (f"foreign_axpy.sm80.t{threads}", arch)
        for arch in ("sm_80", "sm_90")
        for threads in (128, 256)
    ]


def test_kernelmints_own_families_say_nothing() -> None:
    assert '"build"' not in (ROOT / "generated/manifest.json").read_text()
