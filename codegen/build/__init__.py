"""Programs that a build runs: CMake calls them by path, and building on demand imports them.
Standard library only."""
