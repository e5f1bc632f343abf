"""Tasks that run on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from codegen.core.packs import Pack
from runtime import BuildError
from runtime.ondemand import kernels as on_demand

from ..cluster.errors import LostError
from .executor import chosen, suitable
from .worker import ProcessWorker, Setup


class LocalExecutor:
    """Processes of this machine, one for each of its devices."""

    at_once = 2 * (os.cpu_count() or 1)

    def __init__(
        self, family: str, target: str, specs: str | None, device: str | None, patience: float
    ) -> None:
        """Tunes for the devices called `device`, or for the only ones. Raises TuningError."""
        self._family = family
        self._specs = specs
        self._patience = patience
        devices = suitable(target)
        self.device = chosen(devices.values(), device, target)
        self._places = [place for place, kind in devices.items() if kind.name == self.device.name]

    def build(
        self, keys: Sequence[str], goes_on: Callable[[], bool]
    ) -> Iterator[tuple[str, Pack | BuildError | LostError]]:
        """Builds into the cache."""
        for first in range(0, len(keys), self.at_once):
            if not goes_on():
                return
            failed: dict[str, BuildError] = {}
            yield from on_demand.build(keys[first : first + self.at_once], failed=failed).items()
            yield from failed.items()

    def places(self) -> list[str]:
        """Returns the devices."""
        return self._places

    def worker(self, place: str) -> ProcessWorker:
        """Starts a process, which is replaced if it hangs or crashes."""
        return ProcessWorker(Setup(self._family, self._specs, place), self._patience)
