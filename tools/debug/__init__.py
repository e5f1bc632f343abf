"""Where a kernel of flash_forward diverges from its simulation: `kernelmint debug`."""
