"""What long answers are made of: their parts, and where changes and events come from."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.names import TaskId
from tidemark.queries.catalog import QueryableStore
from tidemark.queries.event_feed import EventFeed
from tidemark.queries.position import ChangelogOffset


class PartSource(Protocol):
    """Makes the parts of one answer, in one thread at a time."""

    @property
    def keep_alive(self) -> bytes:
        """What is sent while there is nothing to send; empty if the client must not get anything then."""

    def read(self) -> bytes | None:
        """Return the next part, nothing if there is none yet, or None at the end. Blocks for a second at most if it waits.

        Raises `QueryRefused` if there will be no more parts although the answer is not complete.
        """

    def last_part(self, kind: str, why: str) -> bytes | None:
        """Return what is sent if the answer ends early: to a `slow` client, or because the process ends (`end`).

        With None, the body of the answer has no end, so that the client knows that it is not complete.
        """

    def close(self) -> None:
        """Release everything. May be called by another thread than the reading one, but not while that reads."""


class ChangeSource(Protocol):
    """Where the changes of stores are read."""

    def watch(
        self, store: QueryableStore, tasks: Sequence[TaskId], key: bytes | None, after: Mapping[TaskId, ChangelogOffset]
    ) -> PartSource:
        """Return the changes of a key, or of all keys, in these tasks after these offsets, or from now on. Blocks.

        Raises `QueryInvalid`, `PositionGone`, `StateUnavailable`.
        """


@dataclass(frozen=True)
class LiveSources:
    """What a process tells as it happens. `events` is None in a standby; `closing` is set when the process is about to end."""

    changes: ChangeSource
    events: EventFeed | None
    closing: threading.Event = field(default_factory=threading.Event)
