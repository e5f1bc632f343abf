"""The work of a cluster's node: it builds kernels, and times them in processes of its own."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from codegen.core import home
from codegen.spec.model import Shape
from runtime import BuildError, _native, manifest, ondemand
from runtime.ondemand import compilers
from runtime.ondemand import kernels as on_demand
from runtime.ondemand.build import Request
from runtime.ondemand.build import build as build_all
from runtime.ondemand.cache import content, digest
from runtime.ondemand.compilers import Recipe
from runtime.ondemand.packed import Packed, pack_up, unpack
from runtime.ondemand.specs import codegen_identity

from .errors import TuningError
from .executor import Built, Device, Timed, suitable
from .shipping import Specs, unpack_specs
from .worker import ProcessWorker, Setup

# Files of a family's installed specs that kernels are made of, and compared with.
_DECISIVE = ("*.yaml", "*.h", "*.cuh", "*.cpp", "*.cu", "*.py")
_INDECISIVE = ("*.tuned.yaml", "*.shapes.yaml", "test_*.py")


@dataclass(frozen=True)
class Job:
    """The family and target of a tuning."""

    family: str
    target: str
    specs: Specs | None  # None: every node has the family installed


@dataclass(frozen=True)
class NodeDevice:
    """A device of a node, and the code of its kernels: an instruction set, or architectures."""

    device: Device
    code: tuple[str, ...]


def identity(family: str, is_cuda: bool, installed: bool) -> dict[str, str]:
    """Returns the properties that all nodes must share, so that a kernel is the same wherever it is
    built, and timed in the same way; including the installed specs of a family without specs of its
    own."""
    own = Path(__file__).parent
    sources = [*_files(home.INCLUDE), *_files(home.PACK), *sorted(own.glob("*.py"))]
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
    source = ondemand.source_of(family) if installed else None
    if source is not None:
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


def introduce(job: Job) -> NodeDevice | str:
    """Returns the device that this process has, or why none suits."""
    _know(job)
    try:
        device = next(iter(suitable(job.target).values()))
    except TuningError as error:
        return str(error)
    architectures = None if device.capability is None else [str(device.capability)]
    recipe = on_demand.recipe(f"{job.family}.{job.target}.", architectures)
    return NodeDevice(device, recipe.isas or recipe.architectures)


def _know(job: Job) -> str | None:
    """Makes the family known; returns the folder that it was loaded from."""
    if job.specs is None:
        manifest.family(job.family)
        return None
    return str(unpack_specs(job.specs, on_demand.cache().writable()))


def request(family: str, key: str, code: Sequence[str], is_cuda: bool) -> Request:
    """Returns the request of a kernel as it is built for `code`."""
    source = ondemand.source_of(family)
    assert source is not None  # the tuner has looked
    recipe: Recipe = compilers.cuda(tuple(code)) if is_cuda else compilers.cpu(code[0])
    return Request(key, source, recipe)


def build(job: Job, key: str, code: Sequence[str], expected: str) -> Packed | BuildError:
    """Returns a kernel's pack, from this node's cache or its compilers; `expected` is the request's
    hash.

    Raises TuningError if this node would build another kernel.
    """
    _know(job)
    request_ = request(job.family, key, code, job.target != "cpu")
    if request_.id != expected:
        raise TuningError(f"{key}: its compilers, flags or specs changed since it was first asked")
    try:
        return pack_up(request_.id, build_all(on_demand.cache(), [request_])[key])
    except BuildError as error:
        return BuildError(f"{error}\n  on {platform.node()}")


class Measurer:
    """The process of a device, whose child process calls the kernels."""

    def __init__(self) -> None:
        # Ray sets it to the processors that it counts; a caller's PyTorch would choose by itself.
        own = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in own):
            os.environ.pop("OMP_NUM_THREADS", None)
        self._built: dict[str, Built] = {}

    def begin(self, job: Job, name: str, patience: float) -> None:
        """Looks for a device called `name`. Raises TuningError if this process has another."""
        specs = _know(job)
        place, device = next(iter(suitable(job.target).items()))
        if device.name != name:
            raise TuningError(
                f"it gave {device.name}, expected {name}: the GPUs of one node must be of one kind"
            )
        self._worker = ProcessWorker(Setup(job.family, specs, place), patience)

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
