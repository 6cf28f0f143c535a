"""One span of a trace, and the names of spans and attributes. `docs/metrics.md` has them in a table; a test compares both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidemark.clock import Period

AttributeValue = str | int | Sequence[str] | Sequence[int]


class SpanName(StrEnum):
    """The names of spans, each for one part of the work on a batch."""

    BATCH = "batch"
    READ = "read"
    PREPARE = "prepare"
    TRANSACTION = "transaction"
    PRODUCE = "produce"
    OFFSETS = "offsets"
    COMMIT = "commit"
    STORE = "store"


class Attribute(StrEnum):
    """The key of an attribute."""

    APPLICATION = "tidemark.application"
    INSTANCE = "tidemark.instance"
    KIND = "tidemark.kind"
    SUBTOPOLOGY = "tidemark.subtopology"
    TASKS = "tidemark.tasks"
    BATCHES = "tidemark.batches"
    TASK = "tidemark.task"
    BATCH = "tidemark.batch"
    STORE = "tidemark.store"
    RECORDS = "tidemark.records"


@dataclass(frozen=True)
class Span:
    """Something that was done, when, and its parts. `error` says why it failed; it is empty for a success."""

    name: SpanName
    period: Period
    attributes: Mapping[Attribute, AttributeValue]
    children: tuple[Span, ...] = ()
    error: str = ""
