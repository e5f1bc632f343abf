"""What the hash of a library's code for processors is of: all that decides what it computes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codegen.core import machine_code

SOURCE = """
#include <cmath>
#include <cstring>
{before}
extern "C" float kernel(float x) {{
  static const char* volatile made_of = "{identity}";
  return std::strlen(const_cast<const char*>(made_of)) * ({expression});
}}
"""
ONE, TWO = "1" * 32, "2" * 32


def code(folder: Path, before: str, expression: str, identity: str = ONE) -> str:
    folder.mkdir()
    text = SOURCE.format(before=before, expression=expression, identity=identity)
    (folder / "a.cpp").write_text(text)
    (folder / "exports.map").write_text("{ global: kernel; local: *; };")
    command = "c++ -O2 -shared -fPIC -Wl,--version-script=exports.map a.cpp -o a.so"
    subprocess.run(command.split(), cwd=folder, check=True)
    return machine_code.of_cpu_kernels(folder / "a.so", [identity])


FUNCTIONS = """
float f(float x) {{ return x; }}
float g(float x) {{ return 3 * x; }}
float a = 1;
typedef float (*F)(float);
{0}
"""
VIRTUAL = """
struct B { virtual float k(float x) { return ONE; } };
struct C : B { float k(float x) override { return TWO; } };
C c;
B* volatile p = &c;
"""


@pytest.mark.parametrize(
    ("declared", "edited", "used"),
    [
        ("static volatile float k = 1;", "static volatile float k = 3;", "k * x"),
        ("static float k[] = {1, 2};", "static float k[] = {1, 3};", "k[int(x)]"),
        ("static thread_local volatile float k = 1;", "static thread_local volatile float k = 3;",
         "k * x"),
        ("const F k[] = {f, g}; const F* volatile p = k;",
         "const F k[] = {g, f}; const F* volatile p = k;", "p[0](x)"),
        (VIRTUAL.replace("ONE", "x").replace("TWO", "3 * x"),
         VIRTUAL.replace("ONE", "3 * x").replace("TWO", "x"), "p->k(x)"),
        ("static float k(float x) { return sinf(x); }", "static float k(float x) "
         "{ return cosf(x); }", "k(x)"),
        ("F volatile k = sinf;", "F volatile k = cosf;", "k(x)"),
        ('__attribute__((constructor(101))) void one() { a = a * 2; } '
         '__attribute__((constructor(102))) void two() { a = a + 1; }',
         '__attribute__((constructor(102))) void one() { a = a * 2; } '
         '__attribute__((constructor(101))) void two() { a = a + 1; }', "a * x"),
    ],
    ids=["data", "table", "thread", "pointers", "virtual", "import", "pointer", "constructors"],
)  # fmt: skip
def test_whatever_an_edit_changes_changes_the_hash(tmp_path, declared, edited, used) -> None:
    first = code(tmp_path / "first", FUNCTIONS.format(declared), used)
    assert code(tmp_path / "again", FUNCTIONS.format(declared), used) == first
    assert code(tmp_path / "other", FUNCTIONS.format(declared), used, TWO) == first
    assert code(tmp_path / "edited", FUNCTIONS.format(edited), used) != first
