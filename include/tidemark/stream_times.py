"""Stream time: the newest timestamp that has been processed, of a task as a whole and of each of its nodes (rule 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_STREAM_TIME = -1
"""Stream time before the first record."""


@dataclass(frozen=True)
class StreamTimes:
    """Epoch milliseconds, or `NO_STREAM_TIME`.

    `task_ms` is the newest timestamp of all records that the task has processed; it calls processors. `by_store` is the
    newest timestamp that has reached the node which keeps that store: only that node's windows are late or closed by it.
    A node is named by its stores because stores keep their names when a topology changes. `marks` are times that a node
    keeps of single stores: of a window store of a join the newest timestamp in it, by which it expires.
    """

    task_ms: int
    by_store: Mapping[str, int]
    marks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls) -> StreamTimes:
        """The times of a task that has seen no record."""
        return cls(NO_STREAM_TIME, {})

    @classmethod
    def newest(cls, times: Iterable[StreamTimes]) -> StreamTimes:
        """The newest time of each store, and of the tasks, over several tasks."""
        listed = list(times)
        newest = max((one.task_ms for one in listed), default=NO_STREAM_TIME)
        return cls(newest, _newest(one.by_store for one in listed), _newest(one.marks for one in listed))

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> StreamTimes:
        """Read what `dataclasses.asdict` gave. Raises `KeyError` or `TypeError` on anything else."""
        by_store, marks = (
            {str(store): int(time_ms) for store, time_ms in body[name].items()} for name in ("by_store", "marks")
        )
        return cls(int(body["task_ms"]), by_store, marks)

    def node(self, store: str) -> int:
        """Stream time of the node that keeps `store`."""
        return self.by_store.get(store, NO_STREAM_TIME)

    def of(self, store: str) -> int:
        """The time by which what `store` holds expires: its mark, or else its node's stream time."""
        return self.marks.get(store, self.node(store))

    def renamed(self, names: Mapping[str, str]) -> StreamTimes:
        """The times of the stores in `names` (today's name by the name of before); other stores are left out."""
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
