"""Where a kernel parts from its simulation: `python -m tools.debug KERNEL SEQ_IN_B_R`."""
