"""A tuning on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from codegen.core import packs
from codegen.core.packs import Pack
from codegen.spec.model import Shape
from runtime import BuildError
from runtime.ondemand.build import Request
from runtime.ondemand.cache import Entry
from runtime.ondemand.packed import pack_up

from ..cluster import builds
from ..cluster import node as cluster_node
from ..cluster.errors import ClusterError, LostError
from ..cluster.node import Work
from ..cluster.nodes import PATIENCE, Actor, Cluster, Node
from . import node as on_node
from .errors import CandidateError, InputsError, TuningError
from .executor import Built, Timed, chosen
from .node import NodeDevice

_START = 600.0  # seconds, for a measuring process: importing PyTorch, and until its GPU is free


class RayExecutor:
    """The nodes of a cluster: all build, and those with the requested device measure."""

    def __init__(
        self, address: str, work: Work, family: str, target: str, device: str | None,
        patience: float,
    ) -> None:  # fmt: skip
        """Tunes for the devices called `device`, or for the only ones. Raises TuningError or
        ClusterError."""
        self._address = address
        self._work = work
        self._family = family
        self._target = target
        self._patience = patience
        self._devices: dict[str, NodeDevice | str] = {}  # by node: its device, or why none suits
        self._entries: dict[str, tuple[str, Entry]] = {}  # hashes of requests, and packs, by key
        self._places: dict[str, Node] = {}
        self._cluster = Cluster(address, work, (TuningError,), (CandidateError, InputsError))
        nodes = self._look()
        devices = [entry for entry in self._devices.values() if isinstance(entry, NodeDevice)]
        if not devices:
            reasons = [entry for entry in self._devices.values() if isinstance(entry, str)]
            have = any(map(self._slots, nodes.values()))
            verb = f"gave one in {PATIENCE:g} s" if have else "has one"
            what = "GPU" if work.is_cuda else "CPU"
            why = reasons[0] if reasons else f"it takes a {what}, and no node {verb}"
            raise TuningError(f"--ray {address}: {why}")
        self.device = chosen((entry.device for entry in devices), device, target)
        self._code = next(entry.code for entry in devices if entry.device.name == self.device.name)

    @property
    def at_once(self) -> int:
        """Returns twice the number of processors."""
        return 2 * self._cluster.places

    def _slots(self, node: Node) -> int:
        """Returns the number of devices of a node that measure at once: its GPUs, or its CPUs as
        one."""
        return node.gpus if self._work.is_cuda else min(node.cpus, 1)

    def _look(self) -> dict[str, Node]:
        """Asks new nodes for their devices; returns the live nodes. Raises ClusterError if one is
        not like this machine."""
        nodes = self._cluster.look()
        self._devices = {name: device for name, device in self._devices.items() if name in nodes}
        new = [n for n in nodes.values() if n.id not in self._devices and self._slots(n)]
        resources = {"num_gpus": 1} if self._work.is_cuda else {"num_cpus": 0}
        introduce = self._cluster.task(f"{on_node.__name__}:introduce")
        arguments = (self._family, self._target)
        for node, device in self._cluster.ask(new, introduce, arguments, resources):
            self._devices[node.id] = device
        return nodes

    def build(
        self, keys: Sequence[str], goes_on: Callable[[], bool]
    ) -> Iterator[tuple[str, Pack | BuildError | LostError]]:
        """Builds on any node, into this machine's cache."""
        requests = {key: cluster_node.request(key, self._code) for key in keys}
        for key, result in builds.build(self._cluster, [*requests.values()], goes_on):
            yield key, self._keep(requests[key], result) if isinstance(result, Entry) else result

    def _keep(self, request: Request, entry: Entry) -> Pack:
        self._entries[request.key] = request.id, entry
        return packs.read(entry.folder)

    def places(self) -> list[str]:
        """Returns the devices, by node and number."""
        self._places = {}
        for node in self._look().values():
            device, count = self._devices.get(node.id), self._slots(node)
            if isinstance(device, NodeDevice) and device.device.name == self.device.name:
                for number in range(count):
                    self._places[f"{node.name} #{number}" if count > 1 else node.name] = node
        if not self._places:
            raise ClusterError(
                f"--ray {self._address}: no node that has {self.device.name} is left; all results "
                "are in the journal: the same command goes on from there"
            )
        return list(self._places)

    def worker(self, place: str) -> ActorWorker:
        """Starts an actor with the whole device, and a process on it."""
        node = self._places[place]
        resources = (
            {"num_gpus": 1, "num_cpus": 0} if self._work.is_cuda else {"num_cpus": node.cpus}
        )
        actor = Actor(self._cluster, node, on_node.Measurer, resources)
        worker = ActorWorker(place, actor, self._entries, lambda: self._devices.pop(node.id, None))
        worker.start((self._work, self._family, self._target, self.device.name, self._patience))
        return worker


class ActorWorker:
    """A Worker in an actor on a node."""

    def __init__(
        self,
        place: str,
        actor: Actor,
        entries: Mapping[str, tuple[str, Entry]],
        lost: Callable[[], object],
    ) -> None:
        """Takes kernels from `entries`, and calls `lost` if the actor or its node is gone."""
        self._place = place
        self._actor = actor
        self._entries = entries
        self._lost = lost
        self._is_ended = False
        self._taken: set[str] = set()

    def start(self, arguments: Sequence[object]) -> None:
        """Begins. Raises LostError if the actor does not start in time."""
        try:
            self._call("begin", *arguments, timeout=_START)
        except BaseException:
            self.stop()
            raise

    def _call(self, method: str, *arguments: object, timeout: float | None = None) -> object:
        try:
            return self._actor.call(self._place, method, *arguments, timeout=timeout)
        except LostError:
            self._lost()
            raise

    def _take(self, kernels: Sequence[Built]) -> list[str]:
        """Sends kernels that the actor does not have; returns their keys."""
        keys = [built.key for built in kernels]
        for key in keys:
            if key not in self._taken:
                self._call("take", key, pack_up(*self._entries[key]))
                self._taken.add(key)
        return keys

    def check(self, kernel: Built, shape: Shape, seed: int) -> None:
        """Checks a kernel, as Worker says."""
        (key,) = self._take([kernel])
        self._call("check", key, shape, seed)

    def rounds(
        self, kernels: Sequence[Built], shape: Shape, seed: int, least: int, seconds: float
    ) -> Timed:
        """Times kernels, as Worker says."""
        timed = self._call("rounds", self._take(kernels), shape, seed, least, seconds)
        assert isinstance(timed, Timed)
        return timed

    def stop(self) -> None:
        """Ends the actor, and with it its processes."""
        if not self._is_ended:
            self._actor.end()
            self._is_ended = True
