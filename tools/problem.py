"""The problems on which kernels are tuned and checked: inputs, and the right results."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from codegen.core.expressions import (
    BOOL,
    EVALUATION_ERRORS,
    INT,
    ExpressionError,
    Kind,
    parse,
    scalar_kind,
)
from codegen.core.manifest import Family
from codegen.core.manifest import Tensor as Argument
from codegen.core.where import parameter_kind
from codegen.spec.model import Shape
from runtime import KernelInfo, manifest
from runtime.operators import DTYPES

from .comparison import Difference, Tolerance, compare
from .families import HOOKS, hook, oracle, path_of

MAKER = "tuning_inputs"
_ANY_EXTENTS = (1, 7, 130)  # the size of every open symbol of a family that lists no calls
# One rounding of a result; for f32 and f64 also that of the sums within.
UNITS = {
    torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-18,
    torch.float64: 2.0**-40,
}  # fmt: skip


class NoProblemError(ValueError):
    """A family's kernels cannot be checked on generated inputs; the message says why."""


@dataclass(frozen=True)
class Case:
    """A call that a family's kernels are checked with; its tools.py has them as mappings.

    Attributes:
        sizes: the sizes of the symbols that its kernels leave open.
        values: the elements of tensors that are not to be random, by argument.
        options: further arguments: scalars, and `return_...` of optional outputs.
        without: the checkers of race-check that are wrong about it.
        parameters: its kernels' parameters; kernels without them also take it.
        given: optional inputs that are passed, beside those that have values.
    """

    sizes: Mapping[str, int]
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    @property
    def present(self) -> set[str]:
        """Returns the optional tensors that a call passes or asks for, whatever its kernel does."""
        outputs = {
            name.removeprefix("return_") for name, value in self.options.items() if value is True
        }
        return {*self.given, *self.values, *outputs}


