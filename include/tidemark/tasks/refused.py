"""Rows that a user's code refused by raising: what a dead letter says of them (rule 28)."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.errors import TidemarkError

NOT_THE_ROWS_FAULT = (TidemarkError, MemoryError)
"""Errors of Tidemark, of the topology or of the machine: they end the instance, whatever the row."""

_ERROR_BYTES = 1024
_TRACEBACK_BYTES = 4096
_TRACEBACKS = 1000
"""Of one node and batch: code that refuses everything says why often enough."""


class UnusableValue(ValueError):
    """A user's code made something of a row that cannot be used: a value that its column cannot hold, or a key that is no text.

    It is raised inside the user's call, so the row is refused as if the code itself had raised.
    """


class FoundLate(TidemarkError):
    """An `UnusableValue` was noticed only after its row. The batch has to run once more, each row checked by itself."""


@dataclass(frozen=True)
class RefusedRow:
    """One row that node `node` could not process. `sequence` is its `__seq`; `row` None is a deleted row."""

    node: str
    sequence: int
    key: str | None
    row: Mapping[str, Any] | None
    error: str
    traceback: str | None

    @property
    def value(self) -> bytes | None:
        """The row as JSON."""
        return None if self.row is None else json.dumps(self.row, default=str).encode()


class Refusals:
    """Those of one node and batch, in the order in which they came."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._rows: list[RefusedRow] = []

    def add(self, sequence: int, key: str | None, row: Mapping[str, Any] | None, error: Exception) -> None:
        """Take a row with what was raised for it."""
        told = "".join(traceback.format_exception(error)) if len(self._rows) < _TRACEBACKS else None
        text = _beginning(f"{type(error).__name__}: {error}", _ERROR_BYTES)
        # Its end says where it was raised.
        self._rows.append(RefusedRow(self._node, sequence, key, row, text, told and _end(told, _TRACEBACK_BYTES)))

    def rows(self) -> Sequence[RefusedRow]:
        """All of them."""
        return tuple(self._rows)


def _beginning(text: str, most_bytes: int) -> str:
    return text.encode(errors="replace")[:most_bytes].decode(errors="ignore")


def _end(text: str, most_bytes: int) -> str:
    return text.encode(errors="replace")[-most_bytes:].decode(errors="ignore")
