from typing import Any

from runtime import *  # noqa: F403 - its public names, all of them

__version__: str

def __getattr__(name: str) -> Any: ...  # the families' own functions, such as attention
