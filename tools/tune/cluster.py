"""Tasks that run on a Ray cluster. No other module imports Ray."""

from __future__ import annotations

import collections
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from codegen.build.jobs import MIB_PER_JOB
from codegen.core import packs
from codegen.core.packs import Pack, PackError
from codegen.spec.model import Shape
from runtime import BuildError
from runtime.ondemand import kernels as on_demand
from runtime.ondemand.build import find
from runtime.ondemand.cache import Entry
from runtime.ondemand.packed import Packed, pack_up, unpack

from . import node as on_node
from .errors import CandidateError, InputsError, LostError, TuningError
from .executor import Built, Timed, chosen
from .node import Job, NodeDevice

_PATIENCE = 60.0  # seconds in which nodes name their devices: others go on without them
_START = 600.0  # seconds, for a measuring process: importing PyTorch, and until its GPU is free
_POLL = 5.0
_MOST_LOSSES = 3  # losses of tasks that were building one kernel
_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes  # Ray has no types
_OURS = (TuningError, BuildError, PackError, CandidateError, InputsError, LostError)


class _Node:
    """A node of the cluster, as Ray describes it."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.id = str(described["NodeID"])
        self.name = f"{described['NodeName']} ({self.id[:8]})"
        resources = described["Resources"]
        self.cpus = int(resources.get("CPU", 0))
        self.gpus = int(resources.get("GPU", 0))
        self.memory = int(resources.get("memory", 0))

    @property
    def strategy(self) -> NodeAffinitySchedulingStrategy:
        """Returns the strategy of tasks that must run on the node."""
        return NodeAffinitySchedulingStrategy(self.id, soft=False)


def _alive() -> dict[str, _Node]:
    return {node["NodeID"]: _Node(node) for node in _nodes() if node["Alive"]}


def _connect(address: str) -> None:
    """Joins a cluster. Raises TuningError without one."""
    named = re.fullmatch(r"\[?([^/\s\[\]]+)\]?:(\d{1,5})", address)
    if address != "auto" and named is None:  # Ray would start a new cluster for some addresses
        raise TuningError(f"--ray {address}: expected HOST:PORT, or auto")
    # If something else listens, Ray would try 20 times, for half a minute each.
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "2")
    try:
        if named is not None:  # Ray itself would try for minutes
            socket.create_connection((named[1], int(named[2])), timeout=_PATIENCE).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise TuningError(f"--ray {address}: {error}") from None


def _wait(references: Sequence[Any], count: int, timeout: float) -> tuple[list[Any], list[Any]]:
    """Returns the tasks that have answered, and the others."""
    if not references:
        return [], []
    try:
        ready, busy = ray.wait(list(references), num_returns=count, timeout=timeout)
    except OSError as error:
        raise TuningError(f"Ray's process on this machine is gone: {error}") from None
    return ready, busy


def _get(reference: Any, place: str, timeout: float | None = None) -> Any:
    """Returns a task's result. Raises the task's error; LostError if the task or its node is
    gone."""
    try:
        return ray.get(reference, timeout=timeout)
    except GetTimeoutError:
        raise LostError(place, f"nothing from it in {timeout:g} s") from None
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, LostError):
            raise LostError(place, cause.reason) from None
        if isinstance(cause, CandidateError | InputsError):
            raise cause from None
        if isinstance(cause, _OURS):
            raise TuningError(f"{place}: {cause}") from None
        raise
    except RayError as error:
        first, _, _ = str(error).partition(". ")
        raise LostError(place, f"{type(error).__name__}: {' '.join(first.split())}") from None


def _identity_of(module: str) -> Callable[..., Any]:
    """Returns a node's identity; the node needs nothing of Kernelmint to unpickle this function."""

    def identity(*arguments: Any) -> dict[str, str]:
        import importlib

        try:
            return dict(importlib.import_module(module).identity(*arguments))
        except ImportError as error:
            return {"kernelmint": f"none ({error})"}

    return identity


