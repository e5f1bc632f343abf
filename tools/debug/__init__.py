"""Where a kernel diverges from its simulation: `kernelmint debug`, and what families' own commands
of that name are made of."""
