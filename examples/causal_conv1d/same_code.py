"""A comparison of the machine code of upstream's kernels here with that of its own files, compiled
with PyTorch's headers. It needs nvcc and PyTorch, and no GPU.

    python same_code.py [--architecture 80] [--set all] [fwd channellast_fwd update …]

Of each family, the code of all kernels of a set is looked for among upstream's, byte by byte, each
as often as it is there. The backward families take minutes, and 3 GB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kernelmint.tools import same_code
from upstream_tests import HERE, upstream

FLAGS = ("-O3", "-std=c++20", "--use_fast_math")
FLAGS += ("--expt-relaxed-constexpr", "--expt-extended-lambda")


def main() -> None:
    """Runs the command; exit status 1 if a kernel's code is not upstream's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    families = ("fwd", "channellast_fwd", "update", "bwd", "channellast_bwd")
    parser.add_argument("families", nargs="*", default=families, metavar="FAMILY")
    parser.add_argument("--architecture", default="80")
    parser.add_argument("--set", default="all", dest="which")
    options = parser.parse_args()
    files: dict[str, same_code.Compiled] = {}
    good = True
    with tempfile.TemporaryDirectory() as folder:
        work, architecture = Path(folder), options.architecture
        for family in options.families:
            name = family.removeprefix("channellast_")
            if name not in files:
                file = upstream() / f"csrc/causal_conv1d_{name}.cu"
                files[name] = same_code.of_file(file, architecture, work, FLAGS)
            specs, kernel = HERE / "kernel_specs", f"causal_conv1d_{family}_kernel"
            theirs = files[name].named(kernel)
            compiled = same_code.of_family(
                specs, f"causal_conv1d_{family}", architecture, work, options.which
            )
            ours = compiled.named(kernel)
            same = (ours & theirs).total()
            print(f"causal_conv1d_{family}: {same} of {ours.total()} kernels are the same machine "
                  f"code as upstream's {theirs.total()}", flush=True)  # fmt: skip
            good &= same == ours.total()
    sys.exit(not good)


if __name__ == "__main__":
    main()
