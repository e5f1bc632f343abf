"""The families' references: by name, as specs name them (`reference: reference.py:attention`);
and those of HSTU's families, with what lies beside them, as modules.

No other module of tools imports Python from the specs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime import manifest, packs

if TYPE_CHECKING:
    from kernel_specs.hstu import jagged, semantics
    from kernel_specs.hstu.block_sparse import reference as block_sparse
    from kernel_specs.hstu.hstu_bsa import reference as hstu_bsa
else:
    _HSTU = {
        "jagged": "kernel_specs.hstu.jagged",
        "semantics": "kernel_specs.hstu.semantics",
        "block_sparse": "kernel_specs.hstu.block_sparse.reference",
        "hstu_bsa": "kernel_specs.hstu.hstu_bsa.reference",
    }

    def __getattr__(name: str) -> Any:
        """HSTU's modules, imported when one is asked for: a pack may be built without them."""
        if name not in _HSTU:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if "hstu_bsa" not in packs.families():
            raise ImportError(
                "no pack has the family hstu_bsa, whose reference this needs: `kernelmint info` "
                "shows what is installed"
            )
        return packs.specs_module(packs.of("hstu_bsa"), _HSTU[name])


__all__ = ["block_sparse", "hstu_bsa", "jagged", "oracle", "semantics", "specs", "triton_kernels"]


def specs(family: str) -> Path:
    """The folder of specs that a family comes from."""
    found = manifest.family(family)
    return packs.of(family).specs[found.spec_folder.partition("/")[0]]


def oracle(family: str, function: str | None = None) -> Callable[..., Any]:
    """The function that defines what `family` computes.

    Args:
        family: a family's name, as in `runtime.families()`.
        function: another function of the same file.

    Raises:
        ValueError: there is no such family, or it names no reference.
    """
    if family not in packs.families():
        raise ValueError(f"no family {family!r}; families: {', '.join(packs.families())}")
    found = manifest.family(family)
    if found.reference is None:
        raise ValueError(f"family {family!r} names no reference in its family.yaml")
    file, _, named_function = found.reference.partition(":")
    module = f"{found.spec_folder}/{file.removesuffix('.py')}".replace("/", ".")
    loaded = packs.specs_module(packs.of(family), module)
    return getattr(loaded, function or named_function)  # type: ignore[no-any-return]  # a spec's own function


def triton_kernels() -> Any:
    """The module of HSTU's Triton kernels. ModuleNotFoundError where Triton is not installed."""
    pack = packs.of("block_sparse")
    return packs.specs_module(pack, "kernel_specs.hstu.block_sparse.triton_kernels")
