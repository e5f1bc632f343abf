"""Direct calls of the operators: torch.ops runs a plain call without PyTorch's dispatcher."""

from __future__ import annotations

import functools

import torch

from runtime import _native
from runtime._native import DirectCall, OperatorCall
from runtime.operators.arguments import NAMESPACE

HAS_NUMBERS = hasattr(torch._C.DispatchKeySet, "from_raw_repr")  # from PyTorch 2.8 on
_BETWEEN = ("BackendSelect", "ADInplaceOrView")  # keys of every thread; neither does anything here


def call_directly(operator: str, call: OperatorCall) -> None:
    """Has torch.ops run an operator's plain calls without the dispatcher, which converts Python's
    objects to its own and back, twice. PyTorch's function gets all other calls."""
    packet = getattr(getattr(torch.ops, NAMESPACE), operator)
    holders = packet, packet.default
    register = getattr(torch.jit._builtins, "_register_builtin", None)
    if register is None or not all("_op" in vars(h) for h in holders) or not _reads_keys():
        return
    for holder in holders:
        direct = DirectCall(call, _is_thread_plain, holder._op)
        functools.update_wrapper(direct, holder._op)
        del vars(direct)["__wrapped__"]  # a packet has it too: inspect.signature would look there
        register(direct, f"{NAMESPACE}::{operator}")  # TorchScript knows functions by this
        holder._op = direct


def is_device_next(keys: int) -> bool:
    """Returns whether, of these dispatch keys, a kernel of a device follows autograd's: no mode,
    transform or subclass is between them."""
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & torch._C._after_autograd_keyset
    return below.highestPriorityTypeId() in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


def _is_thread_plain() -> bool:
    """Returns whether no mode, transform or cast of this thread has to see a call of plain
    tensors."""
    included = torch._C._dispatch_tls_local_include_set().raw_repr()
    for name in _BETWEEN:
        key = getattr(torch._C.DispatchKey, name)
        included &= ~torch._C.DispatchKeySet(key).raw_repr()
    return included == 0 and not torch._C._is_any_autocast_enabled()


@functools.cache
def _reads_keys() -> bool:
    """Returns whether the extension finds a thread's keys where this PyTorch keeps them: it has to
    see which key a guard excludes."""
    before = _native.thread_keys()
    needed = ("_dispatch_tls_local_include_set", "_is_any_autocast_enabled")
    if before is None or not HAS_NUMBERS or not all(hasattr(torch._C, name) for name in needed):
        return False
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.Negative)  # no call here has it
    with torch._C._ExcludeDispatchKeyGuard(key):
        excluded = _native.thread_keys()
    return excluded == (before[0], before[1] ^ key.raw_repr())
