"""KERNELMINT_RECORD: a file that notes which kernels programs resolved, for `kernelmint slim`."""

from __future__ import annotations

import fcntl
import os
import warnings

from runtime import _native

VARIABLE = "KERNELMINT_RECORD"
_HEAD = "# The kernels that programs resolved; `kernelmint slim` makes a set of them.\n"


def note(key: str) -> None:
    """Adds a key to the file that KERNELMINT_RECORD names, if any; several processes may.

    An error of the file system is only a warning: the kernel works without the note.
    """
    if not _native.is_set(VARIABLE):
        return
    path = os.environ[VARIABLE]
    try:
        with open(path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            noted = file.read()
            if f"- {key}\n" not in noted:
                file.write(f"{'' if noted else _HEAD}- {key}\n")
    except OSError as error:
        warnings.warn(f"{VARIABLE}={path}: {error.strerror or error}", RuntimeWarning, stacklevel=2)