@dataclass(eq=False)
class Problem:
    """The arguments of a call by name, and the results that it must return."""

    family: Family
    parameters: dict[str, Any]
    tensors: dict[str, Any]  # a list's are a list
    scalars: dict[str, Any]
    shapes: tuple[tuple[torch.dtype, list[int]], ...]  # seed of the outputs' poison
    device: torch.device
    defaults: dict[str, Any] = field(default_factory=dict)  # values of scalars that are not passed

    def outputs(self) -> tuple[Tensor, ...]:
        """Allocates memory for the results, poisoned."""
        return tuple(
            torch.full(shape, _poison(dtype), dtype=_counted(dtype), device=self.device).view(dtype)
            for dtype, shape in self.shapes
        )

    @functools.cached_property
    def expected(self) -> tuple[Tensor, ...]:
        """Returns the results of the family's reference."""
        return self.by(oracle(self.family.name))

    def by(self, reference: Callable[..., Any]) -> tuple[Tensor, ...]:
        """Returns the results of a function with the reference's parameters. A scalar or a
        parameter of the kernel that the function does not name is left out, unless the function
        takes `**`; a scalar that the function needs and the call leaves out has the spec's
        default."""
        name = f"{self.family.spec_folder}/{self.family.reference}"
        accepted = inspect.signature(reference).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        needed = _needed(reference)
        defaults = {name: value for name, value in self.defaults.items() if name in needed}
        others = defaults | self.scalars | self.parameters
        if not takes_all:
            others = {k: v for k, v in others.items() if k in accepted}
        if unknown := [k for k in self.tensors if k not in accepted and not takes_all]:
            raise NoProblemError(
                f"{name}: it has no parameter {', '.join(unknown)}: its parameters are named as "
                "the family's arguments"
            )
        if lacking := [k for k in needed if k not in self.tensors | others]:
            raise NoProblemError(
                f"{name}: it needs {', '.join(lacking)}, which no call passes: give a default"
            )
        results = reference(**self.tensors, **others)
        expected = results if isinstance(results, tuple) else (results,)
        outputs, options = self.family.outputs, _outputs(self.family, self.scalars)
        if len(expected) >= len(outputs) > len(options):  # it also returns the optional ones
            returned = zip(outputs, expected, strict=False)
            expected = (*(t for a, t in returned if a in options), *expected[len(outputs) :])
        expected_shapes = [shape for _, shape in self.shapes]
        also = [
            *expected_shapes,
            *(list(t.shape) for t in single(self.tensors, self.changed).values()),
        ]
        if (result_shapes := [list(t.shape) for t in expected]) not in (expected_shapes, also):
            of = ", ".join(a.name for a in options)
            raise NoProblemError(
                f"{name}: it returns {result_shapes}, expected {expected_shapes}, of {of}"
            )
        return expected

    @functools.cached_property
    def magnitudes(self) -> Sequence[Tensor]:
        """Returns, for each expected tensor, the magnitude of the terms of its sums."""
        magnitude = hook(self.family.name, "magnitude")
        return self.by(magnitude) if magnitude else [*map(_largest, self.expected)]

    def prepare(self) -> None:
        """Computes the expected results before a kernel changes an input, which those of a family
        with a rule of its own may need."""
        default = not hook(self.family.name, "differences")
        if default or self.changed:
            _ = self.expected
        if default or hook(self.family.name, "magnitude"):
            _ = self.magnitudes

    def check(self, kernel: Callable[..., Any]) -> list[Difference]:
        """Calls a kernel once; returns the difference of each result from the expected one. The
        inputs are the same afterwards.

        An element is right within unit * (|expected| + magnitude): the magnitude is that of the
        family's hook `magnitude`, or the largest |expected|; infinities and NaN are right if
        expected. A reference may return the tensors that kernels change in place after the outputs.
        The hook `differences`, if the family has it, decides instead.
        """
        self.prepare()  # before the kernel changes an input
        originals = {name: each(Tensor.clone, self.tensors[name]) for name in self.changed}
        out = self.outputs()
        kernel(**self.arguments(out))
        try:
            return self.differences(out)
        finally:
            self.tensors |= originals

    def differences(self, out: tuple[Tensor, ...]) -> list[Difference]:
        """Returns the difference of each result of a call from the expected one, as `check`."""
        if judge := hook(self.family.name, "differences"):
            return list(judge(self, out))
        outputs = [a.name for a in _outputs(self.family, self.scalars)]
        dims = {argument.name: argument.dims for argument in self.family.tensors}
        results = dict(zip(outputs, out, strict=True)) | single(self.tensors, self.changed)
        differences = []
        for (name, got), want, scale in zip(
            results.items(), self.expected, self.magnitudes, strict=False
        ):
            if want.numel() == 0:
                continue
            got, want = (x.view(_counted(x.dtype)) for x in (got, want))
            unit, want = UNITS.get(got.dtype, 0.0), want.double()
            both_nan = got.isnan() & want.isnan()
            differences.append(compare(
                got, want, name=name, tolerance=Tolerance(unit, unit), atol_scale=scale,
                dims=dims[name.partition("[")[0]],
                where=~both_nan if bool(both_nan.any()) else None,
            ))  # fmt: skip
        return differences

    @property
    def changed(self) -> list[str]:
        """Returns the inputs that kernels change in place."""
        return [a.name for a in self.family.inputs if a.mutated and a.name in self.tensors]

    def arguments(self, out: tuple[Tensor, ...]) -> dict[str, Any]:
        """Returns the arguments of a kernel's call."""
        written = {"out": out if len(out) > 1 else out[0]} if out else {}
        return {**self.tensors, **self.scalars, **written}


