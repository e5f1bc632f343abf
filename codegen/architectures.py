"""Names of CUDA architectures: `sm80` and `sm90a` of targets, `80` and `90a` of builds. Standard
library only."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"([1-9][0-9]{1,2})(a?)\Z")


class Architecture(NamedTuple):
    """A compute capability, 80 for 8.0, and whether code for it runs there alone (`a`)."""

    capability: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.capability}{'a' if self.exact else ''}"

    def suits(self, capability: int) -> bool:
        """Whether a target of this name runs on a capability: on it alone, or from it on."""
        return capability == self.capability if self.exact else capability >= self.capability


def parse(name: str) -> Architecture | None:
    """The architecture that a build names so: "90a"; None for what names none."""
    found = _NAME.match(name)
    return Architecture(int(found[1]), bool(found[2])) if found else None


def of_target(name: str) -> Architecture | None:
    """The architecture that a target is named after: "sm90a"; None for the CPU, and for what names
    none."""
    return parse(name.removeprefix("sm")) if name.startswith("sm") else None
