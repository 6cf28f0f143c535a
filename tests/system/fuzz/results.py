"""What a side gives for a case: the records of every sink, and what every store holds at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A result, or an entry of a store. `start` and `end` are the window's; `row` None is a deletion."""

    key: str | None
    start: int | None
    end: int | None
    row: Mapping[str, Any] | None
    timestamp: int | None


@dataclass(frozen=True)
class Results:
    """By sink and by store. `late` is how many records were dropped as too late, or for having no key."""

    sinks: Mapping[str, Sequence[Line]]
    stores: Mapping[str, Sequence[Line]]
    late: int


class SideFailed(Exception):
    """A side ended with an error instead of results."""
