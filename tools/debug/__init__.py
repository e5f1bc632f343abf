"""The place where a kernel diverges from its simulation: `kernelmint debug`, and the functions that
families' own debug commands share."""
