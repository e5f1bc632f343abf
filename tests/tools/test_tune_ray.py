"""kernelmint tune --ray: a real Ray of nodes on this machine that share no cache, some of which are
killed; and what is said if Ray is not installed."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys

import pytest
import torch

from tests.tools.ray_nodes import free_address, until
from tests.tools.test_tune import CUDA_FILES, KEY, ROOT, journals, make
from tools.cluster.errors import ClusterError
from tools.tune import rows

# A compiler that never ends, and says so in a file, on a node if STUCK is set; elsewhere it is
# the compiler, since nodes must match the same.
STUCK = """\
#!/bin/sh
if [ -n "$STUCK" ]; then for word in "$@"; do
  if [ "$word" = -c ]; then touch {file}; exec sleep 1000; fi
done; fi
exec c++ "$@"
"""

MORE = "      - {sizes: {M: 256}, range: {M: [201, 300], N: [2048, 2048]}}\n"


def named(entries, node):
    return [entry for entry in entries if entry["place"].startswith(f"{node} (")]


def checked_at(place, node):
    return named(place.entries("checked"), node) if journals(place.root) else []


@pytest.mark.slow
def test_nodes_that_die_are_done_without(cluster, tmp_path, monkeypatch):
    """One dies while it compiles, one that joined meanwhile while it measures."""
    place = make(tmp_path / "driver")
    with (place.folder / "cpu.shapes.yaml").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text.replace("cost:", MORE + "cost:"))
    compiler, compiles = tmp_path / "c++", tmp_path / "compiles"
    compiler.write_text(STUCK.format(file=compiles))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    cluster.start("head", cpus=0)  # of the tuner's machine: it neither builds nor measures
    cluster.start("first")
    cluster.start("second", STUCK="1")
    process = place.start("--patience", "6", "--ray", cluster.address)
    try:
        until(compiles.exists, process)
        cluster.start("third")
        cluster.kill("second")
        until(
            lambda: len(checked_at(place, "third")) == 2, process
        )  # the next one is wrong, or hangs
        cluster.kill("third")
        said, _ = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, said

    builds = [entry for entry in place.entries("lost") if entry["key"]]
    (measuring,) = named(place.entries("lost"), "third")
    assert builds
    assert measuring["shape"] == checked_at(place, "third")[0]["shape"]
    assert f"{measuring['place']}: {measuring['reason']}" in said
    # What a tuning of one machine finds.
    found = rows.read(place.rows)
    assert [(row["range"]["M"], row["take"], row["runner_up"]) for row in found] == [
        ([1, 100], KEY.format("plain", 1), KEY.format("plain", 32)),
        ([101, 200], KEY.format("plain", 1), KEY.format("plain", 32)),
        ([201, 300], KEY.format("plain", 1), KEY.format("plain", 32)),
    ]
    assert {entry["key"]: entry["invalidity"] for entry in place.entries("fault")} == {
        KEY.format("wrong", 1): "correctness",
        KEY.format("hang", 1): "timeout",
        KEY.format("crash", 1): "runtime",
    }
    assert named(place.entries("rounds"), "first") == place.entries("rounds")
    assert f"{KEY.format('broken', 1)}: does not compile: " in said
    assert f"\n  on {platform.node()}\n" in said
    # The driver has all that was built, so that a machine alone can go on.
    assert len(list((place.root / "cache/1/packs").glob("*/*.so"))) == 5

    process = place.start("--ray", cluster.address, CXXFLAGS="-DOTHER=1")
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert re.search(
        r"the node \w+ \(\w+\) has compilers and flags \w+ \(here \w+\): nodes must match", said
    )

    place.journal.unlink()
    again = place.start("--patience", "6", "--ray", cluster.address)
    try:
        until(lambda: checked_at(place, "first"), again)
        cluster.kill("first")
        said, _ = again.communicate(timeout=200)
    finally:
        again.kill()
    assert again.returncode == 1
    assert f"no node that has {found[0]['device']} is left; all results are in the journal" in said


@pytest.mark.gpu
def test_a_gpu_of_a_node_measures(cluster, tmp_path):
    place = make(tmp_path / "driver", CUDA_FILES)
    cluster.start("head", cpus=0)
    cluster.start("first", gpus=1, cpus=2)
    process = place.start("--patience", "20", "--ray", cluster.address, target="sm80")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    (row,) = rows.read(place.folder / "sm80.tuned.yaml")
    assert row["take"] == "tuned_rows.sm80.plain-w1"
    assert row["device"] == torch.cuda.get_device_name()
    faults = {entry["key"].split(".")[2]: entry["invalidity"] for entry in place.entries("fault")}
    assert faults == {"wrong-w1": "correctness", "hang-w1": "timeout", "crash-w1": "runtime"}
    assert named(place.entries("rounds"), "first") == place.entries("rounds")


def test_an_address_where_no_cluster_is(tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    process = make(tmp_path).start("--ray", (address := free_address()))
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert said == f"Error: --ray {address}: [Errno 111] Connection refused\n"


def test_an_address_where_something_else_listens(tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    timeouts = dict.fromkeys(
        ("RAY_py_gcs_connect_timeout_s", "RAY_gcs_rpc_server_connect_timeout_s"), "1"
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        process = make(tmp_path).start("--ray", address, **timeouts)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"Error: --ray {address}: Failed to connect to Ray cluster" in said


@pytest.mark.parametrize("address", ["local", "", "127.0.0.1", "host:port", "ray://host:10001"])
def test_an_address_that_is_none_starts_no_cluster(address, monkeypatch):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from tools.cluster import nodes

    monkeypatch.setattr(nodes.ray, "init", lambda **_: pytest.fail("it joins, or starts one"))
    with pytest.raises(ClusterError, match=rf"^--ray {address}: expected HOST:PORT, or auto$"):
        nodes._connect(address)


def test_without_ray_the_extra_is_named(tmp_path):
    place = make(tmp_path)
    script = "import sys; sys.modules['ray'] = None; from tools.tune.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, place.folder, "--target", "cpu", "--ray", "10.0.0.1:6379"],
        cwd=ROOT, env={**os.environ, "KERNELMINT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "Error: --ray 10.0.0.1:6379: Ray is not installed: pip install 'kernelmint[ray]', here and "
        "on the nodes\n"
    )
