"""Stream time, the newest processed timestamp, of a task and of each of its nodes (see invariant: stream time per node)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_STREAM_TIME = -1
"""Stream time before the first record."""

LATEST_TIMESTAMP_MS = (2**63 - 1) // 1000
"""The latest timestamp of a record that Spark can read from Kafka, in epoch milliseconds: it counts microseconds."""


@dataclass(frozen=True)
class StreamTimes:
    """The stream times of one task, in epoch milliseconds; `NO_STREAM_TIME` if there is none yet.

    `task_ms` is the newest timestamp of all records that the task has processed; processors are called by it. `by_store` is,
    for each store, the newest timestamp that has reached the node which keeps the store; only this time makes records late
    for the node or closes its windows. Nodes are identified by their stores because stores keep their names when a topology
    changes. `marks` are times of single stores: for a window store of a join, the newest timestamp that it holds, by which
    its contents expire; for the store of its rows without a partner, the time that decides when it is scanned again.
    """

    task_ms: int
    by_store: Mapping[str, int]
    marks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls) -> StreamTimes:
        """Return the times of a task that has processed no record."""
        return cls(NO_STREAM_TIME, {})

    @classmethod
    def newest(cls, times: Iterable[StreamTimes], windows: Collection[str]) -> StreamTimes:
        """Return the newest time of each store, and of all tasks, over several tasks. `windows` are the window stores.

        Other stores get no mark: the newest one would delay their next scan, and without one the next record causes it.
        """
        listed = list(times)
        newest = max((one.task_ms for one in listed), default=NO_STREAM_TIME)
        marks = _newest(one.marks for one in listed)
        kept = {store: time_ms for store, time_ms in marks.items() if store in windows}
        return cls(newest, _newest(one.by_store for one in listed), kept)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> StreamTimes:
        """Read the output of `dataclasses.asdict`. Raises `KeyError` or `TypeError` on anything else."""
        by_store, marks = (
            {str(store): int(time_ms) for store, time_ms in body[name].items()} for name in ("by_store", "marks")
        )
        return cls(int(body["task_ms"]), by_store, marks)

    def node(self, store: str) -> int:
        """Return the stream time of the node that keeps `store`."""
        return self.by_store.get(store, NO_STREAM_TIME)

    def of(self, store: str) -> int:
        """Return the time by which the contents of `store` expire: its mark if it has one, else its node's stream time."""
        return self.marks.get(store, self.node(store))

    def renamed(self, names: Mapping[str, str]) -> StreamTimes:
        """Return the times of the stores in `names` (old name to new name); other stores are left out."""
        by_store, marks = (
            {new: times[old] for old, new in names.items() if old in times} for times in (self.by_store, self.marks)
        )
        return StreamTimes(self.task_ms, by_store, marks)


def _newest(listed: Iterable[Mapping[str, int]]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for times in listed:
        for store, time_ms in times.items():
            newest[store] = max(newest.get(store, NO_STREAM_TIME), time_ms)
    return newest
