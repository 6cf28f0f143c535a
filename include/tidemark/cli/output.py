"""The output of commands: tables and text for people, or one JSON value for a program.

With `--json` stdout holds this value and nothing else; messages go to stderr. Without a terminal, no line is wrapped, so that
other tools can read them. `tidemark.listing` has the tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from tidemark.json_numbers import json_number
from tidemark.names import TaskId, TopicPartition

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable

_UNBOUNDED = 100_000
"""The width of an output that is no terminal, so that rich neither wraps nor cuts its lines."""

View: TypeAlias = "str | ConsoleRenderable"
"""Text, or something that rich draws."""


class Verbatim(str):
    """A line that people copy, such as a path or a command: no newline is put into it, however narrow the terminal."""

    __slots__ = ()


class Output:
    """The output of one command. Raises a usage error if a program cannot answer the question that the command asks."""

    def __init__(self, *, as_json: bool = False, yes: bool = True) -> None:
        """`yes` is false for a command that asks before it changes anything."""
        if as_json and not yes:
            raise typer.BadParameter("the command asks for confirmation: give --yes, too", param_hint="--json")
        self.is_json = as_json
        self._yes = yes

    def show(self, value: object, *views: View) -> None:
        """Print the JSON value, or the views for people."""
        if self.is_json:
            print(json.dumps(as_json(value), indent=2, ensure_ascii=False, allow_nan=False), flush=True)
        else:
            self.people(*views)

    def people(self, *views: View) -> None:
        """Print the views, unless the output is JSON."""
        if self.is_json:
            return
        for view in views:
            if isinstance(view, Verbatim):
                print(view)
            else:
                console().print(view)

    def message(self, text: str) -> None:
        """Print a line about the progress of the command: on stdout for people, else on stderr."""
        if isinstance(text, Verbatim):
            print(text, file=sys.stderr if self.is_json else sys.stdout)
        else:
            console(stderr=self.is_json).print(text)

    def note(self, text: str) -> None:
        """Print a line on stderr, which is not part of the result."""
        console(stderr=True).print(text)

    def confirm(self, question: str) -> bool:
        """Return whether the user agrees, or has done so with `--yes`."""
        return self._yes or typer.confirm(question)

    def progress_console(self) -> Console:
        """Return the console on which bars are drawn: that of stdout for people, else that of stderr."""
        from rich.console import Console

        return Console(stderr=self.is_json, emoji=False)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: names and keys may contain what rich takes for markup or an emoji."""
    # A command that prints only JSON, or lines as they are, does not need rich.
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _UNBOUNDED
    return made


def as_json(value: object) -> Any:
    """Return the value as JSON types: dataclasses and mappings as objects, partitions, tasks and paths as text.

    NaN and infinities are the texts that topics and stores have for them.

    Raises `TypeError` for a value without such a form.
    """
    if isinstance(value, Enum):
        return as_json(value.value)
    if isinstance(value, float):
        return json_number(value)
    if value is None or isinstance(value, str | bool | int):
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
