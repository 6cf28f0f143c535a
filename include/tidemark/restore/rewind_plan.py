"""A rewind before it runs: where each task goes back to, what that writes, and why it may not be possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.errors import StartRefused
from tidemark.restore.when import told_time
from tidemark.topology.plan import Guarantee, TopologyPlan


@dataclass(frozen=True)
class TaskRewind:
    """One task's way back. Offsets are next offsets by source topic; `to_batch` was committed at `to_ms`."""

    task: str
    to_batch: int
    to_ms: int
    stream_time_ms: int
    from_offsets: Mapping[str, int]
    to_offsets: Mapping[str, int]

    @property
    def offsets_again(self) -> int:
        """Source offsets that are read once more: records, and at most as many."""
        return sum(offset - self.to_offsets[topic] for topic, offset in self.from_offsets.items())


@dataclass(frozen=True)
class StoreRewind:
    """Keys of one store whose value changes: written with their value of that time, or deleted."""

    task: str
    store: str
    written: int
    deleted: int


@dataclass(frozen=True)
class RewindPlan:
    """The whole of it."""

    application_id: str
    at_ms: int
    tasks: tuple[TaskRewind, ...]
    stores: tuple[StoreRewind, ...]
    sinks: tuple[str, ...]

    @property
    def changes_nothing(self) -> bool:
        """Whether the application stands there already."""
        return not any(task.offsets_again for task in self.tasks) and not any(
            s.written + s.deleted for s in self.stores
        )

    @property
    def warning(self) -> str:
        """What it means to those who read the outputs."""
        offsets = sum(task.offsets_again for task in self.tasks)
        told = f"up to {offsets} source records after {told_time(self.at_ms)} are processed again"
        if not self.sinks:
            return f"{told}; no output is written twice, as there are no sinks"
        return (
            f"{told}, and the outputs that came of them are emitted again to {', '.join(self.sinks)}: they stand there "
            "twice, as what was emitted cannot be taken back"
        )


def require_rewindable(plan: TopologyPlan) -> None:
    """Raises `StartRefused` for a topology that no rewind can bring back as a whole, saying why."""
    if plan.repartition_topics:
        raise StartRefused(
            f"{plan.application_id} cannot be rewound: its sub-topologies stand at different places, and what lies between "
            f"them in {', '.join(plan.repartition_topics)} is deleted once it is read; `tidemark inspect` shows its past"
        )
    if plan.guarantee is Guarantee.AT_LEAST_ONCE:
        raise StartRefused(
            f"{plan.application_id} cannot be rewound: it runs at_least_once, so its changelogs may be ahead of its offsets "
            "and no state of the past is exact; `tidemark inspect` shows it as it is"
        )
    for store in plan.stores:
        if not store.is_logged:
            raise StartRefused(
                f"{plan.application_id} cannot be rewound: store {store.name} is not logged, so nobody knows what it held"
            )
        if store.source_topic is not None:
            raise StartRefused(
                f"{plan.application_id} cannot be rewound: store {store.name} is kept by its source topic "
                f"{store.source_topic} itself, which holds what users wrote since and cannot be taken back"
            )
