"""Parameters that stand for an option of the compiler: the flags of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen.core.words import did_you_mean
from codegen.spec.flags import load_flag
from codegen.spec.model import CompilerOption, Parameter, ParameterType
from codegen.spec.source import Document

# Flags of named options, for the compilers of the CPU's and of CUDA's kernels; {} is the value.
# ptxas takes no --maxrregcount for a kernel with __launch_bounds__ unless it may override them.
_NAMED: Mapping[str, Mapping[str, str]] = {
    "optimize": {"cpu": "-O{}", "cuda": "-Xptxas=-O{}"},
    "fast_math": {"cpu": "-ffast-math", "cuda": "--use_fast_math"},
    "maxrregcount": {"cuda": "--maxrregcount={} -Xptxas=--override-directive-values"},
}
_RANGES = {"optimize": (0, 3), "maxrregcount": (16, 255)}


def check_option(document: Document, parameter: Parameter, of_target: bool) -> None:
    """Reports an option that a parameter's values cannot stand for; `of_target` says that the
    parameter is one target's, whose compiler is known."""
    option, path = parameter.option, ("parameters", parameter.name, "option")
    is_bool = parameter.type is ParameterType.BOOL
    if parameter.type is ParameterType.DTYPE:
        document.report("a dtype is no option of a compiler", *path)
    elif not option.startswith("-"):
        _check_named(document, parameter, *path)
    elif not of_target:
        document.report(
            f"'{option}' is one compiler's: give each target that takes it the parameter", *path
        )
    elif (option.count("{}"), option.count("{"), option.count("}")) != (3 * (int(not is_bool),)):
        takes = "no {}: a true value gives it" if is_bool else "one {}, for the value"
        document.report(
            f"the option of a parameter of type {parameter.type.value} has {takes}", *path
        )
    else:
        load_flag(document, option, *path)


def _check_named(document: Document, parameter: Parameter, *path: str | int) -> None:
    option, values = parameter.option, parameter.values or ()
    expected = ParameterType.BOOL if option == "fast_math" else ParameterType.INT
    if option not in _NAMED:
        hint = did_you_mean(option, _NAMED)
        document.report(f"unknown option '{option}'{hint}; a flag begins with '-'", *path)
    elif parameter.type is not expected:
        document.report(f"{option} is of type {expected.value}", *path)
    elif option in _RANGES:
        least, most = _RANGES[option]
        if not values or not all(least <= int(value) <= most for value in values):
            document.report(f"{option} lists its `values`, from {least} to {most}", *path)


def resolved(
    document: Document, parameters: Sequence[Parameter], is_cuda: bool
) -> tuple[CompilerOption, ...]:
    """Returns the options of a target's parameters; reports those that its compiler lacks."""
    options = []
    for parameter in parameters:
        flags = parameter.option
        if flags in _NAMED:
            flags = _NAMED[flags].get("cuda" if is_cuda else "cpu", "")
            if not flags:
                message = f"the compiler of cpu has no {parameter.option}, as '{parameter.name}' is"
                document.report(message, "target")
        if flags.startswith("-"):
            options.append(CompilerOption(parameter.name, flags))
    return tuple(options)
