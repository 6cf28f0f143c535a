"""Commit records: one per task and batch on `<app>-commits`, the history that every audit and every start reads.

See invariant: commit records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from tidemark.errors import StartRefused
from tidemark.names import TaskId
from tidemark.stream_times import StreamTimes
from tidemark.topology.plan import Guarantee

RECORD_VERSION = 2


class CommitKind(StrEnum):
    """The reason why the offsets moved."""

    START = "start"
    BATCH = "batch"
    TICK = "tick"
    REWIND = "rewind"
    UPGRADE = "upgrade"
    RESCALE = "rescale"
    RESET = "reset"
    REPAIR = "repair"


_WRITE_IN_ONE_TRANSACTION = frozenset([CommitKind.BATCH, CommitKind.TICK, CommitKind.REWIND])
"""The kinds all of whose changelog records come after the `ends_before` of their record."""


@dataclass(frozen=True)
class CommitRecord:
    """The effects of one transaction on one task.

    `sources` holds [start, end) by topic and partition; `sinks` and `changelogs` count this task's records by topic;
    `ends_before` are the read_uncommitted end offsets of sinks and changelogs before the batch, so that its records
    can be found. `rows` counts the rows that reached the stateful nodes, including late ones.

    For a rewind, `sources` holds (old offset, new offset), so that the end is where the task continues; `rewound_to` is the
    batch whose state it restored, None in every other record. `guarantee` says whether the offsets were committed in the same
    transaction as the record; those of at_least_once may be behind it.

    A command that creates changelogs fills them in earlier transactions, and `ends_before` are their ends after that.
    `appended` are the changelogs to which it instead added records in the transaction of the commit record.
    """

    kind: CommitKind
    application_id: str
    topology_version: str
    task: TaskId
    instance: int
    batch: int
    commit_time_ms: int
    sources: Mapping[str, Mapping[int, tuple[int, int]]]
    stream_times: StreamTimes
    rows: int
    late_rows: int
    bad_rows: int
    filtered_rows: int
    sinks: Mapping[str, int]
    changelogs: Mapping[str, int]
    ends_before: Mapping[str, Mapping[int, int]]
    rewound_to: int | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    appended: tuple[str, ...] = ()

    @property
    def end_offsets(self) -> dict[str, int]:
        """Return the next offset of the task's partition of each source topic after this batch."""
        return {topic: spans[self.task.partition][1] for topic, spans in self.sources.items()}

    def has_filled(self, changelog: str) -> bool:
        """Return whether the changelog was new and a command filled it, so that `ends_before` is the end of what it wrote."""
        is_after_end = self.kind in _WRITE_IN_ONE_TRANSACTION or changelog in self.appended
        return self.changelogs.get(changelog, 0) > 0 and not is_after_end

    def to_bytes(self) -> bytes:
        """Return the JSON value of the record; its key is the task id."""
        body = {"version": RECORD_VERSION, **asdict(self), "task": str(self.task), "guarantee": self.guarantee.value}
        if not self.appended:
            # An earlier Tidemark refuses a field that it does not know, and reads these records while instances are replaced.
            del body["appended"]
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CommitRecord:
        """Read what `to_bytes` wrote; raises `StartRefused` on another version."""
        body = json.loads(data)
        version = body.pop("version", None)
        if version == 1:
            raise StartRefused(
                "a commit record was written by a Tidemark version with one stream time per task; it does not show which "
                "windows of which node have closed, so its state cannot be carried over: continue with that version, or "
                "give the topology another application id to process its sources from the start"
            )
        if version != RECORD_VERSION:
            raise StartRefused(
                f"a commit record has version {version}, but this Tidemark reads {RECORD_VERSION}: upgrade Tidemark"
            )
        body["kind"] = CommitKind(body["kind"])
        body["guarantee"] = Guarantee(body.get("guarantee", Guarantee.EXACTLY_ONCE))
        body["appended"] = tuple(body.get("appended", ()))
        body["task"] = TaskId.parse(body["task"])
        body["stream_times"] = StreamTimes.from_json(body["stream_times"])
        body["sources"] = {
            topic: {int(partition): (span[0], span[1]) for partition, span in spans.items()}
            for topic, spans in body["sources"].items()
        }
        body["ends_before"] = {
            topic: {int(partition): offset for partition, offset in ends.items()}
            for topic, ends in body["ends_before"].items()
        }
        return cls(**body)


def commit_record(
    kind: CommitKind,
    application_id: str,
    topology_version: str,
    task: TaskId,
    batch: int,
    commit_time_ms: int,
    *,
    spans: Mapping[str, tuple[int, int]],
    stream_times: StreamTimes,
    changelogs: Mapping[str, int],
    ends_before: Mapping[str, Mapping[int, int]],
    instance: int = 0,
    rows: int = 0,
    late_rows: int = 0,
    bad_rows: int = 0,
    filtered_rows: int = 0,
    sinks: Mapping[str, int] | None = None,
    rewound_to: int | None = None,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    appended: tuple[str, ...] = (),
) -> CommitRecord:
    """Build the record of one transaction on one task. `spans` holds [start, end) of the task's partition of each source topic.

    The defaults are those of a command, which moves offsets without processing records, as instance 0.
    """
    return CommitRecord(
        kind=kind,
        application_id=application_id,
        topology_version=topology_version,
        task=task,
        instance=instance,
        batch=batch,
        commit_time_ms=commit_time_ms,
        sources={topic: {task.partition: span} for topic, span in spans.items()},
        stream_times=stream_times,
        rows=rows,
        late_rows=late_rows,
        bad_rows=bad_rows,
        filtered_rows=filtered_rows,
        sinks=sinks or {},
        changelogs=changelogs,
        ends_before=ends_before,
        rewound_to=rewound_to,
        guarantee=guarantee,
        appended=appended,
    )
