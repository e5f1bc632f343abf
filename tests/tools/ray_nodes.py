"""A real Ray of nodes on this machine that share no cache, some of which are killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAY = (sys.executable, "-m", "ray.scripts.scripts")

# A node that is killed is found to be dead within some 3 seconds, not 25. With a token in the home
# folder, as a Ray of one machine leaves it, nodes would ask for it.
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Cluster:
    """Nodes on this machine; each has a cache of its own, which names its processes too."""

    def __init__(self, root):
        self.root = root
        self.address = free_address()
        # Names of sockets, which lie there, have at most 107 characters.
        self.temporary = Path(tempfile.mkdtemp(prefix="ray"))

    def start(self, name, cpus=1, gpus=0, **environment):
        _, _, port = self.address.rpartition(":")
        head = ["--head", f"--port={port}", f"--temp-dir={self.temporary}",
                "--include-dashboard=false"]  # fmt: skip
        joining = [f"--address={self.address}"] if any(self.root.iterdir()) else head
        (self.root / name).mkdir()
        own = {"KERNELMINT_CACHE_DIR": str(self.root / name), **SETTINGS, **environment}
        done = subprocess.run(
            [*RAY, "start", f"--node-name={name}", f"--num-cpus={cpus}", f"--num-gpus={gpus}",
             "--disable-usage-stats", "--object-store-memory=80000000", *joining],
            cwd=ROOT, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def kill(self, name):
        """SIGKILL of all that the node is, compilers and workers included."""
        marker = f"KERNELMINT_CACHE_DIR={self.root / name}".encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marker in environment.read_bytes().split(b"\0"):
                    os.kill(int(environment.parent.name), signal.SIGKILL)

    def stop(self):
        for folder in self.root.iterdir():
            self.kill(folder.name)
        shutil.rmtree(self.temporary, ignore_errors=True)


def until(found, process, seconds=120):
    end = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.05)
