"""The contents of family.yaml and <target>.yaml: pydantic models, and their JSON Schema."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from codegen.core.dtypes import SCALARS
from codegen.core.expressions import INT64_MAX
from codegen.core.problems import TooManyProblemsError
from codegen.core.words import did_you_mean
from codegen.spec.source import Document, LocatedMapping

_SCALARS = ["string", "integer", "number", "boolean"]


def _expression_text(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if not isinstance(value, str):
        hint = "; quote a text that holds commas" if value is None else ""
        message = "must be an expression, such as `32 * n_warps`{hint}"
        raise PydanticCustomError("expression", message, {"hint": hint})
    return value


def _parameter_value(value: Any) -> bool | int | str:
    if not isinstance(value, (bool, int, str)):
        raise PydanticCustomError("value", "must be an integer, true, false or a name")
    return value


def _macro_value(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str, type(None))):
        raise PydanticCustomError("macro", "must be a text, an integer or nothing")
    return value


def _filling(value: Any) -> Any:
    if value in ("inf", "-inf", "nan"):
        return float(value)
    if not isinstance(value, (bool, int, float)):
        raise PydanticCustomError("fill", "must be a number, inf, -inf or nan")
    return value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Text = Annotated[
    str,
    BeforeValidator(_expression_text),
    WithJsonSchema({"type": _SCALARS, "description": "an expression"}),
]
Value = Annotated[
    bool | int | str,
    PlainValidator(_parameter_value),
    WithJsonSchema({"type": ["string", "integer", "boolean"]}),
]
MacroValue = Annotated[
    int | str | None,
    PlainValidator(_macro_value),
    WithJsonSchema({"type": ["string", "integer", "null"]}),
]


class Written(BaseModel):
    """Base of all models: frozen, strict, and with a word on each unknown key."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _report_unknown_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, LocatedMapping) or not isinstance(info.context, Document):
            return data
        unknown = [key for key in data if key not in cls.model_fields]
        for key in unknown:
            names = [name for name in cls.model_fields if name not in data]
            hint = did_you_mean(key, names)
            if data[key] is None and not did_you_mean(key, names, list_few=False):
                hint = "; quote a text that holds commas"  # in braces
            info.context.report(f"unknown key '{key}'{hint}", *data.path, key, key=True)
        return {key: value for key, value in data.items() if key not in unknown}


class Rule(Written):
    """A condition, and the reason for it."""

    that: Text = Field(description="an expression that must hold")
    because: str = Field(description="the reason, as a user will read it", min_length=1)


Filling = Annotated[
    bool | int | float,
    BeforeValidator(_filling),
    WithJsonSchema({"anyOf": [{"type": ["number", "boolean"]}, {"enum": ["inf", "-inf", "nan"]}]}),
]
_FILL = "the value of its elements before the kernel runs: a number, inf, -inf or nan"


class _Documented(Written):
    doc: str = Field("", description="one line for users")


class _Shaped(_Documented):
    dtype: str = Field(description="a dtype, or the name of a dtype parameter")


class _Tensor(_Shaped):
    contiguous: bool = Field(False, description="its strides are those of a contiguous tensor")
    strided: bool = Field(False, description="every dimension may have any stride")
    alignment: Text | None = Field(
        None, description="bytes, over the family's parameters; default: the target's"
    )
    packed: int | None = Field(
        None, ge=2, le=64, description="so many elements of the last extent lie in one of the dtype"
    )


class TensorInput(_Tensor):
    """A tensor the caller passes."""

    tensor: list[Text] = Field(description="its extents: symbols, or expressions over them")
    mutated: bool = Field(False, description="the kernel changes it in place")
    optional: bool = Field(False, description="may be None, which kernels see as a null pointer")
    device: Literal["host"] | None = Field(
        None, description="host: it is in the CPU's memory, whatever the target"
    )


class TensorListInput(_Tensor):
    """A list of tensors the caller passes; it may be empty."""

    tensors: list[Text] = Field(
        description="the extents of each: symbols, or expressions over them; a symbol that no "
        "single tensor has is the extent of the tensors at the same place of each list"
    )
    length: Text = Field(description="the number of tensors: a symbol, or an expression")
    mutated: bool = Field(False, description="the kernel changes the tensors in place")
    flat: bool = Field(
        False,
        description="each tensor has any shape, without gaps in memory: the one extent is the "
        "number of its elements",
    )


