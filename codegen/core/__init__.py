"""Data types, expressions, manifests and packs, which all rooms read."""
