"""Keys to packs of the cache: each compiled once, by two commands and a link.

A pack of the cache holds one kernel, and is what kernelmint_add_pack makes of it. There is no build
file: nothing is rebuilt in part, and the cache knows what is up to date.
"""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from codegen import packs
from runtime import _native
from runtime.errors import BuildError
from runtime.ondemand import compilers
from runtime.ondemand.cache import Cache, Entry, Roots, content, digest, is_system, reported
from runtime.ondemand.commands import HOST, HOST_INCLUDES, Commands
from runtime.ondemand.compilers import Recipe
from runtime.ondemand.diagnose import first_error
from runtime.ondemand.progress import Progress
from runtime.ondemand.specs import Source, codegen_identity

if TYPE_CHECKING:
    from runtime.ondemand.emit import Generated

_MOST_COMPILATIONS = 5  # of sources that change meanwhile


@dataclass(frozen=True)
class Request:
    """A kernel that is asked for: its key, its spec, and how it is to be compiled."""

    key: str
    source: Source
    recipe: Recipe

    @property
    def target(self) -> str:
        """The target's name."""
        return self.key.split(".")[1]

    @cached_property
    def roots(self) -> Roots:
        """The folders that its dependencies are named by."""
        folders = {
            "specs": self.source.root,
            "project": self.source.root.parent,
            "include": compilers.INCLUDE,
            "pack": compilers.PACK,
            "python": Path(sysconfig.get_path("purelib")),  # packages that bring headers
        }
        if self.recipe.toolkit is not None:
            folders["toolkit"] = self.recipe.toolkit.root
        return Roots(folders)

    @cached_property
    def written(self) -> list[tuple[str, str]]:
        """Its spec, when it was asked for: names and hashes of the YAML files."""
        return self.source.written(self.target)

    @cached_property
    def id(self) -> str:
        """The hash of all that decides the pack but the contents of what it includes."""
        return digest(
            [
                self.key,
                self.source.root.name,
                self.written,
                codegen_identity(),
                _native.abi,
                self.recipe.identity,
            ]
        )


def find(cache: Cache, request: Request) -> Entry | None:
    """The pack of a request, where it was built already."""
    return cache.find(request.id, request.roots)


def build(
    cache: Cache, requests: Sequence[Request], failed: dict[str, BuildError] | None = None
) -> dict[str, Entry]:
    """The packs of the requests, by key; those that the cache lacks are compiled.

    What does not compile is put into `failed`, by key. Without it, raises BuildError for the first;
    KernelNotFound for what is no valid key.
    """
    what = requests[0].key if len(requests) == 1 else f"{len(requests)} kernels"
    found = {r.key: entry for r in requests if (entry := find(cache, r)) is not None}
    missing = [request for request in requests if request.key not in found]
    if not missing:
        return found
    cache = cache.writable()
    with (
        reported(cache, what),
        Progress(f"building {what}") as progress,
        cache.locked(request.id for request in missing),
    ):
        found |= {r.key: entry for r in missing if (entry := find(cache, r)) is not None}
        missing = [request for request in missing if request.key not in found]
        if missing:
            found |= _compile_all(cache, missing, progress, failed)
    return found


def _compile_all(
    cache: Cache,
    requests: Sequence[Request],
    progress: Progress,
    failed: dict[str, BuildError] | None,
) -> dict[str, Entry]:
    from runtime.ondemand.emit import Spec  # codegen's libraries, which take a while to import

    jobs = runpy.run_path(str(compilers.TOOLS / "build/jobs.py"))["jobs"]()
    specs: dict[Source, Spec] = {}
    done: dict[str, Entry] = {}
    with (
        concurrent.futures.ThreadPoolExecutor(jobs) as processes,
        concurrent.futures.ThreadPoolExecutor(jobs) as kernels,
    ):
        pending: dict[concurrent.futures.Future[tuple[str, Entry]], str] = {}
        try:
            for request in requests:
                if request.source not in specs:
                    specs[request.source] = Spec(request.source)
                generated = specs[request.source].kernel(request.key)
                job = _Job(cache, request, generated, processes)
                pending[kernels.submit(job.run)] = request.key
            for future in concurrent.futures.as_completed(pending):
                try:
                    key, entry = future.result()
                except BuildError as error:
                    if failed is None:
                        raise
                    failed[pending[future]] = error
                    continue
                done[key] = entry
                progress.update(len(done), len(requests), key)
        except BaseException:
            for future in pending:
                future.cancel()
            raise
    return done


