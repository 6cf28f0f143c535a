"""The table `verdicts`: the findings of every check and drill, with their times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Select, String, Table, Text, bindparam, func, select

from tidemark.checks.liveness import CHECK as RTO
from tidemark.clock import wall_clock_ms
from tidemark.database import METADATA, FactsDatabase, id_column
from tidemark.errors import FactsUnavailable
from tidemark.settings import Settings
from tidemark.verdict import Finding, Verdict

_CLOCKS_MS = 3_600_000

VERDICTS = Table(
    "verdicts",
    METADATA,
    id_column(),
    Column("application_id", String(200), nullable=False),
    # "check" is a reserved word of SQL.
    Column("check_name", String(60), nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("subject", String(300), nullable=False),
    Column("verdict", String(40), nullable=False),
    Column("message", Text, nullable=False),
    Column("evidence", Text, nullable=False),
    Index("verdicts_of_application", "application_id", "check_name", "time_ms"),
)


@dataclass(frozen=True)
class PastVerdict:
    """One row: a finding of the check `check` at `time_ms` (epoch milliseconds)."""

    application_id: str
    check: str
    time_ms: int
    finding: Finding


def write_verdicts(
    facts: FactsDatabase, application_id: str, check: str, time_ms: int, findings: Sequence[Finding]
) -> None:
    """Add a row per finding, all or none. Blocks. Raises `FactsUnavailable`."""
    if not findings:
        return
    facts.insert(
        VERDICTS,
        [
            {
                "application_id": application_id,
                "check_name": check,
                "time_ms": time_ms,
                "subject": finding.subject,
                "verdict": str(finding.verdict),
                "message": finding.message,
                "evidence": json.dumps(dict(finding.evidence)),
            }
            for finding in findings
        ],
    )


def keep_verdicts(
    settings: Settings, application_id: str, check: str, findings: Sequence[Finding]
) -> FactsUnavailable | None:
    """Write the verdicts with the current time and a connection of its own. Blocks.

    Returns the error instead of raising it if the database is away: the verdict matters more than its history.
    """
    facts = FactsDatabase(settings)
    try:
        write_verdicts(facts, application_id, check, wall_clock_ms(), findings)
    except FactsUnavailable as error:
        return error
    finally:
        facts.close()
    return None


def past_verdicts(
    facts: FactsDatabase, application_id: str, check: str | None = None, *, since_ms: int = 0, limit: int = 1000
) -> Iterator[PastVerdict]:
    """Yield the newest first, at most `limit`; of all checks if `check` is None. Blocks. Raises `FactsUnavailable`."""
    columns = VERDICTS.c
    query = select(VERDICTS).where(columns.application_id == application_id, columns.time_ms >= since_ms)
    if check is not None:
        query = query.where(columns.check_name == check)
    for row in facts.read(query.order_by(columns.time_ms.desc(), columns.id.desc()).limit(limit)):
        yield PastVerdict(row.application_id, row.check_name, row.time_ms, _finding(row))


def _last_verdicts() -> Select[Any]:
    """Return a query for the findings of the last run of every check of `:application_id`, without reading the history.

    The watcher of each instance writes its own findings of the check `rto`, so of that check the last of each subject count.
    """
    columns = VERDICTS.c
    own = columns.application_id == bindparam("application_id")
    # Jumps from name to name in the index: a month of history has many rows of few checks.
    first = select(func.min(columns.check_name).label("check_name")).where(own)
    known = first.cte("checks", recursive=True)
    following = select(func.min(columns.check_name)).where(own, columns.check_name > known.c.check_name)
    known = known.union_all(select(following.scalar_subquery()).where(known.c.check_name.is_not(None)))
    inner = VERDICTS.alias()
    newest = select(func.max(inner.c.time_ms)).where(
        inner.c.application_id == bindparam("application_id"),
        inner.c.check_name == known.c.check_name,
        inner.c.time_ms <= bindparam("latest_ms"),
    )
    same_check = columns.check_name == known.c.check_name
    of_runs = select(columns.id).join(known, same_check)
    of_runs = of_runs.where(own, columns.check_name != RTO, columns.time_ms == newest.scalar_subquery())
    of_instances = select(func.max(columns.id)).where(own, columns.check_name == RTO).group_by(columns.subject)
    found = VERDICTS.c.id.in_(of_runs.union_all(of_instances))
    return select(VERDICTS).where(found).order_by(columns.check_name, columns.id)


# Made once: to make it takes longer than to run it.
_LAST_VERDICTS = _last_verdicts()


def last_verdicts(
    facts: FactsDatabase, application_id: str, clock: Callable[[], int] = wall_clock_ms
) -> list[PastVerdict]:
    """Return the findings of the last run of every check, and the last finding of `rto` on each instance.

    Findings of more than an hour from now are left out: a clock that was ahead has given them their time, and they would hide
    every later run. Does not read the history. Blocks. Raises `FactsUnavailable`.
    """
    latest_ms = clock() + _CLOCKS_MS
    rows = facts.read(_LAST_VERDICTS, {"application_id": application_id, "latest_ms": latest_ms})
    return [PastVerdict(row.application_id, row.check_name, row.time_ms, _finding(row)) for row in rows]


def _finding(row: Any) -> Finding:
    return Finding(row.subject, Verdict(row.verdict), row.message, json.loads(row.evidence))
