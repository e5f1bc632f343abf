import os
from collections.abc import Callable
from typing import Any

import torch

_Inputs = tuple[torch.Tensor | None, ...]
_Scalars = tuple[float | int | bool | str | None, ...]
_Result = torch.Tensor | tuple[torch.Tensor, ...] | None
_Out = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor] | None

class NativeKernel:
    @property
    def key(self) -> str: ...
    def run(
        self,
        inputs: _Inputs,
        scalars: _Scalars,
        requested: tuple[bool, ...],
        out: _Out,
    ) -> _Result: ...
    def launch_times(
        self,
        inputs: _Inputs,
        scalars: _Scalars,
        requested: tuple[bool, ...],
        out: _Out,
        count: int,
    ) -> _Result: ...
    def trace(
        self,
        inputs: _Inputs,
        scalars: _Scalars,
        requested: tuple[bool, ...],
        out: _Out,
    ) -> tuple[_Result, torch.Tensor]: ...
    def call(
        self,
        inputs: _Inputs,
        scalars: _Scalars,
        requested: tuple[bool, ...],
        out: _Out,
    ) -> _Result: ...
    def serve(self, kernel: object) -> None: ...

class Selector:
    def __init__(
        self,
        watched: Callable[[], tuple[object, object, object, object]],
        find: Callable[..., object],
        otherwise: Callable[..., object],
    ) -> None: ...
    def call(
        self,
        inputs: _Inputs,
        scalars: _Scalars,
        requested: tuple[bool, ...],
        out: _Out,
        flags: _Scalars,
        permuted: bool,
    ) -> _Result: ...
    def forget(self) -> None: ...

class OperatorCall:
    def __init__(
        self,
        described: Callable[[], tuple[str, int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]],
        known: Callable[[str], object],
        is_device_next: Callable[[int], bool] | None,
        otherwise: Callable[..., object],
    ) -> None: ...
    def call(self, *arguments: object, **options: object) -> object: ...

class DirectCall:
    def __init__(
        self,
        call: OperatorCall,
        is_plain: Callable[[], bool],
        through: Callable[..., object],
    ) -> None: ...
    @property
    def through(self) -> Callable[..., object]: ...
    def __call__(self, *arguments: object, **options: object) -> Any: ...

def thread_keys() -> tuple[int, int] | None: ...

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
        dispatched: Callable[..., _Result] | None = ...,
        likes: dict[int, int] = ...,
    ) -> NativeKernel: ...

abi: int
compiler: str

def active_cpu_isa() -> str: ...
def supported_cpu_isas() -> list[str]: ...
def is_set(variable: str) -> bool: ...
def has_exchange_api() -> bool: ...
def use_exchange_api(use: bool) -> None: ...