class _Job:
    """One kernel on its way from generated files to a pack."""

    def __init__(
        self,
        cache: Cache,
        request: Request,
        generated: Generated,
        processes: concurrent.futures.Executor,
    ) -> None:
        self.cache = cache
        self.request = request
        self.recipe = request.recipe
        self.generated = generated
        self.processes = processes
        self.commands = Commands(generated.family, request.source, request.recipe)

    def run(self) -> tuple[str, Entry]:
        """Compiles, links, and puts the pack into the cache."""
        with self.cache.work() as (folder, lock):
            self.folder, self.lock = folder, lock
            try:
                return self.request.key, self._run()
            except _CompilerError as error:
                self._check_disk(error)
                raise BuildError(self._failure(error)) from None

    def _run(self) -> Entry:
        self._write()
        before = None
        for _ in range(_MOST_COMPILATIONS):
            start = time.time_ns()
            logs = self._compile()
            names = self._dependencies()
            pack = self.cache.identify(self.request.id, names, self.request.roots)
            # What was written while the compiler ran may not be what it read: then once more.
            paths = map(self.request.roots.path, names)
            if pack == before or not any(path.stat().st_mtime_ns >= start for path in paths):
                break
            before = pack
        else:
            raise BuildError(f"{self.request.key}: its sources change while they are compiled")
        if self.request.source.written(self.request.target) != self.request.written:
            raise BuildError(f"{self.request.key}: its spec changed while it was built: ask again")
        made = self._pack(pack, names, logs)
        return self.cache.publish(self.request.id, names, self.request.roots, pack, made)

    def _write(self) -> None:
        family, target = self.request.source.family, self.request.target
        own = [f"{family}/family.cpp", f"{family}/library.cpp", f"{family}/{target}_table.cpp"]
        texts = {
            HOST: "".join(f'#include "{name}"\n' for name in (HOST_INCLUDES, *own)),
            "exports.map": compilers.EXPORTS.read_text(),
            **self.generated.files,
        }
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def _compile(self) -> list[str]:
        """Runs the compilers; what they said."""
        units = self.commands.units
        script = f'cd "$(dirname "$0")"\nset -e\n{self.commands.script()}\n'
        (self.folder / "build.sh").write_text(script)
        futures = [self.processes.submit(self._process, unit.command) for unit in units]
        done = [future.result() for future in futures]
        for code, output in (*done[1:], done[0]):  # first of what people write
            if code:
                raise _CompilerError(output)
        return [output for _, output in done]

    def _process(self, command: Sequence[str]) -> tuple[int, str]:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            pass_fds=(self.lock,),
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def _dependencies(self) -> tuple[str, ...]:
        """The names of what the compilers read, without what codegen wrote."""
        roots = self.request.roots
        found = {roots.name(str(path)) for path in self.commands.archives}
        for unit in self.commands.units:
            for path in _dependencies(self.folder / f"{unit.name}.d"):
                if not (self.folder / path).resolve().is_relative_to(self.folder.resolve()):
                    found.add(roots.name(path))
        return tuple(sorted(found))

    def _pack(self, pack: str, names: Sequence[str], logs: Sequence[str]) -> Path:
        made = self.folder / "pack"
        (made / "python").mkdir(parents=True)
        family, recipe = self.request.source.family, self.recipe
        (self.folder / "record.cpp").write_text(
            "namespace kernelmint {\nextern const char kBuild[];\n"
            f'const char kBuild[] = "{pack}";\n}}\n'
        )
        linked = self.processes.submit(self._process, self.commands.link())
        for name in ("manifest.json", f"python/{family}.py"):
            (made / name).write_text(self.generated.files[name], encoding="utf-8")
        if recipe.toolkit is not None:
            self._collect(logs)
        settings = {"c++": recipe.compiler.version, "c++ flags": shlex.join(recipe.host)}
        if recipe.toolkit is not None:
            settings["nvcc"] = recipe.toolkit.nvcc.version
            settings["nvcc flags"] = shlex.join(recipe.device)
        else:
            settings[f"{recipe.isas[0]} flags"] = shlex.join(recipe.device)
        roots = self.request.roots
        record = packs.record(
            name=f"built_{pack[:12]}",
            families=[self.generated.family],
            fingerprint=pack,
            abi=_native.abi,
            targets=[f"{family}.{self.request.target}"],
            architectures=recipe.architectures,
            isas=recipe.isas,
            settings=settings,
            sources={name: content(roots.path(name)) for name in names if not is_system(name)},
            specs={},
        )
        (made / packs.RECORD).write_text(json.dumps(record, indent=1) + "\n")
        code, output = linked.result()
        if code:
            raise _CompilerError(output)
        return made

    def _collect(self, logs: Sequence[str]) -> None:
        """What ptxas made of the kernel, as a build's report collects it."""
        for unit, log in zip(self.commands.units, logs, strict=True):
            if unit.log is not None:
                path = self.folder / "ptxas" / f"{unit.log}.{self.request.target}.ptxas.log"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(log)
        toolkit = self.recipe.toolkit
        assert toolkit is not None
        command = [
            *(sys.executable, str(compilers.TOOLS / "ptx_report/collect.py"), "ptxas"),
            *("--manifest", "manifest.json", "--csv", "pack/ptxas.csv"),
            *("--nvcc-version", toolkit.nvcc.version, f"--flags={shlex.join(self.recipe.device)}"),
            *(f"--include={folder}" for folder in self.commands.foreign),
        ]
        code, output = self.processes.submit(self._process, command).result()
        if code:
            raise _CompilerError(output)

    def _check_disk(self, error: _CompilerError) -> None:
        """Raises OSError where a compiler had no space, which no kernel is to blame for."""
        full = os.strerror(errno.ENOSPC)
        for line in error.output.splitlines():
            if full in line:
                raise OSError(errno.ENOSPC, line.strip(), str(self.cache.folder))

    def _failure(self, error: _CompilerError) -> str:
        """The error's text. The build's folder is kept, for a person to look into."""
        request = self.request
        header = request.source.root / self.generated.header
        first = first_error(error.output, header, request.source.root)
        kept = self.cache.keep_failed(request.id, self.folder)
        what = ", ".join((*request.recipe.isas, *(f"sm_{a}" for a in request.recipe.architectures)))
        script_name = shlex.quote(str(kept / "build.sh"))
        return (
            f"{first}\n  in {request.key}, compiled for {what}\n"
            f"  `sh {script_name}` shows the whole of it"
        )


class _CompilerError(Exception):
    def __init__(self, output: str) -> None:
        super().__init__()
        self.output = output


def _dependencies(path: Path) -> Iterator[str]:
    """The files that a compiler's -MD lists."""
    text = path.read_text().replace("\\\n", " ")
    _, _, listed = text.partition(": ")
    for word in re.findall(r"(?:\\.|[^\s\\])+", listed.partition("\n")[0]):
        yield re.sub(r"\\(.)", r"\1", word).replace("$$", "$")
