"""Kernels that the nodes of a cluster build, in this machine's cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence

from runtime import BuildError
from runtime.ondemand import kernels as on_demand
from runtime.ondemand.build import Request, find
from runtime.ondemand.cache import Cache, Entry
from runtime.ondemand.packed import Packed, unpack
from runtime.ondemand.shared import of_environment

from . import node as on_node
from .errors import GivenUpError, LostError
from .node import Order, Stored
from .nodes import Cluster
from .queue import Queue, Seconds


def build(
    cluster: Cluster, requests: Sequence[Request], goes_on: Callable[[], bool] = lambda: True
) -> Generator[tuple[str, Entry | BuildError | LostError]]:
    """Yields kernels by key when they are built, those that this machine's cache has first; a
    LostError for each that is lost and is built again. Nothing is begun once `goes_on()` is false.

    Raises ClusterError if no node is left, or if one would build other kernels.
    """
    cache = on_demand.cache().writable()
    seconds, missing = Seconds(cache, "builds"), {}
    for request in requests:
        if (entry := find(cache, request)) is not None:
            yield request.key, entry
        else:
            missing[request.key] = request
    sends = of_environment() is None
    while missing and goes_on():
        unread: dict[str, Request] = {}
        queue, order = Queue([*missing], seconds), functools.partial(_order, missing, sends)
        try:
            for key, result in cluster.run(queue, f"{on_node.__name__}:build", order, goes_on):
                taken = _taken(missing[key], result, cache)
                if taken is None:
                    unread[key] = missing[key]
                else:
                    yield key, taken
        finally:
            seconds.note(queue.measured)
        missing, sends = unread, True  # nodes have them, and the shared cache does not


def _order(requests: Mapping[str, Request], sends: bool, key: str) -> Order:
    recipe = requests[key].recipe
    return Order(key, tuple(recipe.isas or recipe.architectures), requests[key].id, sends)


def _taken(
    request: Request, result: Packed | Stored | Exception, cache: Cache
) -> Entry | BuildError | LostError | None:
    """Returns a node's kernel, put into a cache, or its error; None if the shared cache cannot give
    the kernel that the node has put there."""
    if isinstance(result, Packed):
        return unpack(result, cache)
    if isinstance(result, Stored):
        shared = of_environment()
        assert shared is not None
        with cache.locked([request.id], "it", lambda text: None):
            return shared.fetch(request.id, request.roots, cache)
    if isinstance(result, GivenUpError):
        return BuildError(str(result))
    assert isinstance(result, BuildError | LostError)
    return result
