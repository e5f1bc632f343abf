"""The traced twin of a kernel: the same configuration with its family's trace on."""

from __future__ import annotations

import runtime
from codegen.space import explain
from codegen.space.expand import exclusions
from codegen.spec import keys
from codegen.spec.load import load
from codegen.spec.problems import SpecError, UsageError
from runtime import KernelInfo, manifest

from ..oracle import specs as specs_of
from ..selection import FAMILY


def key_of(name: str) -> str:
    """The key of the traced twin of a kernel, which may be in no set, by its key or short form.

    Raises:
        ValueError: no configuration can have that name, and the nearest keys are named; or the
            twin is excluded: by which constraint, and why.
    """
    trace = manifest.family(FAMILY).trace
    assert trace is not None
    try:
        target, values = explain.parse(name, load([specs_of(FAMILY)], only=FAMILY))
    except (SpecError, UsageError) as error:
        raise ValueError(str(error)) from None
    named = {**target.by_name(values), trace.parameter: True}
    twin = tuple(named[parameter.name] for parameter in target.parameters)
    key = keys.key_prefix(target) + keys.tokens_of(target.parameters)(twin)
    if reasons := exclusions(target, twin):
        raise ValueError("\n  ".join([f"{key} is excluded:", *reasons]))
    return key


def find(name: str) -> KernelInfo:
    """The traced twin of a kernel, which is itself where it is traced. It is built where no pack
    holds it.

    Raises:
        ValueError: as `key_of`.
        TargetUnavailable: it cannot run here.
        BuildError: it does not compile.
    """
    return runtime.kernel(key_of(name), build=True).info
