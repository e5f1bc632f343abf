"""Rows of kernels for people: a key is only worth something whole, and may fill a line alone."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_TERMINAL = 20  # rows; what comes first, the most important, would scroll away
_FILE = 1000  # nobody reads more, and laying them out takes minutes

Row = tuple[str, Sequence[Text | str]]  # a key and its cells


def most_rows(console: Console, everything: bool) -> int:
    """How many rows to print: all if a person asks for them, on a terminal else a screenful."""
    return 1 << 31 if everything else _TERMINAL if console.is_terminal else _FILE


def print_rest(console: Console, count: int, how: str) -> None:
    """Says how many rows were not printed, if any, and how to see them."""
    if count > 0:
        console.print(f"… and {count:,} more: {how}", highlight=False, soft_wrap=True)


def print_rows(
    console: Console, title: str, columns: Sequence[tuple[str, JustifyMethod]], rows: Sequence[Row]
) -> None:
    """Prints keys with their figures. Columns that no row fills are left out.

    If that is wider than a terminal, each key has a line, and its figures the next.

    Args:
        console: where to.
        title: the heading of the keys.
        columns: the other headings, and where their cells are aligned.
        rows: keys and cells.
    """
    cells = [[Text(c) if isinstance(c, str) else c for c in row] for _, row in rows]
    filled = [i for i in range(len(columns)) if any(row[i].plain for row in cells)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    for i in filled:
        table.add_column(columns[i][0], justify=columns[i][1], no_wrap=True)
    for (key, _), row in zip(rows, cells, strict=True):
        table.add_row(Text(key), *(row[i] for i in filled))
    width = Measurement.get(console, console.options.update(max_width=100_000), table).maximum
    if not console.is_terminal:
        Console(file=console.file, width=width).print(table)
    elif width <= console.width:
        console.print(table)
    else:
        heading = [Text(columns[i][0], style="bold") for i in filled]
        lines = [heading, *([row[i] for i in filled] for row in cells)]
        widths = [max(line[i].cell_len for line in lines) for i in range(len(filled))]
        for key, line in zip([title, *(key for key, _ in rows)], lines, strict=True):
            console.print(Text(key, style="bold" if line is heading else ""), soft_wrap=True)
            for i, cell in enumerate(line):
                cell.align("right" if columns[filled[i]][1] == "right" else "left", widths[i])
            for part in Text("  ").join(line).wrap(console, console.width - 2):
                part.rstrip()
                console.print(Text("  ").append_text(part))