class TensorOutput(_Tensor):
    """A tensor the kernel writes and the call returns."""

    output: list[Text] = Field(description="its extents")
    optional: bool = Field(False, description="written only if asked for: return_<name>=True")
    fill: Filling | None = Field(None, description=_FILL)
    extent: str = Field(
        "", description="the output whose value is its true first extent: the one here is a bound"
    )
    like: str = Field("", description="the input whose dimensions' order in memory it has")


if TYPE_CHECKING:  # mypy takes no Literal of a table's names
    _ScalarName = str
else:
    _ScalarName = Literal[(*SCALARS, "enum")]


class ScalarInput(_Documented):
    """A number, or a text of an enum, that the caller passes."""

    scalar: _ScalarName
    values: list[str] | None = Field(None, description="an enum's texts", min_length=1)
    length: int | None = Field(None, description="a list of so many numbers", ge=1)
    default: Text | None = Field(
        None,
        description="an expression, of a list's numbers each; or one of an enum's values; absent: "
        "the caller must pass it",
    )
    gradient: bool = Field(False, description="only the gradients take it, no kernel here")


# Members of unions have tags in angle brackets, which no key of the YAML can equal.
ARGUMENT_KINDS = ("tensor", "tensors", "output", "scalar")


def _argument_kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return next((f"<{kind}>" for kind in ARGUMENT_KINDS if kind in value), None)
    return None


Argument = Annotated[
    Annotated[TensorInput, Tag("<tensor>")]
    | Annotated[TensorListInput, Tag("<tensors>")]
    | Annotated[TensorOutput, Tag("<output>")]
    | Annotated[ScalarInput, Tag("<scalar>")],
    Discriminator(_argument_kind),
]


class Parameter(_Documented):
    """A compile-time choice; its values and its place in the key."""

    type: Literal["dtype", "int", "bool", "enum"]
    values: list[Value] | None = Field(
        None, description="its possible values; an enum needs them", min_length=1
    )
    token: str | None = Field(
        None, description="its letters in the key (int, bool); default: the name in lower case"
    )
    default: Value | None = Field(
        None, description="its value if it is left out; absent: all its values, if they are known"
    )
    option: str | None = Field(
        None,
        description="the compiler's option that it stands for: optimize, fast_math, maxrregcount, "
        "or a flag, such as -funroll-loops, with {} for the value unless it is a bool",
        min_length=1,
    )


class RecordTensor(_Documented):
    """One tensor of the record that a traced kernel writes, f32."""

    shape: list[Text] = Field(description="its extents, over parameters", min_length=1)


class Trace(Written):
    """Intermediates that kernels write, for people who debug them."""

    parameter: str = Field(description="the bool parameter, false by default, that builds it in")
    grid: list[Text] = Field(description="the number of records: extents, as an output's")
    record: dict[str, RecordTensor] = Field(
        description="the tensors of each record, one after another", min_length=1
    )


class _OneGradient(Written):
    when: Text = Field(
        "True",
        description="the condition on calls, over symbols, scalars, parameters and optional "
        "tensors; of several gradients a call has the first whose condition holds and that has "
        "every gradient that the call asks for",
    )


class GradientFunction(_OneGradient):
    """A function that gives the family's gradients."""

    function: str = Field(
        description="file.py:function of a kernel's parameters, the inputs and the scalars: it "
        "returns the backward of a call, or an InvalidArgument for a call without a backward"
    )
    inputs: list[str] = Field(description="the inputs that have a gradient", min_length=1)
    outputs: list[str] = Field(
        description="the outputs whose gradients it takes; the others carry no gradient",
        min_length=1,
    )
    keeps: list[str] = Field(
        default_factory=list,
        description="optional outputs that it needs: computed whether or not a call asks for them",
    )


class DeclaredGradient(_OneGradient):
    """Another family of the folder of specs, whose kernels give this one's gradients."""

    family: str = Field(description="its name")
    passes: dict[str, Text | None] = Field(
        default_factory=dict,
        description="values of its arguments and parameters: an input, an output, `gradient of` an "
        "output; for scalars and parameters, an expression. By default the value of the same name; "
        "null: nothing",
    )
    returns: dict[str, str] = Field(
        description="the inputs that have a gradient, each with the output that holds it",
        min_length=1,
    )
    requires: list[Rule] = Field(
        default_factory=list, description="checked at a call that is differentiated"
    )


