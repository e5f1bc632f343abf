"""Threads, forks and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import runtime
from runtime.ondemand import kernels

from .conftest import in_new_process

THREADS = """
import sys, threading
import runtime
call, folder = getattr(runtime, sys.argv[1]), sys.argv[2]
start, failed = threading.Barrier(16), []
def load():
    start.wait()
    try:
        call(folder)
    except Exception as error:
        failed.append(repr(error))
threads = [threading.Thread(target=load) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*failed, sep="\\n")
"""


@pytest.mark.parametrize("call", ["load", "load_pack"])
def test_sixteen_threads_add_a_family_at_once(family, cache, call):
    folder = family.folder
    if call == "load_pack":
        runtime.load(family.folder)
        (folder,) = (cache / "1/packs").iterdir()
    assert in_new_process(THREADS, call, folder).stdout.strip() == ""


FORKED = """
import os, sys, threading, time
import runtime
folder, key, begun = sys.argv[1:]
runtime.load(folder)
builds = threading.Thread(target=runtime.kernel, args=[key])
builds.start()
while not os.path.exists(begun):
    time.sleep(0.01)
child = os.fork()
if not child:
    runtime.kernel(key)
    os._exit(0)
builds.join()
while os.waitpid(child, os.WNOHANG) == (0, 0):
    time.sleep(0.01)
"""


def test_a_fork_while_a_thread_builds_holds_no_lock(family, cache, tmp_path):
    """It builds, or finds, what it asks for."""
    begun, slow = tmp_path / "begun", tmp_path / "slow-c++"
    slow.write_text(
        f'#!/bin/sh\ncase " $* " in *" -c "*) touch {begun}; sleep 1 ;; esac\nexec c++ "$@"\n'
    )
    slow.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", FORKED, family.folder, family.key(), begun],
        env={**os.environ, "CXX": str(slow)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0


# Should it hang, it says where.
ALONE = """
import faulthandler, sys
faulthandler.dump_traceback_later(50, exit=True)
import runtime
runtime.load(sys.argv[1])
runtime.kernel(sys.argv[2])
"""


def test_an_interrupt_ends_the_compilers(family, cache, tmp_path):
    """Also one that reaches the process alone, as a notebook's does."""
    endless, begun = tmp_path / "endless-c++", tmp_path / "begun"
    endless.write_text(
        '#!/bin/sh\ncase " $* " in *" -c "*) ;; *) exec c++ "$@" ;; esac\n'
        f"sleep 600 &\necho $! > {begun}.part; mv {begun}.part {begun}; wait\n"
    )
    endless.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, family.folder, family.key()],
        env={**os.environ, "CXX": str(endless)},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    while not begun.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said.splitlines()[-1] == "KeyboardInterrupt", said
    state = Path(f"/proc/{begun.read_text().strip()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_who_waits_for_anothers_build_says_for_which(cache):
    store, said, release, held = kernels.cache(), [], threading.Event(), threading.Event()

    def hold() -> None:
        with store.locked(["request"], "a kernel", said.append):
            held.set()
            release.wait()

    def waiting(builder: str) -> None:
        said.append(builder)
        release.set()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with store.locked(["request"], "it too", waiting):
        holder.join()
    assert said == [f"process {os.getpid()}, which builds a kernel", ""]
