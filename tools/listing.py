"""Rows of kernels for people: a key is only useful whole, and may fill a line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_TERMINAL = 20  # rows; the first ones, the most important, would scroll away
_FILE = 1000  # more are not read, and laying them out takes minutes

Line = tuple[str, Sequence[Text | str]]  # a key and its cells


def most_rows(console: Console, everything: bool) -> int:
    """Returns the number of rows to print: all if a person asks for them; on a terminal, a
    screenful."""
    return 1 << 31 if everything else _TERMINAL if console.is_terminal else _FILE


def print_rest(console: Console, count: int, how: str) -> None:
    """Prints the number of rows that were not printed, if any, and how to see them."""
    if count > 0:
        console.print(f"… and {count:,} more: {how}", highlight=False, soft_wrap=True)


def print_rows(
    console: Console, title: str, columns: Sequence[tuple[str, JustifyMethod]], rows: Sequence[Line]
) -> None:
    """Prints keys with their figures. Columns that no row fills are left out.

    If that is wider than a terminal, each key has a line, and its figures the next.

    Args:
        console: the console to print to.
        title: the heading of the keys.
        columns: the other headings, and where their cells are aligned.
        rows: keys and cells.
    """
    filled = [i for i in range(len(columns)) if any(str(row[i]) for _, row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    for i in filled:
        table.add_column(columns[i][0], justify=columns[i][1], no_wrap=True)
    for key, row in rows:
        cells = [Text(cell) if isinstance(cell, str) else cell for cell in row]
        table.add_row(Text(key), *(cells[i] for i in filled))
    print_table(console, table)


def print_table(console: Console, table: Table) -> None:
    """Prints a table whose first column is of keys: if it is wider than a terminal, each key has a
    line, and its figures the next. In a file each row is one line."""
    width = Measurement.get(console, console.options.update(max_width=100_000), table).maximum
    if not console.is_terminal:
        Console(file=console.file, width=width).print(table)
        return
    if width <= console.width:
        console.print(table)
        return
    if table.title:
        console.print(table.title, style="italic", soft_wrap=True)
    (keys, *figures) = [
        [Text(str(column.header), style="bold"), *map(_text, column.cells)]
        for column in table.columns
    ]
    for cells, column in zip(figures, table.columns[1:], strict=True):
        most = max(cell.cell_len for cell in cells)
        for cell in cells:
            cell.align("right" if column.justify == "right" else "left", most)
    if sum(cells[0].cell_len + 2 for cells in figures) > console.width:
        _move_text(console, keys, figures)
    for key, *line in zip(keys, *figures, strict=True):
        key.rstrip()
        console.print(key, soft_wrap=True)
        for part in Text("  ").join(line).wrap(console, console.width - 2):
            part.rstrip()
            console.print(Text("  ").append_text(part))


def _move_text(console: Console, keys: list[Text], figures: list[list[Text]]) -> None:
    """Prints a cell that all rows have once, and moves a kernel's function beside its key if the
    function fits there."""
    equal = []
    for cells in [*figures]:
        heading, *values = (str(cell).strip() for cell in cells)
        if heading and values[0] and len(values) > 1 and len({*values}) == 1:
            figures.remove(cells)
            equal.append(f"{heading} {values[0]}")
        elif heading == "function":
            pairs = [Text("  ").join(pair) for pair in zip(keys, cells, strict=True)]
            if max(pair.cell_len for pair in pairs) <= console.width:
                figures.remove(cells)
                keys[:] = pairs
    if equal:
        console.print(f"these rows: {', '.join(equal)}", highlight=False, soft_wrap=True)


def _text(cell: object) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(str(cell))