def _gradient_kind(value: Any) -> str:
    return "<family>" if isinstance(value, dict) and "family" in value else "<function>"


# Sources of the family's gradients: its operators of PyTorch are then differentiable.
Gradient = Annotated[
    Annotated[GradientFunction, Tag("<function>")] | Annotated[DeclaredGradient, Tag("<family>")],
    Discriminator(_gradient_kind),
]
_Gradients = Annotated[
    Annotated[list[Gradient], Tag("<list>")] | Annotated[Gradient, Tag("<one>")],
    Discriminator(lambda value: "<list>" if isinstance(value, list) else "<one>"),
]


class Shard(Written):
    """Symbols along which a call falls apart into calls on parts of its tensors."""

    along: list[str] = Field(
        description="symbols that are divided together: each output has one of them", min_length=1
    )
    when: Text = Field("True", description="over the family's symbols and optional inputs")


class PackagePath(Written):
    """A file or folder of an installed Python package, which is found when CMake configures."""

    package: str = Field(description="the package's name in imports")
    path: str = Field("", description="within the package's folder")
    pip: str | None = Field(
        None, description="the requirement that installs it; default: the package's name"
    )


class Shims(Written):
    """Kernelmint's own headers in place of another project's, so that foreign kernels compile."""

    shims: Literal["torch"] = Field(description="stand-ins for the headers of ATen and c10")


class Archive(Written):
    """Another project's sources, by pin: fetched once, and checked against the hash."""

    pypi: str | None = Field(None, description="a project, whose source distribution it is")
    version: str | None = Field(None, description="the project's version")
    url: str | None = Field(None, description="else its address")
    sha256: str | None = Field(None, description="the hash of the archive's file")
    folder: str | None = Field(
        None, description="else a folder, relative to the folder of specs: its contents count"
    )


class ArchivePath(Written):
    """A file or folder within an archive that `archives` names."""

    archive: str = Field(description="its name in `archives`")
    path: str = Field("", description="within the archive, without the folder at its top")


def _path_kind(value: Any) -> str:
    if isinstance(value, dict):
        return next((f"<{kind}>" for kind in ("archive", "shims") if kind in value), "<package>")
    return "<path>"


_Source = Annotated[str, Tag("<path>")] | Annotated[ArchivePath, Tag("<archive>")]
_Path = _Source | Annotated[PackagePath, Tag("<package>")]
_Include = _Path | Annotated[Shims, Tag("<shims>")]
Source = Annotated[_Source, Discriminator(_path_kind)]
Path = Annotated[_Path, Discriminator(_path_kind)]
Include = Annotated[_Include, Discriminator(_path_kind)]


class Excerpt(Written):
    """Definitions of a file of an archive, which the build writes into a header."""

    archive: str = Field(description="its name in `archives`")
    path: str = Field(description="the file, within the archive without the folder at its top")
    take: list[str] = Field(
        min_length=1, description="names of functions, classes, macros, constants"
    )
    kernels: Literal["global", "device"] = Field(
        "global", description="device: its kernels become functions that a kernel of yours calls"
    )


class Build(Written):
    """Options of compiling and linking beyond the header."""

    flags: list[str] = Field(
        default_factory=list, description="the compiler's options, each with its value"
    )
    definitions: dict[str, MacroValue] = Field(
        default_factory=dict, description="macros: NAME: value, or NAME: without a value"
    )
    archives: dict[str, Archive] = Field(
        default_factory=dict,
        description="sources of other projects; its targets share those of family.yaml",
    )
    include: list[Include] = Field(
        default_factory=list,
        description="folders of headers: relative to the folder of specs, of a Python package, of "
        "an archive, or shims of another project's",
    )
    excerpts: dict[str, Excerpt] = Field(
        default_factory=dict,
        description="headers of definitions of an archive's files, by the name to include",
    )
    libraries: list[Path] = Field(
        default_factory=list,
        description="libraries to link: a name, as -l takes it, or a file, as `include` names "
        "folders",
    )
    sources: list[Source] = Field(
        default_factory=list,
        description="files of the family's folder, or of an archive, that are compiled once: .cpp, "
        "or .cu",
    )


