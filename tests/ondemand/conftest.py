"""Families of the tests' own, built on demand into caches of the tests' own."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import runtime
from codegen import scaffold
from runtime import finding, ondemand, packs
from tests import warm_python

_names = (f"on_demand_{number}" for number in itertools.count())

# A compiler that notes each compilation: CXX names it.
WRAPPER = """#!/bin/sh
case " $* " in *" -c "*) echo "$*" >> '{log}' ;; esac
exec c++ "$@"
"""


# A kernel that writes FACTOR; what defines it is what the tests change.
HEADER = """\
#pragma once
#include "launch.h"
{before}

namespace kernelmint {{
template <class Config, class Isa>
LaunchResult launch(const void* pointer, const LaunchContext&) {{
  *static_cast<const typename Config::Args*>(pointer)->z.template as<float>() = {factor};
  return {{}};
}}
}}  // namespace kernelmint
"""


@dataclass(frozen=True)
class Family:
    """z = alpha * x + y, in a folder of specs that no pack was ever built from."""

    name: str
    specs: Path

    @property
    def folder(self) -> Path:
        return self.specs / self.name

    @property
    def header(self) -> Path:
        return self.folder / "cpu.h"

    def key(self, segment: int = 8192) -> str:
        """A CPU kernel; its spec's set holds the one of 8192 alone."""
        return f"{self.name}.cpu.f32-n{segment}"

    def edit(self, old: str, new: str, file: str = "cpu.h") -> None:
        path = self.folder / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


@dataclass(frozen=True)
class Compilations:
    """What the compiler was asked to compile."""

    log: Path

    def take(self) -> list[str]:
        """Those since the last time."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(folder))
    monkeypatch.setattr(finding, "_LOOK", 0.0)  # edits are told at the next call
    return folder


@pytest.fixture
def compilations(tmp_path, monkeypatch) -> Compilations:
    wrapper, log = tmp_path / "counting-c++", tmp_path / "compilations"
    wrapper.write_text(WRAPPER.format(log=log))
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    return Compilations(log)


@pytest.fixture
def family(tmp_path):
    """A new family; this process forgets it afterwards."""
    made = Family(next(_names), tmp_path / "specs")
    scaffold.create(made.name, made.specs)
    yield made
    registry = packs._registry()
    registry.singles.pop(made.name, None)
    ondemand.sources.pop(made.name, None)
    if (pack := registry.by_family.pop(made.name, None)) is not None:
        registry.packs.pop(pack.name)


@pytest.fixture
def write(family):
    """write(before, factor, build): the family's kernel, what comes before it, `build:`."""

    def write(before: str, factor: str = "FACTOR", build: str = "") -> None:
        family.header.write_text(HEADER.format(before=before, factor=factor))
        if build:
            with (family.folder / "cpu.yaml").open("a") as file:
                file.write(f"build: {build}\n")
        runtime.load(family.folder)

    return write


def in_new_process(code: str, *arguments: str | Path, check: bool = True, **environment: str):
    environment = {**os.environ, **environment}
    return warm_python.run(code, *arguments, environment=environment, check=check, timeout=600)
