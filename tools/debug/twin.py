"""The traced twin of a kernel: the same configuration with `trace`."""

from __future__ import annotations

from pathlib import Path

import runtime
from codegen import staleness
from codegen.space.explain import explain
from codegen.spec import keys
from codegen.spec.load import load
from codegen.spec.problems import SpecError, UsageError
from runtime import KernelInfo

from ..oracle import specs as specs_of


def find(info: KernelInfo) -> KernelInfo:
    """The traced twin of a kernel, which is itself where it is traced.

    Raises:
        ValueError: it is not in this build; the message says how to build it.
    """
    wanted = {**info.parameters, "trace": True}
    for other in runtime.kernels(info.family, info.target):
        if other.parameters == wanted:
            if other.built:
                return other
            raise ValueError(f"{other.key} is not in this build: {other.reason}")
    raise ValueError(how_to_build(info))


def how_to_build(info: KernelInfo, specs: Path | None = None) -> str:
    """What to write and to run so that a kernel's traced twin is there."""
    specs = specs or specs_of(info.family)
    lacking = f"this build holds no traced twin of {info.key}"
    generated = specs.parent / "generated"
    if not generated.is_dir():
        return f"{lacking}; in a clone of Kernelmint, the same command says how to build it"
    try:
        families = load((specs,))
        target = next(
            target
            for family in families
            for target in family.targets
            if (family.name, target.name) == (info.family, info.target)
        )
        wanted = {**info.parameters, "trace": True}
        values = [wanted[parameter.name] for parameter in target.parameters]
        key = keys.key_prefix(target) + keys.tokens_of(target.parameters)(values)
        text = explain(key, families, staleness.read_manifest(specs.parent / "generated")).text
    except SpecError as error:
        text = "\n".join(str(problem) for problem in error.problems)
    except UsageError as error:
        text = str(error)
    return f"{lacking}.\n{text}\nand then\n  pip install ."