class GeneratedFront(Written):
    """A generated front: it chooses the kernel by a call's arguments."""

    name: str = Field(description="the function's")
    takes: dict[str, Text] = Field(
        default_factory=dict,
        description="the family's or targets' parameters, each over symbols, scalars, dtypes, "
        "flags, optional tensors, true if they are passed, stride(x, 0) and aligned(x, 16) of "
        "inputs, and the device's compute_capability",
    )
    flags: dict[str, Value | None] = Field(
        default_factory=dict,
        description="parameters that callers pass, and their defaults; null leaves one open",
    )


class FamilyFile(Written):
    """family.yaml: the computation and its arguments."""

    family: str = Field(description="the folder's name")
    summary: str = Field(description="its computation, on one line", min_length=1)
    arguments: dict[str, Argument] = Field(description="in the order of the Python signature")
    parameters: dict[str, Parameter] = Field(
        default_factory=dict, description="shared by every target, in the order of the key"
    )
    derived: dict[str, Text] = Field(
        default_factory=dict,
        description="values of every target, computed from parameters and those above",
    )
    requires: list[Rule] = Field(
        default_factory=list, description="checked at each call, on the bound shapes and scalars"
    )
    trace: Trace | None = Field(
        None, description="the record that its traced kernels write, if asked to"
    )
    build: Build | None = Field(None, description="settings of every target")
    reference: str | None = Field(None, description="file.py:function, the PyTorch oracle")
    gradient: _Gradients | None = Field(None, description="the source of its gradients, if any")
    shards: list[Shard] = Field(
        default_factory=list,
        description="divisions of calls of its operators on sharded tensors (DTensor)",
    )
    operations: Text | None = Field(
        None,
        description="multiplications and additions of a call, masks aside, over parameters, "
        "derived values, symbols and optional inputs: FlopCounterMode's count; or "
        "file.py:function of a kernel's parameters and the inputs, if it depends on values",
    )
    front: Annotated[list[str | GeneratedFront], BeforeValidator(_as_list)] = Field(
        default_factory=list,
        description="functions that the family offers Python beyond its kernels: file.py:function, "
        "a function to generate, or several",
        json_schema_extra={"type": ["string", "object", "array"]},
    )

    @property
    def gradients(self) -> list[tuple[tuple[str | int, ...], Gradient]]:
        """Returns each source of gradients, and its place."""
        if isinstance(self.gradient, list):
            return [(("gradient", i), one) for i, one in enumerate(self.gradient)]
        return [] if self.gradient is None else [(("gradient",), self.gradient)]


class Choice(Written):
    """A row of choices.yaml."""

    when: Text = Field(
        "True",
        description="over the family's symbols, scalars, optional tensors and parameters, and the "
        "device's compute_capability",
    )
    take: dict[str, Value] = Field(description="values of parameters that the caller leaves open")


class ChoicesFile(Written):
    """choices.yaml: the order in which a front tries kernels."""

    choices: list[Choice] = Field(
        description="the first row that holds and that a kernel fits", min_length=1
    )


Axis = Annotated[
    list[Value],
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "description": "a value, or a list of values",
            "anyOf": [
                {"type": ["string", "integer", "boolean"]},
                {"type": "array", "items": {"type": ["string", "integer", "boolean"]}},
            ],
        }
    ),
]


Range = Annotated[list[int], Field(min_length=2, max_length=2)]
_COVERED = (
    "the condition on the calls that it stands for, beside their sizes: over symbols, scalars, "
    "optional tensors and the family's parameters that are named here; absent: all calls"
)


class TunedRow(Written):
    """A row of <target>.tuned.yaml: on a device, the fastest kernel for a range of sizes."""

    device: str = Field(description="the device's name, which must match", min_length=1)
    parameters: dict[str, Value] = Field(
        description="parameters that the caller asks for, and that the sweep did not choose"
    )
    when: Text | None = Field(None, description=_COVERED)
    range: dict[str, Range] = Field(
        description="the least and the greatest value of a symbol, or of a product of symbols"
    )
    take: str = Field(description="the key of the kernel that is taken")
    milliseconds: float = Field(description="its median time at `sizes`", gt=0)
    sizes: dict[str, int] = Field(description="the symbols' values at which it was measured")
    runner_up: str | None = Field(None, description="the key of the second")
    runner_up_milliseconds: float | None = Field(None, description="its median time", gt=0)
    tie: bool = Field(
        False, description="true if the first is not surely more than 1% faster than the second"
    )
    toolchain: str = Field(description="the compiler that built it")
    code: str = Field(description="the hash of its machine code")


