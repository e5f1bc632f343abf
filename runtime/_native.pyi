from collections.abc import Callable
from typing import TypedDict

import torch

class BuildInfo(TypedDict):
    cuda: bool
    nvcc: str | None
    architectures: list[str]
    cpu_isas: list[str]
    supported_cpu_isas: list[str]
    compiler: str
    debug: bool

class NativeKernel:
    @property
    def key(self) -> str: ...
    def run(
        self,
        inputs: tuple[torch.Tensor, ...],
        scalars: tuple[float | int | bool | None, ...],
        requested: tuple[bool, ...],
        out: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]: ...
    def trace(
        self,
        inputs: tuple[torch.Tensor, ...],
        scalars: tuple[float | int | bool | None, ...],
        requested: tuple[bool, ...],
        out: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None,
    ) -> tuple[torch.Tensor | tuple[torch.Tensor, ...], torch.Tensor]: ...
    def call(
        self,
        inputs: tuple[torch.Tensor, ...],
        scalars: tuple[float | int | bool | None, ...],
        requested: tuple[bool, ...],
        out: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]: ...

fingerprint: str
build_fingerprint: str

def build_info() -> BuildInfo: ...
def built_keys() -> list[str]: ...
def active_cpu_isa() -> str: ...
def kernel(
    key: str,
    parameters: dict[str, object] = ...,
    dispatched: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]] | None = ...,
) -> NativeKernel: ...
def has_exchange_api() -> bool: ...
def use_exchange_api(use: bool) -> None: ...
