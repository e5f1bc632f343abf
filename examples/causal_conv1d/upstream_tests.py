"""causal-conv1d's own tests, of its source distribution, against this package.

    python upstream_tests.py [--device cpu] [--most ELEMENTS] [--every N] [--first I] [of pytest's]

They are fetched (or found in KERNELMINT_SOURCES) and run as they are, but for their import lines:
the functions are this package's, their references upstream's. They ask for the device "cuda";
`--device cpu` changes that word, too. `--most` leaves out those with more elements, dim * seqlen,
and `--every` takes each Nth, from the first or the Ith on. What they are held to needs einops.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from codegen.sources import archives

HERE = Path(__file__).resolve().parent
SPEC = HERE / "kernel_specs/causal_conv1d/sm80.yaml"


class Some:
    """A plugin that keeps every Nth of the tests that have at most so many elements, from the Ith
    on."""

    def __init__(self, most: int, every: int, first: int) -> None:
        self._most, self._every, self._first = most, every, first

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Keeps the tests of the sample; a hook of pytest's."""

        def elements(item: Any) -> int:
            values = item.callspec.params if hasattr(item, "callspec") else {}
            return int(values.get("dim", 4096 + 32) * values.get("seqlen", 1))

        kept = [item for item in items if elements(item) <= self._most]
        kept = kept[self._first :: self._every]
        chosen = set(map(id, kept))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = kept


def upstream() -> Path:
    """Returns upstream's source distribution, unpacked."""
    pin = yaml.safe_load(SPEC.read_text())["build"]["archives"]["upstream"]
    return archives.folder(f"pypi:{pin['pypi']}=={pin['version']}", pin["sha256"])


def with_references(text: str) -> str:
    """Writes the tests with the functions of this package and the references of upstream's."""

    def apart(line: re.Match[str]) -> str:
        names = [name.strip() for name in line[2].split(",")]
        ours = [name for name in names if not name.endswith("_ref")]
        theirs = [name for name in names if name.endswith("_ref")]
        return (
            f"from causal_conv1d_pack import {', '.join(ours)}\n"
            f"from {line[1]} import {', '.join(theirs)}"
        )

    return re.sub(r"^from (causal_conv1d\.\w+) import (.+)$", apart, text, flags=re.MULTILINE)


def let_references_be_imported() -> None:
    """Lets upstream's Python files import its extension, and Triton."""
    sys.path.insert(0, str(upstream()))
    sys.modules["causal_conv1d_cuda"] = types.ModuleType("causal_conv1d_cuda")
    try:
        import triton  # noqa: F401
    except ImportError:  # PyTorch for the CPU comes without it
        stand_in, language = types.ModuleType("triton"), types.ModuleType("triton.language")
        stand_in.jit, stand_in.language, language.constexpr = lambda f: f, language, int  # type: ignore[attr-defined]
        sys.modules |= {"triton": stand_in, "triton.language": language}


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--most", type=int, default=1 << 60)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    options, rest = parser.parse_known_args()
    let_references_be_imported()
    text = with_references((upstream() / "tests/test_causal_conv1d.py").read_text())
    if options.device == "cpu":
        text = text.replace('device = "cuda"', 'device = "cpu"')
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test_causal_conv1d.py"
        test.write_text(text)
        arguments = ["-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(test), *rest]
        some = Some(options.most, options.every, options.first)
        return int(pytest.main(arguments, plugins=[some]))


if __name__ == "__main__":
    sys.exit(main())