class TunedFile(Written):
    """<target>.tuned.yaml: measurements of `kernelmint tune`, by which kernels are chosen."""

    tuned: list[TunedRow] = Field(description="the first row that covers a call decides")


class ShapePoint(Written):
    """Sizes that are measured, and the range of sizes that they stand for."""

    sizes: dict[str, Text] = Field(
        default_factory=dict, description="values of symbols, beside those of all points"
    )
    range: dict[str, Range] = Field(
        description="the least and the greatest value of a symbol, or of a product of symbols"
    )


class ShapeGroup(Written):
    """Points that are measured for each combination of some parameters' values."""

    parameters: dict[str, Axis] = Field(
        default_factory=dict, description="a caller's parameters: values, or lists of values"
    )
    sizes: dict[str, Text] = Field(
        default_factory=dict,
        description="values of symbols at all points: expressions over parameters and symbols",
    )
    scalars: dict[str, int | float | bool] = Field(
        default_factory=dict, description="scalars that are passed; others take their defaults"
    )
    given: list[str] = Field(
        default_factory=list, description="optional inputs that are passed; others are left out"
    )
    when: Text | None = Field(None, description=_COVERED)
    points: list[ShapePoint] = Field(description="points to measure", min_length=1)


class Estimate(Written):
    """An estimate by which configurations are left out before they are compiled for a shape."""

    estimate: Text = Field(
        description="over symbols, parameters, derived values and facts about the device"
    )
    within: float = Field(
        description="configurations whose estimate is at most so many times the least are timed",
        ge=1,
    )


class ShapesFile(Written):
    """<target>.shapes.yaml: the calls that `kernelmint tune` measures."""

    shapes: list[ShapeGroup] = Field(description="groups of points to measure", min_length=1)
    cost: Estimate | None = Field(None, description="an estimate that leaves configurations out")


class Workspace(_Shaped):
    """Scratch memory of one target, allocated for each call."""

    shape: list[Text] = Field(
        description="its extents, over symbols, parameters, derived values, integer scalars and "
        "facts about the device",
        min_length=1,
    )
    when: Text | None = Field(None, description="the condition under which a call needs it")
    fill: Filling | None = Field(None, description=_FILL)


Extents = Annotated[
    list[Text],
    Field(min_length=1, max_length=3),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": _SCALARS},
                {"type": "array", "items": {"type": _SCALARS}, "minItems": 1, "maxItems": 3},
            ],
        }
    ),
]


class Launch(Written):
    """The launch of a CUDA kernel; absent: the header brings its own launch<Config, Isa>."""

    grid: Annotated[Extents, BeforeValidator(_as_list)] = Field(description="blocks along x, y, z")
    block: Annotated[Extents, BeforeValidator(_as_list)] = Field(
        description="threads of a block, or those along x, y, z"
    )
    shared_memory: Text = Field("0", description="dynamic shared memory, bytes")
    cluster: Annotated[Extents, BeforeValidator(_as_list)] = Field(
        default_factory=list, description="blocks of a cluster along x, y, z, from sm90 on"
    )
    dependent: Text = Field(
        "false",
        description="programmatic dependent launch, from sm90 on: true if the kernel may start "
        "before the previous kernel of its stream has ended",
    )
    cooperative: Text = Field(
        "false",
        description="true if all blocks run at the same time, so that they can wait for each other",
    )


class SetPart(Written):
    """Configurations by their differences: each key adds some, in this order."""

    base: dict[str, Axis] | None = Field(
        None,
        description="values on which `configurations`, `steps` and `product` build",
    )
    include: list[str] | None = Field(None, description="the configurations of other sets")
    configurations: list[SetItem] | None = Field(None, description="configurations and products")
    steps: list[dict[str, Value]] | None = Field(
        None, description="configurations, each by its changes to the one above"
    )
    over: str | None = Field(
        None, description="a set above, whose configurations `product` is taken over"
    )
    product: dict[str, Axis] | None = Field(
        None, description="values of each parameter: all combinations that constraints leave"
    )
    prune: list[Rule] = Field(default_factory=list, description="further rules of the product")


