"""Refuses second derivatives of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def no_second_derivative(
    parameters: Mapping[str, Any], inputs: Mapping[str, Any], scalars: Mapping[str, Any]
) -> Callable[..., NoReturn]:
    """Returns a backward that refuses, so that a graph which was recorded with these gradients
    in it runs on inputs that require gradients."""

    def backward(*tensors: Mapping[str, Any]) -> NoReturn:
        raise RuntimeError(
            "flash_backward: no kernel differentiates attention's gradients: they cannot be "
            "differentiated again"
        )

    return backward
