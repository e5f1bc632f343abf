"""parallel_for, several Python threads at once, and fork."""

import runpy
import threading
from pathlib import Path

import pytest
import torch


@pytest.fixture
def run(probe):
    kernel = probe.kernel("threads.cpu.default")

    def call(n, threads, mode=0):
        return kernel.call((torch.zeros(n, dtype=torch.int64),), (mode, threads), (), None)

    return call


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 64, 10_001])
def test_each_index_is_run_once_by_a_worker_that_exists(run, count, threads):
    for _ in range(20):
        counts, workers = run(count, threads)
        assert (counts == 1).all()
        assert workers.min() >= 0
        assert workers.max() < threads


def test_several_threads_take_part(run):
    _, workers = run(256, 4, mode=3)
    assert len(workers.unique()) == 4


def test_calls_nest(run):
    counts, _ = run(50, 4, mode=2)
    assert (counts == 1).all()


def test_an_exception_reaches_the_caller_and_the_pool_survives(run):
    for threads in (1, 4):
        with pytest.raises(RuntimeError, match="index 3 threw"):
            run(1000, threads, mode=1)
        assert (run(1000, threads)[0] == 1).all()


def test_several_python_threads_call_at_once(run):
    wrong = []

    def work():
        for _ in range(200):
            counts, workers = run(37, 3)
            if (counts != 1).any() or workers.max() >= 3:
                wrong.append(counts)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_the_lock_of_python_is_free_while_a_kernel_runs(run):
    ticks = 0
    done = threading.Event()

    def tick():
        nonlocal ticks
        while not done.wait(0.002):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    run(100, 1, mode=3)  # sleeps for 100 ms
    done.set()
    ticker.join()
    assert ticks >= 5


def test_a_daemon_thread_inside_a_kernel_does_not_keep_the_process_from_ending(
    probe, run_python, tmp_path
):
    """The kernel ends while the interpreter is being finalized, which takes longer still."""
    script = f"""
import threading, time
import torch
from runtime import _native

kernel = _native.Library({str(probe.libraries["threads"])!r}).kernel("threads.cpu.default")

class Slow:
    def __del__(self, sleep=time.sleep):  # runs once daemon threads may no longer take the lock
        sleep(1.5)

slow = Slow()
running = threading.Event()

def work():
    running.set()
    kernel.call((torch.zeros(500, dtype=torch.int64),), (3, 1), (), None)  # 500 times a millisecond
    print("a thread that should have ended")

threading.Thread(target=work, daemon=True).start()
running.wait()
time.sleep(0.1)
"""
    done = run_python(script, tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_forked_child_calls_kernels(run_python, tmp_path):
    script = """
import os, sys
import torch, runtime
torch.set_num_threads(4)
q = torch.randn(2, 300, 4, 64)
before = runtime.attention(q, q, q)
for _ in range(3):
    child = os.fork()
    if child == 0:
        same = torch.equal(runtime.attention(q, q, q), before)
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
assert torch.equal(runtime.attention(q, q, q), before)
print("well")
"""
    assert run_python(script, tmp_path).stdout == "well\n"


def test_threads_look_up_choose_call_and_forget_at_once(capsys):
    """The script that `make matrix` also runs without the GIL."""
    threads = torch.get_num_threads()
    runpy.run_path(str(Path(__file__).parents[1] / "build/many_threads.py"))
    torch.set_num_threads(threads)
    assert len(capsys.readouterr().out.splitlines()) == 6