def each(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Returns a function's results for an input: of a list, for each of its tensors."""
    return list(map(function, value)) if isinstance(value, (list, tuple)) else function(value)


def single(tensors: Mapping[str, Any], names: Iterable[str]) -> dict[str, Tensor]:
    """Returns the tensors of these inputs by name; those of a list as `params[3]`."""
    by_name: dict[str, Tensor] = {}
    for name in names:
        if isinstance(value := tensors[name], (list, tuple)):
            by_name |= {f"{name}[{i}]": tensor for i, tensor in enumerate(value)}
        else:
            by_name[name] = value
    return by_name


def _needed(function: Callable[..., Any]) -> list[str]:
    """Returns the parameters that have no default."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in named]


def _largest(expected: Tensor) -> Tensor:
    """Returns the largest finite magnitude, in fp64; 0 for an empty tensor."""
    expected = expected.view(_counted(expected.dtype)).double()
    finite = expected[expected.isfinite()].abs()
    return finite.max() if finite.numel() else expected.new_zeros(())


def _outputs(family: Family, options: Mapping[str, Any]) -> list[Argument]:
    """Returns the outputs of a call: optional outputs only if they are asked for."""
    return [a for a in family.outputs if not a.optional or options.get(f"return_{a.name}")]


def _counted(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype by which PyTorch fills and compares tensors: bytes for pairs of floats."""
    return torch.uint8 if dtype == DTYPES.get("e2m1x2") else dtype


def _poison(dtype: torch.dtype) -> float | int:
    counted = _counted(dtype)
    return float("nan") if counted.is_floating_point else torch.iinfo(counted).min


def check(family: Family, parameters: Mapping[str, Any], passed: Sequence[str] = ()) -> None:
    """Raises NoProblemError if inputs cannot be made, or if the family names neither a reference
    nor a rule; `given`: optional inputs that are passed."""
    if family.reference is None:
        raise NoProblemError(
            f"{family.name} names no reference to compare with: add "
            "`reference: file.py:function` to its family.yaml"
        )
    try:
        accepted = inspect.signature(oracle(family.name)).parameters
    except Exception as error:  # the file is the family's own
        raise NoProblemError(
            f"{family.spec_folder}/{family.reference}: {type(error).__name__}: {error}"
        ) from None
    if _maker(family) is None:
        _check_inputs(family, parameters, passed)
    for argument in family.inputs:
        if not argument.optional or argument.name in passed:
            _dtype_of(argument, family, parameters)
    for parameter in family.parameters:
        if parameter.name in accepted and parameter.name not in parameters:
            raise NoProblemError(
                f"{family.name}: the right result depends on '{parameter.name}', which the "
                "reference takes: name its values under `parameters` of the shapes"
            )


def _dtype_of(argument: Argument, family: Family, parameters: Mapping[str, Any]) -> str:
    """Returns an input's dtype. Raises NoProblemError if `parameters` do not say it."""
    dtype = str(parameters.get(argument.dtype, argument.dtype))
    if dtype not in DTYPES:
        raise NoProblemError(
            f"{family.name}: the dtype of '{argument.name}' is the parameter '{dtype}': name "
            "its values under `parameters` of the shapes"
        )
    return dtype


def _check_inputs(
    family: Family,
    parameters: Mapping[str, Any],
    passed: Container[str],
    by_family: Container[str] = (),
    once: bool = False,
) -> None:
    """Raises NoProblemError if an input that is passed, and that the family does not make, cannot
    be random."""
    for argument in family.inputs:
        if (argument.optional and argument.name not in passed) or argument.name in by_family:
            continue
        dtype = _dtype_of(argument, family, parameters)
        if argument.length:
            why = "is a list of tensors"
        elif argument.mutated and not once:
            why = "changes it in place"
        elif not (DTYPES[dtype].is_floating_point or argument.packed):
            why = f"has the dtype {dtype}, and random integers may mean nothing"
        else:
            continue
        file = (family.reference or "reference.py").partition(":")[0]
        extra = ", given" if argument.optional else ""
        raise NoProblemError(
            f"{family.name}: no random input can be made of '{argument.name}', which {why}; write "
            f"`{MAKER}(sizes, parameters, generator{extra})` in {file}, which returns the input "
            "tensors by name"
        )


def _maker(family: Family) -> Any:
    try:
        return oracle(family.name, MAKER)
    except AttributeError:
        return None


def make(name: str, shape: Shape, device: torch.device, seed: int) -> Problem:
    """Makes random inputs of a shape, normally distributed unless the family makes its own."""
    family, parameters = manifest.family(name), dict(shape.parameters)
    check(family, parameters, shape.given)
    generator = torch.Generator(device).manual_seed(seed)
    return _tensors_of(family, parameters, _case(shape), generator)


def _case(shape: Shape) -> Case:
    return Case(dict(shape.sizes), {}, dict(shape.scalars), given=shape.given)


def bytes_moved(family: Family, shape: Shape) -> int | None:
    """Returns the bytes of the tensors of a shape, each counted once; None if the tuned parameters
    decide them."""
    parameters, case = dict(shape.parameters), _case(shape)
    try:
        moved = [
            _dtype(a, parameters).itemsize * math.prod(_extents(family, a, parameters, case))
            for a in family.tensors
            if not a.optional or a.name in case.present
        ]
    except (NoProblemError, KeyError):
        return None
    return sum(moved)


def cases_of(info: KernelInfo, name: str = "CASES") -> list[Case]:
    """Returns the calls that a kernel is checked with. Without a family's own list, they ask for
    all optional outputs that its `requires` lets them."""
    values = info.parameters
    cases_ = [
        case
        for case in cases(info.family, name)
        if all(values.get(n, value) == value for n, value in case.parameters.items())
    ]
    if _listed(info.family, name) is not None:
        return cases_
    return [replace(case, options=_requested(info, case)) for case in cases_]


def _requested(info: KernelInfo, case: Case) -> dict[str, bool]:
    family = manifest.family(info.family)
    options = {f"return_{a.name}": True for a in family.outputs if a.optional}
    for name in tuple(options):
        if not _is_allowed(info, replace(case, options=options), name.removeprefix("return_")):
            del options[name]
    return options


def _is_allowed(info: KernelInfo, case: Case, output: str) -> bool:
    """Returns whether all rules of the family that name an output hold, as far as a case gives
    their names values."""
    family, parameters = manifest.family(info.family), {**info.parameters, **info.derived}
    sizes = {**case.sizes, **compiled_sizes(info)}
    scope, values = _case_scope(family, parameters, replace(case, sizes=sizes))
    for rule in family.requires:
        try:
            that = parse(rule.that, scope, "bool")
            if output in that.names and not that.evaluate(values):
                return False
        except (ExpressionError, *EVALUATION_ERRORS):  # it names a scalar
            continue
    return True


def unseen(info: KernelInfo) -> list[str]:
    """Returns the results that no case of a kernel asks for."""
    family = manifest.family(info.family)
    names = {name for case in cases_of(info) for name in case.present}
    may_be_left_out = [a.name for a in family.outputs if a.optional]
    if _maker(family) is None:  # the family may make the inputs that kernels change
        may_be_left_out += [a.name for a in family.inputs if a.optional and a.mutated]
    return [name for name in may_be_left_out if name not in names]


def cases(family: str, name: str = "CASES") -> tuple[Case, ...]:
    """Returns the calls that a family's kernels are checked with: those of this name in its
    tools.py, else CASES, else some in which all open symbols are equal."""
    listed = _listed(family, name)
    if listed is None:
        family_ = manifest.family(family)
        symbols = set(family_.symbols) - _compiled_in(family_).keys()
        return tuple(Case(dict.fromkeys(symbols, extent)) for extent in _ANY_EXTENTS)
    try:
        return tuple(Case(**entry) for entry in listed)
    except TypeError as error:
        raise NoProblemError(f"{path_of(family, HOOKS)}: {name}: {error}") from None


def _listed(family: str, name: str) -> Any:
    return hook(family, name, hook(family, "CASES"))


def of_case(
    info: KernelInfo, case: Case, device: torch.device, *, counting: bool = False, seed: int = 0
) -> Problem:
    """Makes the inputs of a case for a kernel. They are drawn on the CPU and copied, so that one
    seed gives the same on every device, and initcheck sees which are initialised.

    Args:
        info: the kernel.
        case: sizes and options.
        device: the kernel's device.
        counting: inputs that count, if the family has some.
        seed: the seed of the random numbers.

    Raises:
        NoProblemError: no inputs can be made of an argument, or none that count.
    """
    family = manifest.family(info.family)
    case = replace(case, sizes={**case.sizes, **compiled_sizes(info)})
    parameters = {**info.parameters, **info.derived}
    if counting:
        maker = hook(info.family, "counting_inputs")
        if maker is None:
            raise NoProblemError(
                f"{info.family} has no inputs that count: write `counting_inputs(sizes, "
                f"parameters)` in {path_of(info.family, HOOKS)}, which returns the input tensors "
                "by name"
            )
        tensors = _problem(family, parameters, case, maker(case.sizes, parameters), device)
    else:
        tensors = _tensors_of(
            family, parameters, case, torch.Generator().manual_seed(seed), once=True
        )
    on_host = {a.name for a in family.inputs if a.on_host}
    tensors.device = device
    tensors.tensors = {
        name: tensor if name in on_host else each(lambda one: one.to(device).contiguous(), tensor)
        for name, tensor in tensors.tensors.items()
    }
    return tensors


def _tensors_of(
    family: Family,
    parameters: dict[str, Any],
    case: Case,
    generator: torch.Generator,
    once: bool = False,
) -> Problem:
    device = generator.device
    tensors = _from_maker(family, parameters, case, generator)
    dtypes = {a.name: _dtype(a, parameters) for a in family.inputs if a.name in case.values}
    tensors |= {
        name: torch.tensor(values, dtype=dtypes[name], device=device)
        for name, values in case.values.items()
    }
    _check_inputs(family, parameters, case.given, tensors, once)
    tensors |= {
        a.name: _random(family, a, parameters, case, generator)
        for a in family.inputs
        if a.name not in tensors and (not a.optional or a.name in case.given)
    }
    return _problem(family, parameters, case, tensors, device)


def _random(
    family: Family,
    argument: Argument,
    parameters: Mapping[str, Any],
    case: Case,
    generator: torch.Generator,
) -> Tensor:
    """Returns normally distributed numbers; for several in an element, random bits."""
    dtype, shape = _dtype(argument, parameters), _extents(family, argument, parameters, case)
    device = generator.device
    if not argument.packed and _counted(dtype) == dtype:
        return torch.randn(shape, generator=generator, device=device).to(dtype)
    shape[-1] *= dtype.itemsize
    bits = torch.randint(256, shape, generator=generator, device=device, dtype=torch.uint8)
    return bits.view(dtype)


def _from_maker(
    family: Family, parameters: Mapping[str, Any], case: Case, generator: torch.Generator
) -> dict[str, Tensor]:
    """Returns the inputs that the family makes."""
    maker = _maker(family)
    if maker is None:
        return {}
    takes_given = "given" in inspect.signature(maker).parameters
    others = {"given": case.given} if takes_given else {}
    tensors = dict(maker(dict(case.sizes), parameters, generator, **others))
    optional = {a.name for a in family.inputs if a.optional}
    if takes_given and (unasked := optional & tensors.keys() - set(case.given)):
        raise NoProblemError(
            f"{family.spec_folder}/{family.reference}: {MAKER} returns "
            f"{', '.join(sorted(unasked))}, expected these optional inputs: "
            f"{', '.join(case.given) or 'none'}"
        )
    return tensors


def _problem(
    family: Family,
    parameters: dict[str, Any],
    case: Case,
    tensors: Mapping[str, Tensor],
    device: torch.device,
) -> Problem:
    case = replace(case, given=tuple(tensors))
    outputs = tuple(
        (_dtype(a, parameters), _extents(family, a, parameters, case))
        for a in _outputs(family, case.options)
    )
    defaults = _defaults(family, parameters, case)
    return Problem(family, parameters, dict(tensors), dict(case.options), outputs, device, defaults)


def _defaults(family: Family, parameters: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Returns the defaults of scalars that a case does not pass, as far as its sizes determine
    them."""
    scope, values = _case_scope(family, parameters, case)
    defaults = {}
    for scalar in family.scalars:
        if scalar.default is not None and scalar.name not in case.options:
            with contextlib.suppress(ExpressionError, *EVALUATION_ERRORS):
                value = parse(scalar.default, scope).evaluate(values)
                defaults[scalar.name] = scalar.values[int(value)] if scalar.values else value
    return defaults


def _dtype(argument: Argument, parameters: Mapping[str, Any]) -> torch.dtype:
    return DTYPES[str(parameters.get(argument.dtype, argument.dtype))]


def _extents(
    family: Family, argument: Argument, parameters: Mapping[str, Any], case: Case
) -> list[int]:
    scope, values = _case_scope(family, parameters, case)
    try:
        return [int(parse(text, scope, "int").evaluate(values)) for text in argument.dims]
    except ExpressionError as error:
        raise NoProblemError(
            f"{family.name}: the extents of '{argument.name}' are not known: {error}"
        ) from None


def _case_scope(
    family: Family, parameters: Mapping[str, Any], case: Case
) -> tuple[dict[str, Kind], dict[str, Any]]:
    """Returns the names that expressions may use for a case, with their values."""
    kinds: dict[str, Kind] = {
        name: BOOL if isinstance(value, bool) else INT
        for name, value in parameters.items()
        if isinstance(value, int)
    }
    kinds |= {p.name: parameter_kind(p) for p in family.parameters if p.name in parameters}
    kinds |= {a.name: scalar_kind(a) for a in family.scalars if a.name in case.options}
    there = {name: name in case.present for name in family.optional_tensors}
    scope = {**dict.fromkeys(there, BOOL), **kinds, **dict.fromkeys(case.sizes, INT)}
    return scope, {**there, **case.options, **parameters, **case.sizes}


def compiled_sizes(info: KernelInfo) -> dict[str, int]:
    """Returns the symbols that a kernel's parameters fix, and their sizes."""
    fixed = _compiled_in(manifest.family(info.family))
    return {symbol: info.parameters[parameter] for symbol, parameter in fixed.items()}


def _compiled_in(family: Family) -> dict[str, str]:
    """Returns the symbols that a parameter fixes, by the family's `requires`: {D: d_head}."""
    parameters = {parameter.name for parameter in family.parameters}
    rules = [re.fullmatch(r"(\w+) == (\w+)", rule.that) for rule in family.requires]
    sides = [side for rule in rules if rule for side in ((rule[1], rule[2]), (rule[2], rule[1]))]
    return {s: p for s, p in sides if s in family.symbols and p in parameters}
