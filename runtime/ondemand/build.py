"""From keys to packs of the cache: each pack is compiled once, by two commands and a link.

A pack of the cache holds one kernel, and is the same as kernelmint_add_pack makes. There is no
build file: nothing is rebuilt in part, and the cache knows which packs are up to date.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from codegen.build import jobs
from codegen.core import advice, home, packs
from runtime import _native
from runtime.errors import BuildError
from runtime.ondemand import compilers
from runtime.ondemand.cache import (
    Cache,
    Dependencies,
    Entry,
    Roots,
    contents,
    digest,
    is_system,
    opening,
    reported,
)
from runtime.ondemand.commands import HOST, HOST_INCLUDES, Commands, Unit
from runtime.ondemand.compilers import Recipe
from runtime.ondemand.dependencies import changed_since, headers, listed, traced
from runtime.ondemand.progress import Progress
from runtime.ondemand.specs import Source, codegen_identity

if TYPE_CHECKING:
    from runtime.ondemand.emit import Generated
    from runtime.ondemand.shared import Shared

_OBJECTS = (b"\x7fELF", b"BC\xc0\xde")  # their first bytes: a processor's; clang's with -flto
_FETCHES = 8  # at once, from a shared cache
_AGAIN = 1.0  # seconds, after which a kernel that another machine builds is asked for again
_MOST_COMPILATIONS = 5  # if sources change meanwhile
_LOAD = """import ctypes, os, sys
try:
    ctypes.CDLL(sys.argv[1], os.RTLD_NOW)
except OSError as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class Request:
    """A request of a kernel: its key, its spec, and how to compile it."""

    key: str
    source: Source
    recipe: Recipe

    @property
    def target(self) -> str:
        """Returns the target's name."""
        return self.key.split(".")[1]

    @cached_property
    def roots(self) -> Roots:
        """Returns the folders that its dependencies are named by."""
        folders = {
            "specs": self.source.root,
            "project": self.source.root.parent,
            "include": home.INCLUDE,
            "pack": home.PACK,
            "python": Path(sysconfig.get_path("purelib")),  # packages that bring headers
        }
        if self.recipe.toolkit is not None:
            folders["toolkit"] = self.recipe.toolkit.root
        return Roots(folders)

    @cached_property
    def written(self) -> list[tuple[str, str]]:
        """Returns its spec when it was asked for: names and hashes of the YAML files."""
        return self.source.written(self.target)

    @cached_property
    def id(self) -> str:
        """Returns the hash of all that decides the pack but the contents of the files that it
        includes."""
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
    """Returns the pack of a request, if it was built already."""
    return cache.find(request.id, request.roots)


def build(
    cache: Cache,
    requests: Sequence[Request],
    failed: dict[str, BuildError] | None = None,
    traces: Path | None = None,
) -> dict[str, Entry]:
    """Returns the packs of the requests, by key; those that the cache lacks are compiled.

    With a folder for the compilers' time traces, all are compiled, and leave the traces there.
    Errors of kernels that do not compile are put into `failed`, by key; without it, raises the
    first BuildError. Raises KernelNotFound for an invalid key.
    """
    what = requests[0].key if len(requests) == 1 else f"{len(requests)} kernels"
    of_cache = requests if traces is None else ()
    entries = {r.key: entry for r in of_cache if (entry := find(cache, r)) is not None}
    missing = [request for request in requests if request.key not in entries]
    if not missing:
        return entries
    cache = cache.writable()
    with (
        reported(cache, what),
        Progress(f"building {what}") as progress,
        cache.locked((request.id for request in missing), what, progress.wait_for),
    ):
        of_cache = missing if traces is None else ()
        entries |= {r.key: entry for r in of_cache if (entry := find(cache, r)) is not None}
        missing = [request for request in missing if request.key not in entries]
        shared = _shared() if missing and traces is None else None
        if shared is not None:
            entries |= _fetch_all(shared, cache, missing)
            missing = [request for request in missing if request.key not in entries]
        if missing:
            entries |= _compile_all(cache, missing, progress, failed, traces, shared)
    return entries


def _shared() -> Shared | None:
    """Returns the shared cache, if the environment names one."""
    from runtime.ondemand.shared import of_environment  # a warm start does not need it

    return of_environment()


def _fetch_all(shared: Shared, cache: Cache, requests: Sequence[Request]) -> dict[str, Entry]:
    """Returns the packs that the shared cache has, by key."""
    with (
        _interrupts_held_back() as let_interrupt,
        concurrent.futures.ThreadPoolExecutor(_FETCHES) as threads,
    ):
        pending = {threads.submit(shared.fetch, r.id, r.roots, cache): r.key for r in requests}
        entries = {}
        try:
            while pending:
                for future in _completed(pending, let_interrupt):
                    key = pending.pop(future)
                    if (entry := future.result()) is not None:
                        entries[key] = entry
        except BaseException:
            for future in pending:
                future.cancel()
            raise
    return entries


