"""Nodes of a Ray cluster, and jobs that run on them. No other module imports Ray."""

from __future__ import annotations

import collections
import importlib
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from codegen.build.jobs import MIB_PER_JOB
from codegen.core.packs import PackError
from runtime import BuildError

from . import node as on_node
from .errors import ClusterError, GivenUpError, LostError
from .node import Work
from .queue import Queue

PATIENCE = 60.0  # seconds in which nodes answer: others go on without them
_POLL = 5.0
_END = 5.0  # seconds in which jobs that are interrupted end their compilers
_MOST_LOSSES = 3  # losses of jobs that had one key
_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes  # Ray has no types


class Node:
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


def alive() -> dict[str, Node]:
    """Returns the live nodes by id."""
    return {node["NodeID"]: Node(node) for node in _nodes() if node["Alive"]}


def _connect(address: str) -> None:
    """Joins a cluster. Raises ClusterError without one."""
    named = re.fullmatch(r"\[?([^/\s\[\]]+)\]?:(\d{1,5})", address)
    if address != "auto" and named is None:  # Ray would start a new cluster for some addresses
        raise ClusterError(f"--ray {address}: expected HOST:PORT, or auto")
    # If something else listens, Ray would try 20 times, for half a minute each.
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "2")
    try:
        if named is not None:  # Ray itself would try for minutes
            socket.create_connection((named[1], int(named[2])), timeout=PATIENCE).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ClusterError(f"--ray {address}: {error}") from None


def _wait(references: Sequence[Any], count: int, timeout: float) -> tuple[list[Any], list[Any]]:
    """Returns the tasks that have answered, and the others."""
    if not references:
        return [], []
    try:
        ready, busy = ray.wait(list(references), num_returns=count, timeout=timeout)
    except OSError as error:
        raise ClusterError(f"Ray's process on this machine is gone: {error}") from None
    return ready, busy


def _identity_of(module: str) -> Callable[..., Any]:
    """Returns a node's identity; the node needs nothing of Kernelmint to unpickle this function."""

    def identity(*arguments: Any) -> dict[str, str]:
        import importlib

        try:
            return dict(importlib.import_module(module).identity(*arguments))
        except ImportError as error:
            return {"kernelmint": f"none ({error})"}

    return identity


_works: dict[str, Work] = {}  # the works of a node's process, by id


def _with_work(id_: str, shipped: Sequence[Any], function: str, *arguments: Any) -> Any:
    """Calls a function, by module and name, on a node, with the work that it takes once."""
    if id_ not in _works:
        _works[id_] = ray.get(shipped[0])
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(_works[id_], *arguments)


