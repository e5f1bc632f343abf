"""What a build runs: CMake by path, and building on demand. The standard library alone."""
