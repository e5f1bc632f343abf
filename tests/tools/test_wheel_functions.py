"""`kernelmint verify WHEEL` compares the host's code function by function."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelmint.__main__ import main as kernelmint
from tools.wheels.comparison import compare
from tools.wheels.wheel import Wheel

FUNCTIONS = """\
#include <cmath>
extern "C" int puts(const char*);
static int count;
namespace own {
__attribute__((noinline)) int counted(int n) { for (int i = 0; i < n; ++i) GROWS; return ++count; }
__attribute__((noinline)) float waved(float x) { return std::WAVE(x) * FACTOR; }
__attribute__((noinline)) int shown(int n) { return puts("a") + counted(n) * TIMES; }
}
float entry(float x) { return own::waved(x) + own::shown(int(x)) + own::counted(2); }
"""
DEFINES = {"GROWS": "count += 2", "WAVE": "sin", "FACTOR": "2.5f", "TIMES": "3"}


@pytest.mark.parametrize(
    ("changed", "differences"),
    [
        ({"GROWS": "count = count * 7 + i"}, ["own::counted(int): "]),
        ({"WAVE": "cos"}, ["own::waved(float): sinf -> cosf"]),
        ({"FACTOR": "3.5f"}, []),  # a constant
        ({"TIMES": "5"}, ["own::shown(int): "]),
    ],
)
def test_functions_of_the_host_are_compared_one_by_one(
    tmp_path: Path, changed: dict[str, str], differences: list[str]
) -> None:
    """By the names of the build, which the wheel lacks. Functions are the same that only lie
    elsewhere since another one grew."""
    (tmp_path / "own.cpp").write_text(FUNCTIONS)
    wheels = []
    for number, values in enumerate((DEFINES, DEFINES | changed)):
        build = tmp_path / str(number)
        build.mkdir()
        options = [f"-D{name}={value}" for name, value in values.items()]
        command = ["c++", "-O1", "-shared", "-fPIC", *options, "own.cpp", "-o", build / "own.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        subprocess.run(["strip", build / "own.so", "-o", build / "stripped.so"], check=True)
        wheels.append(build / "own-1-py3-none-any.whl")
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.write(build / "stripped.so", "own/_pack/own.so")
            archive.writestr("own-1.dist-info/METADATA", "Name: own\nVersion: 1\n")
    comparison = compare(*map(Wheel, wheels), build)
    (library,) = comparison.differing_libraries
    assert library.functions == 4
    for function, start in zip(library.differing_functions, differences, strict=True):
        assert f"{function.name}: {function.difference}".startswith(start)
    command = ["verify", str(wheels[0]), "--against", str(wheels[1])]
    output = CliRunner().invoke(kernelmint, command).output
    assert f"    {len(differences)} of 4 functions differ\n" in output
