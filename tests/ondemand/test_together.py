"""Threads, forks and interrupts."""

from __future__ import annotations

import contextlib
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


# Should it hang, it says where. What a shell starts in the background ignores interrupts, and so do
# the tests there, and what they start.
INTERRUPTED = """
import faulthandler, signal, sys
faulthandler.dump_traceback_later(50, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
import runtime
runtime.load(sys.argv[1])
"""
ALONE = f"{INTERRUPTED}runtime.kernel(sys.argv[2])"


@pytest.fixture
def endless(tmp_path, monkeypatch):
    """A compiler that never ends, and says in a file beside it that it runs: CXX names it."""
    compiler, begun = tmp_path / "endless-c++", tmp_path / "begun"
    compiler.write_text(
        '#!/bin/sh\ncase " $* " in *" -c "*) ;; *) exec c++ "$@" ;; esac\n'
        f"sleep 600 &\necho $! > {begun}.part; mv {begun}.part {begun}; wait\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return compiler


def test_an_interrupt_ends_the_compilers(family, cache, endless, tmp_path):
    """Also one that reaches the process alone, as a notebook's does."""
    begun = tmp_path / "begun"
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, family.folder, family.key()],
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


# The interrupt comes when the main thread has just taken a lock that a thread which builds takes.
AT_A_LOCK = f"""{INTERRUPTED}
def interrupt(frame, event, _):
    caller = frame.f_back and frame.f_back.f_code
    if (
        event == "return" and frame.f_code.co_name == "__enter__"
        and caller.co_name == "wait" and caller.co_filename == sys.modules[sys.argv[3]].__file__
    ):
        sys.setprofile(None)
        print("interrupted", flush=True)
        signal.raise_signal(signal.SIGINT)
sys.setprofile(interrupt)
runtime.kernel(sys.argv[2])
"""


@pytest.mark.parametrize("module", ["threading", "concurrent.futures._base"])
def test_an_interrupt_at_a_lock_leaves_none_taken(family, cache, endless, module):
    done = in_new_process(AT_A_LOCK, family.folder, family.key(), module, check=False)
    assert done.stdout == "interrupted\n"
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt", done.stderr
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            assert str(endless).encode() not in command.read_bytes()


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
