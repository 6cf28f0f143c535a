"""The table `drills`: every restore drill, its figures and its whole report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import BigInteger, Column, Float, Index, Row, Select, String, Table, Text, select

from tidemark.database import METADATA, FactsDatabase, id_column
from tidemark.operations.drill_history.report import DrillReport, RebuildMethod
from tidemark.verdict import Verdict

DRILLS = Table(
    "drills",
    METADATA,
    id_column(),
    Column("application_id", String(200), nullable=False),
    Column("drill_id", String(40), nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False),
    Column("verdict", String(40), nullable=False),
    # Figures of the restore from the whole changelog; the report has those of all restores.
    Column("rto_s", Float),
    Column("rpo_offsets", BigInteger),
    Column("rpo_s", Float),
    Column("key_count", BigInteger, nullable=False),
    Column("byte_count", BigInteger, nullable=False),
    Column("report", Text, nullable=False),
    Index("drills_of_application", "application_id", "ended_ms"),
)


_ROWS_AT_ONCE = 20


@dataclass(frozen=True)
class PastDrill:
    """One row. Times are in epoch milliseconds; `rto_s` is None if nothing could be rebuilt."""

    drill_id: str
    started_ms: int
    ended_ms: int
    verdict: Verdict
    rto_s: float | None
    rpo_offsets: int | None
    rpo_s: float | None
    keys: int
    bytes: int
    report: Mapping[str, Any]


def write_drill(facts: FactsDatabase, report: DrillReport) -> None:
    """Add one row. Blocks. Raises `FactsUnavailable`."""
    whole = report.way(RebuildMethod.CHANGELOG)
    rebuilt = [store for store in report.stores if store.way is RebuildMethod.CHANGELOG]
    facts.insert(
        DRILLS,
        [
            {
                "application_id": report.application_id,
                "drill_id": report.drill_id,
                "started_ms": report.started_ms,
                "ended_ms": report.ended_ms,
                "verdict": str(report.verdict),
                "rto_s": whole and whole.rto_s,
                "rpo_offsets": whole and whole.rpo_offsets,
                "rpo_s": whole and whole.rpo_s,
                "key_count": sum(store.keys for store in rebuilt),
                "byte_count": sum(store.bytes for store in rebuilt),
                "report": json.dumps(report.to_dict()),
            }
        ],
    )


def past_drills(
    facts: FactsDatabase, application_id: str, limit: int | None = 20, verdict: Verdict | None = None
) -> Iterator[PastDrill]:
    """Yield the drills that were written last first, whatever their clocks said. Blocks. Raises `FactsUnavailable`.

    `limit`: at most so many; None for all, of which only as many are read as the caller takes, and a few more. `verdict`: only
    those with it; None for all.
    """
    query = select(DRILLS).where(DRILLS.c.application_id == application_id)
    if verdict is not None:
        query = query.where(DRILLS.c.verdict == str(verdict))
    at_once = _ROWS_AT_ONCE if limit is None else min(limit, _ROWS_AT_ONCE)
    for row in islice(_newest_first(facts, query, at_once), limit):
        yield PastDrill(
            row.drill_id, row.started_ms, row.ended_ms, Verdict(row.verdict), row.rto_s, row.rpo_offsets, row.rpo_s,
            row.key_count, row.byte_count, json.loads(row.report),
        )  # fmt: skip


def _newest_first(facts: FactsDatabase, query: Select[Any], at_once: int) -> Iterator[Row[Any]]:
    query = query.order_by(DRILLS.c.id.desc())
    while True:
        rows = facts.read(query.limit(at_once))
        yield from rows
        if len(rows) < at_once:
            return
        query = query.where(DRILLS.c.id < rows[-1].id)


def last_passed(facts: FactsDatabase, application_id: str) -> PastDrill | None:
    """Return the last drill that passed; None if none has passed. Blocks. Raises `FactsUnavailable`."""
    return next(past_drills(facts, application_id, 1, Verdict.OK), None)
