"""kernelmint tune on the CPU, end to end: a family of its own, real kernels, real processes; one
kernel is slow, one wrong, one hangs, one crashes and one does not compile."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import runtime
from codegen.core.problems import SpecError
from codegen.spec import model
from codegen.spec.load import load
from runtime import choice, devices, packs
from tests import warm_python
from tests.slow import slow_after
from tools import problem
from tools.bench.clocks import Spread
from tools.cluster.errors import LostError
from tools.tune import code, errors, executor, rows, worker
from tools.tune import tuner as tuner_module
from tools.tune.journal import Journal
from tools.tune.tuner import PASSES, Options, Tuner

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "family.yaml": """\
family: tuned_rows
summary: y = 2 x + 1.
arguments:
  x: {tensor: [M, N], dtype: f32}
  y: {output: [M, N], dtype: f32}
parameters:
  mode: {type: enum, values: [plain, wrong, hang, crash, broken], default: plain}
reference: reference.py:tuned_rows
""",
    "cpu.yaml": """\
target: cpu
kernel: cpu.h
parameters:
  work: {type: int, token: w, doc: how often it is computed}
sets:
  default: [{work: 32}]
  tune:
    - product: {mode: plain, work: [32, 1, 64]}
    - product: {mode: [wrong, hang, crash, broken], work: 1}
  good:
    - product: {mode: plain, work: [32, 1]}
""",
    "cpu.shapes.yaml": """\
shapes:
  - sizes: {N: 2048}
    points:
      - {sizes: {M: 64}, range: {M: [1, 100], N: [2048, 2048]}}
      - {sizes: {M: 128}, range: {M: [101, 200], N: [2048, 2048]}}
cost: {estimate: work, within: 32}
""",
    "reference.py": "def tuned_rows(x):\n    return 2 * x.double() + 1\n",
    "cpu.h": """\
#pragma once
#include <unistd.h>
#include <csignal>
#include "launch.h"
#include "tensor_view.h"
namespace kernelmint {
// Compiled with Config::work, whose value decides the time.
template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext&) {
  const auto& args = *static_cast<const typename Config::Args*>(pointer);
  using Mode = typename Config::mode_type;
  static_assert(Config::mode != Mode::broken, "there is no such mode");
  if constexpr (Config::mode == Mode::crash) std::raise(SIGSEGV);
  while (Config::mode == Mode::hang) pause();
  const float one = Config::mode == Mode::wrong ? 1.5f : 1.0f;
  for (int repeat = 0; repeat < Config::work; ++repeat) {
    for (std::int64_t i = 0; i < args.M; ++i) {
      const float* x = args.x.template at<const float>(i);
      float* y = args.y.template at<float>(i);
      for (std::int64_t j = 0; j < args.N; ++j) y[j] = 2 * x[j] + one;
    }
    asm volatile("" ::: "memory");
  }
  return {};
}
}  // namespace kernelmint
""",
}

MODES = ("wrong", "hang", "crash", "broken")


def journals(root):
    return list((root / "cache/tune").glob("*.jsonl"))


CUDA_FILES = {
    "family.yaml": FILES["family.yaml"],
    "reference.py": FILES["reference.py"],
    "sm80.yaml": """\
target: sm80
kernel: sm80.cuh:tuned_rows_sm80
parameters:
  work: {type: int, token: w, doc: how often it is computed}
launch: {grid: M, block: 128}
sets:
  default: [{work: 64}]
  tune:
    - product: {mode: plain, work: [64, 1]}
    - product: {mode: [wrong, hang, crash], work: 1}
""",
    "sm80.shapes.yaml": """\
shapes:
  - sizes: {N: 4096}
    points: [{sizes: {M: 512}, range: {M: [1, 1000], N: [4096, 4096]}}]
""",
    "sm80.cuh": """\
