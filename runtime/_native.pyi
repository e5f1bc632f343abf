import os
from collections.abc import Callable

import torch

class NativeKernel:
    @property
    def key(self) -> str: ...
    def run(
        self,
        inputs: tuple[torch.Tensor | None, ...],
        scalars: tuple[float | int | bool | str | None, ...],
        requested: tuple[bool, ...],
        out: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None: ...
    def trace(
        self,
        inputs: tuple[torch.Tensor | None, ...],
        scalars: tuple[float | int | bool | str | None, ...],
        requested: tuple[bool, ...],
        out: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None,
    ) -> tuple[torch.Tensor | tuple[torch.Tensor, ...] | None, torch.Tensor]: ...
    def call(
        self,
        inputs: tuple[torch.Tensor | None, ...],
        scalars: tuple[float | int | bool | str | None, ...],
        requested: tuple[bool, ...],
        out: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None: ...

class Selector:
    def __init__(
        self,
        watched: Callable[[], tuple[object, object, object]],
        find: Callable[..., object],
        otherwise: Callable[..., object],
    ) -> None: ...
    def call(
        self,
        inputs: tuple[torch.Tensor | None, ...],
        scalars: tuple[float | int | bool | str | None, ...],
        requested: tuple[bool, ...],
        out: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None,
        flags: tuple[float | int | bool | str | None, ...],
        permuted: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None: ...
    def forget(self) -> None: ...

class Library:
    def __init__(
        self, path: str | os.PathLike[str], architectures: tuple[str, ...] = ...
    ) -> None: ...
    @property
    def generated(self) -> str: ...
    @property
    def build(self) -> str: ...
    @property
    def family(self) -> str: ...
    def keys(self) -> list[str]: ...
    def kernel(
        self,
        key: str,
        parameters: dict[str, object] = ...,
        dispatched: Callable[..., torch.Tensor | tuple[torch.Tensor, ...] | None] | None = ...,
    ) -> NativeKernel: ...

abi: int
compiler: str

def active_cpu_isa() -> str: ...
def supported_cpu_isas() -> list[str]: ...
def has_exchange_api() -> bool: ...
def use_exchange_api(use: bool) -> None: ...