def _compile_all(
    cache: Cache,
    requests: Sequence[Request],
    progress: Progress,
    failed: dict[str, BuildError] | None,
    traces: Path | None,
    shared: Shared | None,
) -> dict[str, Entry]:
    from runtime.ondemand.emit import Spec  # codegen's libraries, which take a while to import

    try:
        most = jobs.jobs()
    except ValueError as error:
        raise BuildError(str(error)) from None
    specs: dict[Source, Spec] = {}
    done: dict[str, Entry] = {}
    with (
        _interrupts_held_back() as let_interrupt,
        contextlib.closing(_Processes(most)) as processes,
        concurrent.futures.ThreadPoolExecutor(most) as kernels,
    ):
        pending: dict[_Kernel, _Job] = {}
        elsewhere: list[_Job] = []  # their kernels are built by other machines
        again = 0.0
        try:
            for request in requests:
                let_interrupt()
                if request.source not in specs:
                    specs[request.source] = Spec(request.source)
                generated = specs[request.source].kernel(request.key)
                job = _Job(cache, request, generated, processes, traces, shared, progress)
                pending[kernels.submit(job.run)] = job
            while pending or elsewhere:
                for future in _completed(pending, let_interrupt):
                    job = pending.pop(future)
                    try:
                        entry = future.result()
                    except BuildError as error:
                        if failed is None:
                            raise
                        failed[job.request.key] = error
                        continue
                    if entry is None:
                        elsewhere.append(job)
                        continue
                    done[job.request.key] = entry
                    progress.update(len(done), len(requests), job.request.key)
                if elsewhere and time.monotonic() > again:
                    pending |= {kernels.submit(job.run): job for job in elsewhere}
                    elsewhere.clear()
                    again = time.monotonic() + _AGAIN
        except BaseException:
            for future in pending:
                future.cancel()
            processes.stop()
            raise
    return done


_Kernel = concurrent.futures.Future[Entry | None]


def _completed(kernels: Iterable[_Kernel], let_interrupt: Callable[[], None]) -> set[_Kernel]:
    """Returns kernels that are done, if some are soon. Waits are short: an interrupt that is held
    back does not end one."""
    waiting = set(kernels)
    if waiting:
        done, _ = concurrent.futures.wait(waiting, 0.2, concurrent.futures.FIRST_COMPLETED)
    else:
        done = set()
        time.sleep(0.2)
    let_interrupt()
    return done


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[Callable[[], None]]:
    """Holds back interrupts until the function that this gives is called, or to the end.

    An interrupt comes between any two instructions. If these belong to a future's condition, or to
    a thread that starts, the lock is not released: the threads that build wait for it, and whoever
    joins them waits for ever.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True

    def let_interrupt() -> None:
        nonlocal came
        if came:
            came = False
            handler(signal.SIGINT, None)

    signal.signal(signal.SIGINT, note)
    try:
        yield let_interrupt
    finally:
        signal.signal(signal.SIGINT, handler)
        let_interrupt()


class _Processes:
    """Compilers, so many at once, each in its own session: their own programs end with them."""

    def __init__(self, most: int) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(most)
        self._changing = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def submit(
        self, function: Callable[[Sequence[str]], tuple[int, str]], command: Sequence[str]
    ) -> concurrent.futures.Future[tuple[int, str]]:
        """Runs a command when its turn comes."""
        return self._pool.submit(function, command)

    def run(self, command: Sequence[str], folder: Path, lock: int) -> tuple[int, str]:
        """Runs a command; returns its exit status and output. Raises CancelledError if all are
        stopped."""
        with self._changing, opening:
            if self._stopped:
                raise concurrent.futures.CancelledError
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, _ = process.communicate()
        finally:
            with self._changing:
                self._running.discard(process)
        if self._stopped:
            raise concurrent.futures.CancelledError
        return process.returncode, output.decode(errors="surrogateescape")

    def stop(self) -> None:
        """Ends the compilers that run."""
        with self._changing:
            self._stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Waits for the compilers that run."""
        self._pool.shutdown()


