"""CUDA kernels as functions on CPU tensors: compiled with the emulator in the place of a GPU."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import itertools
import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import runtime
from codegen.core import expressions
from codegen.core.dtypes import SCALARS
from codegen.core.manifest import LazyFamilies, Scalar
from codegen.core.where import parameter_kind
from codegen.sources import build_paths
from runtime import KernelInfo, manifest, ondemand
from runtime.handle import record_shapes, split_records
from runtime.kernel_info import infos
from runtime.ondemand import compilers
from runtime.ondemand.emit import Spec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILT = ROOT / "build/emulated"  # kept from one run to the next
_C_TYPES = {"float": ctypes.c_float, "double": ctypes.c_double, "bool": ctypes.c_bool,
            "std::int32_t": ctypes.c_int32, "std::int64_t": ctypes.c_int64}  # fmt: skip
# Of C++, so that shared memory has the name and the namespace that a kernel gives it.
_SOURCE = """\
#define MEMORY extern unsigned char shared_memory[] __asm__("emulated_shared_memory")
#define MEMORY_OF(family) namespace family {{ MEMORY; namespace {target} {{ MEMORY; }} }}
namespace kernelmint {{
namespace attention_backward {{ MEMORY; }}
MEMORY_OF({family})
MEMORY_OF(flash_prefill)  // flash_dropout's kernels are those
MEMORY_OF(flash_prefill_backward)
}}
#include "{family}/{shard}"

const char* emulator_launch(
    kernelmint::LaunchResult (*launch)(const void*, const kernelmint::LaunchContext&),
    const void* arguments, int sm_count, unsigned seed);

