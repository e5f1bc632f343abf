"""Machine code that cannot be right (docs/ptx-report.md, "Wrong machine code").

`listing` reads what nvdisasm prints, `operands` says which registers an instruction reads and
writes, `faults` follows them along the paths of a function.
"""
