"""The work of a cluster's node for a tuning: it times kernels in processes of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen.spec.model import Shape
from runtime.ondemand import kernels as on_demand
from runtime.ondemand.packed import Packed, unpack

from ..cluster.node import Work, know
from .errors import TuningError
from .executor import Built, Device, Timed, suitable
from .worker import ProcessWorker, Setup


@dataclass(frozen=True)
class NodeDevice:
    """A device of a node, and the code of its kernels: an instruction set, or architectures."""

    device: Device
    code: tuple[str, ...]


def introduce(work: Work, family: str, target: str) -> NodeDevice | str:
    """Returns the device that this process has, or why none suits."""
    know(work)
    try:
        device = next(iter(suitable(target).values()))
    except TuningError as error:
        return str(error)
    architectures = None if device.capability is None else [str(device.capability)]
    recipe = on_demand.recipe(f"{family}.{target}.", architectures)
    return NodeDevice(device, recipe.isas or recipe.architectures)


class Measurer:
    """The process of a device, whose child process calls the kernels."""

    def __init__(self) -> None:
        # Ray sets it to the processors that it counts; a caller's PyTorch would choose by itself.
        own = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in own):
            os.environ.pop("OMP_NUM_THREADS", None)
        self._built: dict[str, Built] = {}

    def begin(self, work: Work, family: str, target: str, name: str, patience: float) -> None:
        """Looks for a device called `name`. Raises TuningError if this process has another."""
        specs = next(iter(know(work)), None)
        place, device = next(iter(suitable(target).items()))
        if device.name != name:
            raise TuningError(
                f"it gave {device.name}, expected {name}: the GPUs of one node must be of one kind"
            )
        self._worker = ProcessWorker(Setup(family, specs, place), patience)

    def take(self, key: str, packed: Packed) -> None:
        """Stores a kernel."""
        folder = unpack(packed, on_demand.cache().writable()).folder
        self._built[key] = Built(key, folder)

    def check(self, key: str, shape: Shape, seed: int) -> None:
        """Checks a kernel, as Worker.check."""
        self._worker.check(self._built[key], shape, seed)

    def rounds(
        self, keys: Sequence[str], shape: Shape, seed: int, least: int, seconds: float
    ) -> Timed:
        """Times kernels, as Worker.rounds."""
        kernels = [self._built[key] for key in keys]
        return self._worker.rounds(kernels, shape, seed, least, seconds)
