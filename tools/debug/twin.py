"""The traced twin of a kernel: the same configuration with its family's trace on."""

from __future__ import annotations

import runtime
from codegen.core.problems import SpecError, UsageError
from codegen.space import explain
from codegen.space.expand import exclusions
from codegen.spec import keys
from codegen.spec.load import load
from runtime import KernelInfo, manifest, packs

from ..families import know, offering, specs


def family_of(name: str) -> str:
    """Returns the family that a key names, or the debuggable family that reads a short form.

    Raises:
        ValueError: none does.
        BuildError: its spec is in the current folder's kernel_specs, and wrong.
    """
    know(name)
    if (family := name.partition(".")[0]) in packs.families():
        return family
    error: ValueError | None = None
    for family in offering("debug"):
        try:
            key_of(name, family)
            return family
        except ValueError as problem:
            error = error or problem
    raise error or ValueError("no family can be debugged")


def key_of(name: str, family: str) -> str:
    """Returns the key of the traced twin of a kernel, by the kernel's key or short form; the twin
    may be in no set.

    Raises:
        ValueError: the family has no trace; or no configuration can have that name, and the nearest
            keys are named; or the twin is excluded: by which constraint, and why.
    """
    trace = manifest.family(family).trace
    if trace is None:
        raise ValueError(f"{family} has no `trace:` in its family.yaml: its kernels write no trace")
    try:
        target, values = explain.parse(name, load([specs(family)], only=family))
    except (SpecError, UsageError) as error:
        raise ValueError(str(error)) from None
    named = {**target.by_name(values), trace.parameter: True}
    twin = tuple(named[parameter.name] for parameter in target.parameters)
    key = keys.key_prefix(target) + keys.tokens_of(target.parameters)(twin)
    if reasons := exclusions(target, twin):
        raise ValueError("\n  ".join([f"{key} is excluded:", *reasons]))
    return key


def find(name: str) -> KernelInfo:
    """Returns the traced twin of a kernel; a traced kernel is its own twin. The twin is built if no
    pack holds it.

    Raises:
        ValueError: as `family_of` and `key_of`.
        TargetUnavailable: it cannot run here.
        BuildError: it does not compile.
    """
    return runtime.kernel(key_of(name, family_of(name)), build=True).info
