"""Sizes that are known at a call alone, and launches: what specs may say of them, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# (what, file, text to replace, its replacement, what is reported where)
REFUSED = [
    (
        "an output's extent that depends on the device",
        "family.yaml",
        "rows: {output: [M]",
        "rows: {output: [sm_count]",
        "family.yaml:6:19: 'sm_count' is a fact about the device, which is not known here",
    ),
    (
        "an output's extent that depends on it through a default",
        "family.yaml",
        "  rows: {output: [M], dtype: f32, optional: true}",
        "  rows: {output: [parts], dtype: f32}\n  parts: {scalar: i32, default: 2 * sm_count}",
        "family.yaml:7:33: 'sm_count' is a fact about the device, but an extent of the output "
        "'rows' depends on 'parts': torch.compile needs it without a device",
    ),
    (
        "an input's extent from a scalar",
        "family.yaml",
        "x: {tensor: [M, N]",
        "n: {scalar: i32}\n  x: {tensor: [M, N + n]",
        "family.yaml:5:23: unknown name 'n'",
    ),
    (
        "an extent from a float",
        "family.yaml",
        "rows: {output: [M]",
        "rows: {output: [M + alpha]",
        "family.yaml:6:23: unknown name 'alpha'",
    ),
    (
        "shared memory on the CPU",
        "cpu.yaml",
        "sets:",
        "requires:\n  - {that: max_shared_memory > 0, because: of it}\nsets:",
        "cpu.yaml:6:12: 'max_shared_memory' is a fact about the device, which is not known here",
    ),
    (
        "the device when generating",
        "sm80.yaml",
        "that: tile % (8 * warps) == 0",
        "that: tile % sm_count == 0",
        "sm80.yaml:9:19: 'sm_count' is a fact about the device, which is not known here",
    ),
    (
        "a symbol named as a fact",
        "family.yaml",
        "x: {tensor: [M, N]",
        "x: {tensor: [sm_count, N]",
        "family.yaml:4:16: symbol 'sm_count' is a fact about the device in expressions: "
        "choose another",
    ),
    (
        "a parameter named as a scalar",
        "sm80.yaml",
        "  tile: {type: int, token: t}",
        "  tile: {type: int, token: t}\n  alpha: {type: int}",
        "sm80.yaml:5:3: 'alpha' is also a scalar of the family",
    ),
    (
        "a family's derived value named as an argument",
        "family.yaml",
        "requires:",
        "derived: {alpha: 1}\nrequires:",
        "family.yaml:11:11: 'alpha' is already an argument",
    ),
    (
        "a target's derived value named as the family's",
        "family.yaml",
        "requires:",
        "derived: {threads: 1}\nrequires:",
        "sm80.yaml:11:3: 'threads' is already a derived value",
    ),
    (
        "a family's derived value from a target's parameter",
        "family.yaml",
        "requires:",
        "derived: {wide: 2 * tile}\nrequires:",
        "family.yaml:11:21: unknown name 'tile'",
    ),
    (
        "a grid that is too high",
        "sm80.yaml",
        '["ceil_div(M, tile)", N]',
        '["ceil_div(M, tile)", 4096 * tile]',
        "sm80.yaml:13:38: '4096 * tile' is 131072 for demo.sm80.bf16-t32-w1-auto: a grid has 1 to "
        "65535 blocks along y",
    ),
    (
        "too many threads in all",
        "sm80.yaml",
        "block: threads",
        "block: [threads, 8, 8]",
        "sm80.yaml:13:1: '(threads * 8 * 8) <= 1024' excludes everything that the product on line "
        "16 holds: a thread block has at most 1,024 threads",
    ),
    (
        "too many threads along z",
        "sm80.yaml",
        "block: threads",
        "block: [1, 1, 4 * threads]",
        "sm80.yaml:13:56: '4 * threads' is 128 for demo.sm80.bf16-t32-w1-auto: a block has 1 to "
        "64 threads along z",
    ),
    (
        "four axes",
        "sm80.yaml",
        "block: threads",
        "block: [1, 1, 1, 1]",
        "sm80.yaml:13:49: must have at most 3 entries, not 4",
    ),
    (
        "a cluster before 9.0",
        "sm80.yaml",
        "block: threads",
        "block: threads, cluster: 2",
        "sm80.yaml:13:58: 'cluster' needs compute capability 9.0: a target sm90, sm90a or later",
    ),
    (
        "a dependent launch before 9.0",
        "sm80.yaml",
        "block: threads",
        "block: threads, dependent: true",
        "sm80.yaml:13:58: 'dependent' needs compute capability 9.0: a target sm90, sm90a or later",
    ),
    (
        "a dependent launch that is a number",
        "sm80.yaml",
        "block: threads",
        "block: threads, dependent: N",
        "sm80.yaml:13:69: 'N' must be true or false",
    ),
    (
        "a cooperative launch that is a number",
        "sm80.yaml",
        "block: threads",
        "block: threads, cooperative: N",
        "sm80.yaml:13:71: 'N' must be true or false",
    ),
    (
        "a block of the blocks that a device holds at once",
        "sm80.yaml",
        "block: threads",
        "block: max_resident_blocks",
        "sm80.yaml:13:49: 'max_resident_blocks' is a fact about the device, which is not known "
        "here",
    ),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_what_cannot_be_is_refused_where_it_is_written(workspace, file, old, new, expected) -> None:
    workspace.edit(file, old, new)
    result = workspace.run("list")
    assert result.status == 2, result.output
    assert f"kernel_specs/demo/{expected}" in result.stderr


SM90 = """\
target: sm90
kernel: sm80.cuh:demo_sm90
parameters:
  size: {type: int, token: c}
