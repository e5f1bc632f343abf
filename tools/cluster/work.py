"""The work of a command, of its families."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runtime import ondemand
from runtime.ondemand.emit import Spec

from .node import Work
from .shipping import collect


def of_families(names: Sequence[str], keys: Iterable[str]) -> Work:
    """Returns the work of jobs on these kernels: families of folders here are sent, and nodes have
    the others installed."""
    is_cuda = any(key.split(".")[1] != "cpu" for key in keys)
    sources = [ondemand.sources[name] for name in names if name in ondemand.sources]
    specs = [collect(source, Spec(source).family) for source in sources]
    installed = [name for name in names if name not in ondemand.sources]
    return Work.of_command(specs, installed, is_cuda)
