"""The sample logs and what stands in them."""

import csv
import io
from collections import defaultdict
from pathlib import Path

from codegen.ptxas.events import Statistics
from codegen.ptxas.parser import CHUNK, Parser, parse

DATA = Path(__file__).parent / "data"
LOGS = sorted(DATA.glob("*.log"))
FIGURES = (
    "stack_frame",
    "spill_stores",
    "spill_loads",
    "used_registers",
    "barriers",
    "smem",
    "cmem0",
    "cumulative_stack",
    "compile_time_ms",
)


def expected():
    """Rows of expected.csv by log: (line, kind, symbol, arch, *FIGURES), absent ones None."""
    rows = defaultdict(list)
    with (DATA / "expected.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            figures = [None if row[f] == "" else float(row[f]) for f in FIGURES]
            rows[row["log"]].append(
                (int(row["line"]), row["kind"], row["symbol"], row["arch"] or None, *figures)
            )
    return rows


def facts(record):
    """A record as a row of `expected`."""
    return (
        record.line,
        record.kind,
        record.symbol,
        record.arch,
        *(getattr(record, figure) for figure in FIGURES),
    )


def read(data, chunk=CHUNK, statistics=None):
    """Records of a log's bytes, fed in chunks."""
    parser = Parser("log", statistics or Statistics())
    stream = io.BytesIO(data)
    records = []
    while piece := stream.read(chunk):
        records += parser.feed(piece)
    return [*records, *parser.finish()]


def read_file(path):
    """Records and statistics of a sample."""
    statistics = Statistics()
    with path.open("rb") as stream:
        return list(parse([stream.read()], path.name, statistics)), statistics
