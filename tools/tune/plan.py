"""The plan of a tuning: the kernels that are timed on each shape, decided before anything is
built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codegen.core.expressions import COMPUTE_CAPABILITY, EVALUATION_ERRORS
from codegen.core.manifest import Selection
from codegen.space.expand import configured, expand
from codegen.spec.model import Configuration, Family, Shape, Shapes, Target
from codegen.spec.tuning import call_values

from .errors import TuningError
from .executor import Device


@dataclass(frozen=True)
class ShapePlan:
    """The kernels that are timed on a shape.

    Attributes:
        shape: the shape that is measured.
        configurations: the configurations that are timed.
        costly: configurations of the set that the cost model leaves out.
        incumbents: the kernels that are taken now, by the shape's row of this device, and without
            rows, by choices.yaml, in this order; they are timed if anything is, so that a row
            changes the choice only for a gain.
    """

    shape: Shape
    configurations: tuple[Configuration, ...]
    costly: tuple[Configuration, ...]
    incumbents: tuple[Configuration, ...]


def plan(
    family: Family,
    target: Target,
    shapes: Shapes,
    device: Device,
    set_name: str | None,
    where: str | None,
) -> tuple[list[ShapePlan], str]:
    """Returns the configurations of a set for which `where` holds, by shape, without those that
    cannot run on the device or cost too much; and a summary in words.

    Args:
        family: the kernels' family.
        target: one of the family's.
        shapes: the shapes to measure, and the cost model.
        device: the kind of devices that is tuned for.
        set_name: None is the set `tune`, else `default`.
        where: an expression; None for all.

    Raises:
        TuningError: nothing is selected of this target, or the cost model has no value.
        UsageError: nothing is selected of the family.
    """
    names = [configuration_set.name for configuration_set in target.sets]
    name = set_name or ("tune" if "tune" in names else "default")
    default = _expand(family, target, Selection()) if "default" in names else ()
    default = tuple(c for c in default if device.capability not in c.not_on)
    trace = family.trace
    configurations = [
        c
        for c in _expand(family, target, Selection(name, where))
        if (trace is None or not c.parameters[trace.parameter])
        and device.capability not in c.not_on
    ]
    shape_plans = []
    fitting: set[str] = set()
    for shape in shapes.shapes:
        parameters = dict(shape.parameters).items()
        suiting = [c for c in configurations if parameters <= c.parameters.items()]
        cheap = _cheap(shapes, shape, device, suiting)
        fitting |= {c.key for c in cheap}
        suited = [c for c in default if parameters <= c.parameters.items()]
        untuned = _preferred(family, shape, device, suited)[:1]
        incumbents = {c.key: c for c in [*_of_rows(target, shape, device), *untuned]}
        timed = {c.key: c for c in cheap}
        if cheap:
            timed = incumbents | timed
        costly = [c for c in suiting if c.key not in timed]
        shape_plans.append(
            ShapePlan(shape, tuple(timed.values()), tuple(costly), tuple(incumbents.values()))
        )
    summary = (
        f"{family.name}.{target.name} on {device.name}: {len(configurations)} configurations of "
        f"the set {name} fit the constraints and limits, {len(fitting)} the "
        f"{len(shape_plans)} shapes"
    )
    if shapes.cost:
        cost = shapes.cost.text
        summary += f" (estimates of at most {shapes.within:g} times the least, {cost})"
    return shape_plans, summary


def _of_rows(target: Target, shape: Shape, device: Device) -> list[Configuration]:
    """Returns the kernel that the row of a shape takes on a device, or an empty list."""
    return [
        configured(target, row.values)
        for row in target.tuned
        if row.device == device.name
        and dict(row.parameters) == dict(shape.parameters)
        and row.when == shape.when
        and set(row.ranges) == set(shape.ranges)
    ]


def _preferred(
    family: Family, shape: Shape, device: Device, configurations: Sequence[Configuration]
) -> list[Configuration]:
    """Returns configurations that fit a row of choices.yaml that holds, in the order in which a
    front tries them; all of them without such rows."""
    if not family.choices:
        return list(configurations)
    preferred = []
    for row in family.choices:
        facts = {COMPUTE_CAPABILITY: device.capability or 0}
        try:
            holds = row.when.evaluate({**facts, **call_values(shape, family, row.when.names)})
        except (*EVALUATION_ERRORS, NameError) as error:
            raise TuningError(
                f"choices.yaml: {row.when.text} has no value for {shape.call}: {error}"
            ) from None
        if holds:
            preferred += [
                c
                for c in configurations
                if all(c.parameters.get(name, value) == value for name, value in row.take)
            ]
    return preferred


def _expand(family: Family, target: Target, selection: Selection) -> tuple[Configuration, ...]:
    (space,) = expand([family], selection)
    for chosen in space.targets:
        if chosen.target.name == target.name:
            return chosen.configurations
    raise TuningError(f"no configuration of {target.name} is in the set {selection.set_name}")


def _cheap(
    shapes: Shapes, shape: Shape, device: Device, configurations: Sequence[Configuration]
) -> list[Configuration]:
    """Returns the configurations that the estimate of <target>.shapes.yaml leaves."""
    cost = shapes.cost
    if cost is None or not configurations:
        return list(configurations)
    facts = {**dict(shape.sizes), **device.facts}
    try:
        costs = {c.key: cost.evaluate({**facts, **c.everything}) for c in configurations}
    except (*EVALUATION_ERRORS, NameError) as error:
        raise TuningError(f"cost: {cost.text} has no value for {facts}: {error}") from None
    most = shapes.within * min(costs.values())
    return [c for c in configurations if costs[c.key] <= most]
