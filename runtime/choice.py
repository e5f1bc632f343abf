"""Which kernel a family's front takes: one chooser, by the rows that were tuned for this device and
by those of the family's choices.yaml."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from codegen.core.dtypes import SCALARS
from codegen.core.expressions import (
    BOOL,
    COMPUTE_CAPABILITY,
    EVALUATION_ERRORS,
    INT,
    Expression,
    Kind,
    layout_name,
    parse,
    reason,
    scalar_kind,
)
from codegen.core.manifest import Family, Scalar, SizeRange, Target, TunedRow
from codegen.core.where import parameter_kind
from runtime import devices, finding, listing, manifest, ondemand, packs, tensors
from runtime.errors import InvalidArgument, KernelNotFound, text, unexpected, unlisted
from runtime.handle import Kernel, in_graphs, traced_as_constant
from runtime.kernel_info import KernelInfo, infos_for

if TYPE_CHECKING:
    from runtime.ondemand.kernels import Allowed
    from runtime.operators.arguments import LazyArguments

_NOTHING: Mapping[str, Any] = MappingProxyType({})
Unmet = tuple[tuple[str, str], ...]  # targets, and which requirement of theirs is not met
_chosen: dict[tuple[object, ...], Kernel] = {}
_taken: dict[tuple[object, ...], Kernel] = {}
_in_graphs: dict[str, Kernel] = {}
_MOST_TAKEN = 4096  # calls of different sizes that are kept at one time
_MOST_SAID = 8  # reasons why kernels do not suit, and one for each target
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # found once: calls are short


@dataclass(frozen=True)
class Considered:
    """What a choice looked at: a row or a kernel, and why it was taken or not."""

    what: str
    verdict: str


@dataclass(frozen=True)
class Explanation:
    """What `choose` considers for a call, in its order, and what it takes."""

    family: str
    device: str
    considered: tuple[Considered, ...]
    key: str | None

    def __str__(self) -> str:
        """The whole of it, for people."""
        lines = [f"  {entry.what}: {entry.verdict}" for entry in self.considered]
        return "\n".join([f"{self.key or f'no kernel of {self.family}'} on {self.device}", *lines])


def take(
    family: str,
    device: torch.device,
    wanted: Mapping[str, Any],
    sizes: Mapping[str, Any] = _NOTHING,
    target: str | None = None,
    tuned: bool = True,
) -> Kernel:
    """What `choose` finds, for a front: quick if it was found before, and right in a graph.

    While torch.compile, torch.export or make_fx record the call, sizes may be symbols. If rows
    would take several kernels for other sizes, the kernel that is returned leaves the choice to its
    operator, which makes it whenever the graph runs: one graph serves all sizes.

    Args:
        family: a family's name.
        device: where the tensors are.
        wanted: parameters by name; a dtype may be PyTorch's.
        sizes: what rows name beside parameters: symbols and scalars, by name; and what `lying`
            answers.
        target: only this target's.
        tuned: whether rows that were tuned count.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """
    if _is_dynamo_compiling():
        constants, unmet = _constants(family, wanted), _unmet(family, sizes)
        return in_graph(_for_any_sizes(family, device, constants, target, tuned, unmet))
    key = (family, device, target, tuned, *wanted, *wanted.values(), *sizes, *sizes.values())
    try:
        found = _taken.get(key)
    except TypeError:  # a symbol has no hash
        listing.check_target(target)
        constants, unmet = _constants(family, wanted), _unmet(family, sizes)
        return in_graph(_for_any_sizes(family, device, constants, target, tuned, unmet))
    except Exception:  # of a value that refuses it, which the kernel refuses in turn
        return choose(family, device, _plain(wanted), sizes, target, tuned)
    if found is None:
        found = choose(family, device, _plain(wanted), sizes, target, tuned)
        if len(_taken) >= _MOST_TAKEN:
            _taken.clear()
        _taken[key] = found
    return found


def forget() -> None:
    """Packs have changed: what was chosen before may be another kernel now."""
    for kept in (_chosen, _taken, _in_graphs):
        kept.clear()
    for found in (_tuned_for, _conditions, _scalars, _of_memory):
        found.cache_clear()


packs.when_changed(forget)


def deciding(family: str) -> set[str]:
    """The symbols, optional inputs and scalars that rows of a family name, and defaults of these
    scalars."""
    expressions = [*(when for when, _ in _rows(family)), *_conditions(family)]
    expressions += [default for _, default in _scalars(family) if default]
    names = {name for expression in expressions for name in expression.names}
    ranges = (r for target in _by_capability(family) for row in target.tuned for r in row.ranges)
    return names.union(*(found.symbols for found in ranges))


def _plain(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as specs write them."""
    return {
        name: finding.dtype_name(value) or str(value) if isinstance(value, torch.dtype) else value
        for name, value in wanted.items()
    }


