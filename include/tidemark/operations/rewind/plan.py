"""The plan of a rewind: the offsets that each task returns to, what is written, and reasons why it may not be possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.errors import StartRefused
from tidemark.operations.times import format_time
from tidemark.topology.plan import Guarantee, TopologyPlan


@dataclass(frozen=True)
class TaskRewind:
    """The rewind of one task. Offsets are next offsets by source topic; `to_batch` was committed at `to_ms`."""

    task: str
    to_batch: int
    to_ms: int
    stream_time_ms: int
    from_offsets: Mapping[str, int]
    to_offsets: Mapping[str, int]

    @property
    def offsets_again(self) -> int:
        """The number of source offsets that are read again; at most as many records."""
        return sum(offset - self.to_offsets[topic] for topic, offset in self.from_offsets.items())


@dataclass(frozen=True)
class StoreRewind:
    """The number of keys of one store whose value changes: `written` with their earlier value, or `deleted`."""

    task: str
    store: str
    written: int
    deleted: int


@dataclass(frozen=True)
class RewindPlan:
    """The plan of a rewind."""

    application_id: str
    at_ms: int
    tasks: tuple[TaskRewind, ...]
    stores: tuple[StoreRewind, ...]
    sinks: tuple[str, ...]

    @property
    def changes_nothing(self) -> bool:
        """Whether the application already is in the state of that time."""
        return not any(task.offsets_again for task in self.tasks) and not any(
            s.written + s.deleted for s in self.stores
        )

    @property
    def warning(self) -> str:
        """The effect of the rewind on readers of the outputs, as text."""
        offsets = sum(task.offsets_again for task in self.tasks)
        summary = f"up to {offsets} source records after {format_time(self.at_ms)} are processed again"
        if not self.sinks:
            return f"{summary}; no output is written twice, as there are no sinks"
        return (
            f"{summary}, and their outputs are emitted again to {', '.join(self.sinks)}: these topics will hold them "
            "twice, as outputs cannot be taken back"
        )


def require_rewindable(plan: TopologyPlan) -> None:
    """Raise `StartRefused`, with the reason, for a topology that cannot be rewound as a whole."""
    if plan.repartition_topics:
        raise StartRefused(
            f"{plan.application_id} cannot be rewound: its sub-topologies progress independently, and the records between "
            f"them in {', '.join(plan.repartition_topics)} are deleted once read; `tidemark inspect NAME` shows its past state"
        )
    if plan.guarantee is Guarantee.AT_LEAST_ONCE:
        raise StartRefused(
            f"{plan.application_id} cannot be rewound: it runs at_least_once, so its changelogs may be ahead of its offsets "
            "and no past state is exact; `tidemark inspect NAME` shows it as it is"
        )
    for store in plan.stores:
        if not store.is_logged:
            raise StartRefused(
                f"{plan.application_id} cannot be rewound: store {store.name} is not logged, so its past contents are not known"
            )
        if store.source_topic is not None:
            raise StartRefused(
                f"{plan.application_id} cannot be rewound: store {store.name} has its source topic "
                f"{store.source_topic} as changelog, and the records that were written to it since cannot be taken back"
            )
