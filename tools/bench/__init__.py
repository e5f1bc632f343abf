"""Measures built kernels beside PyTorch's own implementations: `kernelmint bench`."""
