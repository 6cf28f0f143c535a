"""A rescale before it runs: how many tasks each sub-topology has and gets, what is moved, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.topology.durations import format_ms


@dataclass(frozen=True)
class RescalePlan:
    """The whole of it. `before` counts tasks by sub-topology; `routers` by topic, the partitions that are sent on.

    `unread` are records between sub-topologies that nobody has read, by topic: they are sent on to the new ones. Source
    offsets that wait are in `waiting`, by topic. `spread_ms` is how far the tasks' stream times lie apart. `left` are topics
    that nothing reads afterwards.
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
        """What it means to those who read the outputs."""
        told = ["records of one key that lie in two partitions, as a topic has grown, may be processed in either order"]
        if self.spread_ms > 0:
            told.append(
                f"every task goes on with the latest stream time of all, so that nothing final is emitted twice: records "
                f"of tasks that were behind, by up to {format_ms(self.spread_ms)}, may be late now"
            )
        return told
