"""The compiled extension of a checkout's `runtime` folder, if one is installed."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path


def installed_beside(package: str) -> str:
    """Returns the folder of an installed `runtime` with an extension, other than `package`.

    Raises ImportError, with the command that fixes it, if there is none.
    """
    here = Path(package).resolve()
    if (here.parent / "generated/manifest.json").is_file():  # a checkout, to compare with
        others = [entry for entry in sys.path if Path(entry).resolve() != here.parent]
        spec = importlib.machinery.PathFinder.find_spec("runtime", others)
        for folder in (spec.submodule_search_locations if spec else None) or []:
            if importlib.machinery.PathFinder.find_spec("runtime._native", [folder]) is not None:
                return folder
    raise ImportError(
        f"the runtime in {package} has no compiled extension: run `make build` (or "
        f"`pip install .`) in the checkout"
    ) from None
