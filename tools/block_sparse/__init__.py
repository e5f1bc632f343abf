"""What the comparison of block-sparse attention's implementations consists of."""