#pragma once
#include <cstdint>
namespace kernelmint::tuned_rows {
template <class Config>
__global__ void tuned_rows_sm80(const typename Config::Args args) {
  using Mode = typename Config::mode_type;
  const float* x = args.x.template at<const float>(blockIdx.x);
  float* y = args.y.template at<float>(blockIdx.x);
  if constexpr (Config::mode == Mode::crash) y = nullptr;
  while (Config::mode == Mode::hang) asm volatile("");
  const float one = Config::mode == Mode::wrong ? 1.5f : 1.0f;
  for (int repeat = 0; repeat < Config::work; ++repeat)
    for (std::int64_t j = threadIdx.x; j < args.N; j += blockDim.x)
      *static_cast<volatile float*>(y + j) = 2 * x[j] + one;
}
}  // namespace kernelmint::tuned_rows
""",
}


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder of specs with the family, and a cache of its own."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "kernel_specs/tuned_rows"

    @property
    def rows(self) -> Path:
        return self.folder / "cpu.tuned.yaml"

    @property
    def journal(self) -> Path:
        (path,) = journals(self.root)
        return path

    def entries(self, kind):
        lines = self.journal.read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]

    def timed(self):
        """The keys that were timed, of each entry."""
        keys = {entry["id"]: entry["key"] for entry in self.entries("checked")}
        return [{keys[i] for r in e["times"] for i in r} for e in self.entries("rounds")]

    def arguments(self, target, options):
        return [str(self.folder), "--target", target, "--seconds", "0", "--patience", "4", *options]

    @property
    def environment(self):
        return {**os.environ, "KERNELMINT_CACHE_DIR": str(self.root / "cache")}

    def start(self, *options, target="cpu", **environment):
        return subprocess.Popen(
            [sys.executable, "-m", "tools.tune", *self.arguments(target, options)],
            cwd=ROOT, env={**self.environment, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def tune(self, *options, target="cpu"):
        done = warm_python.run_module(
            "tools.tune", *self.arguments(target, options),
            folder=ROOT, environment=self.environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def make(root, files=FILES) -> Place:
    place = Place(root)
    place.folder.mkdir(parents=True)
    for name, text in files.items():
        (place.folder / name).write_text(text)
    return place


@pytest.fixture(scope="session")
def tuned(tmp_path_factory, worker_id):
    """The family, tuned, with what was said and the T4 file; the test processes share it."""
    base = tmp_path_factory.getbasetemp()
    place = Place((base if worker_id == "master" else base.parent) / "tuned_rows")
    said, t4 = place.root / "said", place.root / "t4.json"
    with (place.root.with_suffix(".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            make(place.root)
            output = place.tune("--json", str(t4))
            said.write_text(output)
    return place, said.read_text(), t4


KEY = "tuned_rows.cpu.{}-w{}"


@pytest.fixture(scope="module")
def loaded(tuned):
    """The family is known in this process: once, since PyTorch never forgets an operator."""
    place, _, _ = tuned
    runtime.load(place.folder)


def test_the_fastest_right_kernel_of_each_shape_is_written_as_a_row(tuned):
    place, said, _ = tuned
    found = rows.read(place.rows)
    assert [row["range"] for row in found] == [
        {"M": [1, 100], "N": [2048, 2048]}, {"M": [101, 200], "N": [2048, 2048]}
    ]  # fmt: skip
    for row in found:
        assert (row["take"], row["runner_up"]) == (KEY.format("plain", 1), KEY.format("plain", 32))
        assert row["milliseconds"] < row["runner_up_milliseconds"]
        assert not row["tie"]
        assert row["device"] == devices.name(torch.device("cpu"))
        assert row["toolchain"].startswith("c++ ")
        assert len(row["code"]) == 16
    assert "7 configurations of the set tune fit the constraints and limits, 6 the 2 shapes" in said
    assert "estimates of at most 32 times the least, work" in said
    ranked = re.search(r"^M 64 for 1 to 100, N 2048 .*\n(.*)\n(.*)\n", said, re.M)
    assert ranked is not None, said
    for work, line in zip((1, 32), ranked.groups(), strict=True):
        key, milliseconds, share, rate, *remark = line.split()
        assert (key, remark) == (KEY.format("plain", work), ["taken"] if work == 1 else [])
        assert (share == "100%") == (work == 1)
        moved = 2 * 4 * 64 * 2048  # x is read and y written, of f32
        assert float(rate) == pytest.approx(moved / float(milliseconds) / 1e6, rel=0.01, abs=0.01)
    (family,) = load([place.folder.parent])  # codegen takes what was written
    assert [row.take for row in family.targets[0].tuned] == [KEY.format("plain", 1)] * 2


def test_kernels_take_turns_in_orders_that_change(tuned):
    place, _, _ = tuned
    rounds = [r for entry in place.entries("rounds") for r in entry["times"] if len(r) == 2]
    follows = [tuple(one) != tuple(next_) for one, next_ in itertools.pairwise(rounds)]
    assert 0.15 < sum(follows) / len(follows) < 0.85  # neither one order, nor in rotation


def test_what_is_wrong_hangs_or_crashes_is_recorded_and_skipped(tuned):
    place, said, _ = tuned
    faults = {entry["key"]: entry["reason"] for entry in place.entries("fault")}
    assert set(faults) == {KEY.format(mode, 1) for mode in ("wrong", "hang", "crash")}
    assert "131072 of 131072 elements are wrong: y: worst: " in faults[KEY.format("wrong", 1)]
    assert faults[KEY.format("hang", 1)] == "no answer in 4 s"
    assert faults[KEY.format("crash", 1)] == "its process ended: SIGSEGV"
    assert all(f"{key}: {reason}" in said for key, reason in faults.items())
    assert {key for keys in place.timed() for key in keys} == {
        KEY.format("plain", 1), KEY.format("plain", 32)
    }  # fmt: skip


def test_what_does_not_compile_is_left_out_and_the_others_are_built(tuned):
    _, said, _ = tuned
    assert f"{KEY.format('broken', 1)}: does not compile: " in said
    assert "there is no such mode" in said
    assert said.count("does not compile") == 1
    assert re.search(r"^built 6 of 6 configurations$", said, re.MULTILINE)
    assert re.search(r"^pass 1 of 4: timed 1 of 2 shapes, \d+:\d\d left of this pass$", said, re.M)
    assert re.search(r"^pass 1 of 4: timed 2 of 2 shapes$", said, re.MULTILINE)


def test_nothing_is_begun_when_the_budget_is_spent(tmp_path):
    t4 = tmp_path / "t4.json"
    process = make(tmp_path).start("--budget", "0", "--json", str(t4))
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the budget leaves 6 configurations out, not built" in said
    assert said.count("no row, the budget left no time for it") == 2
    assert said.endswith("Error: nothing was measured\n")
    # Nothing became of the others.
    found = [(r["configuration"]["work"], r["invalidity"]) for r in results_of(t4)]
    assert found == [(64, "constraints")] * 2


FULL = """
import resource, signal, sys
from pathlib import Path
from tools.tune.journal import Journal
journal = Journal(Path(sys.argv[1]), fresh=False)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
journal.add("checked", id="a", shape="s")
journal.add("checked", id="b" * 150)
"""


def test_a_journal_that_no_finding_fits_into_ends_the_tuning_and_is_gone_on_from(tmp_path):
    path = tmp_path / "journal.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL, path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"TuningError: {path}: File too large; it has all earlier results" in done.stderr
    again = Journal(path, fresh=False)
    again.add("checked", id="c", shape="s")
    again.close()
    assert [entry["id"] for entry in Journal(path, fresh=False).find("checked")] == ["a", "c"]


def row(device, take, **more):
    return {"device": device, "parameters": {"p": 1}, "range": {"M": [1, 2]}, "take": take,
            "milliseconds": 1.0, "sizes": {"M": 1}, "tie": False, "toolchain": "c++ 12",
            "code": "0", **more}  # fmt: skip


def results_of(file):
    """The results of a T4 file, held to results-schema.json of github.com/odgaard/TuningSchema,
    branch T4: what it requires, and the types that it gives."""
    data = json.loads(file.read_text())
    assert re.fullmatch(r"\d+\.\d+\.\d+", data["schema_version"])
    invalidities = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    for result in data["results"]:
        assert isinstance(result["configuration"], dict)
        assert isinstance(result["times"]["runtimes"], list)
        for name in ("compilation_time", "framework", "search_algorithm", "validation"):
            assert isinstance(result["times"][name], float | int)
        assert result["invalidity"] in invalidities
        assert isinstance(result["correctness"], float | int)
        assert isinstance(result["timestamp"], str)
        assert isinstance(result["objectives"], list)
        for measurement in result["measurements"]:
            assert isinstance(measurement["name"], str)
            assert isinstance(measurement["value"], float | int)
            assert isinstance(measurement["unit"], str)
    return data["results"]


DOOMED = [
    (
        "from nowhere import tuned_rows",
        (),
        r"reference.py:tuned_rows: ModuleNotFoundError: No module named",
    ),
    (None, ("--json", "/nowhere/t4.json"), r"/nowhere/t4.json: /nowhere is not a folder that"),
    (None, ("--out", "family.yaml"), r"family.yaml:1:1: unknown key 'family'"),
]


@pytest.mark.parametrize(("reference", "options", "message"), slow_after(1, DOOMED))
def test_what_cannot_end_well_is_said_before_anything_is_built(
    tmp_path, reference, options, message
):
    place = make(tmp_path)
    if reference is not None:
        (place.folder / "reference.py").write_text(reference)
    process = place.start(*(str(place.folder / o) if "." in o else o for o in options))
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert re.search(message, said)
    assert "built" not in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_row_stays_where_its_shape_cannot_be_measured_and_more_patience_tries_again(
    tuned, tmp_path
):
    place = Place(tmp_path / "copy")
    shutil.copytree(tuned[0].root, place.root)
    faults = len(place.entries("fault"))
    old = rows.read(place.rows)
    (place.folder / "reference.py").write_text(
        "def tuned_rows(x):\n    if len(x) == 128:\n        raise ValueError('too many')\n"
        "    return 2 * x.double() + 1\n"
    )
    said = place.tune("--patience", "4.1")
    assert "M 128, N 2048: no row, " in said
    assert re.search(
        r"no row, the inputs: \S+tuned_rows/reference.py:3: ValueError: too many\n", said
    )
    assert "1 row in" in said
    assert "beside 1 that were there" in said
    new = rows.read(place.rows)
    assert (new[0], new[1]["range"]) == (old[1], old[0]["range"])
    again = {entry["key"]: entry["invalidity"] for entry in place.entries("fault")[faults:]}
    assert again == {KEY.format("wrong", 1): "correctness", KEY.format("hang", 1): "timeout"}


def test_all_results_are_written_as_t4(tuned):
    place, _, file = tuned
    results = results_of(file)
    found = {
        (r["configuration"]["M"], r["configuration"]["mode"], r["configuration"]["work"]): r
        for r in results
    }
    assert len(found) == len(results) == 14
    assert [found[m, "plain", 64]["invalidity"] for m in (64, 128)] == ["constraints"] * 2
    good = found[64, "plain", 1]
    assert (good["invalidity"], good["correctness"]) == ("correct", 1)
    (identity,) = {e["id"] for e in place.entries("checked") if e["key"] == KEY.format("plain", 1)}
    first_shape = place.entries("rounds")[0]["shape"]  # M is 64
    seconds = [
        r[identity]
        for e in place.entries("rounds")
        if e["shape"] == first_shape
        for r in e["times"]
    ]
    assert good["times"]["runtimes"] == pytest.approx([1e3 * value for value in seconds])
    assert good["measurements"] == [
        {"name": "time", "value": statistics.median(good["times"]["runtimes"]), "unit": "ms"}
    ]
    assert {mode: found[64, mode, 1]["invalidity"] for mode in MODES} == {
        "wrong": "correctness", "hang": "timeout", "crash": "runtime", "broken": "compile"
    }  # fmt: skip
    assert found[64, "wrong", 1]["correctness"] == 0
    assert found[64, "hang", 1]["measurements"] == []


def test_the_chooser_takes_the_row(tuned, loaded, monkeypatch):
    """The first kernel of the default set is the slow one."""
    place, _, _ = tuned
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(place.root / "cache"))
    cpu, facts = torch.device("cpu"), {"N": 2048}
    assert choice.choose("tuned_rows", cpu, {}, {**facts, "M": 70}).info.parameters["work"] == 1
    assert choice.choose("tuned_rows", cpu, {}, {**facts, "M": 201}).info.parameters["work"] == 32
    taken = choice.explain("tuned_rows", cpu, {}, {**facts, "M": 101})
    assert str(taken).count("not in [1, 100]") == 1
    assert taken.key == KEY.format("plain", 1)


@pytest.mark.slow
def test_a_second_run_times_only_what_has_new_machine_code(tuned, tmp_path):
    place = Place(tmp_path / "copy")
    shutil.copytree(tuned[0].root, place.root)
    before = place.timed()
    checked = place.entries("checked")
    text = place.rows.read_text()
    header = place.folder / "cpu.h"
    header.write_text(header.read_text().replace("// Compiled with", "// Built with"))
    place.tune()  # all is compiled anew, to the same code
    assert place.timed() == before
    assert place.entries("checked") == checked
    assert place.rows.read_text() == text

    more = "  if (Config::work == 32 && args.M == 0) std::raise(SIGTERM);\n  return {};"
    header.write_text(header.read_text().replace("  return {};", more))
    place.tune()
    new = place.timed()[len(before) :]
    changed = {entry["key"] for entry in place.entries("checked")[len(checked) :]}
    assert changed == {KEY.format("plain", 32)}
    assert new
    assert all(keys == {KEY.format("plain", 1), KEY.format("plain", 32)} for keys in new)

    timed, checked = place.timed(), place.entries("checked")
    reference = place.folder / "reference.py"
    reference.write_text(reference.read_text() + "# 2 x + 1\n")
    place.tune()  # what is right is decided anew
    assert place.timed() == timed
    checked = place.entries("checked")[len(checked) :]
    assert [entry["key"] for entry in checked].count(KEY.format("plain", 1)) == 2
    faults = [entry["key"] for entry in place.entries("fault")]
    assert {mode: faults.count(KEY.format(mode, 1)) for mode in ("wrong", "crash")} == {
        "wrong": 2, "crash": 1
    }  # fmt: skip

    other = place.root / "other.yaml"
    place.tune("--fresh", "--out", str(other), "--set", "good", "--where", "work == 1")
    # What is taken without rows, work 32, takes part whatever is asked for.
    assert [row["runner_up"] for row in rows.read(other)] == [KEY.format("plain", 32)] * 2
    done = subprocess.run(
        [sys.executable, "-m", "tools.tune.rows", str(place.rows), str(other)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "2 of 2 rows agree (100.0%)\n", done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_what_the_reference_raises_and_a_process_that_is_gone_are_no_kernels_fault(
    tuned, tmp_path, monkeypatch
):
    """Neither is blamed on the kernel that is asked for next, which would be skipped for ever."""
    place = Place(tmp_path / "copy")
    shutil.copytree(tuned[0].root, place.root)
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(place.root / "cache"))
    key = KEY.format("plain", 1)
    (pack,) = (p for p in (place.root / "cache/1/packs").iterdir() if holds(p, key))
    built = executor.Built(key, pack)
    (family,) = load([place.folder.parent])
    shape = family.targets[0].shapes.shapes[0]
    setup = worker.Setup("tuned_rows", str(place.folder), "cpu")
    process = worker.ProcessWorker(setup, patience=60)
    try:
        process.check(built, shape, seed=1)
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(LostError, match=r"^cpu: its process ended: SIGKILL$"):
            process.check(built, shape, seed=1)
        reference = place.folder / "reference.py"
        rule = place.folder / "tools.py"
        rule.write_text("def differences(problem, results):\n    return problem.no_such_name\n")
        said = r"^the inputs: AttributeError: .* has no attribute 'no_such_name'"
        with pytest.raises(errors.InputsError, match=said):
            process.check(built, shape, seed=1)
        rule.unlink()
        reference.write_text("def tuned_rows(x):\n    return x.no_such_name\n")
        said = rf"^the inputs: {reference}:2: AttributeError: .* has no attribute 'no_such_name'"
        with pytest.raises(errors.InputsError, match=said):
            process.check(built, shape, seed=1)
        reference.write_text("import os\ndef tuned_rows(x):\n    os.abort()\n")
        with pytest.raises(errors.InputsError, match=r"^the inputs: its process ended: SIGABRT$"):
            process.check(built, shape, seed=1)
        process._patience = 0.5
        reference.write_text("def tuned_rows(x):\n    while True: pass\n")
        with pytest.raises(errors.InputsError, match=r"^the inputs: no answer in 5 s$"):
            process.check(built, shape, seed=1)
    finally:
        process.stop()


def workers_of(pid):
    """The processes that call kernels; any of its threads may have started them."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    started = [int(word) for path in threads for word in path.read_text().split()]
    return [
        child for child in started if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def stopped(process, place, signal_number):
    """Ends a tuning that has come to the kernel which hangs; what the journal has then."""
    end = time.monotonic() + 120
    while "".join(path.read_text() for path in journals(place.root)).count("checked") != 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    end = time.monotonic() + 60
    while not (workers := workers_of(process.pid)):
        assert time.monotonic() < end
        time.sleep(0.05)
    if signal_number == signal.SIGINT:  # as a terminal does it
        os.killpg(process.pid, signal_number)
    else:
        process.send_signal(signal_number)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal_number
    end = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    assert place.entries("fault") == []
    return place.journal.read_text()


@pytest.mark.slow
def test_killed_or_interrupted_it_goes_on_from_its_journal_and_leaves_no_process(tmp_path):
    place = make(tmp_path)
    (place.folder / "cpu.yaml").write_text(
        FILES["cpu.yaml"]
        .replace("[32, 1, 64]", "[32, 2]")
        .replace("mode: [wrong, hang, crash, broken]", "mode: [hang]")
    )
    # With so much patience it calls the kernel that hangs until it is stopped.
    before = stopped(place.start("--patience", "600"), place, signal.SIGINT)
    assert stopped(place.start("--patience", "600"), place, signal.SIGKILL) == before
    with place.journal.open("a") as file:
        file.write('{"kind": "checked", "id": "torn')  # as a killed writer leaves it
    place.tune("--patience", "2")
    assert place.journal.read_text().startswith(before)
    lines = place.journal.read_text()[len(before) :].splitlines()[1:]
    again = [entry["key"] for entry in map(json.loads, lines) if entry["kind"] == "checked"]
    assert len(again) == 2  # of the second shape
    assert {row["take"] for row in rows.read(place.rows)} <= {
        KEY.format("plain", w) for w in (2, 32)
    }


@pytest.mark.gpu
def test_on_a_gpu_an_error_of_cuda_and_a_kernel_that_hangs_are_skipped_too(tmp_path):
    place = make(tmp_path, CUDA_FILES)
    place.tune(target="sm80")
    (row,) = rows.read(place.folder / "sm80.tuned.yaml")
    assert row["take"] == "tuned_rows.sm80.plain-w1"
    assert row["runner_up"] == "tuned_rows.sm80.plain-w64"
    assert row["device"] == torch.cuda.get_device_name()
    assert row["toolchain"].startswith("nvcc ")
    faults = {entry["key"].split(".")[2]: entry for entry in place.entries("fault")}
    assert {key: fault["invalidity"] for key, fault in faults.items()} == {
        "wrong-w1": "correctness", "hang-w1": "timeout", "crash-w1": "runtime"
    }  # fmt: skip
    assert "CUDA error" in faults["crash-w1"]["reason"]
    assert all(entry["clocks"]["sm MHz"]["least"] > 0 for entry in place.entries("rounds"))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs of one kind to share")
def test_several_gpus_share_the_shapes(tmp_path):
    second = "{sizes: {M: 2048}, range: {M: [1001, 4000], N: [4096, 4096]}}"
    shapes = CUDA_FILES["sm80.shapes.yaml"].replace("}]", f"}}, {second}]")
    place = make(tmp_path, CUDA_FILES | {"sm80.shapes.yaml": shapes})
    place.tune(target="sm80")
    assert {entry["place"] for entry in place.entries("rounds")} == {"cuda:0", "cuda:1"}
    assert [row["range"]["M"] for row in rows.read(place.folder / "sm80.tuned.yaml")] == [
        [1, 1000], [1001, 4000]
    ]  # fmt: skip


def holds(pack, key):
    """Whether a kernel is in a pack."""
    return f'"key": "{key}"' in (pack / "manifest.json").read_text()


class Equal:
    """A worker whose kernels all take as long."""

    def __init__(self, seconds=1.0, on_check=lambda: None):
        self.seconds = seconds
        self.on_check = on_check
        self.checked = []

    def check(self, kernel, shape, seed):
        self.checked.append(kernel.key)
        self.on_check()

    def rounds(self, kernels, shape, seed, least, seconds):
        clocks = {"sm MHz": Spread(1500, 1755, 1980)}
        return executor.Timed([{kernel.key: self.seconds for kernel in kernels}] * least, clocks)

    def stop(self):
        pass


@pytest.fixture
def tuner(tuned, loaded, tmp_path, monkeypatch):
    """Makes a Tuner of the family whose kernels are called by a given worker; with the cache of
    what is built, a journal of its own, and no rows, or those that were tuned, of a device."""
    place, _, _ = tuned
    shutil.copytree(place.root / "cache/1", tmp_path / "cache/1")
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    journals = []

    def make_tuner(worker, rows_of=None, **options):
        while journals:
            journals.pop().close()
        options = {"set_name": "good", **options}
        named = Options("tuned_rows", "cpu", specs=str(place.folder), **options)
        made = Tuner(named, lambda line: None)
        journals.append(made.journal)
        made.out = tmp_path / "cpu.tuned.yaml"
        tuned_ = [dataclasses.replace(row, device=rows_of) for row in made._target.tuned if rows_of]
        made._target = dataclasses.replace(made._target, tuned=tuple(tuned_))
        monkeypatch.setattr(made._executor, "worker", lambda place: worker)
        return made

    yield make_tuner
    while journals:
        journals.pop().close()


def test_of_equals_the_last_winner_of_this_device_stays_and_no_other_devices(tuner):
    here, slow, fast = devices.name(torch.device("cpu")), *(KEY.format("plain", w) for w in (32, 1))
    for device, taken in (("another", slow), (here, fast)):
        found = tuner(Equal(), rows_of=device, fresh=True).run()  # which take the fast one
        assert [(row["take"], row["tie"]) for row in found] == [(taken, True)] * 2


def test_incumbents_are_built_first_and_then_kernels_of_each_shape_in_turn(tuner, monkeypatch):
    here, slow, fast = devices.name(torch.device("cpu")), *(KEY.format("plain", w) for w in (32, 1))
    made, asked = tuner(Equal(), rows_of=here, set_name="tune"), []
    monkeypatch.setattr(made._executor, "build", lambda keys, goes_on: asked.extend(keys) or ())
    made.run()
    assert asked == [fast, slow, *(KEY.format(mode, 1) for mode in MODES)]


def test_what_was_measured_of_other_machine_code_alone_is_no_time(tuner, monkeypatch):
    """A set of one kernel, which is compiled to something else: it is timed, though there is no
    other whose times it could be compared with."""
    for number, seconds in enumerate((1.0, 2.0)):
        monkeypatch.setattr(tuner_module, "code_hash", lambda *_, n=number: str(n))
        made = tuner(Equal(seconds), where="work == 32")
        assert [(r["code"], r["milliseconds"]) for r in made.run()] == [
            (str(number), 1e3 * seconds)
        ] * 2


def test_a_row_is_not_changed_by_new_machine_code_without_a_gain(tuner, monkeypatch):
    """The kernel of the row is compiled to something else; what has times is the best meanwhile."""
    taken = KEY.format("plain", 32)
    for number in range(2):
        monkeypatch.setattr(
            tuner_module,
            "code_hash",
            lambda pack, _, n=number: f"{pack.folder}{n * holds(pack.folder, taken)}",
        )
        found = tuner(Equal()).run()
        assert [(row["take"], row["tie"]) for row in found] == [(taken, True)] * 2


def test_who_is_back_is_held_to_the_reference_before_it_is_timed(tuner, monkeypatch):
    """The reference is edited; by the new one the fastest is wrong, which had eliminated others."""
    fast, slow, other = KEY.format("plain", 1), KEY.format("plain", 32), KEY.format("wrong", 1)
    options = {"set_name": "tune", "where": "mode == plain or mode == wrong"}
    called = []

    class Worker(Equal):
        def check(self, kernel, shape, seed):
            called.append(("check", kernel.key))
            if oracle == "new" and kernel.key == fast:
                raise errors.CandidateError(fast, "correctness", "it is wrong")

        def rounds(self, kernels, shape, seed, least, seconds):
            called.extend(("time", kernel.key) for kernel in kernels)
            times = {kernel.key: 1.0 if kernel.key == fast else 2.0 for kernel in kernels}
            return executor.Timed([times] * least, {})

    for oracle, taken in (("old", fast), ("new", slow)):
        called.clear()
        monkeypatch.setattr(tuner_module, "content", lambda path, name=oracle: name)
        assert [row["take"] for row in tuner(Worker(), **options).run()] == [taken] * 2
    # On the first shape, where it is found; on the second it is not called any more.
    assert called.count(("check", fast)) == 1
    assert ("time", fast) not in called
    assert [called.count(("check", key)) for key in (slow, other)] == [2, 2]
    assert called.index(("check", other)) < called.index(("time", other))


def test_what_is_not_held_to_an_edited_reference_yet_has_no_row(tuner, monkeypatch):
    """The budget ends with the first check, which is of the first shape's winner."""
    for oracle, budget, count in (("old", None, 2), ("new", 1000.0, 1), ("new", None, 2)):
        monkeypatch.setattr(tuner_module, "content", lambda path, name=oracle: name)
        made = tuner(worker := Equal(), budget=budget)
        worker.on_check = lambda made=made: setattr(made, "_begin", made._begin - 2000)
        assert len(made.run()) == count


def test_several_devices_share_the_shapes_and_measure_at_the_same_time(tuner, monkeypatch):
    together = threading.Barrier(2)
    made = tuner(Equal(on_check=lambda: together.wait(30)))
    monkeypatch.setattr(made._executor, "places", lambda: ["cuda:0", "cuda:1", "cuda:2"])
    assert len(made.run()) == 2
    for first, second in zip(*[iter(made.journal.find("rounds"))] * 2, strict=True):  # of a pass
        assert first["shape"] != second["shape"]
        assert {first["place"], second["place"]} <= {"cuda:0", "cuda:1"}
    assert {entry["place"] for entry in made.journal.find("checked")} == {"cuda:0", "cuda:1"}


def test_every_sample_is_in_the_journal_with_seed_place_and_clocks(tuner):
    made = tuner(Equal(0.5))
    made.run()
    entries = made.journal.find("rounds")
    assert len(entries) == 2 * len(PASSES)
    ids = {entry["id"] for entry in made.journal.find("checked")}
    assert sorted(len(entry["times"]) for entry in entries) == sorted(2 * PASSES)
    for entry in entries:
        assert entry["times"] == [dict.fromkeys(ids, 0.5)] * len(entry["times"])
        assert entry["place"] == "cpu"
        assert entry["clocks"] == {"sm MHz": {"least": 1500, "median": 1755, "greatest": 1980}}
    assert len({entry["seed"] for entry in entries}) > 1


def test_when_the_budget_is_spent_no_other_kernel_is_called(tuner):
    worker = Equal()
    made = tuner(worker, budget=1000.0)
    worker.on_check = lambda: setattr(made, "_begin", made._begin - 2000)
    assert made.run() == []
    assert len(worker.checked) == 1


def test_where_no_worker_starts_the_tuning_ends(tuner, monkeypatch):
    made, attempts = tuner(Equal()), []

    def lost(place):
        attempts.append(place)
        raise LostError(place, "it does not start")

    monkeypatch.setattr(made._executor, "worker", lost)
    with pytest.raises(
        errors.TuningError, match="no worker starts, after 3 attempts on each of: cpu;"
    ):
        made.run()
    assert attempts == ["cpu"] * 3


def test_kinds_of_devices_are_named():
    found = [executor.Device("a"), executor.Device("b"), executor.Device("a")]
    assert executor.chosen(found, "b", "sm80").name == "b"
    assert executor.chosen(found[::2], None, "sm80").name == "a"
    with pytest.raises(errors.TuningError, match="several kinds here: 'a', 'b': name one with"):
        executor.chosen(found, None, "sm80")
    with pytest.raises(errors.TuningError, match="'c': no such device runs sm80, only 'a'"):
        executor.chosen(found, "c", "sm80")


def test_a_journal_is_read_up_to_a_torn_line_and_goes_on_behind_it(tmp_path):
    path = tmp_path / "folder/journal.jsonl"
    first = Journal(path, fresh=False)
    with pytest.raises(errors.TuningError, match="another tuning"):
        Journal(path, fresh=True)
    with pytest.raises(executor.TuningError, match="Not a directory: name another folder in KERN"):
        Journal(path / "below/journal.jsonl", fresh=False)
    first.add("checked", id="a", shape="s")
    first.close()
    path.write_text(path.read_text() + '{"kind": "chec')
    second = Journal(path, fresh=False)
    assert [e["id"] for e in second.find("checked")] == ["a"]
    second.add("checked", id="b", shape="s")
    second.close()
    third = Journal(path, fresh=False)
    assert [e["id"] for e in third.find("checked", shape="s")] == ["a", "b"]
    third.close()
    fourth = Journal(path, fresh=True)
    assert fourth.entries == []
    assert path.read_text() == ""
    fourth.close()


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "checked", "shape": "s"}',
        '{"kind": "checked", "id": 7, "shape": "s"}',
        '{"kind": "fault", "id": "a", "shape": null}',
        '{"kind": "rounds", "times": [{"a": 1.0}]}',
        '{"kind": "rounds", "shape": "s", "times": [{"a": 0.0}]}',
        '{"kind": "rounds", "shape": "s", "times": [{"a": NaN}]}',
        '{"kind": "rounds", "shape": "s", "times": [{"a": -1.0}]}',
        '{"kind": "rounds", "shape": "s", "times": [{"a": "fast"}, 3]}',
        '{"kind": "rounds", "shape": "s", "times": ' + "[" * 10_000,
        '{"kind": ["checked"]}',
        '{"kind": "unknown"}',
        "7",
    ],
)
def test_a_line_of_the_journal_that_is_not_a_finding_is_skipped(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    path.write_text(line + '\n{"kind": "rounds", "shape": "s", "times": [{"a": 0.5}]}\n')
    journal = Journal(path, fresh=False)
    assert [(e["kind"], e["shape"], e["times"]) for e in journal.entries] == [
        ("rounds", "s", [{"a": 0.5}])
    ]
    journal.close()


def test_rows_of_other_devices_and_parameters_are_kept(tmp_path):
    path = tmp_path / "cpu.tuned.yaml"
    old = [row("a", "old"), row("b", "old"), row("a", "old", parameters={"p": 2})]
    assert rows.write(path, "f", "cpu", old) == 0
    assert rows.write(path, "f", "cpu", [row("a", "new", range={"M": [1, 3]})]) == 2
    assert [(r["device"], r["parameters"]["p"], r["take"]) for r in rows.read(path)] == [
        ("b", 1, "old"), ("a", 2, "old"), ("a", 1, "new")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("others", "status", "said"),
    [
        ([row("a", "old"), row("a", "old", parameters={"p": 2})], 0, "2 of 2 rows agree (100.0%)"),
        ([row("a", "new"), row("a", "old", parameters={"p": 2})], 1, "1 of 2 rows agree (50.0%)"),
        ([row("a", "new", tie=True), row("b", "new")], 0, "1 of 1 rows agree (100.0%)"),
        ([row("b", "old")], 1, "the files have no row in common"),
    ],
)
def test_two_tunings_are_compared_row_by_row(tmp_path, others, status, said):
    first, second = (tmp_path / name for name in ("1.yaml", "2.yaml"))
    rows.write(first, "f", "cpu", [row("a", "old"), row("a", "old", parameters={"p": 2})])
    rows.write(second, "f", "cpu", others)
    done = CliRunner().invoke(rows.main, [str(first), str(second)])
    assert done.exit_code == status
    assert said in done.output
    assert ("{'p': 1} {'M': [1, 2]}: old against new" in done.output) == ("50.0%" in said)


def test_memory_for_results_is_poisoned():
    """So that what a kernel does not write is wrong."""
    family, cpu = runtime.manifest.family("flash_forward"), torch.device("cpu")
    shapes = ((torch.float32, [2, 3]), (torch.bfloat16, [4]), (torch.int32, [2]))
    found = problem.Problem(family, {}, {}, {}, shapes, cpu)
    floats, halves, integers = found.outputs()
    assert floats.shape == (2, 3)
    assert floats.isnan().all()
    assert halves.isnan().all()
    assert (integers == torch.iinfo(torch.int32).min).all()


def test_rows_that_codegen_would_not_read_are_not_written(tmp_path):
    path = tmp_path / "cpu.tuned.yaml"
    rows.write(path, "f", "cpu", [row("a", "old")])
    with pytest.raises(errors.TuningError, match=r"1 rows that are there and 1 new .* 131,072"):
        rows.write(path, "f", "cpu", [row("b", "new" * 50_000)])
    assert [r["take"] for r in rows.read(path)] == ["old"]
    path.write_text("tuned: [{device: a}]\n")
    with pytest.raises(SpecError, match=r"cpu\.tuned\.yaml:1:9: the key 'parameters' is missing"):
        rows.read(path)


def write_ptxas(folder, **figures):
    values = {"kernel_config": "f.sm80.k", "spill_stores": "0", "spill_loads": "0",
              "stack_frame": "0", "used_registers": "168", "c75": "", "kind": "kernel",
              "symbol": "s", "arch": "sm_80", "code": "c", **figures}  # fmt: skip
    (folder / "ptxas.csv").write_text(f"{','.join(values)}\n{','.join(values.values())}\n")


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({}, None),
        ({"spill_stores": "8"}, "ptxas: 8 spill bytes, the budget of f.sm80 is 0"),
        ({"c75": "C7510"}, "ptxas: 1 C75xx notes, the budget of f.sm80 is 0 (C7510)"),
        ({"used_registers": "169"}, "ptxas: 169 registers, the budget of f.sm80 is 168"),
        ({"kernel_config": "f.sm80.other", "spill_stores": "8"}, None),
    ],
)
def test_spills_and_notes_of_c75_rule_a_kernel_out_before_it_is_timed(tmp_path, figures, reason):
    write_ptxas(tmp_path, **figures)
    pack = dataclasses.replace(packs.all_packs()[0], folder=tmp_path)
    assert code.offence(pack, "f.sm80.k", {"spill_bytes": 0, "registers": 168}) == reason


