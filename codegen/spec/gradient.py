"""`gradient:` of a family.yaml that names another family: the arguments of that family's kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

from codegen.core import manifest
from codegen.core.dtypes import TABLE
from codegen.core.expressions import Kind, scalar_kinds
from codegen.core.manifest import DeclaredGradient, Passed
from codegen.core.words import did_you_mean
from codegen.spec import schema
from codegen.spec.arguments import STRIDES
from codegen.spec.checks import check_defaults, load_expression, load_rules
from codegen.spec.model import Family, Parameter, Role, Scalar, Tensor
from codegen.spec.source import Document

_OF = "gradient of "
_FLOATS = {dtype.name for dtype in TABLE if dtype.is_floating}


def load_gradient(
    document: Document,
    place: Sequence[str | int],
    written: schema.DeclaredGradient,
    own: Family,
    other: Family,
    again: Iterable[str],
) -> DeclaredGradient:
    """Returns the arguments and results of a call of `other` for a call of `own`; problems go to
    the document of `own`. `again` are the inputs of `other` that have gradients in turn."""
    return _Loader(document, place, written, own, other).load(frozenset(again))


def load_condition(
    document: Document, place: Sequence[str | int], written: schema.Gradient, own: Family
) -> str:
    """Returns the condition of the calls of `own` that a gradient is for."""
    scope = {**_scope(own), "target": Kind("text", tuple(t.name for t in own.targets))}
    when = load_expression(document, written.when, scope, "bool", *place, "when")
    check_defaults(document, when, own.scalars, *place, "when")
    return when.normal


class _Loader:
    def __init__(
        self,
        document: Document,
        place: Sequence[str | int],
        written: schema.DeclaredGradient,
        own: Family,
        other: Family,
    ) -> None:
        self.document = document
        self.place = place
        self.written = written
        self.own = own
        self.other = other
        self.own_tensors = {tensor.name: tensor for tensor in own.tensors}
        self.inputs = [t for t in other.tensors if t.role is Role.INPUT]
        self.scope = _scope(own)
        self.named = self.scope.keys() - {t.name for t in own.tensors}
        self.sizes: dict[str, str] = {}  # the other's symbols, as expressions of this family
        self.dtypes: dict[str, str] = {}  # the other's dtype parameters, likewise

    def load(self, again: frozenset[str]) -> DeclaredGradient:
        before = len(self.document.problems)
        if lists := [argument.name for argument in self.inputs if argument.length]:
            message = f"{self._other} takes {', '.join(lists)}, a list of tensors: it gives none"
            self._report(message, "family")
        dtypes = {argument.dtype for argument in self.inputs}
        choices = [p for p in self.other.parameters if p.name not in dtypes]
        parameters = self._undecided(choices)
        names = [argument.name for argument in self.inputs]
        names += [scalar.name for scalar in self.other.scalars]
        names += [parameter.name for parameter in choices]
        for name in self.written.passes:
            if name not in names:
                message = f"{self._other} takes no '{name}'{did_you_mean(name, names)}"
                self._report(message, "passes", name, key=True)
        tensors = [self._tensor(argument) for argument in self.inputs]
        keeps = [p.name for p in tensors if p.what == "output" and self._own(p).optional]
        for argument, passed in zip(self.inputs, tensors, strict=True):
            self._check(argument, passed, keeps)
            own = self.own_tensors.get(passed.name)
            if own is not None and passed.what != "zeros":
                self._bind(argument, own)
        outputs = [p.name for p in tensors if p.what == "gradient"]
        for argument, passed in zip(self.inputs, tensors, strict=True):
            if passed.what == "output" and passed.name not in outputs and argument.name in again:
                self._report(
                    f"'{argument.name}' of {self._other} has a gradient, which {passed.name} would "
                    f"lose: also pass 'gradient of {passed.name}'",
                    "passes", argument.name,
                )  # fmt: skip
        if not outputs and len(self.document.problems) == before:
            self._report(f"nothing is passed a gradient: write {_OF}…", "passes")
        self._check_returns()
        return DeclaredGradient(
            family=self.other.name,
            inputs=tuple(self.written.returns),
            outputs=tuple(dict.fromkeys(outputs)),
            keeps=tuple(dict.fromkeys(keeps)),
            tensors=tuple(
                self._zeros(argument) if passed.what == "zeros" else passed
                for argument, passed in zip(self.inputs, tensors, strict=True)
            ),
            scalars=tuple(self._scalar(scalar) for scalar in self.other.scalars),
            parameters={
                name: text
                for name, parameter in parameters.items()
                if (text := self._value(name, parameter.kind)) is not None
            },
            returns=dict(self.written.returns),
            requires=self._requires(),
        )

    @property
    def _other(self) -> str:
        return f"the family {self.other.name}"

    def _own(self, passed: Passed) -> Tensor:
        return self.own_tensors[passed.name]

    def _report(self, message: str, *path: str | int, key: bool = False) -> None:
        self.document.report(message, *self.place, *path, key=key)

    def _undecided(self, choices: Iterable[Parameter]) -> dict[str, Parameter]:
        """Returns the parameters of the other family that a call does not decide already."""
        front = self.other.generated_front
        flags = {parameter.name for parameter, _ in front.flags} if front else set()
        taken = {name for name, _ in front.takes} - flags if front else set()
        for name in taken & self.written.passes.keys():
            message = f"'{name}' is taken from the call by the front of {self._other}"
            self._report(message, "passes", name, key=True)
        return {p.name: p for p in choices if p.name not in taken}

    def _tensor(self, argument: Tensor) -> Passed:
        """Returns the value that an input of the other family is passed."""
        name = argument.name
        text = self.written.passes.get(name, name if name in self.own_tensors else None)
        if argument.mutated:
            if name in self.written.passes:
                message = f"{self._other} changes '{name}' in place: it is passed zeros"
                self._report(message, "passes", name, key=True)
            return Passed(what="zeros")
        if text is None:
            if not argument.optional:
                message = f"{self._other} needs '{name}': give it a value in passes"
                self._report(message, "passes")
            return Passed(what="nothing")
        is_gradient = text.startswith(_OF)
        source = text.removeprefix(_OF).strip()
        tensor = self.own_tensors.get(source)
        outputs = [t.name for t in self.own.tensors if t.role is Role.OUTPUT]
        if tensor is None or (is_gradient and tensor.role is not Role.OUTPUT):
            candidates = outputs if is_gradient else self.own_tensors
            what = "an output" if is_gradient else "an input, an output or 'gradient of' an output"
            message = f"'{source}' is not {what}{did_you_mean(source, candidates)}"
            self._report(message, "passes", name)
            return Passed(what="nothing")
        if is_gradient:
            return Passed(what="gradient", name=source)
        is_stricter = STRIDES.index(argument.strides) > STRIDES.index(tensor.strides)
        is_input = tensor.role is Role.INPUT
        return Passed(
            what="input" if is_input else "output",
            name=source,
            contiguous=(is_input or bool(tensor.like)) and is_stricter,
        )

    def _check(self, argument: Tensor, passed: Passed, keeps: list[str]) -> None:
        """Reports a value that a tensor of the other family cannot be passed."""
        if passed.what in ("zeros", "nothing"):
            return
        own, path = self._own(passed), ("passes", argument.name)
        if own.optional and not argument.optional and passed.name not in keeps:
            self._report(f"'{own.name}' is optional, but '{argument.name}' is not", *path)
        if own.on_host != argument.on_host:
            where = "on the host" if own.on_host else "not on the host"
            self._report(f"'{own.name}' is {where}, unlike '{argument.name}'", *path)
        if passed.what == "gradient" and not self._values(own.dtype) & _FLOATS:
            self._report(f"'{own.name}' is {own.dtype}, which has no gradient", *path)

    def _values(self, dtype: str) -> set[str]:
        """Returns the dtypes that a tensor of this family may have."""
        for parameter in self.own.parameters:
            if parameter.name == dtype:
                return {*map(str, parameter.values)} if parameter.values else {*_FLOATS, dtype}
        return {dtype}

    def _bind(self, argument: Tensor, own: Tensor) -> None:
        """Binds the other family's symbols and dtypes to those of a tensor; reports
        disagreements."""
        path = ("passes", argument.name)
        what = f"'{argument.name}' of {self._other}"
        if len(argument.dims) != len(own.dims):
            self._report(f"{what} is {_shape(argument)}, but {own.name} is {_shape(own)}", *path)
            return
        for dim, extent in zip(argument.dims, own.dims, strict=True):
            if dim.symbol is None:
                continue
            text = extent.expression.normal
            bound = self.sizes.setdefault(dim.symbol, text)
            if _differ(bound, text):
                what = f"{dim.symbol} of {self._other}"
                self._report(f"{what} is {bound}, but by {own.name} it is {text}", *path)
        parameters = [p.name for p in self.other.parameters]
        if argument.dtype in parameters:
            bound = self.dtypes.setdefault(argument.dtype, own.dtype)
            if bound != own.dtype:
                what = f"{argument.dtype} of {self._other}"
                self._report(f"{what} is {bound}, but {own.name} is {own.dtype}", *path)
        elif self._values(own.dtype) != {argument.dtype}:
            self._report(f"{what} is {argument.dtype}, but {own.name} is {own.dtype}", *path)

    def _zeros(self, argument: Tensor) -> Passed:
        """Returns a tensor of zeros, to which the other family adds."""
        shape, unknown = [], []
        for dim in argument.dims:
            if dim.expression.names <= self.sizes.keys():
                tree = ast.parse(dim.expression.normal, mode="eval").body
                shape.append(ast.unparse(_Renamed(self.sizes).visit(tree)))
            else:
                unknown.append(dim.expression.text)
        dtype = self.dtypes.get(argument.dtype, argument.dtype)
        if dtype == argument.dtype and dtype in [p.name for p in self.other.parameters]:
            unknown.append(dtype)
        for text in unknown:
            what = f"'{argument.name}' of {self._other} has {text}"
            self._report(f"{what}, which no passed tensor determines", "passes")
        return Passed(what="zeros", shape=tuple(shape), dtype=dtype)

    def _scalar(self, scalar: Scalar) -> str | None:
        if scalar.length:
            name = self.written.passes.get(scalar.name, scalar.name) or ""
            alike = [s.name for s in self.own.scalars if s.length == scalar.length]
            if name not in alike:
                message = (
                    f"'{scalar.name}' of {self._other} is a list of {scalar.length} numbers: give "
                    f"it such an argument in passes{did_you_mean(name, alike)}"
                )
                self._report(message, "passes")
            return name
        text = self._value(scalar.name, scalar.kind)
        if text is None and scalar.default is None:
            message = f"{self._other} needs '{scalar.name}': give it a value in passes"
            self._report(message, "passes")
        return text

    def _value(self, name: str, kind: Kind) -> str | None:
        """Returns the expression of a scalar or a parameter of the other family; None: it is left
        open."""
        text = self.written.passes.get(name, name if name in self.named else None)
        if text is None:
            return None
        path = (*self.place, "passes", name)
        expression = load_expression(self.document, text, self.scope, kind, *path)
        check_defaults(self.document, expression, self.own.scalars, *path)
        return expression.normal

    def _requires(self) -> tuple[manifest.Rule, ...]:
        """Returns the conditions that a call must meet to have a gradient."""
        path = (*self.place, "requires")
        rules = load_rules(self.document, self.written.requires, self.scope, *path)
        for i, rule in enumerate(rules):
            check_defaults(self.document, rule.that, self.own.scalars, *path, i, "that")
        return tuple(manifest.Rule(that=r.that.normal, because=r.because) for r in rules)

    def _check_returns(self) -> None:
        inputs = [t.name for t in self.own.tensors if t.role is Role.INPUT]
        results = {t.name: t for t in self.other.tensors if t.role is Role.OUTPUT or t.mutated}
        for name, returned in self.written.returns.items():
            path = ("returns", name)
            if name not in inputs:
                message = f"'{name}' is not an input{did_you_mean(name, inputs)}"
                self._report(message, *path, key=True)
                continue
            own = self.own_tensors[name]
            if not self._values(own.dtype) & _FLOATS or own.on_host:
                what = "on the host" if own.on_host else own.dtype
                self._report(f"'{name}' is {what}, which has no gradient", *path, key=True)
            if returned not in results:
                message = f"{self._other} returns no '{returned}'{did_you_mean(returned, results)}"
                self._report(message, *path)
                continue
            gives = results[returned]
            pairs = list(zip(gives.dims, own.dims, strict=False))
            if len(gives.dims) != len(own.dims) or any(
                dim.symbol and _differ(self.sizes.get(dim.symbol, ""), extent.expression.normal)
                for dim, extent in pairs
            ):
                what = ", ".join(
                    self.sizes.get(dim.expression.normal, dim.expression.text) for dim in gives.dims
                )
                self._report(f"'{returned}' is [{what}], but {name} is {_shape(own)}", *path)


def _scope(own: Family) -> dict[str, Kind]:
    """Returns the names that expressions may use for a call."""
    return {
        **{p.name: p.kind for p in own.parameters},
        **{value.name: value.expression.kind for value in own.derived},
        **own.call_scope,
        **scalar_kinds(own.scalars),
    }


class _Renamed(ast.NodeTransformer):
    """Rewrites names to the expressions that stand for them in the other family."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.texts.get(node.id, node.id), mode="eval").body


def _differ(a: str, b: str) -> bool:
    """Returns whether two extents surely differ: names and numbers that are not alike."""
    return a != b and all(text.isidentifier() or text.isdigit() for text in (a, b))


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(dim.expression.text for dim in tensor.dims)}]"
