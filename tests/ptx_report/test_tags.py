"""Logs whose lines a tool tags with their writers: each writer's rows are as if it were alone."""

import itertools
import random

import pytest

from codegen.ptxas import inputs
from codegen.ptxas.events import Statistics
from tests.ptx_report.samples import FIGURES, LOGS, facts, read

# What comes before line `i` of the log, the writer's `w`.
TAGS = {
    "MSBuild": lambda w, i: f"{w + 1}>  ",
    "MSBuild, aligned": lambda w, i: f"     {w + 9}:2>",
    "MSBuild, detailed": lambda w, i: f"12:00:{i:02d}.{i * 37 % 1000:03d}     {w + 1}>",
    "BuildKit": lambda w, i: f"#{9 + w} {i * 0.7:.3f} ",
    "BuildKit, one and eleven": lambda w, i: f"#{1 + 10 * w} {i // 6 * 0.7:.2f} ",
    "compose": lambda w, i: f"{('web', 'worker')[w]}-1  | ",
    "compose, coloured": lambda w, i: f"\x1b[36mweb-{w}  |\x1b[0m ",
    "compose, timestamps": lambda w, i: f"web-{w}  | 2026-01-02T03:04:{i:02d}.123456789Z ",
    "CI's time before it": lambda w, i: f"2026-01-02T03:04:{i:02d}.1234567Z [job {w}] ",
    "CI's stream": lambda w, i: f"2026-05-22T12:43:{i:02d}.962646Z 0{w}E ",
    "foreman": lambda w, i: f"03:04:{i:02d} build.{w} | ",
    "syslog": lambda w, i: f"Nov 26 02:21:{i:02d} host{w} unit[{w}]: ",
    "a time within": lambda w, i: f"[12:00:{i:02d} job{w}] ",
    "seconds": lambda w, i: f"[{i * 1.5:8.3f}] job{w}: ",
    "parallel --tag": lambda w, i: f"{'ab'[w]}.cu\t",
    "versions": lambda w, i: f"1{w + 2}.4\t",
    "srun": lambda w, i: f"{w}: ",
    "mpirun": lambda w, i: f"[1,{w}]<stderr>:",
    "cargo": lambda w, i: f"[kernels-{w} 0.{w}.0] ",
    "words": lambda w, i: f"job {w} of 2: ",
    "ptxas": lambda w, i: f"[ptxas-{w}] ",
    "both": lambda w, i: f"#{4 + w} {i * 0.7:.3f} {w + 1}>",
}


def record(symbol, first, frame):
    """The lines of a kernel, and its figures: numbers from `first` on."""
    lines = [
        f"ptxas info    : Compiling entry function '{symbol}' for 'sm_80'",
        f"ptxas info    : Function properties for {symbol}",
        f"{frame}{first} bytes stack frame, {first + 1} bytes spill stores, "
        f"{first + 2} bytes spill loads",
        f"ptxas info    : Used {first + 3} registers, used 1 barriers, {first + 4} bytes smem",
        f"ptxas info    : Compile time = {first + 5}.5 ms",
    ]
    figures = (first, first + 1, first + 2, first + 3, 1, first + 4, None, None, first + 5.5)
    return lines, (symbol, *figures, None)


def rows(text):
    found = read(text.encode())
    return sorted((r.symbol, *(getattr(r, f) for f in FIGURES), r.incomplete) for r in found)


def tagged(writers, order, tag):
    """The writers' lines in that order, the next line of the writer of each place."""
    waiting = [iter(lines) for lines in writers]
    return "".join(f"{tag(w, i)}{next(waiting[w])}\n" for i, w in enumerate(order))


