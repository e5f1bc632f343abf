"""`build:` of family.yaml and <target>.yaml: what it says is checked, located and handed on. (That
it is compiled is tests/build/test_build_settings.py's.)"""

from __future__ import annotations

import json

import pytest

from codegen.sources import build_paths


def with_build(workspace, name: str, text: str) -> None:
    """The family and its target as they were, and `build: …` as the last line of a file."""
    workspace.edit("sm80.yaml", "budget: {spill_bytes: 0}\n", "")
    path = workspace.demo / name
    path.write_text(f"{path.read_text()}build: {text}\n")


@pytest.mark.parametrize(
    ("file", "text", "place", "message"),
    [
        ("sm80.yaml", "{flag: [-O3]}", "19:9", "unknown key 'flag' (did you mean 'flags'?)"),
        ("sm80.yaml", "{flags: -O3}", "19:16", "must be a list, not the text '-O3'"),
        ("sm80.yaml", "{flags: [3]}", "19:17", "must be a text, not 3"),
        ("sm80.yaml", "{flags: [O3]}", "19:17", "an option of the compiler begins with '-'"),
        ("sm80.yaml", '{flags: ["-a \'"]}', "19:18", "not words of a command line: No closing"),
        ("sm80.yaml", "{flags: [-O3, -Ifoo]}", "19:22", "folders go in `include`"),
        ("sm80.yaml", "{flags: [-lcuda]}", "19:17", "libraries go in `libraries`"),
        ("sm80.yaml", '{flags: ["-arch sm_90"]}', "19:18", "architectures are chosen when buil"),
        ("sm80.yaml", "{flags: [-Xptxas=$X]}", "19:17", "CMake cannot spell the character '$'"),
        ("sm80.yaml", "{flags: ['-DA=b[1]']}", "19:18", "CMake cannot spell the character '['"),
        ("sm80.yaml", "{definitions: {a-b: 1}}", "19:23", "'a-b' cannot be a macro's name"),
        ("sm80.yaml", "{definitions: {a: [1]}}", "19:26", "must be a text, an integer or noth"),
        ("sm80.yaml", "{include: [/usr/include]}", "19:19", "is a path of one machine: write it "),
        ("sm80.yaml", "{include: [nowhere]}", "19:19", "there is no folder kernel_specs/nowhere"),
        ("sm80.yaml", "{include: [{package: a.b}]}", "19:29", "'a.b' is not the name of a package"),
        ("sm80.yaml", "{include: [{package: a, path: ../b}]}", "19:38", "'../b' leaves the packag"),
        ("sm80.yaml", "{include: [{pakage: a}]}", "19:20", "unknown key 'pakage' (did you mean"),
        ("sm80.yaml", "{include: [{shims: jax}]}", "19:27", "unknown value 'jax' (known: torch)"),
        ("sm80.yaml", "{libraries: [{shims: torch}]}", "19:21", "got <shims>, expected one of"),
        ("sm80.yaml", f"{{include: [{'a/' * 8000}]}}", "19:19", "there is no folder kernel_spec"),
        ("sm80.yaml", "{libraries: [-lm]}", "19:21", "'-lm' is not a library: a name, as -l "),
        ("sm80.yaml", "{libraries: [./a.a]}", "19:21", "there is no file kernel_specs/a.a"),
        ("sm80.yaml", "{libraries: [m, cuda]}", "19:24", "take its functions by driver_func"),
        ("sm80.yaml", "{sources: [absent.cu]}", "19:19", "there is no file kernel_specs/demo/abs"),
        ("sm80.yaml", "{sources: [../x.cu]}", "19:19", "must lie in the family's folder"),
        ("sm80.yaml", "{sources: [sm80.cuh]}", "19:19", "a source is one of .cpp, .cc, .cxx, .cu"),
        ("sm80.yaml", "{sources: [a.cu, a.cu]}", "19:25", "'a.cu' is listed twice"),
        ("cpu.yaml", "{archives: {up: {url: x}}}", "8:24", "an archive is {pypi, version, sha256}"),
        ("cpu.yaml", "{archives: {up: {url: x, sha256: a}}}", "8:41", "got 'a', expected the 64 "),
        *(
            ("cpu.yaml", f"{{archives: {{up: {{url: '{url}', sha256: {'a' * 64}}}}}}}", "8:31",
             "the address holds a secret")
            for url in ("https://me:hunter2@host/a.zip", "https://host/a.zip?private_token=hunter2")
        ),
        ("cpu.yaml", "{include: [{archive: up}]}", "8:29", "unknown archive 'up': `archives` of"),
        ("cpu.yaml", "{archives: {up: {folder: ../x}}, sources: [{archive: up, path: a.cpp}]}",
         "8:51", "there is no file x/a.cpp"),
        ("cpu.yaml", "{sources: [a.cu]}", "8:19", "a source is one of .cpp, .cc, .cxx"),
        ("family.yaml", "{flags: [-O3]}", "14:16", "nvcc and the C++ compiler take different fl"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_located(workspace, file, text, place, message) -> None:
    workspace.write("a.cu", "")
    with_build(workspace, file, text)
    result = workspace.run("regenerate")
    assert result.status == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if message in line]
    assert line.startswith(f"kernel_specs/demo/{file}:{place}: "), line


def test_a_source_of_two_targets_belongs_to_the_family(workspace) -> None:
    workspace.write("a.cpp", "")
    with_build(workspace, "sm80.yaml", "{sources: [a.cpp]}")
    path = workspace.demo / "cpu.yaml"
    path.write_text(f"{path.read_text()}build: {{sources: [a.cpp]}}\n")
    result = workspace.run("regenerate")
    assert result.status == 2
    assert "'demo/a.cpp' is also a source of cpu" in result.stderr
    assert "name it in family.yaml" in result.stderr


def test_flags_of_a_family_whose_targets_are_all_of_one_compiler(workspace) -> None:
    (workspace.demo / "cpu.yaml").unlink()
    with_build(workspace, "family.yaml", "{flags: [--use_fast_math]}")
    assert workspace.run("regenerate").status == 0
    (family,) = json.loads((workspace.out / "manifest.json").read_text())["families"]
    assert family["targets"][0]["build"]["flags"] == ["--use_fast_math"]


def test_what_cmake_reads_is_escaped(workspace) -> None:
    with_build(workspace, "sm80.yaml", r"""{definitions: {TEXT: '"a b\"'}, flags: ["-D'x y'"]}""")
    assert workspace.run("regenerate").status == 0
    text = (workspace.out / "files.cmake").read_text()
    defined = r"""SHELL:'-DTEXT=\"a b\\\\\"'"""
    assert f'set(KERNELMINT_BUILD_DEFINITIONS_demo_sm80\n  "{defined}"\n)' in text
    assert "set(KERNELMINT_BUILD_FLAGS_demo_sm80\n  \"SHELL:'-Dx y'\"\n)" in text


def test_paths_are_found_by_the_manifests_entries(tmp_path, monkeypatch) -> None:
    (tmp_path / "some_headers/include").mkdir(parents=True)
    (tmp_path / "specs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    entry = {"package": "some_headers", "path": "include", "pip": "some-headers"}
    assert build_paths.find(entry, {}) == tmp_path / "some_headers/include"
    assert build_paths.find(
        {"specs": "specs", "path": "../some_headers"}, {"specs": tmp_path / "specs"}
    )
    with pytest.raises(build_paths.PathNotFoundError, match='pip install "other-headers"'):
        build_paths.find({"package": "other_headers", "path": "", "pip": "other-headers"}, {})
    with pytest.raises(build_paths.PathNotFoundError, match="has no lib, which"):
        build_paths.find({**entry, "path": "lib"}, {})
    with pytest.raises(build_paths.PathNotFoundError, match=r"there is no .*/nowhere"):
        build_paths.find({"specs": "specs", "path": "../nowhere"}, {"specs": tmp_path / "specs"})
