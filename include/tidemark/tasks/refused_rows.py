"""Rows that user code refused by raising, as they become dead letters (see invariant: no record stops a stream)."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.errors import TidemarkError, describe_error
from tidemark.json_numbers import json_number

NOT_THE_ROWS_FAULT = (TidemarkError, MemoryError)
"""Errors of Tidemark, the topology or the machine, which end the instance whatever the row is."""

_ERROR_BYTES = 1024
_TRACEBACK_BYTES = 4096
_TRACEBACKS = 1000
"""Most tracebacks kept per node and batch, as code that refuses every row would otherwise store the same one each time."""


class UnusableValue(ValueError):
    """User code produced something unusable: a value that its column cannot hold, or a key that is not text.

    It is raised inside the user's call, so the row is refused as if the code itself had raised.
    """


class FoundLate(TidemarkError):
    """An `UnusableValue` was noticed only after its row. The batch must run again with each row checked separately."""


@dataclass(frozen=True)
class RefusedRow:
    """One row that the node `node` could not process. `sequence` is its `__seq`; a `row` of None is a deleted row."""

    node: str
    sequence: int
    key: str | None
    row: Mapping[str, Any] | None
    error: str
    traceback: str | None

    @property
    def error_class(self) -> str:
        """The name of the error's class. The text of an error of user code may quote the row."""
        return self.error.partition(":")[0]

    @property
    def value(self) -> bytes | None:
        """The row as JSON; None for a deleted row."""
        if self.row is None:
            return None
        row = {name: json_number(value) if isinstance(value, float) else value for name, value in self.row.items()}
        return json.dumps(row, default=str).encode()


class Refusals:
    """The refused rows of one node and batch, in order."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._rows: list[RefusedRow] = []

    def add(self, sequence: int, key: str | None, row: Mapping[str, Any] | None, error: BaseException) -> None:
        """Add a row with the error that was raised for it."""
        summary = "".join(traceback.format_exception(error)) if len(self._rows) < _TRACEBACKS else None
        text = _beginning(describe_error(error), _ERROR_BYTES)
        # The end of a traceback shows where the error was raised.
        self._rows.append(RefusedRow(self._node, sequence, key, row, text, summary and _end(summary, _TRACEBACK_BYTES)))

    def rows(self) -> Sequence[RefusedRow]:
        """Return all refused rows."""
        return tuple(self._rows)


def _beginning(text: str, most_bytes: int) -> str:
    return text.encode(errors="replace")[:most_bytes].decode(errors="ignore")


def _end(text: str, most_bytes: int) -> str:
    return text.encode(errors="replace")[-most_bytes:].decode(errors="ignore")
