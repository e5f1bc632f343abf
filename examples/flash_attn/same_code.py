"""A comparison of the machine code of upstream's kernels here with that of its own files, compiled
with PyTorch's headers. It needs nvcc and PyTorch, and no GPU.

    python same_code.py [--architecture 80] [--head-dim 64] [--dtype bf16] [--causal] [forward …]

Of each family, the code of its kernels of one head dimension, dtype and mask is looked for, byte by
byte, in the file where upstream instantiates them. Upstream's own switches leave out ALiBi, caps,
dropout, windows and head dimensions between, here as there, but for `--whole`, which takes hours.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kernelmint.tools import same_code
from upstream_tests import upstream

SPECS = Path(__file__).parent / "kernel_specs"
FLAGS = ("-O3", "-std=c++17", "--use_fast_math")
FLAGS += ("--expt-relaxed-constexpr", "--expt-extended-lambda")
SWITCHES = ("ALIBI", "SOFTCAP", "DROPOUT", "LOCAL", "UNEVEN_K")
LEFT_OUT = "even_k and not (alibi or capped or local)"
FILES = {"forward": "fwd", "split": "fwd_split", "append": "fwd_split", "backward": "bwd"}
# Ours alone: the sum over the heads that share keys is PyTorch's, upstream.
OWN = "flash_attn_sum_groups"


def main() -> None:
    """Runs the command; exit status 1 if a kernel's code is not upstream's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", default=[*FILES], metavar="FAMILY")
    parser.add_argument("--architecture", default="80")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16"))
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    csrc = upstream() / "csrc"
    headers = [csrc / "flash_attn", csrc / "flash_attn/src", csrc / "cutlass/include"]
    switches = [] if options.whole else [f"-DFLASHATTENTION_DISABLE_{name}" for name in SWITCHES]
    files: dict[str, same_code.Compiled] = {}
    good = True
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for family in options.families:
            kind = "_causal" if options.causal else ""
            name = f"flash_{FILES[family]}_hdim{options.head_dim}_{options.dtype}{kind}_sm80.cu"
            if name not in files:
                files[name] = same_code.of_file(
                    headers[1] / name, options.architecture, work, [*FLAGS, *switches], headers
                )
            theirs = files[name]
            where = f"head_dim == {options.head_dim} and dtype == {options.dtype}"
            where += f" and {'causal' if options.causal else 'not causal'}"
            if not options.whole:
                where += f" and {LEFT_OUT}"
                where += " and not dropout" if family in ("forward", "backward") else ""
            ours = same_code.of_family(
                SPECS, f"flash_attn_{family}", options.architecture, work, "all", where
            )
            codes = [code for symbol, code in ours.code.items() if OWN not in symbol]
            same = sum(code in theirs.code.values() for code in codes)
            print(f"flash_attn_{family}: {same} of {len(codes)} kernels are the same machine code "
                  f"as upstream's {len(theirs.code)} of {name}, in {ours.seconds:.0f} and "
                  f"{theirs.seconds:.0f} s of processor time", flush=True)  # fmt: skip
            good &= same == len(codes)
    sys.exit(not good)


if __name__ == "__main__":
    main()
