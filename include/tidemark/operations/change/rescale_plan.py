"""The plan of a rescale: the numbers of tasks before and after, what is moved, and the consequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.topology.durations import format_ms


@dataclass(frozen=True)
class RescalePlan:
    """The plan of a rescale. `before` counts tasks by sub-topology; `routers` counts the partitions that are sent on, by topic.

    `unread` counts the records between sub-topologies that were not read, by topic; they are sent to the new topics.
    `waiting` counts the unprocessed source offsets, by topic. `spread_ms` is the largest difference between the tasks'
    stream times. `left` are topics that nothing reads afterwards.
    """

    application_id: str
    tasks: int
    before: Mapping[int, int]
    routers: Mapping[str, int]
    stores: tuple[str, ...]
    unread: Mapping[str, int]
    waiting: Mapping[str, int]
    spread_ms: int
    left: tuple[str, ...]

    @property
    def warnings(self) -> list[str]:
        """The consequences for readers of the outputs."""
        summary = [
            "records of one key that are in two partitions, because a topic has grown, may be processed in either order"
        ]
        if self.spread_ms > 0:
            summary.append(
                f"every task continues with the latest stream time of all, so that no final result is emitted twice: records "
                f"of tasks that were behind, by up to {format_ms(self.spread_ms)}, may now be late"
            )
        return summary
