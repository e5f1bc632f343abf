"""The work of a cluster's node: it builds kernels from specs that it is sent."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from codegen.core import home
from runtime import BuildError, _native, manifest, ondemand
from runtime.ondemand import compilers
from runtime.ondemand import kernels as on_demand
from runtime.ondemand.build import Request, find
from runtime.ondemand.build import build as build_all
from runtime.ondemand.cache import content, digest
from runtime.ondemand.compilers import Recipe
from runtime.ondemand.packed import Packed, pack_up
from runtime.ondemand.shared import PLACE, SIGNERS, SIZE, WRITE, of_environment
from runtime.ondemand.specs import codegen_identity

from .errors import ClusterError
from .shipping import Specs, unpack_specs

# Files of a family's installed specs that kernels are made of, and compared with.
_DECISIVE = ("*.yaml", "*.h", "*.cuh", "*.cpp", "*.cu", "*.py")
_INDECISIVE = ("*.tuned.yaml", "*.shapes.yaml", "test_*.py")


@dataclass(frozen=True)
class Work:
    """The families of a command's jobs.

    Attributes:
        specs: those that nodes are sent.
        installed: the families that every node has.
        is_cuda: whether nodes need nvcc.
        environment: variables that nodes take from this machine.
    """

    specs: tuple[Specs, ...]
    installed: tuple[str, ...]
    is_cuda: bool
    environment: Mapping[str, str]

    @classmethod
    def of_command(cls, specs: Sequence[Specs], installed: Sequence[str], is_cuda: bool) -> Work:
        """Returns the work of a command, with this machine's settings of a shared cache."""
        names = (PLACE, WRITE, SIGNERS, SIZE)
        environment = {name: os.environ[name] for name in names if name in os.environ}
        return cls(tuple(specs), tuple(installed), is_cuda, environment)

    @cached_property
    def id(self) -> str:
        """Returns the hash of the work."""
        specs = [[sent.id, sent.folder] for sent in self.specs]
        return digest([specs, self.installed, self.is_cuda, dict(self.environment)])


@dataclass(frozen=True)
class Order:
    """The order of a kernel.

    Attributes:
        key: the kernel's.
        code: an instruction set, or architectures, that it is compiled for.
        expected: the hash of the request, which must be the node's.
        sends: whether the node sends the pack, also if the shared cache has it.
    """

    key: str
    code: tuple[str, ...]
    expected: str
    sends: bool


@dataclass(frozen=True)
class Stored:
    """A kernel that the shared cache has; its pack was not sent."""

    request: str


def identity(installed: Sequence[str], is_cuda: bool) -> dict[str, str]:
    """Returns the properties that all nodes must share, so that a kernel is the same wherever it is
    built, and timed in the same way; including the specs of installed families."""
    own = Path(__file__).parents[1]
    tools = sorted([*own.glob("*.py"), *own.glob("cluster/*.py"), *own.glob("tune/*.py")])
    sources = [*_files(home.INCLUDE), *_files(home.PACK), *tools]
    properties = {
        "kernelmint": importlib.metadata.version("kernelmint"),
        "its sources": digest([codegen_identity(), *map(content, sources)])[:8],
        "its ABI of packs": str(_native.abi),
        "Python": platform.python_version(),
        "torch": torch.__version__,
    }
    try:
        recipe = compilers.cuda(()) if is_cuda else compilers.cpu("baseline")
        properties["c++"] = recipe.compiler.version
        if recipe.toolkit is not None:
            properties["nvcc"] = recipe.toolkit.nvcc.version
        properties["compilers and flags"] = digest(recipe.identity)[:8]
    except BuildError as error:
        properties["c++"] = str(error)
    for family in installed:
        source = ondemand.source_of(family)
        if source is None:
            continue
        grouped = source.folder.parent != source.root
        folder = source.folder.parent if grouped else source.folder
        named = [(p.relative_to(folder).as_posix(), content(p)) for p in _files(folder)]
        properties[f"specs of {family}"] = digest(named)[:8]
    return properties


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in _DECISIVE) and not any(
            fnmatch.fnmatch(path.name, pattern) for pattern in _INDECISIVE
        ):
            yield path


def know(work: Work) -> list[str]:
    """Makes the families known; returns the folders that they were loaded from."""
    os.environ.update(work.environment)
    for family in work.installed:
        manifest.family(family)
    if not work.specs:
        return []
    cache = on_demand.cache().writable()
    return [str(unpack_specs(specs, cache)) for specs in work.specs]


def request(key: str, code: Sequence[str]) -> Request:
    """Returns the request of a kernel as it is built for `code`."""
    source = ondemand.source_of(key.partition(".")[0])
    assert source is not None  # the command has looked
    is_cuda = key.split(".")[1] != "cpu"
    recipe: Recipe = compilers.cuda(tuple(code)) if is_cuda else compilers.cpu(code[0])
    return Request(key, source, recipe)


def build(work: Work, orders: Sequence[Order]) -> list[tuple[float, Packed | Stored | BuildError]]:
    """Returns the seconds of builds, 0 for a kernel that this node's cache has, and the packs.

    Raises ClusterError if this node would build another kernel.
    """
    know(work)
    return [_built(order) for order in orders]


def _built(order: Order) -> tuple[float, Packed | Stored | BuildError]:
    begin, cache, request_ = time.monotonic(), on_demand.cache(), request(order.key, order.code)
    if request_.id != order.expected:
        raise ClusterError(
            f"{order.key}: its compilers, flags or specs changed since it was first asked"
        )
    is_new = find(cache, request_) is None
    try:
        entry = build_all(cache, [request_])[request_.key]
        shared = None if order.sends else of_environment()
    except BuildError as error:
        return 0.0, BuildError(f"{error}\n  on {platform.node()}")
    seconds = time.monotonic() - begin if is_new else 0.0
    if shared is not None and shared.has(request_.id):
        return seconds, Stored(request_.id)
    return seconds, pack_up(request_.id, entry)