# Keys that make a mapping in a set more than a configuration; no parameter may have such a name.
SET_KEYS = ("include", "configurations", "steps", "product")


def _set_item_kind(value: Any) -> str:
    if isinstance(value, dict) and not any(key in value for key in SET_KEYS):
        return "<configuration>"
    return "<part>"


def _set_kind(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<part>"


SetItem = Annotated[
    Annotated[dict[str, Value], Tag("<configuration>")] | Annotated[SetPart, Tag("<part>")],
    Discriminator(_set_item_kind),
]
SetBody = Annotated[
    Annotated[list[SetItem], Tag("<list>")] | Annotated[SetPart, Tag("<part>")],
    Discriminator(_set_kind),
]
SetPart.model_rebuild()


class ShortForm(Written):
    """Another way to write a configuration: (value, value, …): feature+feature+…."""

    values: list[str] = Field(description="parameters (not bool) in the parentheses, in order")
    features: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="word: the bool parameter that it stands for; or words and a {} for each of a "
        "list of int parameters, joined by _",
    )


class Wgmma(Written):
    """Products of compute capability 9.0 that the kernel uses, m64nNk16 with fp32 results."""

    dtype: str = Field(description="bf16, fp16, or the name of a dtype parameter: the operands'")
    shared_shared: list[Text] = Field(
        default_factory=list, description="N of each product with both operands in shared memory"
    )
    registers_shared: list[Text] = Field(
        default_factory=list,
        description="N of each product with A in registers and B in shared memory",
    )
    registers_transposed: list[Text] = Field(
        default_factory=list,
        description="the same with B the other way round, its columns contiguous",
    )
    shared_transposed: list[Text] = Field(
        default_factory=list,
        description="N of each product with both in shared memory and B's columns contiguous",
    )
    transposed_shared: list[Text] = Field(
        default_factory=list,
        description="N of each product with both in shared memory and A's columns contiguous",
    )
    transposed_transposed: list[Text] = Field(
        default_factory=list,
        description="N of each product with both in shared memory and both's columns contiguous",
    )


class Limits(Written):
    """Limits of a kernel's resources."""

    registers: int | None = Field(None, ge=0)
    spill_bytes: int | None = Field(None, ge=0)
    stack_bytes: int | None = Field(None, ge=0)
    c75: int | None = Field(None, ge=0, description="C75xx advisories of ptxas (wgmma serialised)")
    code_bytes: int | None = Field(None, ge=0, description="of machine code")


class Budget(Limits):
    """Limits of a kernel's resources; ptx-report --check fails if one is exceeded."""

    architectures: dict[str, Limits] = Field(
        default_factory=dict,
        description="{sm90: {spill_bytes: 16}}: limits of one architecture, in place of the others",
    )


class Prediction(Written):
    """The figures that ptxas is expected to print of a kernel."""

    registers: Text | None = Field(None, description="of a thread")
    shared_bytes: Text | None = Field(
        None, description="of static shared memory, which ptxas counts"
    )


class TargetFile(Written):
    """<target>.yaml: the computation on one target."""

    target: str = Field(description="cpu, or the least CUDA architecture: sm80, sm90a, sm100f")
    kernel: str = Field(description="header[:kernel]; the kernel if `launch` is given")
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    constraints: list[Rule] = Field(default_factory=list, description="checked at generation")
    derived: dict[str, Text] = Field(
        default_factory=dict, description="values computed from parameters and those above"
    )
    limits: dict[str, Annotated[int, Field(ge=-INT64_MAX, le=INT64_MAX)]] = Field(
        default_factory=dict, description="the greatest value of a derived value or parameter"
    )
    predict: Prediction | None = Field(
        None,
        description="over parameters and derived values; constraints and sets may name registers "
        "and shared_bytes, code may not",
    )
    workspace: dict[str, Workspace] = Field(
        default_factory=dict, description="members of Args::workspace: pointers, null if not needed"
    )
    launch: Launch | None = None
    wgmma: Wgmma | None = Field(
        None, description="ptx::Wgmma is made for these, in <family>/<target>_wgmma.cuh"
    )
    build: Build | None = Field(None, description="settings of this target, after the family's")
    requires: list[Rule] = Field(default_factory=list, description="after the family's, at calls")
    alignment: Text | None = Field(
        None, description="bytes, over parameters and derived values; default: the element's size"
    )
    files: int | None = Field(
        None,
        ge=1,
        description="about the number of files that hold the kernels: fewer, if headers cost most",
    )
    sets: dict[str, SetBody] = Field(description="generated/ holds the kernels of `default`")
    short: ShortForm | None = Field(None, description="names each parameter exactly once")
    budget: Budget | None = None