@pytest.mark.parametrize("frame", ["    ", "ptxas         .     "])
@pytest.mark.parametrize("symbols", [("_Z1aPf", "_Z1bPf"), ("_Z1aPf", "_Z1aPf")])
@pytest.mark.parametrize("tool", TAGS)
def test_every_interleaving_of_two_kernels(tool, symbols, frame):
    one, two = (
        record(symbol, first, frame) for symbol, first in zip(symbols, (100, 200), strict=True)
    )
    for places in itertools.combinations(range(10), 5):
        order = [int(i not in places) for i in range(10)]
        text = tagged((one[0], two[0]), order, TAGS[tool])
        assert rows(text) == sorted([one[1], two[1]]), text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_mark_of_the_encoding_is_no_tag(tmp_path, encoding):
    (one, first), (two, second) = record("_Z1aPf", 100, "    "), record("_Z1bPf", 200, "    ")
    path = tmp_path / "build.log"
    path.write_bytes(tagged((one, two), [0, 1] * 5, TAGS["MSBuild"]).encode(encoding))
    rows_of = inputs.read_log(path, "log", Statistics())
    found = [(r.symbol, *(getattr(r, f) for f in FIGURES), r.incomplete) for r in rows_of]
    assert sorted(found) == sorted([first, second])


@pytest.mark.parametrize("tool", ["MSBuild", "BuildKit", "parallel --tag"])
@pytest.mark.parametrize("seed", range(4))
def test_real_logs_at_once(tool, seed):
    chance = random.Random(seed)
    logs = chance.sample(LOGS, 2)
    writers = [path.read_text().splitlines() for path in logs]
    order = [w for w in range(2) for _ in writers[w]]
    chance.shuffle(order)
    statistics = Statistics()
    found = read(tagged(writers, order, TAGS[tool]).encode(), statistics=statistics)
    alone = [row for lines in writers for row in read("\n".join(lines).encode() + b"\n")]
    assert sorted(map(repr, (facts(row)[1:] for row in found))) == sorted(
        map(repr, (facts(row)[1:] for row in alone))
    )
    assert [row.line for row in found] == sorted(row.line for row in found)
    assert not any(row.incomplete for row in found)
    assert statistics.unknown == 0
    # A row's line is that of the whole log.
    log = tagged(writers, order, TAGS[tool]).splitlines()
    assert all(row.symbol in log[row.line - 1] for row in found)


def test_msbuild_may_tag_only_the_lines_where_the_project_changes():
    one, two = record("_Z1aPf", 100, "    "), record("_Z1bPf", 200, "    ")
    (a, b), order = (one[0], two[0]), [0, 0, 1, 1, 0, 1, 0, 0, 1, 1]
    waiting, lines, last = [iter(a), iter(b)], [], None
    for w in order:
        if w != last:
            lines.append(f"     {w + 1}>CudaBuild:")
        lines.append("         " + next(waiting[w]))
        last = w
    assert rows("\n".join(lines) + "\n") == sorted([one[1], two[1]])


@pytest.mark.parametrize(
    "prefix",
    [
        lambda i: f"{i:6d}\t",
        lambda i: f"{i}:",
        lambda i: f"[{i}/40] ",
        lambda i: f"T{i // 4} | ",
        lambda i: f"2026-01-02 03:04:{i // 3:02d} ",
        lambda i: f"{i // 3}.25 ",
    ],
)
def test_what_changes_from_line_to_line_is_no_tag(prefix):
    kernels = [record(f"_Z1{letter}Pf", 100 * n, "    ") for n, letter in enumerate("abc", 1)]
    lines = [line for own, _ in kernels for line in own]
    text = "".join(f"{prefix(i)}{line}\n" for i, line in enumerate(lines))
    assert rows(text) == [figures for _, figures in kernels]


def test_lines_without_a_tag_are_one_writers():
    one, two = record("_Z1aPf", 100, "    "), record("_Z1bPf", 200, "    ")
    order = [0, 0, 1, 1, 0, 1, 0, 1, 1, 0]
    text = tagged((one[0], two[0]), order, lambda w, i: "web-1  | " if w else "")
    assert rows(text) == sorted([one[1], two[1]])


def test_a_gap_is_its_writers_alone():
    one, two = record("_Z1aPf", 100, "    "), record("_Z1bPf", 200, "    ")
    one[0][3] = "[output clipped, log limit 2MiB reached]"
    text = tagged((one[0], two[0]), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1], TAGS["BuildKit"])
    (cut, whole) = read(text.encode())
    assert (cut.stack_frame, cut.used_registers, cut.incomplete is None) == (100, None, False)
    assert (whole.used_registers, whole.incomplete) == (203, None)