def test_a_kernel_with_a_note_of_c75_is_not_called(tuner, tmp_path):
    """Its pack has what ptxas said of it, as a CUDA kernel's has."""
    key, others = KEY.format("plain", 1), KEY.format("plain", 32)
    made = tuner(worker := Equal())
    for folder in (tmp_path / "cache/1/packs").iterdir():
        if holds(folder, key):
            write_ptxas(folder, kernel_config=key, c75="C7510")
    assert [row["take"] for row in made.run()] == [others] * 2
    assert set(worker.checked) == {others}
    left_out = [outcome for outcome in made.outcomes() if outcome.configuration["work"] == 1]
    assert [outcome.invalidity for outcome in left_out] == ["compile"] * 2


def test_two_tunings_of_two_devices_may_write_their_rows_at_once(tmp_path):
    path, names = tmp_path / "cpu.tuned.yaml", [f"device {i}" for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: rows.write(path, "f", "cpu", [row(name, "k")]), names))
    assert sorted(row["device"] for row in rows.read(path)) == names


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([1.0, -torch.inf, torch.nan, 1024.0], None),
        ([1.0, -torch.inf, torch.nan, 1032.0], None),  # within 2^-8 of 1024 twice
        ([1.0, -torch.inf, torch.nan, 1040.0], (1, "i0=3: 1040 against 1024")),
        ([1.0, torch.inf, torch.nan, 1024.0], (1, "i0=1: inf against -inf")),
        ([1.0, 5.0, torch.nan, 1024.0], (1, "i0=1: 5 against -inf")),
        ([1.0, -torch.inf, 0.0, torch.nan], (2, "i0=2: 0 against nan")),
    ],
)
def test_infinities_are_right_where_they_are_expected_and_forgive_nothing_else(results, reason):
    found = problem.Problem(
        runtime.manifest.family("flash_prefill"), {}, {}, {}, (), torch.device("cpu")
    )
    found.expected = (torch.tensor([1.0, -torch.inf, torch.nan, 1024.0], dtype=torch.float64),)
    found.shapes = ((torch.bfloat16, [4]),)
    (difference,) = found.check(lambda out: out.copy_(torch.tensor(results)))
    assert difference.passed == (reason is None)
    if reason is not None:
        count, worst = reason
        assert (difference.beyond, str(difference)) == (count, f"o: worst: {worst}")


