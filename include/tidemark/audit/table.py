"""The table `audits`: which batches of each task were audited, so that they are not read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Float, Index, String, Table, Text, func, select

from tidemark.audit.ranges import Position
from tidemark.database import METADATA, FactsDatabase, id_column
from tidemark.names import TaskId
from tidemark.stream_times import StreamTimes
from tidemark.verdict import Verdict

AUDITS = Table(
    "audits",
    METADATA,
    id_column(),
    Column("application_id", String(200), nullable=False),
    Column("audit_id", String(60), nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("task", String(40), nullable=False),
    Column("first_batch", BigInteger, nullable=False),
    Column("last_batch", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("verdict", String(40), nullable=False),
    # Where the next audit of the task begins, as JSON.
    Column("position", Text, nullable=False),
    Index("audits_of_application", "application_id", "task", "id"),
)


@dataclass(frozen=True)
class AuditedRange:
    """One row: the batches `first_batch` to `last_batch` of a task. `records` and `seconds` are of the whole audit."""

    audit_id: str
    time_ms: int
    first_batch: int
    records: int
    seconds: float
    verdict: Verdict
    end: Position


def write_audit(facts: FactsDatabase, application_id: str, ranges: Sequence[AuditedRange]) -> None:
    """Write the ranges of one audit, all or none. Blocks. Raises `FactsUnavailable`."""
    if not ranges:
        return
    facts.insert(
        AUDITS,
        [
            {
                "application_id": application_id,
                "audit_id": one.audit_id,
                "time_ms": one.time_ms,
                "task": str(one.end.task),
                "first_batch": one.first_batch,
                "last_batch": one.end.batch,
                "records": one.records,
                "seconds": one.seconds,
                "verdict": str(one.verdict),
                "position": _encoded(one.end),
            }
            for one in ranges
        ],
    )


def audited_until(facts: FactsDatabase, application_id: str) -> dict[TaskId, AuditedRange]:
    """Return the newest range of each task. Blocks. Raises `FactsUnavailable`."""
    columns = AUDITS.c
    # The newest row counts, however long the task has been idle.
    newest = (
        select(func.max(columns.id).label("id"))
        .where(columns.application_id == application_id)
        .group_by(columns.task)
        .subquery()
    )
    rows = facts.read(select(AUDITS).join(newest, columns.id == newest.c.id))
    return {TaskId.parse(row.task): _range(row) for row in rows}


def past_audits(facts: FactsDatabase, application_id: str, limit: int) -> list[AuditedRange]:
    """Return the newest ranges of all tasks, newest first. Blocks. Raises `FactsUnavailable`."""
    query = select(AUDITS).where(AUDITS.c.application_id == application_id).order_by(AUDITS.c.id.desc()).limit(limit)
    return [_range(row) for row in facts.read(query)]


def last_audit(facts: FactsDatabase, application_id: str) -> list[AuditedRange]:
    """Return the ranges of the newest audit, one for each task; empty if there is none. Blocks. Raises `FactsUnavailable`."""
    own = AUDITS.c.application_id == application_id
    newest = select(AUDITS.c.audit_id).where(own).order_by(AUDITS.c.id.desc()).limit(1).scalar_subquery()
    return [
        _range(row) for row in facts.read(select(AUDITS).where(own, AUDITS.c.audit_id == newest).order_by(AUDITS.c.id))
    ]


def _range(row: Any) -> AuditedRange:
    return AuditedRange(
        row.audit_id,
        row.time_ms,
        row.first_batch,
        row.records,
        row.seconds,
        Verdict(row.verdict),
        _position(TaskId.parse(row.task), row.last_batch, json.loads(row.position)),
    )


def _encoded(at: Position) -> str:
    return json.dumps(
        {
            "topology_version": at.topology_version,
            "commit_time_ms": at.commit_time_ms,
            "next_offsets": dict(at.next_offsets),
            "stream_times": asdict(at.stream_times),
            "outputs": {topic: dict(ends) for topic, ends in at.outputs.items()},
            "commits_from": at.commits_from,
        }
    )


def _position(task: TaskId, batch: int, body: Mapping[str, Any]) -> Position:
    return Position(
        task,
        body["topology_version"],
        batch,
        body["commit_time_ms"],
        body["next_offsets"],
        StreamTimes.from_json(body["stream_times"]),
        {topic: {int(p): offset for p, offset in ends.items()} for topic, ends in body["outputs"].items()},
        body["commits_from"],
    )
