"""Problems and contenders, which a family's tools.py gives `kernelmint bench`.

docs/own_kernels.md has an example.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

import runtime
from runtime import KernelInfo

from ..comparison import compare
from .measure import Call

Inputs = dict[str, Any]  # by the names of the family's arguments
Results = Sequence[Tensor]
# The greatest norm of an error, over that of the expected tensor: about ten roundings of 16-bit
# inputs, and of f32 what products of TF32 lose. An integer is exact.
_LIMITS = {torch.bfloat16: 2e-2, torch.float16: 2e-2, torch.float32: 1e-3, torch.float64: 1e-9}


@dataclass(frozen=True, eq=False)
class Problem:
    """A cell of a table, whose rows are contenders: a frozen dataclass of the family's own. Its
    fields are columns of the figures.

    Attributes:
        unit: of rates: FLOP/s or B/s; "s" shows times.
        axis: what `extent` is.
        graphs: whether calls on a GPU are replayed from CUDA graphs, which have no gaps between
            launches.
        by_key: whether kernels are called by their keys, and not by contenders only.
    """

    unit: ClassVar[str] = "FLOP/s"
    axis: ClassVar[str] = "operations"
    graphs: ClassVar[bool] = False
    by_key: ClassVar[bool] = True

    if TYPE_CHECKING:  # properties or fields of each problem

        @property
        def group(self) -> str:
            """Returns the title of a table, which names what its cells share."""

        @property
        def size(self) -> str:
            """Returns the head of a column."""

    @property
    def operations(self) -> float:
        """Counts the operations of a call, or the bytes that it moves."""
        return 0.0

    @property
    def extent(self) -> float:
        """Returns the place on a plot's axis."""
        return self.operations

    def inputs(self, device: torch.device) -> Inputs:
        """Makes the inputs, the same at each call, by the names of the family's arguments."""
        raise NotImplementedError

    def as_columns(self) -> dict[str, Any]:
        """Returns the fields, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def suits(self, info: KernelInfo) -> bool:
        """Says whether a kernel's parameters have the values of the fields of these names."""
        fields = self.as_columns()
        return all(info.parameters.get(name, value) == value for name, value in fields.items())

    def call(self, info: KernelInfo, inputs: Inputs) -> Call:
        """Returns a call of a kernel, by its key."""
        return partial(runtime.kernel(info.key), **inputs)

    def notes(self, device: torch.device) -> Mapping[str, str]:
        """Returns what stands below a column, by the titles of the rows."""
        return {}

    def part(self, inputs: Inputs) -> tuple[Inputs, Callable[[Results], Results]]:
        """Returns the inputs that the reference gets, and what takes their results from those of a
        contender: all, unless that would be too much to compute in fp64."""
        return inputs, lambda results: results

    def expected(self, inputs: Inputs, reference: Callable[..., Any]) -> Results:
        """Returns what the family's reference makes of inputs and of the fields that it names."""
        names = inspect.signature(reference).parameters
        arguments = {n: v for n, v in (self.as_columns() | inputs).items() if n in names}
        return tensors(reference(**arguments))

    def judge(
        self, inputs: Inputs, reference: Callable[..., Any] | None
    ) -> Callable[[Results], str | None]:
        """Returns what says how a contender's results differ from the reference's, if they do."""
        if reference is None:
            return lambda results: None
        smaller, taken = self.part(inputs)
        expected = self.expected(smaller, reference)
        return lambda results: difference(taken(results), expected)


@dataclass(frozen=True)
class Contender:
    """An implementation that is measured beside a family's kernels, or a front that takes them.

    Attributes:
        make: of a problem and its inputs, a call that returns what the reference does (the first
            tensors of it will do), or why there can be none.
        device: the type of the devices that it runs on; None for any.
        distribution: its name on PyPI, if it is no part of PyTorch.
        module: what is imported of that.
        kernel: of a front, the key of the kernel that it takes, or its own name.
        judge: what says how its results differ from what is right, if `Problem.judge` does not.
    """

    make: Callable[[Any, Inputs], Call | str]
    device: str | None = None
    distribution: str | None = None
    module: str | None = None
    kernel: Callable[[Any, Inputs], str] | None = None
    judge: Callable[[Any, Inputs], Callable[[Results], str | None]] | None = None

    def version(self) -> str:
        """Returns the distribution and its version, if it has one: "fa3-fwd 0.0.3"."""
        if self.distribution is None:
            return ""
        try:
            return f"{self.distribution} {metadata.version(self.distribution)}"
        except metadata.PackageNotFoundError:
            return f"{self.module}, of no distribution"

    def absent(self, device: torch.device) -> str | None:
        """Returns why it cannot run on a device, whatever the problem; None if it can."""
        if self.device not in (None, device.type):
            return f"runs on {self.device}, not on {device.type}"
        if self.distribution is None:
            return None
        module = self.module or self.distribution.replace("-", "_")
        try:
            there = module in sys.modules or importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # a package that it is in
            there = False
        return None if there else f"not installed: pip install {self.distribution}"


def tensors(result: Any) -> tuple[Tensor, ...]:
    """Returns the tensors of a result, which may be one."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(t for t in results if isinstance(t, Tensor))


def difference(results: Results, expected: Results) -> str | None:
    """Says which result has an error whose norm is too great beside that of the expected one."""
    if not results:
        return "no tensor is returned"
    for number, (result, right) in enumerate(zip(results, expected, strict=False)):
        if result.shape == right.shape and not right.numel():
            continue
        compared = compare(result, right.double(), name=f"result {number}")
        if compared.problem is not None:
            return str(compared)
        if (compared.nan[0], compared.inf[0]) != (compared.nan[1], compared.inf[1]):
            return f"{compared}; got {compared.nan[0]} NaN, expected {compared.nan[1]}"
        if compared.rms_ratio > _LIMITS.get(result.dtype, 0.0):
            return (
                f"{compared}; the error's norm is {compared.rms_ratio:.2g} of the expected tensor's"
            )
    return None
