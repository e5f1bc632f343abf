"""Names of CUDA architectures: `sm80`, `sm90a` and `sm100f` of targets; `80`, `90a` and `100f` of
builds; `sm_90a` of machine code. Standard library only.

    python codegen/core/architectures.py --newest|--all NAME ...   architectures of a build: 80;90a
    python codegen/core/architectures.py TARGET NAME ...           architectures of code: 90a-real

for CMake; exit status 1 for other names.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

_NAME = re.compile(r"([1-9][0-9]{1,2})([af]?)\Z")
_SPELT = re.compile(r"(?:sm_?|compute_?)?([1-9][0-9]?)\.?([0-9])([af]?)(?:-real)?", re.IGNORECASE)


class Architecture(NamedTuple):
    """A compute capability, 80 for 8.0, and the capabilities that its targets run on: all later
    ones; this one only (`a`); or the later ones of its major version (`f`, a family)."""

    capability: int
    suffix: str

    def __str__(self) -> str:
        return f"{self.capability}{self.suffix}"

    def suits(self, capability: int) -> bool:
        """Returns whether a target of this name runs on a capability."""
        if self.suffix == "a":
            return capability == self.capability
        of_family = self.suffix != "f" or capability // 10 == self.capability // 10
        return of_family and capability >= self.capability

    def on(self, capability: int) -> Architecture:
        """Returns the name that a target of this architecture is compiled for on a capability that
        suits it."""
        return self._replace(capability=capability)

    @property
    def devices(self) -> str:
        """Returns the compute capabilities that suit, for messages: `8.0 or later`."""
        major, minor = divmod(self.capability, 10)
        if self.suffix == "a":
            return f"exactly {major}.{minor}"
        return f"{major}.{minor} or later{f' of {major}.x' if self.suffix else ''}"


def parse(name: str) -> Architecture | None:
    """Returns the architecture that a build names by `text`, such as "90a"; None for other
    texts."""
    match = _NAME.match(name)
    return Architecture(int(match[1]), match[2]) if match else None


def spelt(name: str) -> Architecture | None:
    """Returns the architecture that people name by `text`: "90a", "sm_90a", "compute_90a", "9.0a";
    None for other texts."""
    match = _SPELT.fullmatch(name.strip())
    return parse(f"{match[1]}{match[2]}{match[3].lower()}") if match else None


def of_target(name: str) -> Architecture | None:
    """Returns the architecture that a target is named after: "sm90a"; None for the CPU and for
    other names."""
    return parse(name.removeprefix("sm")) if name.startswith("sm") else None


def of_code(name: str) -> Architecture | None:
    """Returns the architecture of machine code as nvcc and ptxas name it: "sm_90a"."""
    return parse(name.removeprefix("sm_"))


def main(what: str, names: list[str]) -> int:
    """Runs the command."""
    architectures = []
    for name in names:
        named = spelt(name)
        if named is None:
            print(
                f"CUDA architecture '{name}': expected names such as 80;86;90a;100f (machine code "
                "only: PTX for later architectures is not shipped)",
                file=sys.stderr,
                end="",
            )
            return 1
        architectures.append(named)
    if target := of_target(what):
        suiting = [named.capability for named in architectures if target.suits(named.capability)]
        shown = [f"{target.on(capability)}-real" for capability in suiting]
    else:
        shown = list(map(str, [max(architectures)] if what == "--newest" else architectures))
    print(*dict.fromkeys(shown), sep=";", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
