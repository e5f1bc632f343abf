"""How far from linear a cluster of this machine's processes is: the figures of docs/building.md.

    python -m tests.tools.cluster_speed [JOBS [SECONDS [KILOBYTES]]]

Jobs are stubs that sleep, log-normally about SECONDS, and return KILOBYTES, as a node returns a
pack: they show what the scheduling, the sending and this command cost, and need no processors. One
node with a quarter of them, then four with all; then four of which one is killed half-way. With
`build` as the only argument, 24 kernels are really built on four nodes, and 6 on one, by a compiler
that sleeps first.
"""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CPUS = 2  # of a node
_START = "the start of nodes' processes"
_SLOW = '#!/bin/sh\ncase " $* " in *" -c "*) sleep 8 ;; esac\nexec c++ "$@"\n'


def sleep(work: object, jobs: Sequence[tuple[float, int]]) -> list[tuple[float, bytes]]:
    """Runs on a node."""
    results = []
    for seconds, size in jobs:
        time.sleep(seconds)
        results.append((seconds, bytes(size)))
    return results


def stubs(address: str, jobs: int, mean: float, size: int, kill=None) -> None:
    """Prints the figures of the nodes that there are."""
    import ray

    from runtime.ondemand.cache import Cache
    from tools.cluster.errors import LostError
    from tools.cluster.node import Work
    from tools.cluster.nodes import Cluster
    from tools.cluster.queue import Queue, Seconds

    draw = random.Random(0)
    keys = {f"f.cpu.n{i}": draw.lognormvariate(0, 0.5) * mean / 1.133 for i in range(jobs)}
    cluster = Cluster(address, Work((), (), False, {}))
    cluster.look()
    places = cluster.places
    with tempfile.TemporaryDirectory() as folder:
        for name in (_START, "unknown times", *([] if kill else ["measured times"])):
            known = Seconds(Cache(Path(folder)), "stubs")
            some = [*keys][: 4 * places] if name == _START else [*keys]
            queue, lost, done, sent = Queue(some, known), 0, 0, 0
            begin = time.monotonic()
            for _, result in cluster.run(
                queue, "tests.tools.cluster_speed:sleep", lambda key: (keys[key], size)
            ):
                if isinstance(result, LostError):
                    lost += 1
                    continue
                done, sent = done + 1, sent + len(result)
                if kill is not None and done == jobs // 2:
                    kill()
                    kill = None
            seconds = time.monotonic() - begin
            if name != _START:
                known.note(queue.measured)
            ideal = sum(keys[key] for key in some) / places
            print(
                f"{places} places, {done} jobs of {mean:g} s, {name}: {seconds:.1f} s, "
                f"{ideal / seconds:.2f} of linear, {sent / 1e6:.0f} MB, {lost} lost", flush=True,
            )  # fmt: skip
    ray.shutdown()


def built(address: str, root: Path, count: int, places: int) -> None:
    """Prints the figures of kernels that are built."""
    from codegen import scaffold

    folder = root / f"specs{places}"
    scaffold.create(f"speed{places}", folder)
    keys = [f"speed{places}.cpu.f32-n{256 * (i + 1)}" for i in range(count)]
    named = [word for key in keys for word in ("--key", key)]
    environment = {**os.environ, "KERNELMINT_CACHE_DIR": str(root / "driver")}
    done = subprocess.run(
        [sys.executable, "-m", "kernelmint", "build", folder, *named, "--ray", address],
        env=environment, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    match = re.search(r"built (\d+) of \d+ kernels.* in (\d+) s\n", done.stdout)
    assert done.returncode == 0, done.stdout
    assert match, done.stdout
    sizes = [p.stat().st_size for p in (root / "driver/1/packs").rglob("*") if p.is_file()]
    packs = len(list((root / "driver/1/packs").glob("*/*.so")))
    print(
        f"{places} nodes of a processor: {match[1]} kernels in {match[2]} s, "
        f"{places * int(match[2]) / count:.2f} s of a processor each; "
        f"{sum(sizes) / packs / 1e3:.0f} kB a pack", flush=True,
    )  # fmt: skip


def main() -> None:
    """Prints the figures."""
    from tests.tools.ray_nodes import Cluster

    builds = sys.argv[1:] == ["build"]
    jobs, mean, size = (
        (float(x) for x in [*sys.argv[1:], *("10000", "0.03", "100")][:3])
        if not (builds)
        else (0, 0, 0)
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
        if builds:
            (root / "c++").write_text(_SLOW)
            (root / "c++").chmod(0o755)
            os.environ |= {"CXX": str(root / "c++"), "CXXFLAGS": "-O0"}
        for count in (1, 4):
            (root / f"nodes{count}").mkdir()
            cluster = Cluster(root / f"nodes{count}")
            try:
                cluster.start("head", cpus=0)
                for number in range(count):
                    cluster.start(f"node{number}", cpus=1 if builds else _CPUS)
                if builds:
                    built(cluster.address, root, 6 * count, count)
                else:
                    stubs(cluster.address, int(jobs) * count // 4, mean, int(1e3 * size))
                    if count == 4:
                        stubs(cluster.address, int(jobs), mean, int(1e3 * size),
                              functools.partial(cluster.kill, "node3"))  # fmt: skip
            except Exception:
                traceback.print_exc()  # Ray ends this process once its nodes are gone
                raise
            finally:
                cluster.stop()


if __name__ == "__main__":
    main()