def _constants(family: str, wanted: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What is wanted, symbols as the values that they have among those that kernels have. Compared,
    not converted: a graph becomes one for this value."""
    constants = []
    for name, value in wanted.items():
        for known in _integers(family, name):  # not next(…): PyTorch 2.4 cannot trace it
            if known == value:
                value = known
                break
        constants.append((name, value))
    return tuple(constants)


@traced_as_constant
def _integers(family: str, name: str) -> tuple[Any, ...]:
    """The integers that a parameter has among the kernels of a family."""
    found = (
        kernel.parameters.get(name)
        for target in manifest.family(family).targets
        for kernel in target.kernels
    )
    return tuple(dict.fromkeys(value for value in found if type(value) is int))


def in_graph(name: str) -> Kernel:
    """The kernel of that name in graphs."""
    found: Kernel = getattr(in_graphs, name)
    return found


@traced_as_constant
def _for_any_sizes(
    family: str,
    device: torch.device,
    wanted: tuple[tuple[str, Any], ...],
    target: str | None,
    tuned: bool,
    unmet: Unmet,
) -> str:
    """The kernel that is taken whatever the sizes are, by its name in graphs; or one that leaves it
    to the operator, whose key is then what is wanted, as JSON."""
    plain = _plain(dict(wanted))
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]]
    rows = [((i,), ()) for i in range(len(_tuned(family, device, plain)) if tuned else 0)]
    rows += [((), (i,)) for i in range(len(_rows(family)))] or [((), ())]
    found: dict[str, Kernel] = {}
    refused = None
    for covering, held in rows:
        try:
            kernel = _first(family, device, plain, target, covering, held, unmet)
            found[kernel.info.key] = kernel
        except KernelNotFound as error:
            refused = error
    if not found:
        assert refused is not None
        raise refused
    key, kernel = next(iter(found.items()))
    if len(found) > 1 or refused is not None:
        asked = {"family": family, "target": target, "wanted": plain, "tuned": tuned}
        key = json.dumps(asked)
        kernel = kernel.left_open(key)
    _in_graphs[key] = kernel
    return kernel.name_in_graphs()


def of_graph(key: str) -> Kernel:
    """The kernel of a key that `take` gave while a graph was recorded."""
    return _in_graphs[key] if key in _in_graphs else finding.kernel(key)


def no_key(key: str) -> InvalidArgument:
    """Of an operator's key that is none."""
    return InvalidArgument(
        f"key: got {text(key)}, expected a kernel's key, or what a graph recorded"
    )


def of_call(key: str, call: LazyArguments) -> Kernel:
    """The kernel of an operator's key, which is a kernel's or one that leaves the choice to the
    operator; `call` tells what the call says."""
    if not key.startswith("{"):
        return finding.find(key)
    said = call()
    device = said.device
    try:
        asked = json.loads(key)
        family, wanted, target = asked["family"], dict(asked["wanted"]), asked["target"]
        tuned = asked["tuned"]
        known = packs.owner(family) is not None
    except (ValueError, LookupError, TypeError):
        known = False
    if not known:
        raise no_key(key)
    if device.type != "meta":
        sizes = {**said.sizes, **lying(family, said.inputs)}
        return take(family, device, wanted, sizes, target, tuned)
    if key not in _in_graphs:  # of a graph that another process recorded: any kernel tells shapes
        device = torch.device("cuda" if devices.has_cuda() else "cpu")
        items = tuple(wanted.items())
        return in_graph(_for_any_sizes(family, device, items, target, tuned, ()))
    return _in_graphs[key]


def choose(
    family: str,
    device: torch.device,
    wanted: Mapping[str, Any],
    sizes: Mapping[str, Any] = _NOTHING,
    target: str | None = None,
    tuned: bool = True,
) -> Kernel:
    """The kernel of `family` that suits a call on `device`; kept for the process.

    It has the parameters `wanted`; a value of None leaves one open. First come the rows that
    were tuned (<target>.tuned.yaml): one that is of this device, has the parameters that are wanted
    and covers the call decides, if its kernel is available. Then, of the rows of the family's
    choices.yaml whose condition holds, the first that a kernel fits: its values count for what is
    open, if a target has that parameter. Without rows, and among several that fit, the first
    kernel: targets of the highest compute capability before others, then as the spec lists them.

    Args:
        family: a family's name.
        device: where the tensors are.
        wanted: parameters by name, as specs write their values.
        sizes: what rows name beside parameters: symbols, scalars, and whether optional tensors are
            there, by name; and what `lying` answers.
        target: only this target's.
        tuned: whether rows that were tuned count.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """
    listing.check_target(target)
    known = _known(family, device, wanted, sizes)
    covering = _covering(family, _tuned(family, device, wanted), known) if tuned else ()
    held = _held(family, known)
    return _first(family, device, wanted, target, covering, held, _unmet(family, sizes))


def _first(
    family: str,
    device: torch.device,
    wanted: Mapping[str, Any],
    target: str | None,
    covering: tuple[int, ...],
    held: tuple[int, ...],
    unmet: Unmet,
) -> Kernel:
    """The first kernel that fits, by the tuned rows that cover the call and those of choices.yaml
    that hold. If only targets with `unmet` requirements have one, it is theirs, and says itself
    what it requires."""
    key = (family, device, target, tuple(wanted.items()), covering, held, unmet)
    found = _chosen.get(key)
    if found is not None:
        return found
    rows = _tuned(family, device, wanted)
    refused: dict[tuple[str, str], list[str]] = {}
    for candidate, take, _ in _candidates(family, device, [rows[i] for i in covering], held):
        why = dict(unmet).get(candidate.target) or _why_not(candidate, device, target, wanted, take)
        if why is None:
            return _chosen.setdefault(key, finding.kernel(candidate.key))
        refused.setdefault((candidate.target, why), []).append(candidate.key)
    if unmet:
        return _first(family, device, wanted, target, covering, held, ())
    from runtime.ondemand import kernels as on_demand  # compilers, which nothing else needs

    named = {name: value for name, value in wanted.items() if value is not None}
    allowed = on_demand.allowed(family, _targets_for(family, device, target), named)
    if allowed is not None and allowed.keys and ondemand.wanted(family, None):
        built = finding.kernel(allowed.keys[0])
        return _chosen.setdefault(key, built)
    raise KernelNotFound(_not_found(family, device, named, refused, allowed))


def _targets_for(family: str, device: torch.device, target: str | None) -> list[str]:
    """The targets whose kernels a device can run, of the highest compute capability first."""
    index = 0 if device.type != "cuda" else _indexed(device).index
    return [
        found.name
        for found in _by_capability(family)
        if target in (None, found.name)
        and devices.why_not_its_kind(found.is_cuda, device.type) is None
        and not (found.is_cuda and devices.why_unsuitable(found.name, index))
    ]


def explain(
    family: str,
    device: torch.device,
    wanted: Mapping[str, Any],
    sizes: Mapping[str, Any] = _NOTHING,
    target: str | None = None,
    tuned: bool = True,
) -> Explanation:
    """What `choose` considers for these arguments, and why it takes what it takes."""
    wanted = _plain(wanted)
    listing.check_target(target)
    name = devices.name(_indexed(device))
    known = _known(family, device, wanted, sizes)
    considered = list(_tuned_rows_considered(family, name, wanted, known)) if tuned else []
    rows = _tuned(family, device, wanted) if tuned else ()
    covering = _covering(family, rows, known)
    held = _held(family, known)
    considered += [
        Considered(f"choices.yaml, row {i + 1}: {when.text}", "holds" if i in held else "no")
        for i, (when, _) in enumerate(_rows(family))
    ]
    refused: dict[str, list[str]] = {}
    unmet = dict(_unmet(family, sizes))
    taken = None
    for candidate, take, grounds in _candidates(family, device, [rows[i] for i in covering], held):
        why = unmet.get(candidate.target) or _why_not(candidate, device, target, wanted, take)
        if why is None:
            taken = Considered(candidate.key, f"taken: {grounds}")
            break
        refused.setdefault(why, []).append(candidate.key)
    considered += [
        Considered(f"{keys[0]}{f' and {len(keys) - 1} more' if len(keys) > 1 else ''}", why)
        for why, keys in refused.items()
    ]
    if taken is not None:
        considered.append(taken)
    return Explanation(family, name, tuple(considered), taken.what if taken else None)


def _measured(row: TunedRow) -> str:
    if row.runner_up is None or row.runner_up_milliseconds is None:
        return f"{row.milliseconds:.4g} ms, nothing else was measured"
    how = "a tie with" if row.tie else "before"
    return (
        f"{row.milliseconds:.4g} ms, {how} {row.runner_up} with {row.runner_up_milliseconds:.4g} ms"
    )


def _tuned_rows_considered(
    family: str, name: str, wanted: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[Considered]:
    for found in _by_capability(family):
        passed_over: dict[str, int] = {}
        for i, row in enumerate(found.tuned):
            if row.device != name:
                why = "of other devices"
            elif any(wanted.get(p) != value for p, value in row.parameters.items()):
                why = "for other parameters"
            else:
                wrong = [] if _holds(family, row, known) else [f"not so: {row.when}"]
                wrong = wrong or [
                    f"{r.text} is {value}, not in [{r.least}, {r.most}]"
                    for r in row.ranges
                    if not r.least <= (value := _product(r, known)) <= r.most
                ]
                what = f"{found.name}.tuned.yaml, row {i + 1}: {row.take}"
                yield Considered(what, ", ".join(wrong) or "covers the call")
                continue
            passed_over[why] = passed_over.get(why, 0) + 1
        for why, count in passed_over.items():
            yield Considered(f"{found.name}.tuned.yaml, {count} rows", why)


def _covering(family: str, rows: Sequence[TunedRow], known: Mapping[str, Any]) -> tuple[int, ...]:
    """The rows whose conditions hold, and whose ranges hold the sizes."""
    held: dict[str | None, bool] = {None: True}  # many rows have the same condition
    found = []
    for i, row in enumerate(rows):
        if row.when not in held:
            held[row.when] = _holds(family, row, known)
        if held[row.when] and all(r.least <= _product(r, known) <= r.most for r in row.ranges):
            found.append(i)
    return tuple(found)


def _holds(family: str, row: TunedRow, known: Mapping[str, Any]) -> bool:
    """Whether a row's condition does, without which its ranges may have no values."""
    if row.when is None:
        return True
    when = _condition(family, row.when)
    for name in when.names:
        if name not in known and name not in _of_optional(family):
            raise _untold(name)
    return bool(_value(when, known, "a tuned row"))


@dataclass(frozen=True)
class _OfMemory:
    """What the targets of a family require of how tensors lie in memory: (target, condition, why a
    call is refused), and what the conditions name, as codegen.core.expressions.layout reads it:
    (name, place of the input, dimension)."""

    rules: tuple[tuple[str, Expression, str], ...]
    names: tuple[tuple[str, int, int], ...]


@functools.cache
def _of_memory(family: str) -> _OfMemory:
    found = manifest.family(family)
    known = {
        layout_name("expanded", tensor.name, dim): (place, dim)
        for place, tensor in enumerate(found.inputs)
        for dim in range(len(tensor.dims))
    }
    scope = dict.fromkeys(known, BOOL)
    rules = tuple(
        (target.name, parse(rule.that, scope, "bool"), f"requires {rule.that}: {rule.because}")
        for target in found.targets
        for rule in target.requires
        if "expanded(" in rule.that  # such a rule names nothing else
    )
    names = dict.fromkeys(name for _, rule, _ in rules for name in sorted(rule.names))
    return _OfMemory(rules, tuple((name, *known[name]) for name in names))


@traced_as_constant
def asked_of_memory(family: str) -> tuple[tuple[str, int, int], ...]:
    """What the targets of a family ask of how tensors lie in memory: (name in expressions, place of
    the input, dimension)."""
    return _of_memory(family).names


def lying(family: str, inputs: Sequence[Any]) -> dict[str, bool]:
    """The answers to that, of a call's inputs."""
    answers = {}
    for name, place, dim in asked_of_memory(family):
        answers[name] = tensors.is_expanded(inputs[place], dim)
    return answers


def _unmet(family: str, sizes: Mapping[str, Any]) -> Unmet:
    """The targets whose requirements of how tensors lie are not met, and which these are."""
    true = tuple([name for name, _, _ in asked_of_memory(family) if sizes.get(name)])
    return _unmet_by(family, true) if true else ()


@traced_as_constant
def _unmet_by(family: str, true: tuple[str, ...]) -> Unmet:
    found = _of_memory(family)
    values = {name: name in true for name, _, _ in found.names}
    return tuple((target, why) for target, rule, why in found.rules if not rule.evaluate(values))


def _product(found: SizeRange, known: Mapping[str, Any]) -> int:
    value = 1
    for symbol in found.symbols:
        if symbol not in known:
            raise _untold(f"the size {symbol}")
        value = value * known[symbol]
    return value


def _untold(what: str) -> InvalidArgument:
    return InvalidArgument(f"a tuned row depends on {what}, which this front does not tell")


def _by_capability(family: str) -> list[Target]:
    return sorted(manifest.family(family).targets, key=lambda target: -target.capability)


def _indexed(device: torch.device) -> torch.device:
    """The device with its index."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _tuned(family: str, device: torch.device, wanted: Mapping[str, Any]) -> tuple[TunedRow, ...]:
    """The rows that were tuned for this device, and for these parameters."""
    rows = _tuned_for(family, _indexed(device))
    return tuple(
        row
        for row in rows
        if all(wanted.get(name) == value for name, value in row.parameters.items())
    )


@functools.cache
def _tuned_for(family: str, device: torch.device) -> tuple[TunedRow, ...]:
    rows = [row for target in _by_capability(family) for row in target.tuned]
    if not rows or device.type not in ("cpu", "cuda"):
        return ()
    name = devices.name(device)
    return tuple(row for row in rows if row.device == name)


@functools.cache
def _rows(family: str) -> tuple[tuple[Expression, Mapping[str, Any]], ...]:
    """The family's rows of choices.yaml: (condition, values to take)."""
    found = manifest.family(family)
    return tuple((_condition(family, row.when), row.take) for row in found.choices)


@functools.cache
def _conditions(family: str) -> tuple[Expression, ...]:
    """Those of the rows that were tuned."""
    rows = (row for target in _by_capability(family) for row in target.tuned)
    texts = dict.fromkeys(row.when for row in rows if row.when is not None)
    return tuple(_condition(family, text) for text in texts)


@functools.cache
def _condition(family: str, text: str) -> Expression:
    """A condition on calls."""
    found = manifest.family(family)
    kinds = {parameter.name: parameter_kind(parameter) for parameter in found.parameters}
    kinds |= {**_call_scope(found), **{s.name: scalar_kind(s) for s in found.scalars}}
    kinds[COMPUTE_CAPABILITY] = INT
    return parse(text, kinds, "bool")


@functools.cache
def _of_optional(family: str) -> frozenset[str]:
    """The symbols that have no value if optional inputs are left out; conditions ask for these."""
    found = manifest.family(family)
    always = {dim for tensor in found.inputs if not tensor.optional for dim in tensor.dims}
    return frozenset(symbol for symbol in found.symbols if symbol not in always)


@functools.cache
def _scalars(family: str) -> tuple[tuple[Scalar, Expression | None], ...]:
    """The scalars that rows name, each with its default."""
    found = manifest.family(family)
    expressions = (*(when for when, _ in _rows(family)), *_conditions(family))
    named = {name for when in expressions for name in when.names}
    return tuple(
        (scalar, None if scalar.default is None else parse(scalar.default, _call_scope(found)))
        for scalar in found.scalars
        if scalar.name in named
    )


def _call_scope(found: Family) -> dict[str, Kind]:
    return {**dict.fromkeys(found.symbols, INT), **dict.fromkeys(found.optional_tensors, BOOL)}


def _known(
    family: str, device: torch.device, wanted: Mapping[str, Any], sizes: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What rows may name: the scalars that are left out by their defaults."""
    if not _rows(family) and not _conditions(family):
        return sizes  # all that ranges name
    known = {COMPUTE_CAPABILITY: compute_capability(device), **wanted, **sizes}
    for scalar, default in _scalars(family):
        value = number(
            scalar.name, known.get(scalar.name), python_type(scalar), scalar.values, default is None
        )
        if value is None and default is not None:
            value = _value(default, known, scalar.name)
            value = scalar.values[value] if scalar.values else value
        known[scalar.name] = value
    return known


def _held(family: str, known: Mapping[str, Any]) -> tuple[int, ...]:
    """The rows of choices.yaml whose condition holds."""
    rows = _rows(family)
    return tuple(i for i, (when, _) in enumerate(rows) if _value(when, known, "choices.yaml"))


@traced_as_constant
def compute_capability(device: torch.device) -> int:
    """86 for 8.6; 0 for what is not CUDA's."""
    return devices.capability_of(_indexed(device).index) if device.type == "cuda" else 0


@traced_as_constant
def sm_count(device: torch.device) -> int:
    """How many multiprocessors a CUDA device has; the number of PyTorch's threads on the CPU.

    It is what specs call `sm_count`, kept since each call may ask. A compiled graph holds the value
    that it had when the graph was traced.
    """
    if device.type == "cuda":
        return devices.facts(_indexed(device).index)[0]
    return torch.get_num_threads()


def python_type(scalar: Scalar) -> str:
    """What callers pass: str, int, float or bool."""
    return "str" if scalar.values else SCALARS[scalar.dtype].python


_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def number(name: str, value: Any, python: str, values: tuple[str, ...], is_required: bool) -> Any:
    """A scalar for what decides; what no kernel takes is refused as kernels do."""
    if value is None:
        if is_required:
            raise InvalidArgument(f"{name}: got None, expected a value: there is no default")
        return None
    if values and isinstance(value, str):
        if value not in values:
            raise InvalidArgument(unlisted(name, value, values))
        return value
    if not values and isinstance(value, _NUMBERS):
        return value
    if not values and getattr(value, "ndim", None) == 0 and not getattr(value, "is_cuda", False):
        return value.item()  # a tensor's on the CPU, or NumPy's
    raise unexpected(name, value, f"{'an' if python == 'int' else 'a'} {python}")


def _value(expression: Expression, values: Mapping[str, Any], place: str) -> Any:
    try:
        return expression.evaluate(values)
    except EVALUATION_ERRORS as error:
        why = f"{expression.text} has no value: {reason(error)}"
        raise InvalidArgument(f"{place}: {why}") from None


def _candidates(
    family: str, device: torch.device, tuned: Sequence[TunedRow], held: tuple[int, ...]
) -> Iterator[tuple[KernelInfo, Mapping[str, Any], str]]:
    """Kernels in the order in which they are tried, each with the values that a row prefers, and
    the grounds on which it is tried then."""
    capability = {t.name: t.capability for t in manifest.family(family).targets}
    infos = list(infos_for(listing.known_family(family), device.type))
    if tuned:
        by_key = {info.key: info for info in infos}
        for row in tuned:
            yield by_key.get(row.take) or _unlisted(family, row), _NOTHING, _measured(row)
    by_capability = sorted(infos, key=lambda info: -capability[info.target])
    why = "no kernel of a row is available" if tuned else "no row covers the call"
    others = [(_NOTHING, f"{why}, and it is the first that fits")]
    if rows := _rows(family):
        others = [(rows[i][1], f"the first that fits row {i + 1} of choices.yaml") for i in held]
    for take, grounds in others:
        for info in by_capability:
            yield info, take, grounds


def _unlisted(family: str, row: TunedRow) -> KernelInfo:
    """The kernel of a row that no pack lists: it is built on demand, if that is asked for."""
    target = manifest.family(family).target(row.take.split(".")[1])
    why = None
    if not ondemand.wanted(family, None):
        why = (
            f"its row covers the call, but no pack holds it: runtime.kernel({row.take!r}, "
            "build=True) builds it"
        )
    return KernelInfo(
        key=row.take,
        short=None,
        family=family,
        target=target.name,
        parameters=row.configuration,
        derived=_NOTHING,
        is_cuda=target.is_cuda,
        built=False,
        available=why is None,
        reason=why,
    )


def _why_not(
    info: KernelInfo,
    device: torch.device,
    target: str | None,
    wanted: Mapping[str, Any],
    take: Mapping[str, Any],
) -> str | None:
    if why := devices.why_not_its_kind(info.is_cuda, device.type):
        return why
    if target is not None and info.target != target:
        return f"its target is {info.target}, not {target}"
    if not info.built and info.reason is not None:
        return info.reason
    if info.is_cuda:
        index = torch.cuda.current_device() if device.index is None else device.index
        if info.built:
            listed = manifest.kernel(info.family, info.key)
            assert listed is not None
            _, _, (kernel,) = listed
            built_for = packs.of(info.family, info.key).architectures
            why = devices.why_unavailable(info.target, built_for, index) or devices.why_too_large(
                kernel.shared_memory, index
            )
        else:  # built when it is first asked for
            why = devices.why_unsuitable(info.target, index)
        if why is not None:
            return why
    own = info.parameters
    asked = manifest.family(info.family).asked_of(own, wanted)
    wrong = [
        f"{name} is {own[name]}, not {text(value)}"
        if name in own
        else f"it has no parameter {name}"
        for name, value in asked.items()
        if own.get(name) != value
    ]
    wrong += [
        f"{name} is {own[name]}, not {value}"
        for name, value in take.items()
        if name in own and name not in asked and own[name] != value
    ]
    return ", ".join(wrong) or None


def _not_found(
    family: str,
    device: torch.device,
    wanted: Mapping[str, Any],
    refused: Mapping[tuple[str, str], list[str]],
    allowed: Allowed | None,
) -> str:
    """Why no kernel suits: the nearest one first, then the others, then what can be done."""
    settings = ", ".join(f"{name} {text(value)}" for name, value in wanted.items())
    parameters = {info.key: info.parameters for info in infos_for(manifest.family(family), "")}

    def distance(entry: tuple[tuple[str, str], list[str]]) -> tuple[bool, int, int]:
        (target, _), keys = entry
        own = parameters.get(keys[0], {})
        other_kind = manifest.family(family).target(target).is_cuda != (device.type == "cuda")
        return other_kind, *finding.differing(own, wanted)

    reasons: list[str] = []
    targets: set[str] = set()
    for (target, why), keys in sorted(refused.items(), key=distance):
        if len(reasons) < _MOST_SAID or target not in targets:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            reasons.append(f"{keys[0]}{more}: {why}")
        targets.add(target)
    nearest = f". Nearest: {reasons[0]}" if reasons else ": none was generated"
    lines = [f"no {family} kernel for {settings} on {device}{nearest}"]
    lines += [f"  {reason}" for reason in reasons[1:]]
    if len(refused) > len(reasons):
        lines.append(f"  and {len(refused) - len(reasons)} other reasons, of kernels farther away")
    if allowed is None or allowed.keys:
        add = (
            f"in the project of pack {packs.of(family).name}, add a configuration to "
            f"{manifest.family(family).spec_folder}; then `{manifest.REGENERATE}` builds it"
        )
        if allowed is None:
            lines.append(f"If its spec allows one: {add}")
        else:
            lines.append(
                f"runtime.kernel({allowed.keys[0]!r}, build=True) builds one now, and "
                f"KERNELMINT_BUILD=missing whatever is asked for; or, {add}"
            )
    elif allowed.reasons:
        lines += ["None can be built with these parameters:", *(f"  {r}" for r in allowed.reasons)]
    return "\n".join(lines)
