"""`make matrix`: the Pythons, PyTorchs, compilers and systems that this checkout is tried with."""