launch:
  grid: ["size * ceil_div(M, size)", "min(parts, sm_count)"]
  block: [32, size, "2 if eager else 1"]
  cluster: [size, 1]
  dependent: eager and causal
sets:
  default: [{size: 4}]
"""


@pytest.fixture
def hopper(workspace):
    workspace.edit(
        "family.yaml",
        "  alpha:",
        "  parts: {scalar: i64, default: sm_count}\n  eager: {scalar: bool}\n  alpha:",
    )
    workspace.write("sm90.yaml", SM90)
    return workspace


def test_a_launch_says_what_the_spec_says(hopper) -> None:
    result = hopper.run("regenerate")
    assert result.status == 0, result.output
    text = (hopper.out / "demo/sm90_launch.cuh").read_text()
    for line in (
        ".grid = {expression::product(Config::size, expression::ceil_div(args.M, Config::size)), "
        "expression::min(args.parts, context.facts.sm_count)},",
        ".block = {32, Config::size, (args.eager ? 2 : 1)},",
        ".cluster = {Config::size, 1},",
        ".dependent = args.eager && Config::causal,",
    ):
        assert f"          {line}\n" in text, text


def test_a_grid_may_name_the_blocks_that_the_device_holds_at_once(hopper) -> None:
    hopper.edit("sm90.yaml", "min(parts, sm_count)", "min(parts, max_resident_blocks)")
    hopper.edit("sm90.yaml", "dependent: eager and causal", "cooperative: eager")
    result = hopper.run("regenerate")
    assert result.status == 0, result.output
    text = (hopper.out / "demo/sm90_launch.cuh").read_text()
    asked = text.index("max_resident_blocks<&demo::demo_sm90<Config>>(launch, context)")
    assert text.index(".cooperative = args.eager,") < asked
    assert asked < text.index("expression::min(args.parts, resident.count)};")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (16, "sm90.yaml:8:13: 'size' is 16 for demo.sm90.bf16-c16: a cluster has 1 to 8 blocks"),
        (0, "sm90.yaml:7:15: 'size' is 0 for demo.sm90.bf16-c0: a block has 1 to 1024 threads"),
    ],
)
def test_a_cluster_has_at_most_8_blocks(hopper, size, expected) -> None:
    """More are not portable: what a device takes then differs from kernel to kernel."""
    hopper.edit("sm90.yaml", "{size: 4}", f"{{size: {size}}}")
    result = hopper.run("list")
    assert result.status == 2, result.output
    assert f"kernel_specs/demo/{expected}" in result.stderr


def test_a_familys_derived_values_are_every_targets(workspace) -> None:
    workspace.edit("family.yaml", "requires:", "derived: {width: 3 if causal else 2}\nrequires:")
    workspace.edit("family.yaml", "rows: {output: [M]", "rows: {output: [width * M]")
    workspace.edit("sm80.yaml", "threads: 32 * warps", "threads: 32 * warps\n  area: tile * width")
    assert workspace.run("regenerate").status == 0
    listed = workspace.run("list", "--json").stdout
    assert '"width": 3' in listed
    assert '"area": 64' in listed
    shard = next(iter(sorted(workspace.out.glob("demo/cpu_[0-9]*.cpp")))).read_text()
    assert "static constexpr int width = " in shard


def test_the_pages_examples_load(workspace) -> None:
    sizes, launch, cooperative = (
        (ROOT / page).read_text().split("```yaml\n")[number].partition("```")[0]
        for page, number in (
            ("docs/expressions.md", 1),
            ("docs/launches.md", 1),
            ("docs/launches.md", 2),
        )
    )
    family, _, target = sizes.partition("# sm80.yaml\n")
    assert "launch:" in target
    workspace.write("family.yaml", f"family: demo\nsummary: Of the page.\n{family}")
    workspace.write("cpu.yaml", "target: cpu\nkernel: cpu.h\nsets: {default: [{}]}\n")
    sets = "sets: {default: [{}]}\n"
    workspace.write("sm80.yaml", f"target: sm80\nkernel: sm80.cuh:sums\n{target}{sets}")
    result = workspace.run("regenerate")
    assert result.status == 0, result.output
    workspace.edit("family.yaml", "{tensor: [N]", "{tensor: [N, M, B]")
    parameters = "parameters: {n_warps: {type: int, default: 4}, tile: {type: int, default: 64}}\n"
    workspace.write("sm90.yaml", f"target: sm90\nkernel: sm80.cuh:it\n{parameters}{launch}{sets}")
    result = workspace.run("regenerate")
    assert result.status == 0, result.output
    text = (workspace.out / "demo/sm90_launch.cuh").read_text()
    assert ".cluster = {2, 1, 1}," in text
    assert ".dependent = true," in text
    workspace.write("sm120.yaml", f"target: sm120\nkernel: sm80.cuh:it\n{cooperative}{sets}")
    result = workspace.run("regenerate")
    assert result.status == 0, result.output
    assert ".cooperative = true," in (workspace.out / "demo/sm120_launch.cuh").read_text()
