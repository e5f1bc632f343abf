"""The folders of Kernelmint's own files, in a checkout or in an install, and the folder of its
cache. Standard library only.

    python codegen/core/home.py

prints the folder of the cache, for CMake.

(`kernelmint/__init__.py` and KernelmintConfig.cmake ask it themselves: the one imports no room, the
other runs before Python is found.)
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # the checkout's, or site-packages
IN_CHECKOUT = (ROOT / "CMakeLists.txt").is_file()
INCLUDE = ROOT / ("runtime/include" if IN_CHECKOUT else "kernelmint/include")
PACK = ROOT / ("runtime/pack" if IN_CHECKOUT else "kernelmint/pack")  # C++ of every pack's library
SPECS = ROOT / ("kernel_specs" if IN_CHECKOUT else "kernelmint/_pack/kernel_specs")
GENERATED = ROOT / "generated"
CMAKE = ROOT / "kernelmint/cmake"


def cache_folder() -> Path:
    """Returns KERNELMINT_CACHE_DIR, else kernelmint below XDG_CACHE_HOME, else ~/.cache/kernelmint,
    or, for a user without a home, kernelmint-<the user's number> among the temporary files."""
    if named := os.environ.get("KERNELMINT_CACHE_DIR"):
        return expanded(named)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return expanded(base) / "kernelmint"
    return expanded("~/.cache/kernelmint" if _has_home() else "~")


def expanded(path: str) -> Path:
    """Returns an absolute path, with ~ replaced by the user's home."""
    if path.partition("/")[0] == "~" and not _has_home():
        path = f"{tempfile.gettempdir()}/kernelmint-{os.getuid()}{path[1:]}"
    return Path(os.path.expanduser(path)).absolute()


def _has_home() -> bool:
    """Returns whether HOME is set, or the system knows the user's number, as few containers'
    systems do."""
    return os.path.isabs(os.path.expanduser("~"))


if __name__ == "__main__":
    print(cache_folder())
