"""The arguments of a family: its tensors, the symbols of their extents, and its scalars."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from codegen.core.dtypes import SCALARS
from codegen.core.expressions import BOOL, DEVICE_FACTS, FUNCTIONS, INT, Expression, Kind
from codegen.core.words import did_you_mean
from codegen.spec import schema
from codegen.spec.checks import (
    check_dtype,
    check_fill,
    load_alignment,
    load_expression,
)
from codegen.spec.model import (
    Dim,
    Parameter,
    Role,
    Rule,
    Scalar,
    Tensor,
    integers,
)
from codegen.spec.names import IDENTIFIER, MAX_NAME, SNAKE, enum_type, reserved
from codegen.spec.source import Document

# runtime/include/registry.h
MAX_RANK = 8
MAX_SYMBOLS = 32
MAX_TENSORS = 32
MAX_SCALARS = 32

STRIDES = ("any", "rows", "contiguous")  # the later, the less a kernel takes

# Facts about the device that all targets know.
SHARED_FACTS = dict.fromkeys(DEVICE_FACTS[:1], INT)


class ArgumentLoader:
    """Loads `arguments` of a family.yaml; problems go to the document.

    Attributes:
        constraints: the constraints that the alignment of its tensors sets.
        element_symbols: the symbols of the tensors at each place of lists.
    """

    def __init__(self, document: Document, parameters: Sequence[Parameter]) -> None:
        self.document = document
        self.parameters = parameters
        self.constraints: tuple[Rule, ...] = ()
        self.element_symbols: dict[str, Kind] = {}

    def symbols(self, written: schema.FamilyFile, constants: Collection[str]) -> dict[str, Kind]:
        """Returns the symbols that inputs bind: bare names among their extents, in order. A symbol
        that only optional inputs bind has a value only if one of them is passed."""
        symbols: dict[str, Kind] = {}
        for name, argument in written.arguments.items():
            if isinstance(argument, schema.TensorInput):
                is_optional = argument.optional
                extents = list(enumerate(_in_memory(argument.tensor, argument.packed)))
            elif isinstance(argument, schema.TensorListInput):
                is_optional, extents = False, [(-1, argument.length)]
            else:
                continue
            for i, dim in extents:
                symbol = dim.strip()
                if not symbol.isidentifier() or symbol in constants:
                    continue
                if symbol in symbols:
                    binding = symbols[symbol].given
                    if binding and name not in binding:
                        more = (*binding, name) if is_optional else ()
                        symbols[symbol] = replace(INT, given=more)
                    continue
                place = ("length",) if i < 0 else ("tensor", i)
                self._check_symbol(symbol, written, "arguments", name, *place)
                symbols[symbol] = replace(INT, given=(name,)) if is_optional else INT
        for name, argument in written.arguments.items():
            if isinstance(argument, schema.TensorInput) and argument.packed and argument.tensor:
                symbol, last = argument.tensor[-1].strip(), len(argument.tensor) - 1
                if symbol.isidentifier() and symbol not in symbols and symbol not in constants:
                    message = (
                        f"no tensor that is not packed has the extent {symbol}, which memory tells "
                        f"to a multiple of {argument.packed}: write `{argument.packed} * NAME`"
                    )
                    self.document.report(message, "arguments", name, "tensor", last)
                    symbols[symbol] = INT
        self._find_element_symbols(written, {*constants, *symbols})
        count = len(symbols) + len(self.element_symbols)
        if count > MAX_SYMBOLS:
            self.document.report(f"{count} symbols; at most {MAX_SYMBOLS}", "arguments")
        return symbols

    def _check_symbol(self, symbol: str, written: schema.FamilyFile, *path: str | int) -> None:
        if symbol in FUNCTIONS or not IDENTIFIER.match(symbol):
            self.document.report(f"'{symbol}' cannot be a symbol", *path)
        elif why := reserved(symbol):
            self.document.report(f"symbol '{symbol}' {why}: choose another", *path)
        elif symbol in written.arguments:
            self.document.report(f"symbol '{symbol}' is also an argument's name", *path)

    def _find_element_symbols(self, written: schema.FamilyFile, others: Container[str]) -> None:
        """Finds the symbols that only lists have: extents of the tensors at the same place."""
        lengths: dict[str, str] = {}
        for name, argument in written.arguments.items():
            if not isinstance(argument, schema.TensorListInput):
                continue
            for i, dim in enumerate(_in_memory(argument.tensors, argument.packed)):
                symbol = dim.strip()
                if not symbol.isidentifier() or symbol in others:
                    continue
                path = ("arguments", name, "tensors", i)
                if symbol not in lengths:
                    self._check_symbol(symbol, written, *path)
                elif lengths[symbol] != argument.length:
                    message = (
                        f"'{symbol}' is an extent of lists of {lengths[symbol]} tensors and of "
                        f"{argument.length}: choose another"
                    )
                    self.document.report(message, *path)
                lengths.setdefault(symbol, argument.length)
        self.element_symbols = dict.fromkeys(lengths, INT)

    def load(
        self, written: schema.FamilyFile, kinds: Mapping[str, Kind], scope: Mapping[str, Kind]
    ) -> tuple[tuple[Tensor, ...], tuple[Scalar, ...]]:
        """Returns tensors and scalars, in order; their expressions may use `scope`, their dtypes
        only `kinds`."""
        tensors: list[Tensor] = []
        scalars: list[Scalar] = []
        for name, argument in written.arguments.items():
            self._check_argument_name(name, kinds)
            if isinstance(argument, schema.ScalarInput):
                scalars.append(self._scalar(name, argument, {**scope, **SHARED_FACTS}))
        for name, argument in written.arguments.items():
            if not isinstance(argument, schema.ScalarInput):
                tensors.append(self._tensor(name, argument, kinds, scope, scalars))
        place = ("arguments",)
        for scalar in scalars:
            if scalar.values and enum_type(scalar.name) in {*written.arguments, *scope}:
                message = f"'{enum_type(scalar.name)}' is the C++ type of '{scalar.name}'"
                self.document.report(message, *place, scalar.name, key=True)
        inputs = [tensor for tensor in tensors if tensor.role is Role.INPUT]
        has_outputs = len(inputs) < len(tensors)
        if all(t.optional or t.on_host or (t.length and has_outputs) for t in inputs):
            message = (
                "a family has at least one argument of kind 'tensor:' that is not optional and not "
                "on the host"
            )
            if any(tensor.length for tensor in inputs):
                message += ": its lists may be empty, and say nothing of its outputs' device"
            self.document.report(message, *place, key=True)
        if not any(tensor.role is Role.OUTPUT or tensor.mutated for tensor in tensors):
            message = (
                "a family has at least one argument of kind 'output:', or a 'tensor:' with "
                "'mutated: true'"
            )
            self.document.report(message, *place, key=True)
        for tensor in tensors:
            if tensor.like:
                self._check_like(tensor, inputs)
            if tensor.extent:
                self._check_true_extent(tensor, tensors)
        for earlier, tensor in pairwise(inputs):
            if earlier.optional and not tensor.optional:
                message = (
                    f"'{tensor.name}' comes after the optional '{earlier.name}': in Python, "
                    "optional arguments come last"
                )
                self.document.report(message, *place, tensor.name, key=True)
        if len(tensors) > MAX_TENSORS:
            self.document.report(f"{len(tensors)} tensors; at most {MAX_TENSORS}", *place, key=True)
        count = sum(max(scalar.length, 1) for scalar in scalars)
        if count > MAX_SCALARS:
            self.document.report(f"{count} scalars; at most {MAX_SCALARS}", *place, key=True)
        flags = {
            f"return_{tensor.name}"
            for tensor in tensors
            if tensor.role is Role.OUTPUT and tensor.optional
        }
        for name in written.arguments:
            if name in flags:
                message = f"'{name}' is the flag that asks for the optional output"
                self.document.report(message, *place, name, key=True)
        return tuple(tensors), tuple(scalars)

    def _check_argument_name(self, name: str, kinds: Mapping[str, Kind]) -> None:
        path = ("arguments", name)
        if not IDENTIFIER.match(name):
            self.document.report(f"'{name}' cannot be an argument's name", *path, key=True)
        elif why := reserved(name):
            self.document.report(f"argument '{name}' {why}: choose another", *path, key=True)
        elif name in kinds:
            self.document.report(f"'{name}' is also a parameter's name", *path, key=True)

    def _scalar(self, name: str, written: schema.ScalarInput, scope: Mapping[str, Kind]) -> Scalar:
        default, values = None, tuple(written.values or ())
        if written.scalar == "enum" and written.length is not None:
            message = "a list holds numbers, not an enum's texts"
            self.document.report(message, "arguments", name, "length", key=True)
        if written.scalar == "enum":
            default = self._enum(name, written, values)
        elif written.values is not None:
            message = f"only an enum has values, not a scalar of {written.scalar}"
            self.document.report(message, "arguments", name, "values", key=True)
        elif written.default is not None:
            kind = SCALARS[written.scalar].python
            expects = "number" if kind == "float" else kind
            path = ("arguments", name, "default")
            default = load_expression(self.document, written.default, scope, expects, *path)
        doc = " ".join(written.doc.split())
        length = written.length or 0
        return Scalar(name, written.scalar, default, values, written.gradient, length, doc)

    def _enum(
        self, name: str, written: schema.ScalarInput, values: tuple[str, ...]
    ) -> Expression | None:
        """Returns the default of an enum, as the place of the value; reports invalid values."""
        document, path = self.document, ("arguments", name)
        if not values:
            document.report("an enum lists its values", *path)
        for i, value in enumerate(values):
            if not SNAKE.match(value) or len(value) > MAX_NAME:
                message = (
                    f"'{value}' cannot be a value: lower-case letters and digits, joined by single "
                    "underscores"
                )
                document.report(message, *path, "values", i)
            elif value in values[:i]:
                document.report(f"'{value}' is listed twice", *path, "values", i)
        if written.default is None:
            return None
        if written.default not in values:
            hint = did_you_mean(written.default, values)
            message = f"'{written.default}' is not among the values of {name}{hint}"
            document.report(message, *path, "default")
            return None
        place = ast.Constant(values.index(written.default), col_offset=0)
        return Expression(written.default, place, INT)

    def _tensor(
        self,
        name: str,
        written: schema.TensorInput | schema.TensorListInput | schema.TensorOutput,
        kinds: Mapping[str, Kind],
        scope: Mapping[str, Kind],
        scalars: Sequence[Scalar],
    ) -> Tensor:
        match written:
            case schema.TensorInput(tensor=texts):
                role, key = Role.INPUT, "tensor"
                own = {s: INT for s, kind in scope.items() if name in kind.given}
                extent_scope = {**scope, **own}  # for a tensor that is passed
            case schema.TensorListInput(tensors=texts):
                role, key = Role.INPUT, "tensors"
                extent_scope = {**scope, **self.element_symbols}
            case schema.TensorOutput(output=texts):
                role, key = Role.OUTPUT, "output"
                extent_scope = {**scope, **integers(scalars)}
        path = ("arguments", name)
        if len(texts) > MAX_RANK:
            self.document.report(f"{len(texts)} extents; at most {MAX_RANK}", *path, key)
        check_dtype(self.document, written.dtype, kinds, *path, "dtype")

        def dim(text: str, *place: str | int) -> Dim:
            expression = load_expression(self.document, text, extent_scope, "int", *path, *place)
            self._check_extent(name, expression, scalars)
            is_symbol = expression.text not in kinds and extent_scope.get(expression.text) == INT
            return Dim(expression, expression.text if is_symbol else None)

        extents = _in_memory(texts, written.packed)
        dims = tuple(dim(text, key, i) for i, text in enumerate(extents))
        length, is_flat = None, False
        if isinstance(written, schema.TensorListInput):
            length, is_flat = dim(written.length, "length"), written.flat
        is_contiguous = written.contiguous or is_flat
        if is_flat and len(texts) != 1:
            self.document.report("a flat list has one extent: the elements", *path, key)
        if is_contiguous and written.strided:
            message = "a tensor is contiguous or has strides, not both"
            self.document.report(message, *path, "strided", key=True)
        strides = "contiguous" if is_contiguous else "any" if written.strided else "rows"
        aligned = (*path, "alignment")
        alignment, rules = load_alignment(self.document, written.alignment, kinds, *aligned)
        self.constraints += rules
        fill = written.fill if isinstance(written, schema.TensorOutput) else None
        check_fill(self.document, fill, written.dtype, self.parameters, *path)
        return Tensor(
            name,
            role,
            dims,
            written.dtype,
            written.packed,
            not isinstance(written, schema.TensorListInput) and written.optional,
            not isinstance(written, schema.TensorOutput) and written.mutated,
            isinstance(written, schema.TensorInput) and written.device == "host",
            strides,
            alignment,
            fill,
            written.like if isinstance(written, schema.TensorOutput) else "",
            written.extent if isinstance(written, schema.TensorOutput) else "",
            length,
            is_flat,
            " ".join(written.doc.split()),
        )

    def _check_like(self, output: Tensor, inputs: Sequence[Tensor]) -> None:
        """Reports an output that cannot lie in memory as an input does."""
        required = {t.name: t for t in inputs if not t.optional and not t.length}
        other = required.get(output.like)
        place = ("arguments", output.name, "like")
        if other is None:
            hint = did_you_mean(output.like, required)
            self.document.report(
                f"'{output.like}' is not an input that is always there{hint}", *place
            )
        elif [d.expression.normal for d in other.dims] != [
            d.expression.normal for d in output.dims
        ]:
            self.document.report(f"'{other.name}' has other extents", *place)
        elif STRIDES.index(output.strides) > STRIDES.index(other.strides):
            message = f"'{other.name}' may have strides that '{output.name}' may not"
            self.document.report(message, *place)

    def _check_true_extent(self, output: Tensor, tensors: Sequence[Tensor]) -> None:
        """Reports an output whose true extent no other output can hold."""
        place = ("arguments", output.name, "extent")
        held = {t.name: t for t in tensors if t.role is Role.OUTPUT and not t.optional}
        other = held.get(output.extent)
        if other is None:
            hint = did_you_mean(output.extent, held)
            message = f"'{output.extent}' is not an output that is always there{hint}"
            self.document.report(message, *place)
        elif other.dims or other.dtype not in ("i32", "i64"):
            message = f"'{other.name}' holds an extent: it is [] of i32 or i64"
            self.document.report(message, *place)
        elif not output.dims:
            self.document.report(f"'{output.name}' has no extent", *place)
        elif output.packed and len(output.dims) == 1:
            self.document.report(f"the first extent of '{output.name}' is packed", *place)

    def _check_extent(self, name: str, extent: Expression, scalars: Sequence[Scalar]) -> None:
        """Reports scalars that an output's extent may not name: torch.compile asks for the extent
        if there is no device."""
        for scalar in scalars:
            facts = scalar.default.names & {*DEVICE_FACTS} if scalar.default else ()
            if facts and scalar.name in extent.names:
                message = (
                    f"'{', '.join(facts)}' is a fact about the device, but an extent of the output "
                    f"'{name}' depends on '{scalar.name}': torch.compile needs it without a device"
                )
                self.document.report(message, "arguments", scalar.name, "default")


def _in_memory(extents: Sequence[str], packed: int | None) -> list[str]:
    """Returns a tensor's extents in memory: of a packed tensor's last one, `2 * NAME` is NAME, and
    any other is divided, rounded up."""
    if not packed or not extents:
        return list(extents)
    whole = re.fullmatch(rf"\s*{packed}\s*\*\s*([A-Za-z_]\w*)\s*", extents[-1])
    last = whole[1] if whole else f"ceil_div({extents[-1].strip()}, {packed})"
    return [*extents[:-1], last]


def optional_tensors(written: schema.FamilyFile) -> dict[str, Kind]:
    """Returns the tensors that may be left out, as names of expressions that are true if they are
    passed."""
    return {
        name: BOOL
        for name, argument in written.arguments.items()
        if isinstance(argument, (schema.TensorInput, schema.TensorOutput)) and argument.optional
    }
