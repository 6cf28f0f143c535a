"""The table `verdicts`: the findings of every check and drill, with their times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CTE, BigInteger, Column, Index, Select, String, Table, Text, bindparam, func, select

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
    known = _known_checks()
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


def _hidden_verdicts() -> Select[Any]:
    """Return a query for the rows after `:latest_ms` of each check but `rto`: the last id and the latest time, or nulls."""
    columns = VERDICTS.c
    known = _known_checks()
    # As a subquery of each check, which jumps to the rows in the index; grouped, all rows of the history would be read.
    later = select().where(
        columns.application_id == bindparam("application_id"),
        columns.check_name == known.c.check_name,
        columns.time_ms > bindparam("latest_ms"),
    )
    last_id = later.add_columns(func.max(columns.id)).scalar_subquery().label("id")
    latest_ms = later.add_columns(func.max(columns.time_ms)).scalar_subquery().label("time_ms")
    return select(known.c.check_name, last_id, latest_ms).where(known.c.check_name != RTO)


def _known_checks() -> CTE:
    """Return the names of all checks of `:application_id`.

    Jumps from name to name in the index: a month of history has many rows of few checks.
    """
    columns = VERDICTS.c
    own = columns.application_id == bindparam("application_id")
    known = select(func.min(columns.check_name).label("check_name")).where(own).cte("checks", recursive=True)
    following = select(func.min(columns.check_name)).where(own, columns.check_name > known.c.check_name)
    return known.union_all(select(following.scalar_subquery()).where(known.c.check_name.is_not(None)))


# Made once: to make them takes longer than to run them.
_LAST_VERDICTS, _HIDDEN_VERDICTS = _last_verdicts(), _hidden_verdicts()


def last_verdicts(
    facts: FactsDatabase, application_id: str, clock: Callable[[], int] = wall_clock_ms
) -> list[PastVerdict]:
    """Return the findings of the last run of every check, and the last finding of `rto` on each instance.

    Findings of more than an hour from now are left out: a clock that was ahead has given them their time, and they would hide
    every later run. If no later run of the check was written, a finding of not enough evidence says so. Does not read the
    history. Blocks. Raises `FactsUnavailable`.
    """
    asked = {"application_id": application_id, "latest_ms": clock() + _CLOCKS_MS}
    last: dict[str, tuple[int, int]] = {}
    found: list[PastVerdict] = []
    for row in facts.read(_LAST_VERDICTS, asked):
        found.append(PastVerdict(row.application_id, row.check_name, row.time_ms, _finding(row)))
        last[row.check_name] = (row.id, row.time_ms)
    for row in facts.read(_HIDDEN_VERDICTS, asked):
        written_id, time_ms = last.get(row.check_name, (0, row.time_ms))
        # Rows are numbered as they are written, whatever their times say.
        if row.id is not None and row.id > written_id:
            found.append(PastVerdict(application_id, row.check_name, time_ms, _hidden(row.time_ms, clock())))
    return sorted(found, key=lambda verdict: verdict.check)


def _hidden(time_ms: int, now_ms: int) -> Finding:
    minutes = (time_ms - now_ms) // 60_000
    return Finding(
        "last run",
        Verdict.NOT_ENOUGH_EVIDENCE,
        f"its time is {minutes} min from now, so it is left out: a clock was ahead when the check ran, or the clock of this "
        "machine is behind; set the clocks right, then run the check again",
        {"time_ms": time_ms, "now_ms": now_ms},
    )


def _finding(row: Any) -> Finding:
    return Finding(row.subject, Verdict(row.verdict), row.message, json.loads(row.evidence))
