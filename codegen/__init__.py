"""Kernel specs in YAML to C++ instantiations, a dispatch table and its Python face."""