class _Job:
    """One kernel on its way from generated files to a pack."""

    def __init__(
        self,
        cache: Cache,
        request: Request,
        generated: Generated,
        processes: _Processes,
        traces: Path | None,
        shared: Shared | None,
        progress: Progress,
    ) -> None:
        self.cache = cache
        self.request = request
        self.recipe = request.recipe
        self.generated = generated
        self.processes = processes
        self.traces = traces
        self.shared = shared
        self.progress = progress
        self.commands = Commands(generated.family, request.source, request.recipe)

    def run(self) -> Entry | None:
        """Returns the pack, built and put into the cache, and into the shared one; None while
        another machine builds it for the shared one."""
        self._check_toolkit()
        if self.shared is None or not self.shared.writes:
            return self._built()
        request = self.request
        holder = self.shared.lease(request.id, request.key)
        self.progress.wait_for(holder or "")
        if holder is not None:
            return None
        try:
            entry = self.shared.fetch(request.id, request.roots, self.cache)
            if entry is None:
                entry = self._built()
                self.shared.offer(request.id, entry)
            return entry
        finally:
            self.shared.release(request.id)

    def _built(self) -> Entry:
        """Compiles, links, and puts the pack into the cache."""
        with self.cache.work() as (folder, lock):
            self.folder, self.lock = folder, lock
            try:
                return self._run()
            except _CompilerError as error:
                self._check_disk(error)
                raise BuildError(self._failure(error)) from None

    def _check_toolkit(self) -> None:
        """Raises BuildError if the table of advice says that this nvcc compiles it wrongly."""
        request, recipe, root = self.request, self.recipe, self.request.source.root
        if recipe.toolkit is None:
            return
        try:
            why = advice.refusal(
                root / advice.NAME,
                [request.key],
                recipe.architectures,
                recipe.toolkit.nvcc.version,
                lambda key: self.generated.fingerprint(key, root),
            )
        except advice.AdviceError as error:
            raise BuildError(str(error)) from None
        if why:
            raise BuildError(why)

    def _run(self) -> Entry:
        self._write()
        before = None
        for _ in range(_MOST_COMPILATIONS):
            start, logs = self._compile()
            folder, dependencies = self._pack(logs)
            pack = self.cache.identify(self.request.id, dependencies, self.request.roots)
            # A file that was touched meanwhile may not be the one that was read: then once more.
            paths = self.request.roots.paths(dependencies.files)
            files, folders = changed_since(start, paths, self.request.roots)
            if not files and (not folders or pack == before):
                break
            before = pack
            shutil.rmtree(folder)
        else:
            raise BuildError(f"{self.request.key}: its sources change while they are compiled")
        if self.request.source.written(self.request.target) != self.request.written:
            raise BuildError(f"{self.request.key}: its spec changed while it was built: ask again")
        self._load(folder)
        return self.cache.publish(self.request.id, dependencies, self.request.roots, pack, folder)

    def _write(self) -> None:
        family, target = self.request.source.family, self.request.target
        own = [f"{family}/family.cpp", f"{family}/library.cpp", f"{family}/{target}_table.cpp"]
        texts = {
            HOST: "".join(f'#include "{name}"\n' for name in (HOST_INCLUDES, *own)),
            "exports.map": compilers.EXPORTS.read_text(),
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        self.generated.write(self.folder)

    def _compile(self) -> tuple[int, list[str]]:
        """Runs the compilers; returns their start, by the file system's clock, and their output."""
        units, file = self.commands.units, self.folder / "build.sh"
        script = f'cd "$(dirname "$0")"\nset -e\n{self.commands.script()}\n'
        file.write_text(script, errors="surrogateescape")
        start = file.stat().st_ctime_ns
        options = [() if self.traces is None else self.commands.trace(unit) for unit in units]
        commands = [(*unit.command, *more) for unit, more in zip(units, options, strict=True)]
        futures = [self.processes.submit(self._process, command) for command in commands]
        done = [future.result() for future in futures]
        for code, output in (*done[1:], done[0]):  # first errors of files that people write
            if code:
                raise _CompilerError(output)
        for unit in units:
            self._check_made(unit)
        if self.traces is not None:
            for unit, option in zip(units, options, strict=True):
                if option:
                    self._keep_trace(unit, self.traces / f"{self.request.key}.{unit.name}.json")
        return start, [output for _, output in done]

    def _check_made(self, unit: Unit) -> None:
        """Raises BuildError if a compiler made no object without failing, as with --version."""
        try:
            with open(self.folder / f"{unit.name}.o", "rb") as file:
                is_object = file.read(4) in _OBJECTS
            (self.folder / f"{unit.name}.d").stat()
        except FileNotFoundError:
            is_object = False
        if not is_object:
            raise BuildError(
                f"{self.request.key}: `{shlex.join(unit.command)}` ended well, but wrote no object "
                "and no list of the headers that it read: one of the options in it (of CXX, "
                "CXXFLAGS, CUDACXX, CUDAFLAGS or the spec's `flags`) has the compiler do something "
                "else: leave it out"
            )

    def _keep_trace(self, unit: Unit, file: Path) -> None:
        try:
            shutil.copyfile(self.folder / f"{unit.name}.json", file)
        except OSError as error:
            raise BuildError(
                f"{self.request.key}: no time trace as {file}: {error.filename}: {error.strerror}"
            ) from None

    def _process(self, command: Sequence[str]) -> tuple[int, str]:
        return self.processes.run(command, self.folder, self.lock)

    def _read(self) -> Dependencies:
        """Returns what the compilers read and looked for, without the files that codegen wrote."""
        paths = set(map(str, self.commands.excerpted))
        for unit in self.commands.units:
            for path in listed(self.folder / f"{unit.name}.d"):
                if not (self.folder / path).resolve().is_relative_to(self.folder.resolve()):
                    paths.add(os.path.normpath(path))
        return headers(sorted(paths), self.commands.searched, self.request.roots)

    def _pack(self, logs: Sequence[str]) -> tuple[Path, Dependencies]:
        """Runs the linker; returns the folder of the pack, and its dependencies."""
        folder, read, roots = self.folder / "pack", self._read(), self.request.roots
        archives = {str(path) for path in self.commands.archives}
        fingerprint = self.cache.identify(self.request.id, read, roots)
        # Python puts bytecode there, and would make the folder with the umask's mode.
        (folder / "python/__pycache__").mkdir(parents=True)
        family, recipe = self.request.source.family, self.recipe
        (self.folder / "fingerprint.cpp").write_text(
            "namespace kernelmint {\nextern const char kBuild[];\n"
            f'const char kBuild[] = "{fingerprint}";\n}}\n'
        )
        linking = self.processes.submit(self._process, self.commands.link())
        for name in ("manifest.json", f"python/{family}.py"):
            (folder / name).write_text(self.generated.files[name], encoding="utf-8")
        if recipe.toolkit is not None:
            self._collect(logs)
        settings = {"c++": recipe.compiler.version, "c++ flags": shlex.join(recipe.host)}
        if recipe.toolkit is not None:
            settings["nvcc"] = recipe.toolkit.nvcc.version
            settings["nvcc flags"] = shlex.join(recipe.device)
        else:
            settings[f"{recipe.isas[0]} flags"] = shlex.join(recipe.device)
        code, output = linking.result()
        if code:
            raise _CompilerError(output)
        linked = {*archives, *traced(output)}
        linked.update(self.commands.libraries(linked))
        names = sorted({*read.files, *map(roots.name, linked)})
        own = [name for name in names if not is_system(name)]
        packs.write(
            folder,
            [self.generated.family],
            name=f"built_{fingerprint[:12]}",
            fingerprint=fingerprint,
            abi=_native.abi,
            targets=[f"{family}.{self.request.target}"],
            architectures=recipe.architectures,
            isas=recipe.isas,
            settings=settings,
            sources=dict(zip(own, contents(roots.paths(own)), strict=True)),
            spec_folders={},
        )
        return folder, replace(read, files=tuple(names))

    def _load(self, folder: Path) -> None:
        """Loads the library, in a process that it may end."""
        library = str(folder / f"{self.request.source.family}.so")
        code, output = self._process((sys.executable, "-ISc", _LOAD, library))
        if code:
            raise _CompilerError(output.strip() or f"loading {library} ended a process ({code})")

    def _collect(self, logs: Sequence[str]) -> None:
        """Collects what ptxas made of the kernel, as a build's report does."""
        from codegen.core.ptxas_rows import ReportError
        from codegen.ptxas.collect import write_csv  # a slow import, for a warm start

        for unit, log in zip(self.commands.units, logs, strict=True):
            if unit.log is not None:
                path = self.folder / "ptxas" / f"{unit.log}.{self.request.target}.ptxas.log"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(log)
        toolkit = self.recipe.toolkit
        assert toolkit is not None
        try:
            write_csv(
                self.folder / "ptxas",
                self.folder / "manifest.json",
                self.folder / "pack/ptxas.csv",
                toolkit.nvcc.version,
                shlex.join(self.recipe.device),
                self.commands.foreign,
            )
        except ReportError as error:
            raise _CompilerError(str(error)) from None

    def _check_disk(self, error: _CompilerError) -> None:
        """Raises OSError if a compiler ran out of space, which is no kernel's fault."""
        full = os.strerror(errno.ENOSPC)
        for line in error.output.splitlines():
            if full in line:
                raise OSError(errno.ENOSPC, line.strip(), str(self.cache.folder))

    def _failure(self, error: _CompilerError) -> str:
        """Returns the error's text. The build's folder is kept, for a person to look into."""
        from runtime.ondemand.diagnose import first_error  # a warm start does not need it

        request = self.request
        header = request.source.root / self.generated.header
        folders = [request.source.root, *self.commands.foreign]
        excerpted = [entry["path"] for entry in self.commands.excerpts]
        first = first_error(error.output, header, folders, excerpted)
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
