"""Tiny specs that ask for endless work are refused at once, with their place and the way around."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
# A hang guard; each takes a fraction of a second.
PATIENCE = 30

NINE = "abcdefghi"
TILE = "tile: {type: int, token: t}"
ONE_SET = "default: [{tile: 64}]"


def spec(parameters: str = TILE, sets: str = ONE_SET, **sections: str) -> str:
    lines = ["target: cpu", "kernel: cpu.h", f"parameters:\n  {parameters}"]
    lines += [f"{name}:\n  {text}" for name, text in sections.items()]
    return "\n".join([*lines, f"sets:\n  {sets}\n"])


def chain(count: int, step: str) -> str:
    return "\n  ".join(["d0: tile", *(f"d{i}: {step.format(i - 1)}" for i in range(1, count))])


def includes(count: int, body: str) -> str:
    sets = [f"s{i}: {{include: [{body.format(i - 1)}]}}" for i in range(1, count)]
    return "\n  ".join([f"default: {{include: [s{count - 1}]}}", "s0: [{tile: 64}]", *sets])


AXES = "\n  ".join(f"p{c}: {{type: int, token: {c}x}}" for c in NINE)
PRODUCT = f"default: {{product: {{{', '.join(f'p{c}: {list(range(10))}' for c in NINE)}}}}}"
ALL_NINE = " + ".join(f"p{c}" for c in NINE)
BOMB = "\n  ".join(f"s{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
# (what, cpu.yaml, what is reported; None: it is a good spec)
SPECS = [
    ("a product of 10^9", spec(AXES, PRODUCT), "it tries 6,000,000 combinations or more at once"),
    (
        "a product of 10^9 that a last rule excludes",
        spec(AXES, PRODUCT, constraints="- {that: pi > 9, because: none is}"),
        "List fewer values, name the parameters that rules prune by first, or split it",
    ),
    (
        "a product of 10^9 that a rule over all of it excludes",
        spec(AXES, PRODUCT, constraints=f"- {{that: {ALL_NINE} > 99, because: none is}}"),
        "the products of a target may take 40,000,000 steps",
    ),
    (
        "a product of 10^9 of which the first rule leaves little",
        spec(AXES, PRODUCT, constraints=f"- {{that: {ALL_NINE[:-5]} < 2, because: few are}}\n"
             "  - {that: pi == 0, because: few are}"),
        "it tries",
    ),
    (
        "products that hold too many configurations together",
        spec(AXES, PRODUCT.replace(str(list(range(10))), "[0, 1, 2, 3]", 9)),
        "the sets of this target hold 1,572,864 configurations; at most 200,000. Prune more",
    ),
    ("derived values that double", spec(derived=chain(46, "d{0} + d{0}")), None),
    (
        "derived values that double, in rules",
        spec(
            derived=chain(46, "d{0} + d{0}"),
            constraints="- {that: d45 > 0, because: it is}",
            requires="- {that: d45 > N, because: it is}",
        ),
        None,
    ),
    (
        "derived values that square",
        spec(derived=chain(46, "d{0} * d{0}")),
        "'d3 * d3' has no value for demo.cpu.bf16-t64: the result exceeds 64 bits",
    ),
    (
        "derived values that square, in a rule",
        spec(
            derived=chain(46, "d{0} * d{0}"), constraints="- {that: d45 > 0, because: it is}"
        ),
        "'d3 * d3' has no value for tile = 64: the result exceeds 64 bits",
    ),
    ("256 chained derived values", spec(derived=chain(256, "d{0} + 1")), None),
    (
        "2,000 chained derived values",
        spec(derived=chain(2000, "d{0} + 1")),
        "2000 derived values; at most 256",
    ),
    ("a set included twice, 40 deep", spec(sets=includes(40, "s{0}, s{0}")), None),
    ("250 chained includes", spec(sets=includes(250, "s{0}")), None),
    ("3,000 chained includes", spec(sets=includes(3000, "s{0}")), "3001 sets; at most 256"),
    (
        "3,000 includes of one set",
        spec(sets=f"default: {{include: [{', '.join(['s0'] * 3000)}]}}\n  s0: [{{tile: 64}}]"),
        None,
    ),
    (
        "3,000 parameters",
        spec("\n  ".join(f"p{i}: {{type: int, token: t{i}x}}" for i in range(3000))),
        "3000 parameters; at most 64, the family's included",
    ),
    (
        "an alias bomb",
        spec(sets=f"s0: &a0 [{', '.join(['{tile: 1}'] * 9)}]\n  {BOMB}"),
        "with its aliases unfolded, the file holds more than 50,000 values: write products",
    ),
    (
        "a file too large",
        spec(sets="default:\n" + "".join(f"    - {{tile: {i}}}\n" for i in range(9000))),
        "write products in place of lists of configurations, or split the family",
    ),
    (
        "lists in lists",
        spec(constraints=f"- {{that: '{'tile in [' * 25}tile == 1{']' * 25}', because: none is}}"),
        "excludes everything that the product",
    ),
    (
        "comparisons in comparisons",
        spec(constraints=f"- {{that: '{'0 <= (' * 28}tile{') <= 2' * 28}', because: none is}}"),
        "nested comparisons repeat their operands too often in C++",
    ),
    (
        "9,000 unknown names",
        spec(sets=f"default: [{{{', '.join(f'k{i}: 1' for i in range(9000))}}}]"),
        "unknown parameter 'k0'",
    ),
    (
        "20,000 values, each of them twice",
        spec(sets=f"default: {{product: {{tile: {[i % 9999 for i in range(20000)]}}}}}"),
        "0 is listed twice",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    slow_after(8, [case[1:] for case in SPECS]),
    ids=[case[0] for case in SPECS],
)
def test_a_tiny_spec_of_endless_work(workspace, text, expected) -> None:
    workspace.write("cpu.yaml", text)
    done = subprocess.run(
        [sys.executable, "-m", "codegen", "regenerate"],
        cwd=workspace.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert "Traceback" not in done.stderr
    if expected is None:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2
    assert expected in done.stderr
    *problems, count = done.stderr.splitlines()
    assert all(re.match(r"kernel_specs/demo/cpu\.yaml:\d+:\d+: \S", line) for line in problems)
    assert len(problems) <= 100
    assert re.fullmatch(r"\d+ problems?", count)


@pytest.mark.parametrize("name", ["family.yaml", "cpu.yaml"])
def test_a_fifo_is_not_waited_for(workspace, name) -> None:
    (workspace.demo / name).unlink()
    os.mkfifo(workspace.demo / name)
    result = workspace.run("list")
    assert result.status == 2
    assert f"{name}:1:1: the file cannot be read: Not a regular file" in result.stderr


def test_a_fifo_in_the_tree_is_not_waited_for(workspace) -> None:
    workspace.run("regenerate")
    (workspace.out / "manifest.json").unlink()
    os.mkfifo(workspace.out / "manifest.json")
    assert workspace.run("check").status == 2
    assert workspace.python(str(ROOT / "codegen/core/staleness.py"), "generated").status == 1


def test_products_within_the_limit_are_not_refused(workspace) -> None:
    """Early rules make a product of 10^9 small; each step counts what is left before it."""
    constraints = "- {that: pa + pb + pc == 0, because: one is left of 1000}\n" + "".join(
        f"  - {{that: p{c} < 2, because: two are left of ten}}\n" for c in NINE[3:]
    )
    workspace.write("cpu.yaml", spec(AXES, PRODUCT, constraints=constraints))
    result = workspace.run("list", "--where", "target == cpu")
    assert len(result.stdout.splitlines()) == 6 * 2**6


def test_a_key_of_any_length_is_explained_at_once(workspace) -> None:
    """Of a key that names no family, installed packs' keys may be the nearest."""
    for key, family in (
        ("demo.cpu." + "bf16-t64-" * 20_000, "demo."),
        ("(" + "bf16, " * 20_000, ""),
        ("x" * 200_000, ""),
    ):
        result = workspace.run("explain", key)
        assert result.status == 2
        assert f"the nearest keys of the default sets:\n  {family}" in result.stderr
        assert len(result.stderr) < 5000
