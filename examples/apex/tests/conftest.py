"""Tests of a checkout: kernels are built when they are first called."""

from pathlib import Path

import kernelmint

if "apex_adam" not in kernelmint.families():
    kernelmint.load(Path(__file__).parents[1] / "kernel_specs")
