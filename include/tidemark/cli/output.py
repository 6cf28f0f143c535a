"""How commands show what they have found: tables and lines for people, or one JSON value for a program.

With `--json` stdout holds this value and nothing else; messages go to stderr. Without a terminal, tables have no frames,
and no line is wrapped, so that other tools can read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.table import Table
from rich.text import Text

from tidemark.names import TaskId, TopicPartition
from tidemark.verdict import Verdict

_UNBOUNDED = 100_000
"""The width of an output that is no terminal, so that rich neither wraps nor cuts its lines."""
_READABLE = 20
"""The width below which a column of text is hard to read, even if its longest word is shorter."""

_VERDICTS = {Verdict.OK: "green", Verdict.FAILED: "red"}

View = str | ConsoleRenderable


class Verbatim(str):
    """A line that people copy, such as a path or a command: no newline is put into it, however narrow the terminal."""

    __slots__ = ()


class Output:
    """The output of one command. Raises a usage error if a program cannot answer the question that the command asks."""

    def __init__(self, *, as_json: bool = False, yes: bool = True) -> None:
        """`yes` is false for a command that asks before it changes anything."""
        if as_json and not yes:
            raise typer.BadParameter("with it nobody can be asked: give --yes, too", param_hint="--json")
        self.is_json = as_json
        self._yes = yes

    def show(self, value: object, *views: View) -> None:
        """Print the JSON value, or the views for people."""
        if self.is_json:
            print(json.dumps(as_json(value), indent=2, ensure_ascii=False), flush=True)
        else:
            self.people(*views)

    def people(self, *views: View) -> None:
        """Print the views, unless the output is JSON."""
        if not self.is_json:
            for view in views:
                console().print(view, soft_wrap=isinstance(view, Verbatim))

    def message(self, text: str) -> None:
        """Print a line about the progress of the command: on stdout for people, else on stderr."""
        console(stderr=self.is_json).print(text, soft_wrap=isinstance(text, Verbatim))

    def note(self, text: str) -> None:
        """Print a line on stderr, which is not part of the result."""
        console(stderr=True).print(text)

    def confirm(self, question: str) -> bool:
        """Return whether the user agrees, or has done so with `--yes`."""
        return self._yes or typer.confirm(question)

    def progress_console(self) -> Console:
        """Return the console on which bars are drawn: that of stdout for people, else that of stderr."""
        return Console(stderr=self.is_json)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: names may contain what rich takes for markup."""
    made = Console(stderr=stderr, highlight=False, markup=False)
    if not made.is_terminal:
        made.width = _UNBOUNDED
    return made


def as_json(value: object) -> Any:
    """Return the value as JSON types: dataclasses and mappings as objects, partitions, tasks and paths as text.

    Raises `TypeError` for a value without such a form.
    """
    if isinstance(value, Enum):
        return as_json(value.value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, PurePath | TopicPartition | TaskId):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(as_json(each) for each in value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [as_json(each) for each in value]
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


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
        """Return, for each column, the width of its longest word and that of its longest line."""
        columns = zip(*([Text(heading) for heading in self._headings], *self.rows), strict=True)
        return [
            (
                max(max((Text(word).cell_len for word in cell.plain.split()), default=0) for cell in column),
                max(max((line.cell_len for line in cell.split()), default=0) for cell in column),
            )
            for column in columns
        ]

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
                block.add_row(Text(heading, style="dim"), cell)
            yield block
            yield Text()

    def _lines(self) -> RenderResult:
        if self._title:
            yield Text(self._title)
        texts = [list(self._headings), *([" ".join(cell.plain.split()) for cell in row] for row in self.rows)]
        widths = [max(Text(row[place]).cell_len for row in texts) for place in range(len(self._headings))]
        for row in texts:
            cells = [
                " " * (width - Text(cell).cell_len) + cell
                if heading in self._right
                else cell + " " * (width - Text(cell).cell_len)
                for heading, cell, width in zip(self._headings, row, widths, strict=True)
            ]
            yield Text("  ".join(cells).rstrip())


def column_widths(sizes: Sequence[tuple[int, int]], available: int) -> list[int] | None:
    """Return the widths of columns, given the longest word and the longest line of each; None if words would be cut.

    A column with much text keeps at least 20 characters. The narrowest columns get what they need first.
    """
    least = [max(word, min(line, _READABLE)) for word, line in sizes]
    left = available - sum(least)
    if left < 0:
        return None
    widths = list(least)
    wanting = sorted(range(len(sizes)), key=lambda place: sizes[place][1] - least[place])
    for position, place in enumerate(wanting):
        more = min(sizes[place][1] - least[place], left // (len(wanting) - position))
        widths[place] += more
        left -= more
    return widths
