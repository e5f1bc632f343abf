"""One family.yaml: the computation of a family, without its targets."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from codegen.core.expressions import (
    BOOL,
    COMPUTE_CAPABILITY,
    INT,
    Expression,
    Kind,
    layout_name,
    scalar_kinds,
)
from codegen.core.manifest import Gradient, Shard
from codegen.core.words import did_you_mean
from codegen.spec import schema
from codegen.spec.arguments import MAX_RANK, SHARED_FACTS, ArgumentLoader, optional_tensors
from codegen.spec.build_settings import BuildLoader
from codegen.spec.checks import (
    MAX_ALIGNMENT,
    check_defaults,
    check_file,
    check_identifier,
    load_derived,
    load_expression,
    load_parameters,
    load_rules,
    spec_name,
)
from codegen.spec.functions import check_function
from codegen.spec.model import (
    Family,
    GeneratedFront,
    Parameter,
    ParameterType,
    RecordTensor,
    Role,
    Rule,
    Scalar,
    Target,
    Tensor,
    Trace,
    integers,
)
from codegen.spec.names import SNAKE, reserved
from codegen.spec.source import Document


class FamilyLoader:
    """Loads one family.yaml; problems go to the document."""

    def __init__(self, document: Document, spec_dir: Path, folder: Path) -> None:
        self.document = document
        self.spec_dir = spec_dir
        self.folder = folder
        self.reference: ast.arguments | None = None  # the reference's parameters, if they are known

    def load(self, written: schema.FamilyFile, is_cuda: bool | None) -> Family:
        """Returns the family; `is_cuda`: whether all its targets are CUDA's, or none; None: some
        are."""
        document = self.document
        self._check_name(written)
        parameters = load_parameters(document, written.parameters, of_target=False)
        arguments = ArgumentLoader(document, parameters)
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        symbols = arguments.symbols(written, {*kinds, *written.derived})
        meanings = {
            **dict.fromkeys(kinds, "a parameter"),
            **dict.fromkeys(symbols, "a symbol"),
            **dict.fromkeys(written.arguments, "an argument"),
        }
        derived = load_derived(document, written.derived, kinds, meanings)
        constants = {**kinds, **{value.name: value.expression.kind for value in derived}}
        call_scope = {**symbols, **optional_tensors(written)}
        scope = {**constants, **call_scope}
        tensors, scalars = arguments.load(written, constants, scope)
        numbers = {**scope, **SHARED_FACTS, **scalar_kinds(scalars)}
        trace = self._trace(written, parameters, kinds, {**scope, **integers(scalars)})
        if written.reference is not None:
            folder, text = self._folder_of(written.reference)
            if check_file(document, folder, text, "reference"):
                name, _, function = text.partition(":")
                self.reference = check_function(document, folder / name, function, "reference")
        file = spec_name(self.spec_dir, document.path)
        # the place of `front` itself for a single front
        fronts = []
        for i, front in enumerate(written.front):
            if isinstance(front, str) and not front.isidentifier():
                fronts.append(self._function(file, front, "front", i))
            else:
                fronts.append(("", front if isinstance(front, str) else front.name))
        return Family(
            name=written.family,
            summary=" ".join(written.summary.split()),
            tensors=tensors,
            scalars=scalars,
            argument_order=tuple(written.arguments),
            symbols=tuple(symbols),
            element_symbols=tuple(arguments.element_symbols),
            call_scope=call_scope,
            parameters=parameters,
            derived=derived,
            constraints=(*arguments.constraints, *((trace.is_whole,) if trace else ())),
            requires=load_rules(document, written.requires, numbers, "requires"),
            trace=trace,
            build=BuildLoader(document, self.spec_dir, self.folder).load(written.build, is_cuda),
            reference=written.reference,
            gradients=self._gradients(file, written, tensors, scalars),
            shards=self._shards(written, symbols, call_scope, tensors),
            operations=self._operations(file, written.operations, scope),
            fronts=tuple(fronts),
            generated_front=None,
            choices=(),
            targets=(),
            folder=self.folder.relative_to(self.spec_dir).as_posix(),
            file=file,
        )

    def _check_name(self, written: schema.FamilyFile) -> None:
        document = self.document
        if written.family != self.folder.name:
            document.report(
                f"family '{written.family}' must be named as its folder, '{self.folder.name}'",
                "family",
            )
        elif not SNAKE.match(written.family):
            document.report(
                "a family's name is lower-case letters and digits, joined by single underscores",
                "family",
            )
        elif why := reserved(written.family):
            document.report(f"'{written.family}' {why}: choose another name", "family")
        group = self.folder.relative_to(self.spec_dir).parent.name
        if group and not SNAKE.match(group):
            document.report(
                f"the folder '{group}' of a group of families is quoted in C++: name it in "
                "lower-case letters and digits, joined by single underscores",
                "family",
            )

    def _trace(
        self,
        written: schema.FamilyFile,
        parameters: Sequence[Parameter],
        kinds: Mapping[str, Kind],
        scope: Mapping[str, Kind],
    ) -> Trace | None:
        if written.trace is None:
            return None
        trace, document, problems = written.trace, self.document, len(self.document.problems)
        named = {parameter.name: parameter for parameter in parameters}
        parameter = named.get(trace.parameter)
        if parameter is None:
            hint = did_you_mean(trace.parameter, named)
            message = f"the family has no parameter '{trace.parameter}'{hint}"
            document.report(message, "trace", "parameter")
        elif parameter.type is not ParameterType.BOOL or parameter.default is not False:
            message = f"'{trace.parameter}' must be a bool whose default is false"
            document.report(message, "trace", "parameter")
        if "trace" in {*written.arguments, *scope} - kinds.keys():
            message = "args.trace takes the records: no argument and no symbol may be 'trace'"
            document.report(message, "trace", key=True)
        if len(trace.grid) >= MAX_RANK:
            message = f"{len(trace.grid)} extents; at most {MAX_RANK - 1}, one is the record's"
            document.report(message, "trace", "grid")
        grid = tuple(
            load_expression(document, text, scope, "int", "trace", "grid", i)
            for i, text in enumerate(trace.grid)
        )
        record = []
        for name, tensor in trace.record.items():
            place = ("trace", "record", name)
            if name in kinds:
                document.report(f"'{name}' is also a parameter's name", *place, key=True)
            else:
                check_identifier(document, name, "a tensor of the record", *place)
            shape = [
                load_expression(document, text, kinds, "int", *place, "shape", i)
                for i, text in enumerate(tensor.shape)
            ]
            record.append(RecordTensor(name, tuple(shape), " ".join(tensor.doc.split())))
        if len(document.problems) > problems:
            return None
        shapes = [[extent.operand for extent in tensor.shape] for tensor in record]
        sizes = " + ".join(" * ".join(shape) for shape in shapes)
        floats = load_expression(document, sizes, kinds, "int", "trace", "record")
        extents = dict.fromkeys(extent for shape in shapes for extent in shape)
        whole = " and ".join(f"{extent} >= 1" for extent in extents)
        text = f"not {trace.parameter} or {whole}"
        is_whole = Rule(
            load_expression(document, text, kinds, "bool", "trace", "record"),
            "each tensor of a trace's record has at least one element",
            document.locate("trace", "record", key=True),
        )
        return Trace(trace.parameter, grid, tuple(record), floats, is_whole)

    def front(
        self, written: schema.FamilyFile, family: Family, targets: Iterable[Target]
    ) -> GeneratedFront | None:
        """Returns the generated front, or None; problems go to the document."""
        places = [i for i, (module, _) in enumerate(family.fronts) if not module]
        for i in places[1:]:
            self.document.report("one front of a family is generated, not two", "front", i)
        for i in places[:1]:
            front = written.front[i]
            generated = schema.GeneratedFront(name=front) if isinstance(front, str) else front
            return self._generated(generated, i, family, targets)
        return None

    def _generated(
        self, front: schema.GeneratedFront, place: int, family: Family, targets: Iterable[Target]
    ) -> GeneratedFront:
        inputs = [tensor for tensor in family.tensors if tensor.role is Role.INPUT]
        dtypes = {tensor.dtype for tensor in inputs}
        parameters = {p.name: p for p in family.parameters if p.name not in dtypes}
        own = [parameter for target in targets for parameter in target.own_parameters]
        flags = {p.name: p.kind for p in family.parameters if front.flags.get(p.name) is not None}
        scope = {
            COMPUTE_CAPABILITY: INT,
            **flags,
            **family.call_scope,
            **{p.name: p.kind for p in family.parameters if p.name in dtypes},
            **{scalar.name: scalar.kind for scalar in family.scalars if not scalar.length},
            **{name: kind for tensor in inputs for name, kind in _layouts(tensor).items()},
        }
        at = ("front", place)
        if not front.name.isidentifier() or keyword.iskeyword(front.name):
            self.document.report(f"got '{front.name}', expected a function's name", *at, "name")
        taken = {**parameters, **{parameter.name: parameter for parameter in own}}
        for member, names, those in (
            ("takes", front.takes, taken),
            ("flags", front.flags, parameters),
        ):
            for name in names:
                if name not in those:
                    hint = did_you_mean(name, those)
                    whose = "the targets have" if those is taken else "the family has"
                    message = f"{whose} no parameter '{name}' beside inputs' dtypes{hint}"
                    self.document.report(message, *at, member, name, key=True)
        has_bounds = any(tensor.extent for tensor in family.tensors)
        if has_bounds and "sliced" in {*front.flags, *family.argument_order}:
            message = "'sliced' asks for outputs of their true extents: rename the other"
            self.document.report(message, *at)
        takes = []
        for name, text in front.takes.items():
            kinds = {p.kind for p in (*parameters.values(), *own) if p.name == name}
            if len(kinds) > 1:
                message = f"targets differ in the values of '{name}'"
                self.document.report(message, *at, "takes", name, key=True)
                continue
            kind = taken[name].kind if name in taken else INT
            value = load_expression(self.document, text, scope, kind, *at, "takes", name)
            takes.append((name, value))
            check_defaults(self.document, value, family.scalars, *at, "takes", name)
        asked = {name for name, value in takes if name in value.names}
        for name, default in front.flags.items():
            if name in front.takes.keys() - asked or name in family.argument_order:
                what = (
                    "an argument"
                    if name in family.argument_order
                    else "taken from the call: let the expression ask what is passed, and give a "
                    f"default, takes: {{{name}: {name} or …}}, flags: {{{name}: false}}"
                )
                self.document.report(f"'{name}' is {what}", *at, "flags", name, key=True)
            elif (
                name in parameters
                and default is not None
                and (wrong := parameters[name].check(default))
            ):
                self.document.report(wrong, *at, "flags", name)
        passed = tuple((parameters[n], d) for n, d in front.flags.items() if n in parameters)
        return GeneratedFront(front.name, tuple(takes), passed)

    def _folder_of(self, text: str) -> tuple[Path, str]:
        """Returns the folder of the file that a spec names, the family's or, after ../, its
        group's, and the text within it."""
        if text.startswith("../") and self.folder.parent != self.spec_dir:
            return self.folder.parent, text[3:]
        return self.folder, text

    def _function(self, file: str, text: str, *place: str | int) -> tuple[str, str]:
        """Returns the module, as it is imported, and its function, which a text such as
        front.py:function names."""
        folder, text = self._folder_of(text)
        above = PurePosixPath(file).parent
        if folder != self.folder:
            above = above.parent
        is_there = check_file(self.document, folder, text, *place)
        name, _, function = text.partition(":")
        module = name.removesuffix(".py").split("/")
        if not name.endswith(".py") or not all(n.isidentifier() for n in (*module, function)):
            self.document.report(f"got '{text}', expected file.py:function", *place)
        elif is_there:
            check_function(self.document, folder / name, function, *place)
        return ".".join((*above.parts, *module)), function

    def _operations(
        self, file: str, text: str | None, scope: Mapping[str, Kind]
    ) -> Expression | str | None:
        """Returns the number of operations of a call: an expression, or a function as
        "module:function"."""
        if text is None:
            return None
        if ".py:" in text:
            return ":".join(self._function(file, text, "operations"))
        return load_expression(self.document, text, scope, "int", "operations")

    def _shards(
        self,
        written: schema.FamilyFile,
        symbols: Iterable[str],
        scope: Mapping[str, Kind],
        tensors: Sequence[Tensor],
    ) -> tuple[Shard, ...]:
        shards = []
        if written.shards and (lists := [tensor.name for tensor in tensors if tensor.length]):
            message = f"{', '.join(lists)} is a list of tensors: such a family has no division"
            self.document.report(message, "shards", key=True)
        for i, shard in enumerate(written.shards):
            for n, name in enumerate(shard.along):
                if name not in symbols:
                    message = f"'{name}' is not a symbol{did_you_mean(name, symbols)}"
                    self.document.report(message, "shards", i, "along", n)
            for tensor in tensors:
                own = [d for dim in tensor.dims if (d := dim.expression.normal) in shard.along]
                if tensor.role is Role.OUTPUT and len(own) != 1:
                    message = f"the output {tensor.name} has {len(own)} of these, expected one"
                    self.document.report(message, "shards", i, "along")
            when = load_expression(self.document, shard.when, scope, "bool", "shards", i, "when")
            shards.append(Shard(along=tuple(shard.along), when=when.normal))
        return tuple(shards)

    def _gradients(
        self,
        file: str,
        written: schema.FamilyFile,
        tensors: Sequence[Tensor],
        scalars: Sequence[Scalar],
    ) -> tuple[Gradient, ...]:
        """Returns the functions that give gradients. Gradients by other families are added once
        those are loaded: codegen/spec/gradient.py."""
        for scalar in scalars if written.gradient is None else ():
            if scalar.of_gradient:
                message = (
                    f"'{scalar.name}' is an argument of gradients, but the family has no gradient"
                )
                self.document.report(message, "arguments", scalar.name, "gradient", key=True)
        changed = [tensor.name for tensor in tensors if tensor.mutated]
        if changed and written.gradient is not None:
            message = f"{', '.join(changed)} changes in place: such a family has no gradient"
            self.document.report(message, "gradient", key=True)
        lists = [tensor.name for tensor in tensors if tensor.length]
        if lists and written.gradient is not None:
            message = f"{', '.join(lists)} is a list of tensors: such a family has no gradient"
            self.document.report(message, "gradient", key=True)
        inputs = [t.name for t in tensors if t.role is Role.INPUT]
        outputs = [t.name for t in tensors if t.role is Role.OUTPUT]
        optional = [t.name for t in tensors if t.role is Role.OUTPUT and t.optional]
        gradients = []
        for place, gradient in written.gradients:
            if not isinstance(gradient, schema.GradientFunction):
                continue
            for member, names, candidates, what in (
                ("inputs", gradient.inputs, inputs, "an input"),
                ("outputs", gradient.outputs, outputs, "an output"),
                ("keeps", gradient.keeps, optional, "an optional output"),
            ):
                for i, name in enumerate(names):
                    if name not in candidates:
                        message = f"'{name}' is not {what}{did_you_mean(name, candidates)}"
                        self.document.report(message, *place, member, i)
            module, function = self._function(file, gradient.function, *place, "function")
            gradients.append(
                Gradient(
                    module=module,
                    function=function,
                    inputs=tuple(gradient.inputs),
                    outputs=tuple(gradient.outputs),
                    keeps=tuple(gradient.keeps),
                )
            )
        return tuple(gradients)


def _layouts(tensor: Tensor) -> dict[str, Kind]:
    """Returns the names with which a front's rule asks how an input lies in memory."""
    passed = (tensor.name,) if tensor.optional else ()
    by_dim = {
        layout_name(function, tensor.name, i): replace(kind, given=passed)
        for function, kind in (("stride", INT), ("expanded", BOOL))
        for i in range(len(tensor.dims))
        if not tensor.length
    }
    powers = [] if tensor.length else [2**i for i in range(1, MAX_ALIGNMENT.bit_length())]
    return by_dim | {
        layout_name("aligned", tensor.name, power): replace(BOOL, given=passed) for power in powers
    }
