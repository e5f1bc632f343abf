"""Kernels in compiled files of any project, read without a CUDA toolkit.

`containers` finds the ELF files, fatbinaries and PTX in what a user names, `fatbin` the cubins and
PTX in a fatbinary, `cubin` the kernels of a cubin, and `ptx` those of PTX. What they read may be
damaged or hostile: each says so in a BinaryError, within bounds of memory and time.
"""
