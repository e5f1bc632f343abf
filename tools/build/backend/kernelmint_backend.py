"""The build backend of this checkout, kernelmint/backend.py, under another name.

An editable install of another checkout would be asked for `kernelmint.backend` before backend-path.
"""

import runpy
from pathlib import Path

_hooks = runpy.run_path(str(Path(__file__).resolve().parents[3] / "kernelmint/backend.py"))
globals().update({name: hook for name, hook in _hooks.items() if not name.startswith("_")})
