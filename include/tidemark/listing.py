"""Tables that can be read on any terminal, and by other tools in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from tidemark.verdict import Verdict

_READABLE = 20
"""The width below which text is hard to read, even if its longest word is shorter. A heading may be narrower."""
_VERDICTS = {Verdict.OK: "green", Verdict.FAILED: "red"}


def coloured(verdict: Verdict) -> Text:
    """Return a verdict as text: green, red, or yellow for all between."""
    return Text(str(verdict), style=_VERDICTS.get(verdict, "yellow"))


class Listing:
    """Rows under headings. On a terminal it is a table if its columns are readable, else one block for each row."""

    def __init__(self, *headings: str, right: Sequence[str] = (), title: str = "", centred: bool = True) -> None:
        """The columns `right` hold numbers."""
        self.rows: list[list[Text]] = []
        self._headings = headings
        self._right = frozenset(right)
        self._title = title
        self._centred = centred

    def add(self, *cells: str | Text) -> None:
        """Add a row with one cell for each heading. Text may have a style; a string is shown as it is."""
        if len(cells) != len(self._headings):
            raise ValueError(f"{len(cells)} cells for the {len(self._headings)} headings {', '.join(self._headings)}")
        self.rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the width and kind of the output."""
        if not console.is_terminal:
            yield from self._lines()
            return
        widths = column_widths(self._sizes(), options.max_width - (3 * len(self._headings) + 1))
        if widths is None:
            yield from self._blocks()
        else:
            yield self._table(widths)

    def _sizes(self) -> list[tuple[int, int]]:
        """Return, for each column, the width below which it is hard to read, and the width that it would fill."""
        found = []
        for heading, *cells in zip(map(Text, self._headings), *self.rows, strict=True):
            longest = max((line.cell_len for cell in cells for line in cell.split()), default=0)
            word = max(cell_len(word) for cell in (heading, *cells) for word in cell.plain.split() or [""])
            found.append((max(word, min(longest, _READABLE)), max(longest, heading.cell_len)))
        return found

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(title=Text(self._title) if self._title else None)
        if not self._centred:
            table.title_justify = "left"
        for heading, width in zip(self._headings, widths, strict=True):
            is_right = heading in self._right
            table.add_column(Text(heading), justify="right" if is_right else "left", width=width, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def _blocks(self) -> RenderResult:
        if self._title:
            yield Text(self._title, style="italic")
        for row in self.rows:
            block = Table.grid(padding=(0, 2, 0, 0))
            block.add_column(no_wrap=True)
            block.add_column(overflow="fold")
            for heading, cell in zip(self._headings, row, strict=True):
                if cell:
                    block.add_row(Text(heading, style="dim"), cell)
            yield block
            yield Text()

    def _lines(self) -> RenderResult:
        if self._title:
            yield Text(self._title)
        texts = [list(self._headings), *([" ".join(cell.plain.split()) for cell in row] for row in self.rows)]
        widths = [max(cell_len(row[place]) for row in texts) for place in range(len(self._headings))]
        for row in texts:
            cells = []
            for heading, cell, width in zip(self._headings, row, widths, strict=True):
                padding = " " * (width - cell_len(cell))
                cells.append(padding + cell if heading in self._right else cell + padding)
            yield Text("  ".join(cells).rstrip())


def column_widths(sizes: Sequence[tuple[int, int]], available: int) -> list[int] | None:
    """Return the widths of columns, given the least and the full width of each; None if the least do not fit.

    Columns that lack the least get what they need first.
    """
    widths = [least for least, _ in sizes]
    left = available - sum(widths)
    if left < 0:
        return None
    wanting = sorted(range(len(sizes)), key=lambda place: sizes[place][1] - widths[place])
    for position, place in enumerate(wanting):
        more = min(sizes[place][1] - widths[place], left // (len(wanting) - position))
        widths[place] += more
        left -= more
    return widths
