"""`kernelmint build` and `verify` with --ray: nodes of this machine that share no cache, one of
which is killed; the order of jobs; and what an interrupt leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen import scaffold
from codegen.core import verified
from kernelmint.__main__ import main
from runtime.ondemand.cache import Cache
from tests.tools.ray_nodes import free_address, until
from tools.cluster.queue import Queue, Seconds

FAMILY = "on_nodes"
KEYS = [f"{FAMILY}.cpu.f32-n{1024 * count}" for count in range(1, 5)]
# A compiler that waits, and notes its number. It never ends on a node with STUCK, or while the file
# STOP is there.
SLOW = """\
#!/bin/sh
for word in "$@"; do if [ "$word" = -c ]; then
  echo "$KERNELMINT_CACHE_DIR" >> {log}
  if [ -n "$STUCK" ] || [ -e {stop} ]; then echo $$ >> {stuck}; exec sleep 1000; fi
fi; done
exec c++ "$@"
"""


class Project:
    """A family of specs, with a compiler, and the machine on which the command runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.specs = root / "kernel_specs"
        scaffold.create(FAMILY, self.specs)
        self.log, self.stop, self.stuck = root / "log", root / "stop", root / "stuck"
        compiler = root / "c++"
        compiler.write_text(SLOW.format(log=self.log, stop=self.stop, stuck=self.stuck))
        compiler.chmod(0o755)
        self.settings = {"CXX": str(compiler), "CXXFLAGS": "-O0"}

    def command(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        own = {"KERNELMINT_CACHE_DIR": str(self.root / "cache"), "RAY_AUTH_MODE": "disabled"}
        return subprocess.Popen(
            [sys.executable, "-m", "kernelmint", *arguments], cwd=self.root, text=True,
            env={**os.environ, **own, **self.settings, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def build(self, cluster, *keys: str, **environment: str) -> subprocess.Popen[str]:
        named = [word for key in keys for word in ("--key", key)]
        return self.command(
            "build", self.specs / FAMILY, *named, "--ray", cluster.address, **environment
        )

    def compiled_by(self) -> dict[str, int]:
        lines = self.log.read_text().split() if self.log.exists() else []
        return {name: lines.count(name) for name in dict.fromkeys(lines)}


@pytest.mark.slow
def test_nodes_build_and_verify_and_one_is_killed(cluster, tmp_path):
    """The killed node's jobs are repeated; an interrupted build goes on; then all is verified.
    The second half of the kernels goes through the shared cache."""
    project = Project(tmp_path)
    for name, value in project.settings.items():
        os.environ[name] = value
    try:
        cluster.start("head", cpus=0)  # of the command's machine: it builds nothing
        cluster.start("first")
        cluster.start("second", STUCK="1")
    finally:
        for name in project.settings:
            del os.environ[name]
    process = project.build(cluster, *KEYS[:2])
    until(project.stuck.exists, process)
    cluster.kill("second")
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert re.search(r"others repeat what it did not finish", said)
    assert re.search(r"built 2 of 2 kernels on 1 node in ", said), said
    assert all(re.search(rf"^{re.escape(key)}$", said, re.MULTILINE) for key in KEYS[:2]), said
    by_first = project.compiled_by()[str(cluster.root / "first")]
    assert by_first == 2 * 2
    assert len(list((tmp_path / "cache/1/packs").glob("*/*.so"))) == 2

    project.stop.touch()
    project.stuck.unlink()
    shared = {
        "KERNELMINT_SHARED_CACHE": str(tmp_path / "store"), "KERNELMINT_SHARED_CACHE_WRITE": "1",
    }  # fmt: skip
    process = project.build(cluster, *KEYS, **shared)
    until(project.stuck.exists, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "built 2 of 4 kernels" in said
    assert "interrupted: the same command goes on from there" in said
    deadline = time.monotonic() + 30
    for number in project.stuck.read_text().split():
        while Path(f"/proc/{number}/exe").exists():  # a zombie has none
            assert time.monotonic() < deadline
            time.sleep(0.05)
    project.stop.unlink()

    process = project.build(cluster, *KEYS, **shared)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert len(list((tmp_path / "store/1").glob("*/pack-*"))) == 2
    assert len(list((tmp_path / "cache/1/packs").glob("*/*.so"))) == 4

    where = ("--where", "dtype == f32")
    process = project.command("verify", FAMILY, *where, "--ray", cluster.address)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "1 kernel left out: no node has a GPU\n" in said
    assert "verified 1 of 1 kernels on 1 node in " in said
    assert said.endswith("1 kernel of 1 right\n")
    (row,) = verified.read(project.specs / FAMILY / "cpu.verified.csv")
    assert row.outcome == "right"


def seconds(tmp_path: Path, **measured: float) -> Seconds:
    known = Seconds(Cache(tmp_path), "builds")
    known.note({f"f.cpu.{name}": value for name, value in measured.items()})
    return Seconds(Cache(tmp_path), "builds")  # as the next command


def test_the_longest_jobs_come_first_and_short_ones_together(tmp_path):
    known = seconds(tmp_path, a=0.5, b=3.0, c=0.5, d=1.0, e=0.1)
    queue = Queue([f"f.cpu.{name}" for name in "abcde"] + ["other.cpu.x"], known)
    taken = []
    while queue:
        taken.append([key.rpartition(".")[2] for key in queue.take(1)])
    assert taken == [["x"], ["b"], ["d", "a"], ["c"], ["e"]]


def test_many_short_jobs_go_together_until_few_are_left(tmp_path):
    queue = Queue([f"f.cpu.n{number}" for number in range(1000)], seconds(tmp_path))
    assert len(queue.take(8)) == 1  # nobody knows how long they take
    queue.note("f.cpu.n0", 0.0625)
    sizes = []
    while queue:
        sizes.append(len(queue.take(8)))
    assert sizes[0] == 32
    assert sizes[-1] == 1
    assert sum(sizes) == 999


def test_a_lost_job_goes_by_itself(tmp_path):
    queue = Queue([f"f.cpu.n{number}" for number in range(100)], seconds(tmp_path))
    queue.note("f.cpu.n0", 0.01)
    batch = queue.take(1)
    assert len(batch) > 5
    for key in batch:
        queue.again(key)
    sizes = []
    while queue:
        sizes.append(len(queue.take(1)))
    assert sizes[-len(batch) :] == [1] * len(batch)


@pytest.mark.parametrize("command", [["build", "."], ["verify"]])
def test_an_address_where_no_cluster_is(command, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    scaffold.create(FAMILY, tmp_path / "kernel_specs")
    monkeypatch.chdir(tmp_path / "kernel_specs")
    done = CliRunner().invoke(main, [*command, "--ray", (address := free_address())])
    assert done.exit_code == 1
    assert f"Error: --ray {address}: [Errno 111] Connection refused\n" in done.output
