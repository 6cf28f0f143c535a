"""The checkpoint of a store: its position, written atomically with its contents (see invariant: store checkpoint)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tidemark.errors import TaskCorrupted


@dataclass(frozen=True)
class StoreCheckpoint:
    """The position of a store in the history of its task.

    `source_offsets` are next offsets by source topic. `changelog_offset` is the changelog's read_uncommitted end after the
    batch's records were flushed and before they were committed; it may be too low but never too high. `stream_time_ms` is the
    stream time of the node that keeps the store.
    """

    application_id: str
    topology_version: str
    store: str
    value_layout: str
    batch: int
    commit_time_ms: int
    source_offsets: Mapping[str, int]
    stream_time_ms: int
    changelog_offset: int

    def to_bytes(self) -> bytes:
        """Return the checkpoint as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StoreCheckpoint:
        """Read what `to_bytes` wrote. Raises `TaskCorrupted`."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise TaskCorrupted(f"a store's checkpoint cannot be read ({error})") from error
