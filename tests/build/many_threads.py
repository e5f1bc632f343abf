"""Threads use a built wheel at once: run by a Python that has the wheel and PyTorch.
Without the GIL they run at the same time. Prints a line for each check."""

import contextlib
import sys
import sysconfig
import threading

import torch

import runtime
from runtime import packs

is_free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
assert not is_free or not sys._is_gil_enabled(), "an import has turned the GIL on"
print("free-threaded, without the GIL" if is_free else "with the GIL")

THREADS, ROUNDS = 8, 60
torch.set_num_threads(2)
calls = []
for length in (5, 19, 64):
    for causal in (False, True):
        q, k, v = torch.randn(3, 2, length, 4, 64).unbind()
        heads = [t.transpose(1, 2) for t in (q, k, v)]
        o = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal)
        calls.append((q, k, v, causal, o.transpose(1, 2)))
infos = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and not trace")
keys = {causal: [i.key for i in infos if i.parameters["causal"] == causal] for causal in (0, 1)}


def at_once(name, work):
    """Runs work(number of the thread, number of the round) in all threads, from one barrier on."""
    barrier, errors = threading.Barrier(THREADS), []

    def run(thread):
        barrier.wait()
        try:
            for n in range(ROUNDS):
                work(thread, n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive(), f"{name}: a thread hangs"
    if errors:
        raise errors[0]
    print(name)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def of(thread, n):
    return calls[(thread + n) % len(calls)]


def by_key(thread, n):
    q, k, v, causal, expected = of(thread, n)
    key = keys[causal][n % len(keys[causal])]
    close(runtime.kernel(key)(q, k, v), expected)


def by_function(thread, n):
    q, k, v, causal, expected = of(thread, n)
    close(runtime.attention(q, k, v, causal=causal), expected)
    if thread == 0 and n % 10 == 9:
        packs.changed()  # what calls keep is forgotten


def by_operator(thread, n):
    q, k, v, causal, expected = of(thread, n)
    close(torch.ops.kernelmint.flash_forward(keys[causal][0], q, k, v)[0], expected)


def with_gradient(thread, n):
    q, k, v, causal, _ = of(thread, n)
    leaf = q.clone().requires_grad_()
    runtime.attention(leaf, k, v, causal=causal).sum().backward()
    assert leaf.grad.isfinite().all()


shared = torch.zeros(2, 19, 4, 64)
out = [shared]


def through_a_list_that_changes(thread, n):
    if thread == 0:
        out[:] = [] if n % 2 else [torch.zeros_like(shared)]
        return
    q, k, v, causal, _ = calls[2]
    with contextlib.suppress(runtime.InvalidArgument, IndexError):  # the list was empty
        runtime.kernel(keys[causal][0])(q, k, v, out=out)


at_once("kernels by key, looked up at once", by_key)
at_once("a function's choice, while packs change", by_function)
at_once("an operator", by_operator)
at_once("gradients", with_gradient)
at_once("outputs in a list that another thread changes", through_a_list_that_changes)
assert not is_free or not sys._is_gil_enabled()