class RayExecutor:
    """The nodes of a cluster: all build, and those with the requested device measure."""

    def __init__(self, address: str, job: Job, device: str | None, patience: float) -> None:
        """Tunes for the devices called `device`, or for the only ones. Raises TuningError."""
        self._address = address
        self._job = job
        self._is_cuda = job.target != "cpu"
        self._patience = patience
        self._identity = on_node.identity(job.family, self._is_cuda, job.specs is None)
        self._alike: set[str] = set()  # nodes that were found to be like this machine
        self._devices: dict[str, NodeDevice | str] = {}  # by node: its device, or why none suits
        self._entries: dict[str, tuple[str, Entry]] = {}  # hashes of requests, and packs, by key
        self._places: dict[str, _Node] = {}
        _connect(address)
        self._shipped = ray.put(job)
        nodes = self._look()
        devices = [entry for entry in self._devices.values() if isinstance(entry, NodeDevice)]
        if not devices:
            reasons = [entry for entry in self._devices.values() if isinstance(entry, str)]
            have = any(map(self._slots, nodes.values()))
            verb = f"gave one in {_PATIENCE:g} s" if have else "has one"
            what = "GPU" if self._is_cuda else "CPU"
            why = reasons[0] if reasons else f"it takes a {what}, and no node {verb}"
            raise TuningError(f"--ray {address}: {why}")
        self.device = chosen((entry.device for entry in devices), device, job.target)
        self._code = next(entry.code for entry in devices if entry.device.name == self.device.name)

    @property
    def at_once(self) -> int:
        """Returns twice the number of processors."""
        return 2 * max(1, sum(node.cpus for node in _alive().values()))

    def _slots(self, node: _Node) -> int:
        """Returns the number of devices of a node that measure at once: its GPUs, or its CPUs as
        one."""
        return node.gpus if self._is_cuda else min(node.cpus, 1)

    def _look(self) -> dict[str, _Node]:
        """Asks new nodes for their identity; returns the live nodes. Raises TuningError if one is
        not like this machine."""
        nodes = _alive()
        self._devices = {name: device for name, device in self._devices.items() if name in nodes}
        new = [node for node in nodes.values() if node.id not in self._alike]
        identity = ray.remote(_identity_of(on_node.__name__))
        arguments = (self._job.family, self._is_cuda, self._job.specs is None)
        for node, theirs in self._ask_all(new, identity, arguments, {"num_cpus": 0}):
            if differences := [
                f"{name} {theirs.get(name, 'unknown')} (here {value})"
                for name, value in self._identity.items()
                if theirs.get(name) != value
            ]:
                raise TuningError(
                    f"--ray {self._address}: the node {node.name} has {', '.join(differences)}: "
                    "nodes must match this machine, so that kernels are the same"
                )
            self._alike.add(node.id)
        new = [
            node
            for node in nodes.values()
            if node.id in self._alike and node.id not in self._devices and self._slots(node)
        ]
        resources = {"num_gpus": 1} if self._is_cuda else {"num_cpus": 0}
        introduce = ray.remote(on_node.introduce)
        for node, device in self._ask_all(new, introduce, (self._shipped,), resources):
            self._devices[node.id] = device
        return nodes

    def _ask_all(
        self, nodes: Sequence[_Node], task: Any, arguments: Sequence[Any], resources: dict[str, int]
    ) -> Iterator[tuple[_Node, Any]]:
        """Returns the nodes' answers; nodes that do not answer are left out."""
        tasks = {
            task.options(**resources, max_retries=0, scheduling_strategy=node.strategy).remote(
                *arguments
            ): node
            for node in nodes
        }
        ready, busy = _wait(list(tasks), len(tasks), _PATIENCE)
        for reference in busy:
            ray.cancel(reference, force=True)
        for reference in ready:
            node = tasks[reference]
            try:
                yield node, _get(reference, node.name)
            except LostError:  # it is asked again when places are looked for again
                continue

    def build(
        self, keys: Sequence[str], goes_on: Callable[[], bool]
    ) -> Iterator[tuple[str, Pack | BuildError | LostError]]:
        """Builds on any node, into this machine's cache."""
        cache = on_demand.cache().writable()
        waiting = collections.deque(keys)
        losses: collections.Counter[str] = collections.Counter()
        running: dict[Any, str] = {}
        try:
            while (waiting and goes_on()) or running:
                room = self.at_once - len(running)
                while waiting and room > 0 and goes_on():
                    key = waiting.popleft()
                    request = on_node.request(self._job.family, key, self._code, self._is_cuda)
                    entry = find(cache, request)
                    if entry is not None:
                        yield key, self._keep(key, request.id, entry)
                    else:
                        running[self._start_build(key, request.id)] = key
                        room -= 1
                ready, _ = _wait(list(running), 1, _POLL)
                for reference in ready:
                    key = running.pop(reference)
                    try:
                        result = _get(reference, f"the build of {key}")
                    except LostError as error:
                        losses[key] += 1
                        if losses[key] < _MOST_LOSSES:
                            waiting.append(key)
                            yield key, error
                        else:
                            yield key, BuildError(f"{_MOST_LOSSES} times lost: {error.reason}")
                        continue
                    if isinstance(result, Packed):
                        yield key, self._keep(key, result.request, unpack(result, cache))
                    else:
                        yield key, result
                if running and not ready and not any(n.cpus for n in _alive().values()):
                    raise self._no_node("builds")
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _keep(self, key: str, request: str, entry: Entry) -> Pack:
        self._entries[key] = request, entry
        return packs.read(entry.folder)

    def _start_build(self, key: str, request: str) -> Any:
        """Starts a task with a processor, and the memory that builds on one machine allow a
        compiler."""
        most = max((node.memory for node in _alive().values() if node.cpus), default=0)
        task = ray.remote(on_node.build).options(
            num_cpus=1,
            memory=min(MIB_PER_JOB << 20, most),
            max_retries=0,
            scheduling_strategy="SPREAD",
        )
        return task.remote(self._shipped, key, self._code, request)

    def places(self) -> list[str]:
        """Returns the devices, by node and number."""
        self._places = {}
        for node in self._look().values():
            device, count = self._devices.get(node.id), self._slots(node)
            if isinstance(device, NodeDevice) and device.device.name == self.device.name:
                for number in range(count):
                    self._places[f"{node.name} #{number}" if count > 1 else node.name] = node
        if not self._places:
            raise self._no_node(f"has {self.device.name}")
        return list(self._places)

    def _no_node(self, what: str) -> TuningError:
        return TuningError(
            f"--ray {self._address}: no node that {what} is left; all results are in the "
            "journal: the same command goes on from there"
        )

    def worker(self, place: str) -> ActorWorker:
        """Starts an actor with the whole device, and a process on it."""
        node = self._places[place]
        worker = ActorWorker(place, self._entries, lambda: self._devices.pop(node.id, None))
        resources = {"num_gpus": 1, "num_cpus": 0} if self._is_cuda else {"num_cpus": node.cpus}
        worker.start(
            ray.remote(on_node.Measurer).options(**resources, scheduling_strategy=node.strategy),
            (self._shipped, self.device.name, self._patience),
        )
        return worker


