"""A small checkout: a manifest, headers, per-object logs, and folders for baselines."""

from dataclasses import dataclass
from pathlib import Path

from codegen.core import manifest as form

KEYS = (
    "flash_forward.sm80.bf16-d128-causal-r64-c64-w4",
    "flash_forward.sm80.bf16-d64-r64-c64-w4",
)
SHARD = '#include "flash_forward/sm80_launch.cuh"\n'


def symbol(key):
    """The symbol of the kernel of a key."""
    family, target, tokens = key.split(".")
    tokens = tokens.replace("-", "_")
    name = "".join(f"{len(part)}{part}" for part in (family, target, tokens))
    return f"_ZN10kernelmint13flash_forward18flash_forward_sm80INS_7configs{name}EEEvNT_4ArgsE"


def record(name, registers=100, spills=0, arch="sm_80", notes=()):
    """What ptxas prints for one kernel."""
    warnings = [f"ptxas info    : ({code}) Potential loss in function '{name}'\n" for code in notes]
    return "".join(warnings) + (
        "ptxas info    : 0 bytes gmem\n"
        f"ptxas info    : Compiling entry function '{name}' for '{arch}'\n"
        f"ptxas info    : Function properties for {name}\n"
        f"    {spills} bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers, 376 bytes cmem[0]\n"
        "ptxas info    : Compile time = 1.000 ms\n"
    )


def target_of(name, capability, budget, kernels):
    """What a manifest says of a target, as far as reports need it."""
    kind = "cuda" if capability else "cpu"
    return form.Target(
        name=name, kind=kind, capability=capability, budget=budget, kernels=tuple(kernels),
        spec=f"kernel_specs/flash_forward/{name}.yaml", alignment=None, parameters=(), derived=(),
        constraints=(), requires=(),
    )  # fmt: skip


@dataclass
class Project:
    root: Path
    budget: dict

    def __post_init__(self):
        self.manifest = self.root / "generated" / "manifest.json"
        self.logs = self.root / "build" / "ptxas"
        self.specs = self.root / "kernel_specs"
        self.baseline = self.specs / "flash_forward" / "sm80.ptxas.csv"
        files = {
            self.specs / "flash_forward" / "sm80.cuh": "// the kernel\nint kernel();\n",
            self.specs / "flash_forward" / "sm80_launch.cuh": '#include "flash_forward/sm80.cuh"\n',
            self.specs / "flash_forward" / "cpu.h": "int other();\n",
        }
        kernels = []
        for index, key in enumerate(KEYS):
            file = f"flash_forward/sm80_{index:02d}.cu"
            files[self.root / "generated" / file] = SHARD
            d_head = 128 if "d128" in key else 64
            kernels.append(
                form.Kernel(
                    key=key,
                    parameters={"dtype": "bf16", "d_head": d_head, "causal": "causal" in key},
                    derived={"threads": 128, "smem_bytes": 2 * d_head * 192},
                    symbol="",
                    file=file,
                )
            )
        targets = target_of("cpu", 0, {}, []), target_of("sm80", 80, self.budget, kernels)
        family = form.Family(
            name="flash_forward", targets=targets, fingerprint="", folder="flash_forward",
            summary="", operators=(), symbols=(), arguments=(), parameters=(), requires=(),
            trace=None, reference=None, gradient=None, fronts=(), choices=(),
        )  # fmt: skip
        manifest = form.Manifest(
            selection=form.Selection(), spec_dirs=("../kernel_specs",), inputs={}, outputs={},
            families=(family,),
        )  # fmt: skip
        files[self.manifest] = form.text(manifest)
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def log(self, index, text):
        """Writes the log of a shard's object."""
        path = self.logs / "flash_forward" / f"sm80_{index:02d}.cu.sm80.ptxas.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def clean(self):
        """Logs of a build in which nothing is wrong."""
        for index, key in enumerate(KEYS):
            self.log(index, record(symbol(key), registers=100 + index))
        return self
