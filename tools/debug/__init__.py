"""Where a kernel of flash_forward diverges from its simulation: `python -m tools.debug`."""