def test_a_family_whose_inputs_cannot_be_random_says_what_to_write():
    family = runtime.manifest.family("hstu_bsa")
    with pytest.raises(problem.NoProblemError, match="write `tuning_inputs"):
        problem.check(family, {"dtype": "bf16"})
    with pytest.raises(problem.NoProblemError, match="names no reference"):
        problem.check(dataclasses.replace(family, reference=None), {})


def test_what_decides_the_right_result_is_named_in_the_shapes():
    family = runtime.manifest.family("flash_forward")
    problem.check(family, {"dtype": "f32", "d_head": 64, "causal": True})
    with pytest.raises(problem.NoProblemError, match="the dtype of 'q' is the parameter 'dtype'"):
        problem.check(family, {"d_head": 64, "causal": True})
    with pytest.raises(problem.NoProblemError, match="depends on 'causal', which the reference"):
        problem.check(family, {"dtype": "f32", "d_head": 64})


def test_what_is_given_is_made_and_what_is_not_is_left_out():
    name = "flash_decode"
    sizes = {"B": 2, "Sq": 1, "H": 4, "Hk": 2, "D": 8, "Dv": 8, "N": 2, "P": 5}
    shape = model.Shape((("dtype", "f32"),), tuple(sizes.items()), (), ())
    known = {"q": [2, 1, 4, 8], "k_cache": [2, 5, 2, 8], "v_cache": [2, 5, 2, 8]}

    def made(*given, **more):
        found = dataclasses.replace(shape, given=given, sizes=tuple({**sizes, **more}.items()))
        return problem.make(name, found, torch.device("cpu"), 0)

    def shapes(found):
        return {name: list(tensor.shape) for name, tensor in found.tensors.items()}

    assert shapes(made()) == known
    with_lengths = made("seqused_k", "s_aux")
    assert shapes(with_lengths) == {**known, "seqused_k": [2], "s_aux": [4]}
    assert sorted(with_lengths.tensors["seqused_k"].tolist()) == [2, 5]
    paged = made("block_table", N=6, pages=3).tensors["block_table"]
    assert sorted(paged.flatten().tolist()) == list(range(6))
    with pytest.raises(
        problem.NoProblemError, match=r"'leftpad_k', .*`tuning_inputs\(.*, given\)`"
    ):
        made("leftpad_k")
    plain = problem.bytes_moved(runtime.manifest.family(name), shape)
    given = dataclasses.replace(shape, given=("seqused_k",))
    assert problem.bytes_moved(runtime.manifest.family(name), given) == plain + 4 * 2


def test_a_family_that_makes_what_is_not_given_is_told(monkeypatch):
    def maker(sizes, parameters, generator, given):
        return {"seqused_k": torch.ones(1, dtype=torch.int32)}

    monkeypatch.setattr(problem, "_maker", lambda family: maker)
    sizes = dict.fromkeys(("B", "Sq", "H", "Hk", "D", "Dv", "N", "P"), 1)
    shape = model.Shape((("dtype", "f32"),), tuple(sizes.items()), (), ())
    with pytest.raises(problem.NoProblemError, match=r"returns seqused_k, expected .*: none"):
        problem.make("flash_decode", shape, torch.device("cpu"), 0)
