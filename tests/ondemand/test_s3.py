"""The shared cache in an object store, by s3fs and S3's protocol. The server is moto's, in its own
process: it can be full, slow or away. The tests run where both are installed:

    pip install s3fs "moto[server]"
"""

# ruff: noqa: F401, F811 (fixtures and tests of test_shared.py)

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import runtime
from runtime.ondemand import shared as shared_caches
from runtime.ondemand.shared import Settings

from .conftest import in_new_process
from .test_ondemand import check_right
from .test_shared import (
    MACHINES,
    Machine,
    environ,
    machine,
    signed,
    test_a_damaged_file_is_not_read_and_a_writer_replaces_it,
    test_a_file_is_read_only_for_the_contents_that_it_was_built_from,
    test_a_kernel_is_built_on_one_machine_and_read_on_others,
    test_a_lease_is_of_one_process_until_it_is_given_back,
    test_a_lease_of_a_machine_that_died_expires_and_of_one_that_lives_does_not,
    test_a_signed_file_of_another_name_is_not_believed,
    test_the_command_lists_and_prunes_the_shared_cache,
)

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

# S3 creates an absent object in one step; moto looks first, so its writes wait for one another.
SERVER = """
import sys, threading, time
from pathlib import Path
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
application = DomainDispatcherApplication(create_backend_app)
writing = threading.Lock()
FULL = b"<Error><Code>XMinioStorageFull</Code><Message>the drive is full</Message></Error>"
def served(environ, start):
    fault = Path(sys.argv[2]).read_text()
    if fault.startswith("slow"):
        time.sleep(float(fault.split()[1]))
    if environ["REQUEST_METHOD"] != "PUT":
        return application(environ, start)
    if fault == "full":
        start("507 Insufficient Storage", [("Content-Type", "application/xml")])
        return [FULL]
    with writing:
        return [b"".join(application(environ, start))]
run_simple("127.0.0.1", int(sys.argv[1]), served, threaded=True)
"""


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server's file, which says how it fails, with the environment that leads to it."""
    file = tmp_path_factory.mktemp("s3") / "fault"
    file.write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (file.with_name("log")).open("w") as log, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{port}")
        command = [sys.executable, "-c", SERVER, str(port), str(file)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            end = time.monotonic() + 60
            while not _listens(port):
                assert time.monotonic() < end, file.with_name("log").read_text()
                time.sleep(0.1)
            yield file
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def settings(server: Path, tmp_path: Path, signed: dict[str, str]) -> Iterator[Settings]:
    """Settings of a writer, whose store is a bucket of its own."""
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = re.sub("[^a-z0-9]", "", tmp_path.name)[-50:]
    s3fs.S3FileSystem().mkdir(bucket)
    server.write_text("")
    yield Settings(f"s3://{bucket}/kernels", **signed)
    server.write_text("")


def test_64_processes_on_8_machines_compile_each_kernel_once(
    family, compilations, tmp_path, monkeypatch, settings
):
    environ(monkeypatch, settings, tmp_path)
    monkeypatch.setenv("CXXFLAGS", "-O0")
    keys = [family.key(segment) for segment in (4096, 8192)]
    done = in_new_process(MACHINES, family.folder, tmp_path, *keys)
    assert set(done.stdout.split()) == {"0"}, done.stderr
    assert len(compilations.take()) == 2 * len(keys)
    assert len(list(tmp_path.glob("machine*/1/packs/*/*.so"))) == 8 * len(keys)
    items = Machine(tmp_path / "reads", settings).shared.usages()
    assert len(items) == 2 * len(keys)  # no lease is left


def test_a_full_store_is_told_of_and_kernels_are_built(
    family, compilations, tmp_path, monkeypatch, settings, server
):
    server.write_text("full")
    environ(monkeypatch, settings, tmp_path / "builds")
    runtime.load(family.folder)
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(.*drive is full"):
        check_right(runtime.kernel(family.key()))
    assert len(compilations.take()) == 2


@pytest.mark.parametrize("place", ["s3://no-bucket-of-anybody/kernels", "nowhere"])
def test_an_absent_store_is_told_of_and_kernels_are_built(
    family, compilations, tmp_path, monkeypatch, settings, place
):
    if place == "nowhere":  # nobody listens there
        s3fs.S3FileSystem.clear_instance_cache()
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)  # five of its own, five of botocore's
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    own = settings.place if place == "nowhere" else place
    environ(monkeypatch, Settings(own, settings.write, settings.signers), tmp_path / "builds")
    runtime.load(family.folder)
    with pytest.warns(RuntimeWarning, match=r"cannot be (read|written) \("):
        check_right(runtime.kernel(family.key()))
    assert len(compilations.take()) == 2


def test_a_slow_store_costs_time_and_one_that_hangs_is_left_alone(
    machine, monkeypatch, settings, server
):
    machine("builds").build()
    server.write_text("slow 0.3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine("reads").fetch() is not None
    server.write_text("slow 5")
    monkeypatch.setattr(shared_caches, "_PATIENCE", 0.5)
    hanging = machine("other")
    with pytest.warns(RuntimeWarning, match=r"cannot be read \(nothing from it in 0.5 s\)"):
        assert hanging.fetch() is None
    begin = time.monotonic()
    assert hanging.fetch() is None
    assert time.monotonic() - begin < 0.1
