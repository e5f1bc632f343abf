"""Hooks of HSTU's families for the tools: the comparison of block-sparse attention's
implementations, its benchmark, and how results are held to the oracle."""