class Cluster:
    """A cluster whose nodes are like this machine."""

    def __init__(
        self, address: str, work: Work, errors: tuple[type[Exception], ...] = (),
        faults: tuple[type[Exception], ...] = (),
    ) -> None:  # fmt: skip
        """Joins a cluster, and sends its nodes the work.

        `errors` of tasks become ClusterErrors that name the node, as those of builds do; `faults`
        are raised as they are. Raises ClusterError.
        """
        self.address = address
        self.work = work
        self._errors = (BuildError, PackError, ClusterError, *errors)
        self._faults = faults
        self._identity = on_node.identity(work.installed, work.is_cuda)
        self._alike: set[str] = set()  # nodes that were found to be like this machine
        _connect(address)
        self._shipped = [ray.put(work)]

    @property
    def places(self) -> int:
        """Returns the number of processors, at least 1."""
        return max(1, sum(node.cpus for node in alive().values()))

    def task(self, function: str) -> tuple[Any, tuple[Any, ...]]:
        """Returns a task of Ray's that calls a function of a node, `module:name`, and its first
        arguments, after which the function's own come, after the work."""
        return ray.remote(_with_work), (self.work.id, self._shipped, function)

    def look(self) -> dict[str, Node]:
        """Asks new nodes for their identity; returns the live nodes that have answered. Raises
        ClusterError if one is not like this machine."""
        nodes = alive()
        new = [node for node in nodes.values() if node.id not in self._alike]
        for node, theirs in self._identities(new):
            if differences := [
                f"{name} {theirs.get(name, 'unknown')} (here {value})"
                for name, value in self._identity.items()
                if theirs.get(name) != value
            ]:
                raise ClusterError(
                    f"--ray {self.address}: the node {node.name} has {', '.join(differences)}: "
                    "nodes must match this machine, so that kernels are the same"
                )
            self._alike.add(node.id)
        return {id_: node for id_, node in nodes.items() if id_ in self._alike}

    def answering(self) -> list[Node]:
        """Returns the live nodes that answer: Ray takes seconds to know that a node is gone."""
        return [node for node, _ in self._identities([*alive().values()])]

    def _identities(self, nodes: Sequence[Node]) -> Iterator[tuple[Node, Any]]:
        """Returns the identities of the nodes that answer."""
        identity = ray.remote(_identity_of(on_node.__name__))
        arguments = (self.work.installed, self.work.is_cuda)
        return self.ask(nodes, (identity, ()), arguments, {"num_cpus": 0})

    def ask(
        self,
        nodes: Sequence[Node],
        task: tuple[Any, tuple[Any, ...]],
        arguments: Sequence[Any],
        resources: dict[str, int],
    ) -> Iterator[tuple[Node, Any]]:
        """Yields the nodes' answers; nodes that do not answer are left out."""
        function, first = task
        tasks = {
            function.options(**resources, max_retries=0, scheduling_strategy=node.strategy).remote(
                *first, *arguments
            ): node
            for node in nodes
        }
        ready, busy = _wait(list(tasks), len(tasks), PATIENCE)
        for reference in busy:
            ray.cancel(reference, force=True)
        for reference in ready:
            node = tasks[reference]
            try:
                yield node, self.get(reference, node.name)
            except LostError:  # it is asked again when nodes are looked for again
                continue

    def get(self, reference: Any, place: str, timeout: float | None = None) -> Any:
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
            if isinstance(cause, self._faults):
                raise cause from None
            if isinstance(cause, self._errors):
                raise ClusterError(f"{place}: {cause}") from None
            raise
        except RayError as error:
            first, _, _ = str(error).partition(". ")
            raise LostError(place, f"{type(error).__name__}: {' '.join(first.split())}") from None

    def run(
        self,
        queue: Queue,
        function: str,
        arguments: Callable[[str], Any],
        goes_on: Callable[[], bool] = lambda: True,
        gpus: int = 0,
    ) -> Generator[tuple[str, Any]]:
        """Runs jobs on any nodes, each with a processor, and the memory that builds on one machine
        allow a compiler.

        `function` of a node takes the work and a list of `arguments(key)`, and returns for each of
        them its seconds, and a result or an error. Yields results by key when they are there; a
        LostError for each job that is lost and runs again; and a GivenUpError for a job that is
        lost for the last time. Nothing is begun once `goes_on()` is false. Raises ClusterError if
        no node is left.
        """
        task, first = self.task(function)
        losses: collections.Counter[str] = collections.Counter()
        running: dict[Any, list[str]] = {}
        places, looked = self.places, time.monotonic()
        try:
            while (queue and goes_on()) or running:
                if time.monotonic() - looked > _POLL:
                    places, looked = self.places, time.monotonic()
                while queue and len(running) < 2 * places and goes_on():
                    batch = queue.take(places)
                    options = self._resources(gpus)
                    reference = task.options(**options).remote(*first, [*map(arguments, batch)])
                    running[reference] = batch
                ready, _ = _wait(list(running), 1, _POLL)
                for reference in ready:
                    batch = running.pop(reference)
                    of = batch[0] if len(batch) == 1 else f"{batch[0]} and {len(batch) - 1} others"
                    try:
                        results = self.get(reference, f"the job of {of}")
                    except LostError as error:
                        for key in batch:
                            losses[key] += 1
                            if losses[key] < _MOST_LOSSES:
                                queue.again(key)
                                yield key, error
                            else:
                                yield (
                                    key,
                                    GivenUpError(f"{_MOST_LOSSES} times lost: {error.reason}"),
                                )
                        continue
                    for key, (seconds, result) in zip(batch, results, strict=True):
                        queue.note(key, seconds)
                        yield key, result
                if running and not ready and not any(n.cpus for n in alive().values()):
                    raise ClusterError(
                        f"--ray {self.address}: no node with processors is left: the same command "
                        "goes on from the work that was done"
                    )
        finally:
            self._end(list(running))

    def _resources(self, gpus: int) -> dict[str, Any]:
        most = max((node.memory for node in alive().values() if node.cpus), default=0)
        resources = {"num_gpus": gpus} if gpus else {}
        return {
            **resources,
            "num_cpus": 1,
            "memory": min(MIB_PER_JOB << 20, most),
            "max_retries": 0,
            "scheduling_strategy": "SPREAD",
        }

    def _end(self, references: Sequence[Any]) -> None:
        """Ends jobs by an interrupt, so that they end their compilers; kills those that go on."""
        for reference in references:
            ray.cancel(reference)
        _, busy = _wait(references, len(references), _END)
        for reference in busy:
            ray.cancel(reference, force=True)


class Actor:
    """An object of a class on a node, in a process."""

    def __init__(self, cluster: Cluster, node: Node, made: type, resources: dict[str, int]) -> None:
        actor: Any = ray.remote(made)
        options = actor.options(**resources, scheduling_strategy=node.strategy)
        self._cluster = cluster
        self._actor: Any = options.remote()

    def call(self, place: str, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Returns a method's result. Raises its error; LostError if the process or its node is
        gone, or takes too long."""
        reference = getattr(self._actor, method).remote(*arguments)
        return self._cluster.get(reference, place, timeout)

    def end(self) -> None:
        """Ends the process, and those that it started."""
        ray.kill(self._actor)
