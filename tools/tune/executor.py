"""The places where the tasks of a tuning run: an executor builds kernels, and has workers that
check and time them on devices of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from codegen.core.packs import Pack
from codegen.spec.model import Shape
from runtime import BuildError, devices

from ..bench.clocks import Spread
from ..cluster.errors import LostError
from .errors import TuningError


@dataclass(frozen=True)
class Built:
    """A kernel that was built by itself."""

    key: str
    folder: Path  # the folder of its pack


@dataclass(frozen=True)
class Timed:
    """Measured times in seconds by key, for each round, and the clocks meanwhile."""

    rounds: list[dict[str, float]]
    clocks: dict[str, Spread]


class Worker(Protocol):
    """A caller of kernels on a device. Each method raises LostError; CandidateError if a kernel
    cannot be used; InputsError if a shape's inputs or right results cannot be made."""

    def check(self, kernel: Built, shape: Shape, seed: int) -> None:
        """Calls a kernel once on random inputs, and compares it with the oracle."""

    def rounds(
        self, kernels: Sequence[Built], shape: Shape, seed: int, least: int, seconds: float
    ) -> Timed:
        """Returns times kernels in turns, at least so many rounds, and until each has had
        `seconds`."""

    def stop(self) -> None:
        """Ends its process."""


class Executor(Protocol):
    """A builder of kernels, with workers that time them on devices of one kind."""

    device: Device

    @property
    def at_once(self) -> int:
        """Returns the number of kernels that are built together."""

    def build(
        self, keys: Sequence[str], goes_on: Callable[[], bool]
    ) -> Iterator[tuple[str, Pack | BuildError | LostError]]:
        """Yields the results of builds as soon as they are known; a kernel that was lost comes
        again. Nothing is begun once `goes_on()` is false."""

    def places(self) -> list[str]:
        """Returns the places of devices now, each named once; at least one. Raises TuningError
        without a device."""

    def worker(self, place: str) -> Worker:
        """Returns a worker with processes of its own. Raises LostError."""


@dataclass(frozen=True)
class Device:
    """A kind of devices.

    Attributes:
        name: its name in rows.
        capability: a GPU's: 90 for 9.0.
        facts: a cost model's facts about a GPU, by name.
    """

    name: str
    capability: int | None = None
    facts: Mapping[str, int] = field(default_factory=dict)


def suitable(target: str) -> dict[str, Device]:
    """Returns the devices of this machine that run a target, by PyTorch's names. Raises TuningError
    without any."""
    if target == "cpu":
        return {"cpu": Device(devices.name(torch.device("cpu")))}
    if not devices.has_cuda():
        raise TuningError(f"{target}: there is no CUDA device here")
    why = {
        index: devices.why_unsuitable(target, index) for index in range(torch.cuda.device_count())
    }
    suitable_devices = {}
    for index in (index for index, reason in why.items() if reason is None):
        major, minor = torch.cuda.get_device_capability(index)
        sm_count, shared_memory = devices.facts(index)
        suitable_devices[f"cuda:{index}"] = Device(
            devices.name(torch.device("cuda", index)),
            10 * major + minor,
            {"sm_count": sm_count, "max_shared_memory": shared_memory},
        )
    if not suitable_devices:
        raise TuningError(f"{target}: {next(iter(why.values()))}")
    return suitable_devices


def chosen(candidates: Iterable[Device], name: str | None, target: str) -> Device:
    """Returns the kind of devices that is tuned for: the named one, or the only one. Raises
    TuningError."""
    kinds = {device.name: device for device in candidates}
    names = ", ".join(map(repr, kinds))
    if name is None and len(kinds) > 1:
        raise TuningError(
            f"{target} runs on devices of several kinds here: {names}: name one with --device"
        )
    if name is not None and name not in kinds:
        raise TuningError(f"--device {name!r}: no such device runs {target}, only {names}")
    return kinds[name] if name is not None else next(iter(kinds.values()))
