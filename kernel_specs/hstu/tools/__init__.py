"""What the tools know of HSTU's families: the comparison of block-sparse attention's
implementations, its benchmark, and how results are held to the oracle."""
