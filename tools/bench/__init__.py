"""Measures built kernels beside PyTorch's own implementations: `python -m tools.bench`."""
