"""Tests of a checkout: kernels are built when they are first called."""

from pathlib import Path

import kernelmint

if "causal_conv1d_fwd" not in kernelmint.families():
    kernelmint.load(Path(__file__).parents[1] / "kernel_specs")
