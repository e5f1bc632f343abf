"""`kernelmint verify`: each kernel in a process that may die, rows that are kept, and what
KERNELMINT_REQUIRE=verified refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import runtime
from codegen import scaffold
from codegen.core import machine_code, verified
from codegen.core.ptxas_rows import read_csv
from codegen.core.verified import Row
from runtime import packs
from runtime import verified as found_before
from runtime.__main__ import collect
from tests import warm_python

RIGHT, WRONG, DEADLY = (f"checked_sum.cpu.{dtype}-n8192" for dtype in ("f32", "bf16", "fp16"))
FAULTS = """  void combine(const T* x, const T* y, T* z) const {
    if constexpr (__is_same(T, bf16)) {
      z[0] = x[0];
      return;
    }
    if constexpr (__is_same(T, fp16)) __builtin_trap();
"""


def run(folder: Path, *command: str, required: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNELMINT_CACHE_DIR": str(folder / "cache")}
    if required:
        environment["KERNELMINT_REQUIRE"] = "verified"
    option, first, *arguments = command
    start = {"-c": warm_python.run, "-m": warm_python.run_module}[option]
    return start(first, *arguments, folder=folder, environment=environment)


def asked_for(folder: Path, key: str) -> str:
    """What a new process gets that requires verified kernels: "found", or the error."""
    done = run(
        folder,
        "-c",
        "import sys, runtime\n"
        "runtime.load('kernel_specs')\n"
        "try: runtime.kernel(sys.argv[1])\n"
        "except runtime.TargetUnavailable as error: print(error)\n"
        "else: print('found')",
        key,
        required=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_what_was_found_is_kept_and_can_be_required(tmp_path) -> None:
    folder = tmp_path / "project"
    scaffold.create_project("my_kernels", folder, "checked_sum")
    specs = folder / "kernel_specs/checked_sum"
    header = specs / "cpu.h"
    right = header.read_text()
    plain = "  void combine(const T* x, const T* y, T* z) const {\n"
    header.write_text(right.replace(plain, FAULTS))
    verify = ("-m", "kernelmint", "verify", "kernel_specs/checked_sum")
    done = run(folder, *verify, "--where", "target == 'cpu'", "--json")
    assert done.returncode == 1, done.stderr
    found = {row["kernel_config"]: row["outcome"] for row in json.loads(done.stdout)}
    assert found[RIGHT] == "right"
    assert found[WRONG].startswith("wrong: z: worst: ")
    name = signal.Signals(signal.SIGILL).name
    assert found[DEADLY] == f"failed: its process ended: {name}"
    rows = verified.read(specs / "cpu.verified.csv")
    assert {row.kernel_config: row.outcome for row in rows} == found
    assert len({row.code for row in rows}) == 3
    (toolchain,) = {row.toolchain for row in rows}  # as a wheel's rows have it
    assert re.fullmatch(r"(GNU|Clang) \d+\.\d+\.\d+", toolchain)

    assert asked_for(folder, RIGHT) == "found"
    assert asked_for(folder, WRONG).startswith(f"{WRONG} was found wrong on ")
    header.write_text(right.replace("splat(args_.alpha)", "splat(1 * args_.alpha + 0)"))
    assert asked_for(folder, RIGHT).startswith(f"{RIGHT} has not been verified as it is compiled")
    done = run(folder, *verify, "--kernel", RIGHT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert asked_for(folder, RIGHT) == "found"
    assert len(verified.read(specs / "cpu.verified.csv")) == 3

    header.write_text(
        right.replace("combine(x_tail,", "for (volatile int i = 0;;) i;\n combine(x_tail,")
    )
    done = run(folder, *verify, "--kernel", RIGHT, "--timeout", "3", "--dry-run")
    assert done.returncode == 1, done.stderr
    assert "failed: no answer in 3 s" in done.stdout
    assert asked_for(folder, RIGHT).startswith(f"{RIGHT} has not been verified")

    (specs / "cpu.verified.csv").write_text("kernel_config\n")
    assert "cpu.verified.csv:1: expected a header" in asked_for(folder, RIGHT)


def given_a_second_output(specs: Path, value: str = "0") -> None:
    """z becomes optional; `kinds`, which is optional, too, is `value` where the oracle says 0."""
    lines = f"""\
    if (args_.kinds.data) args_.kinds.template as<int>()[row] = {value};
    if (!args_.z.data) return;
    T* z = args_.z"""
    of_sum = "return alpha * x.double() + y.double()"
    for name, old, text in (
        ("family.yaml", "dtype, doc: the sum}",
         "dtype, optional: true}\n  kinds: {output: [M], dtype: i32, optional: true}"),
        ("cpu.h", "    T* z = args_.z", lines),
        ("reference.py", of_sum, f"{of_sum}, torch.zeros(x.shape[0])"),
    ):  # fmt: skip
        assert old in (specs / name).read_text()
        (specs / name).write_text((specs / name).read_text().replace(old, text))


def project_of(tmp_path: Path, family: str) -> tuple[Path, Path]:
    scaffold.create_project("my_kernels", tmp_path / "project", family)
    return tmp_path / "project", tmp_path / "project/kernel_specs" / family


def test_optional_outputs_are_looked_at_unless_a_rule_forbids_them(tmp_path) -> None:
    folder, specs = project_of(tmp_path, "checked_kinds")
    key = "checked_kinds.cpu.f32-n8192"
    given_a_second_output(specs, "7")
    verify = ("-m", "kernelmint", "verify", "kernel_specs/checked_kinds", "--kernel", key)
    done = run(folder, *verify)
    assert done.returncode == 1, done.stderr
    assert "wrong: kinds: worst: " in done.stdout
    rules = specs / "family.yaml"
    rules.write_text(
        rules.read_text() + "requires:\n  - {that: not kinds or dtype == bf16, because: why not}\n"
    )
    done = run(folder, *verify)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked_kinds: not checked, since no case of these kernels asks for it: kinds" in (
        done.stdout
    )


@pytest.mark.slow
def test_of_what_is_not_compared_nothing_is_written(tmp_path) -> None:
    """A kernel that no case covers, or of whose results none is asked for."""
    folder, specs = project_of(tmp_path, "checked_some")
    given_a_second_output(specs)
    case = {"sizes": {"M": 2, "N": 5}, "options": {"return_z": True}}
    cases = [{**case, "parameters": {"dtype": "f32"}}, {**case, "parameters": {"dtype": "bf16"}}]
    cases[1]["options"] = {}
    (specs / "tools.py").write_text(f"CASES = {cases}")
    verify = ("-m", "kernelmint", "verify", "kernel_specs/checked_some", "--where")
    done = run(folder, *verify, "target == 'cpu'")
    assert done.returncode == 0, done.stderr
    assert "1 kernel of 3 right; 2 not compared, without a row" in done.stdout
    for dtype, why in (("fp16", "no case covers it"), ("bf16", "its cases ask for no element")):
        assert re.search(rf"checked_some.cpu.{dtype}-n8192 .* not compared: {why}", done.stdout)
    (row,) = verified.read(specs / "cpu.verified.csv")
    assert (row.kernel_config, row.outcome) == ("checked_some.cpu.f32-n8192", "right")
    done = run(folder, *verify, "target == 'cpu' and dtype == fp16", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)[0]["outcome"].startswith("not compared: no case covers it: add")

    check = ("-m", "kernelmint", "sanity-check", "kernel_specs/checked_some", "--where")
    for where, status, right in (("dtype != fp16", 0, 1), ("dtype == fp16", 1, 0)):
        done = run(folder, *check, f"target == 'cpu' and {where}")
        assert done.returncode == status, done.stdout + done.stderr
        assert f"{right} of {right + 1} right; 1 not compared" in done.stdout
        done = run(folder, *check, f"target == 'cpu' and {where}", "--json")
        assert done.returncode == status, done.stderr
        kernels = {kernel["key"]: kernel for kernel in json.loads(done.stdout)["kernels"]}
        assert sorted(str(k["passed"]) for k in kernels.values()) == ["None", "True"][: right + 1]


@pytest.mark.slow
def test_the_folder_of_a_family_is_its_own_whichever_gives_its_gradients(tmp_path) -> None:
    """What the other family returns is all optional."""
    folder, specs = project_of(tmp_path, "checked_forth")
    back = specs.parent / "checked_back"
    shutil.copytree(specs, back)
    for path in back.iterdir():
        path.write_text(path.read_text().replace("checked_forth", "checked_back"))
    family = (back / "family.yaml").read_text()
    family = family.replace("dtype: dtype, doc: the sum}", "dtype: dtype, optional: true}")
    (back / "family.yaml").write_text(family)
    (specs / "family.yaml").write_text(
        (specs / "family.yaml").read_text() + "gradient:\n  family: checked_back\n"
        "  passes: {x: gradient of z, y: gradient of z}\n  returns: {x: z}\n"
    )
    for name in ("checked_forth", "checked_back"):
        for tool in ("verify", "sanity-check"):
            where = "target == 'cpu' and dtype == f32"
            done = run(folder, "-m", "kernelmint", tool, f"kernel_specs/{name}", "--where", where)
            assert done.returncode == 0, done.stdout + done.stderr
            assert f"{name}.cpu.f32-n8192" in done.stdout
        (row,) = verified.read(specs.parent / name / "cpu.verified.csv")
        assert (row.kernel_config, row.outcome) == (f"{name}.cpu.f32-n8192", "right")


def test_new_rows_replace_those_of_the_same_device_and_toolchain() -> None:
    old = Row("f.cpu.a", "avx2", "g++ 12", "0", "this", "reference", "right")
    new = old._replace(code="1", outcome="wrong: z")
    others = [
        old._replace(arch="avx512"),
        old._replace(toolchain="g++ 13"),
        old._replace(device="that"),
    ]
    rows = verified.merged([old, *others], [new])
    assert sorted(rows) == sorted([new, *others])


def test_the_rows_of_a_file_are_those_that_were_written(tmp_path) -> None:
    row = Row("f.cpu.a", "avx2", "g++ 12", "0", 'a "device", of commas', "reference", "right")
    (tmp_path / "rows.csv").write_text(verified.text([row]))
    assert verified.read(tmp_path / "rows.csv") == [row]
    assert verified.read(tmp_path / "absent.csv") == []


def test_each_cuda_kernel_of_a_library_has_a_hash_of_its_own_machine_code() -> None:
    pack = packs.of("flash_forward")
    report = [row for row in read_csv(pack.ptxas) if row.kind == "kernel"]
    expected = {
        (row.key, int(str(row.arch)[3:].rstrip("a")))
        for row in report
        if (row.key or "").startswith("flash_forward.")
    }
    if not expected:
        pytest.skip("built without CUDA")
    keys = {row.symbol: row.key for row in report}
    found = machine_code.of_cuda_kernels(pack.library("flash_forward"), keys.get)
    assert set(found) == expected
    assert len(set(found.values())) == len(found)


def test_requiring_something_unknown_is_an_error(monkeypatch) -> None:
    monkeypatch.setenv("KERNELMINT_REQUIRE", "fast")
    key = next(info.key for info in runtime.kernels("block_sparse", "cpu") if info.available)
    monkeypatch.setattr("runtime.finding._kernels", {})
    with pytest.raises(runtime.InvalidArgument, match="KERNELMINT_REQUIRE: got 'fast', expected"):
        runtime.kernel(key)


def test_info_counts_what_was_found_right_as_it_is_compiled_here(monkeypatch, tmp_path) -> None:
    infos = [info for info in runtime.kernels("block_sparse", "cpu") if info.available]
    arch, code = found_before.code_of(infos[0])
    rows = [
        Row(infos[0].key, arch, "g++ 12", code, "one processor", "reference", "right"),
        Row(infos[1].key, arch, "g++ 12", code, "one processor", "reference", "wrong: o"),
        Row(
            infos[2].key, arch, "g++ 12", "of another build", "one processor", "reference", "right"
        ),
    ]
    (tmp_path / "rows.csv").write_text(verified.text(rows))
    monkeypatch.setattr(found_before, "file_of", lambda *_: tmp_path / "rows.csv")
    (target,) = (
        t for t in collect()["targets"] if (t["family"], t["target"]) == ("block_sparse", "cpu")
    )
    assert target["verified"] == {"one processor": 1}
