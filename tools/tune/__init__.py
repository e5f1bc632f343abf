"""Finding the fastest kernels of a family for the devices of this machine."""
