"""A Ray cluster for commands whose work is many jobs: `build`, `verify` and `tune`.

nodes        the only module that imports Ray: nodes that are like this machine, their jobs,
             and those of a lost node again
queue        the order of jobs, by the seconds that earlier ones took
node         the work of a node: what it must have in common, kernels that it builds
builds       kernels built by nodes, into this machine's cache
shipping     packs the files that are sent
"""

from __future__ import annotations

import importlib.util

from .errors import ClusterError


def check_ray(address: str) -> None:
    """Raises ClusterError if Ray is not installed."""
    try:
        is_installed = importlib.util.find_spec("ray") is not None
    except ValueError:
        is_installed = False
    if not is_installed:
        raise ClusterError(
            f"--ray {address}: Ray is not installed: pip install 'kernelmint[ray]', here and on "
            "the nodes"
        )