class ActorWorker:
    """A Worker in an actor on a node."""

    def __init__(
        self,
        place: str,
        entries: Mapping[str, tuple[str, Entry]],
        lost: Callable[[], object],
    ) -> None:
        """Takes kernels from `entries`, and calls `lost` if the actor or its node is gone."""
        self._place = place
        self._entries = entries
        self._lost = lost
        self._actor: Any = None
        self._taken: set[str] = set()

    def start(self, actor: Any, arguments: Sequence[Any]) -> None:
        """Starts the actor. Raises LostError if it does not start in time."""
        self._actor = actor.remote()
        try:
            self._get(self._actor.begin.remote(*arguments), _START)
        except BaseException:
            self.stop()
            raise

    def _get(self, reference: Any, timeout: float | None = None) -> Any:
        try:
            return _get(reference, self._place, timeout)
        except LostError:
            self._lost()
            raise

    def _take(self, kernels: Sequence[Built]) -> list[str]:
        """Sends kernels that the actor does not have; returns their keys."""
        keys = [built.key for built in kernels]
        for key in keys:
            if key not in self._taken:
                self._get(self._actor.take.remote(key, pack_up(*self._entries[key])))
                self._taken.add(key)
        return keys

    def check(self, kernel: Built, shape: Shape, seed: int) -> None:
        """Checks a kernel, as Worker says."""
        (key,) = self._take([kernel])
        self._get(self._actor.check.remote(key, shape, seed))

    def rounds(
        self, kernels: Sequence[Built], shape: Shape, seed: int, least: int, seconds: float
    ) -> Timed:
        """Times kernels, as Worker says."""
        keys = self._take(kernels)
        timed: Timed = self._get(self._actor.rounds.remote(keys, shape, seed, least, seconds))
        return timed

    def stop(self) -> None:
        """Ends the actor, and with it its processes."""
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None