def validate(document: Document, model: type[Written]) -> Any:
    """Returns the document as `model`, or None with the problems added to the document's."""
    if not isinstance(document.data, LocatedMapping):
        if not document.problems:
            keys = [name for name, field in model.model_fields.items() if field.is_required()]
            document.report(f"must be a mapping with the keys {', '.join(keys)}")
        return None
    try:
        return model.model_validate(document.data, context=document)
    except ValidationError as error:
        with suppress(TooManyProblemsError):
            for detail in error.errors(include_url=False):
                _report(document, detail)
    except TooManyProblemsError:
        pass
    return None


def _report(document: Document, detail: ErrorDetails) -> None:
    """Adds one of pydantic's errors at its place, in the words of people who write YAML.

    If a problem was reported already, it is the cause.
    """
    path: list[str | int] = []
    data: Any = document.data
    missing = ""
    for step in detail["loc"]:  # steps that are not in the data name members of unions
        inside = step in data if isinstance(data, dict) else isinstance(data, list)
        if inside and (isinstance(data, dict) or isinstance(step, int)):
            path.append(step)
            data = data[step]
        else:
            missing = str(step)
    got = f", not {_describe(data)}"
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            message = f"the key '{missing}' is missing"
        case "union_tag_not_found":
            kinds = ", ".join(f"{kind}:" for kind in ARGUMENT_KINDS)
            message = f"an argument is one of {kinds}"
        case "union_tag_invalid":
            kinds = str(context["expected_tags"]).replace("'", "")
            message = f"got {context['tag']}, expected one of {kinds}"
        case "literal_error":
            expected = str(context["expected"]).replace("'", "").replace(" or ", ", ")
            message = f"unknown value '{data}'{did_you_mean(str(data), expected.split(', '))}"
        case "string_type":
            message = f"must be a text{got}"
        case "float_type":
            message = f"must be a number{got}"
        case "int_type":
            message = f"must be an integer{got}"
        case "bool_type":
            message = f"must be true or false{got}"
        case "list_type":
            message = f"must be a list{got}"
        case "dict_type" | "model_type" | "model_attributes_type":
            message = f"must be a mapping{got}"
        case "too_short" if context["min_length"] > 1:
            message = f"must have at least {context['min_length']} entries, not {len(data)}"
        case "string_too_short" | "too_short":
            message = "must not be empty"
        case "too_long":
            message = f"must have at most {context['max_length']} entries, not {len(data)}"
        case _:
            text = detail["msg"]
            message = text[0].lower() + text[1:] + ("" if "must be" in text else got)
    place = document.locate(*path)
    if not any(problem.location == place for problem in document.problems):
        document.report(message, *path)


def _describe(data: Any) -> str:
    if data is None:
        return "empty"
    if isinstance(data, dict):
        return "a mapping"
    if isinstance(data, list):
        return "a list"
    return f"the text '{data}'" if isinstance(data, str) else repr(data).lower()


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 7) of each kind of file, for editors."""
    models = (FamilyFile, ChoicesFile, TunedFile, ShapesFile, TargetFile)
    schemas = {model.__name__: model.model_json_schema() for model in models}
    definitions = {k: v for one in schemas.values() for k, v in one.pop("$defs", {}).items()}
    family, *others, target = ({"$ref": f"#/$defs/{name}"} for name in schemas)
    by_key: dict[str, Any] = target
    for key, model in zip(("choices", "tuned", "shapes"), others, strict=True):
        by_key = {"if": {"required": [key]}, "then": model, "else": by_key}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A Kernelmint spec: family.yaml, choices.yaml, "
        "<target>.yaml, <target>.tuned.yaml or <target>.shapes.yaml",
        "if": {"required": ["family"]},
        "then": family,
        "else": by_key,
        "$defs": dict(sorted({**definitions, **schemas}.items())),
    }
