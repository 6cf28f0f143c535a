"""The small set of SQL expressions that cases are drawn from, each as Spark SQL, as Python, and as JSON for Java."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KEY_COLUMN = "_key"
_CAST = re.compile(r"^CAST\((.*) AS (STRING|BIGINT|DOUBLE)\)$")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_INFIX = {"+", "-", "*", "%", "<", ">", "=", "<>"}


@dataclass(frozen=True)
class Expression:
    """An operation and its parts: a column's name, a literal, or other expressions.

    Operations: `col`, `key` (the record's key), `lit`, `str` (as text), `isnull`, `coalesce`, `+ - * % < > = <>`.
    """

    op: str
    parts: tuple[Any, ...] = ()

    @property
    def sql(self) -> str:
        """As a topology writes it."""
        match self.op:
            case "col":
                return str(self.parts[0])
            case "key":
                return KEY_COLUMN
            case "lit":
                (value,) = self.parts
                return f"'{value}'" if isinstance(value, str) else str(value)
            case "str":
                return f"CAST({self.parts[0].sql} AS STRING)"
            case "isnull":
                return f"({self.parts[0].sql} IS NULL)"
            case "coalesce":
                return f"coalesce({', '.join(part.sql for part in self.parts)})"
        return f"({self.parts[0].sql} {self.op} {self.parts[1].sql})"

    @property
    def json(self) -> list[Any]:
        """As `FuzzServer.Expression` reads it."""
        return [self.op, *(part.json if isinstance(part, Expression) else part for part in self.parts)]

    @property
    def python(self) -> str:
        """The Python that makes it, for a pasted test."""
        parts = "".join(f", {part.python if isinstance(part, Expression) else repr(part)}" for part in self.parts)
        return f'of("{self.op}"{parts})'

    def evaluate(self, row: Mapping[str, Any]) -> Any:
        """Its value; `row` has the record's columns and `_key`. Nulls are as in SQL."""
        if self.op == "col":
            return row[self.parts[0]]
        if self.op == "key":
            return row[KEY_COLUMN]
        if self.op == "lit":
            return self.parts[0]
        values = [part.evaluate(row) for part in self.parts]
        if self.op == "isnull":
            return values[0] is None
        if self.op == "coalesce":
            return next((value for value in values if value is not None), None)
        if any(value is None for value in values):
            return None
        return _computed(self.op, *values)

    def walk(self) -> Iterator[Expression]:
        """Itself and every expression in it."""
        yield self
        for part in self.parts:
            if isinstance(part, Expression):
                yield from part.walk()


def of(op: str, *parts: Any) -> Expression:
    """Write `of("+", col("a"), lit(1))`."""
    return Expression(op, parts)


def col(name: str) -> Expression:
    """A column of the record."""
    return of("col", name)


def lit(value: int | str) -> Expression:
    """A literal."""
    return of("lit", value)


def parsed(text: str, known: Mapping[str, Expression]) -> Expression:
    """The expression behind an SQL text of a plan: one of the case's, by its text, a bare column, or a cast of these."""
    if text in known:
        return known[text]
    if text == KEY_COLUMN:
        return of("key")
    if _NAME.match(text):
        return col(text)
    if found := _CAST.match(text):
        inner = parsed(found[1], known)
        return {"STRING": of("str", inner), "BIGINT": inner, "DOUBLE": of("double", inner)}[found[2]]
    raise ValueError(f"no expression of this case is written {text!r}")


def _computed(op: str, a: Any, b: Any = None) -> Any:
    match op:
        case "str":
            return str(a)
        case "double":
            return float(a)
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "%":
            # The sign is the dividend's, as in Spark and Java.
            return None if b == 0 else abs(a) % abs(b) * (1 if a >= 0 else -1)
        case "<":
            return a < b
        case ">":
            return a > b
        case "=":
            return a == b
        case "<>":
            return a != b
    raise ValueError(f"no operation {op!r}")