extern "C" const char* launch(const void* args, std::size_t size, int sm_count, unsigned seed) {{
  using Config = kernelmint::configs::{family}::{target}::{configuration};
  if (size != sizeof(Config::Args)) return "the arguments have another size";
  constexpr auto kLaunch = &kernelmint::launch<Config, kernelmint::isa::cuda>;
  return emulator_launch(kLaunch, args, sm_count, seed);
}}
"""


class EmulatorError(RuntimeError):
    """A launch that waits without end, or does what no GPU lets it."""


def keys(family: str) -> list[str]:
    """The CUDA kernels that were built, which is when there is a toolkit."""
    return [info.key for info in runtime.kernels(family) if info.built and info.is_cuda]


class Kernel:
    """A kernel as `runtime.kernel` gives it, but for tensors of the CPU.

    Args:
        key: a kernel's key; of another set than the project's tree, the kernel is generated.
        faults: files, what to replace in them, and by what.
        project: the folder that has its specs and what was generated.
    """

    def __init__(
        self,
        key: str,
        faults: Iterable[tuple[str, str, str]] = (),
        project: Path = ROOT,
    ) -> None:
        generated = project / "generated"
        info = _listed(key, generated)
        if info is None:
            generated = Path(_of_another_set(key).name)
            info = _listed(key, generated)
            assert info is not None
        self.info = info
        self._library = _library(key, tuple(faults), project / "kernel_specs", generated)
        # Args lack what only gradients take.
        self._args = (generated / self.info.family / "args.h").read_text()
        self._seeds = itertools.count()

    def __call__(self, *given: Tensor, out: Tensor | tuple[Tensor, ...], **options: Any) -> None:
        """Runs it, as if there were three multiprocessors. `given` are the first inputs; `out` is
        what options ask for, as `return_lse=True` does."""
        self._run(given, out, options)

    def trace(
        self, *given: Tensor, out: tuple[Tensor, ...], **options: Any
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Runs a traced kernel; returns `out`, and the trace by name."""
        return out, self._run(given, out, options)

    def _run(
        self,
        given: tuple[Tensor, ...],
        out: Tensor | tuple[Tensor, ...],
        options: Mapping[str, Any],
    ) -> dict[str, Tensor]:
        """Returns the trace, without tensors if the kernel is not traced."""
        family = manifest.family(self.info.family)
        tensors = {a.name: t for a, t in zip(family.inputs, given, strict=False)}
        tensors |= {n: t for n, t in options.items() if isinstance(t, Tensor)}
        asked = [a for a in family.outputs if not a.optional or options.get(f"return_{a.name}")]
        written = (out,) if isinstance(out, Tensor) else out
        tensors |= {a.name: t for a, t in zip(asked, written, strict=True)}
        sizes = dict.fromkeys(family.symbols, 0)
        for argument in family.tensors:
            if (tensor := tensors.get(argument.name)) is not None:
                dims = zip(argument.dims, tensor.shape, strict=True)
                sizes |= {symbol: extent for symbol, extent in dims if symbol in sizes}
        known = dict.fromkeys(sizes, expressions.INT)
        kinds: list[Any] = []
        values: list[Any] = []
        for argument in family.arguments:  # which is how they lie in Args
            if isinstance(argument, Scalar):
                if f" {argument.name};" not in self._args:
                    continue
                value = options.get(argument.name)
                if value is None:
                    assert argument.default is not None
                    value = expressions.parse(argument.default, known).evaluate(sizes)
                kinds.append(_C_TYPES[SCALARS[argument.dtype].cpp])
                values.append(value)
                continue
            rank, tensor = max(len(argument.dims), 1), tensors.get(argument.name)
            kinds += [ctypes.c_void_p, ctypes.c_int64 * rank]
            values += (
                [None, (0,) * rank] if tensor is None else [tensor.data_ptr(), tensor.stride()]
            )
        kinds += [ctypes.c_int64] * len(sizes)
        values += sizes.values()
        trace: dict[str, Tensor] = {}
        if family.trace is not None and self.info.parameters[family.trace.parameter]:
            scope = known | {p.name: parameter_kind(p) for p in family.parameters}
            grid = [
                expressions.parse(extent, scope).evaluate(sizes | dict(self.info.parameters))
                for extent in family.trace.grid
            ]
            shapes = record_shapes(family, self.info.parameters)
            floats = sum(math.prod(shape) for shape in shapes.values())
            records = torch.full((*grid, floats), math.nan)
            kinds += [ctypes.c_void_p, ctypes.c_int64 * len(grid)]
            values += [records.data_ptr(), tuple(s // floats for s in records.stride()[:-1])]
            trace = split_records(records, shapes)
        structure = type("Args", (ctypes.Structure,), {
            "_fields_": [(f"_{i}", kind) for i, kind in enumerate(kinds)]
        })  # fmt: skip
        arguments = structure(*values)
        size = ctypes.c_size_t(ctypes.sizeof(arguments))
        error = self._library.launch(ctypes.byref(arguments), size, 3, next(self._seeds))
        if error is not None:
            raise EmulatorError(error.decode())
        return trace


@functools.cache
def _of_another_set(key: str) -> tempfile.TemporaryDirectory[str]:
    """Returns the folder of what is generated for a kernel that the project's tree lacks."""
    source = ondemand.source_of(key.partition(".")[0])
    assert source is not None
    folder = tempfile.TemporaryDirectory(prefix="generated-")
    Spec(source).kernel(key).write(Path(folder.name))
    return folder


def _listed(key: str, generated: Path) -> KernelInfo | None:
    family = LazyFamilies(generated / "manifest.json")[key.partition(".")[0]]
    return next((info for info in infos([family]) if info.key == key), None)


@functools.cache
def _library(
    key: str, faults: tuple[tuple[str, str, str], ...], specs: Path, generated: Path
) -> ctypes.CDLL:
    family, target, _ = key.split(".")
    shards = (generated / family).glob(f"{target}_*.cu")
    named = re.compile(rf'struct (\w+) {{[^}}]*key\[\] = "{re.escape(key)}"')
    shard, found = next((s, f) for s in shards if (f := named.search(s.read_text())))
    with tempfile.TemporaryDirectory(prefix="emulated-") as name:
        folder = Path(name)
        before, include = folder / "before", folder / "include"
        include.mkdir()
        for header in (ROOT / "runtime/include").iterdir():
            if header.name != "ptx":
                (include / header.name).symlink_to(header)
        instructions = [path.name for path in (ROOT / "runtime/include/ptx").iterdir()]
        names = [f"{family}/{target}_wgmma.cuh", *(f"ptx/{name}" for name in instructions)]
        replaced = dict.fromkeys(names, '#include "ptx.h"\n')
        for name, text, instead in faults:
            (path,) = (p for p in (specs / name, include / name) if p.exists())
            content = replaced.get(name, path.read_text())
            assert content.count(text) == 1
            replaced[name] = content.replace(text, instead)
        for name, text in replaced.items():
            (before / name).parent.mkdir(parents=True, exist_ok=True)
            (before / name).write_text(text)
        source = folder / "kernel.cpp"
        source.write_text(
            _SOURCE.format(family=family, target=target, shard=shard.name, configuration=found[1])
        )
        (of,) = (t for t in manifest.family(family).targets if t.name == target)
        others = [build_paths.find(e, {"kernel_specs": specs}) for e in of.build.include]
        emulator = _compiled([HERE / "emulator.cpp"], "-c", [HERE, ROOT / "runtime/include"])
        folders = [before, include, HERE, generated, specs, *others]
        made = _compiled([source, emulator], "-shared", folders)
        library = ctypes.CDLL(str(made))
    library.launch.restype = ctypes.c_char_p
    return library


def _compiled(sources: list[Path], step: str, folders: list[Path]) -> Path:
    """Returns what the C++ compiler makes of sources and folders of headers, maybe before."""
    installed = compilers.toolkit().includes
    # -O2 compiles for half as long again, and its code is no faster.
    options = ["-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-include", "emulator.h"]
    # The folders may have links to the last of these.
    content = [*sources, *folders, ROOT / "runtime/include"]
    digest = _digest(content, compilers.cxx(), options, step, installed)
    made = BUILT / f"{digest}{'.o' if step == '-c' else '.so'}"
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be compiling it
        if not made.exists():
            includes = [f"-I{path}" for path in (*folders, *installed)]
            result = subprocess.run(
                [*compilers.cxx().command, *options, *includes, "-fPIC", step, *sources,
                 "-o", made.with_suffix(".part")],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert result.returncode == 0, result.stderr[:5000]
            made.with_suffix(".part").rename(made)
    return made


def _digest(sources: Iterable[Path], *others: object) -> str:
    """Returns a hash of all C++ in files and folders, and of the other values."""
    content = hashlib.sha256(repr(others).encode())
    for source in sources:
        files = [source] if source.is_file() else sorted(source.rglob("*"))
        for file in files:
            if file.suffix in (".h", ".cuh", ".cpp", ".cu") and file.is_file():
                content.update(f"{file.name} {file.stat().st_size}\n".encode())
                content.update(file.read_bytes())
    return content.hexdigest()
