"""The history of an application in the database of facts: verdicts, drills, audits, events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.audit.suites import NOTHING_NEW, overall
from tidemark.audit.table import AUDITS, AuditedRange, last_audit
from tidemark.checks.verdict_table import VERDICTS, PastVerdict, last_verdicts
from tidemark.database import FactsDatabase
from tidemark.events.event import Event
from tidemark.events.table import EVENTS, newest_events
from tidemark.operations.drill_history.table import DRILLS, PastDrill, past_drills
from tidemark.verdict import Finding, Verdict, worst

HISTORY_TABLES = (VERDICTS, DRILLS, AUDITS, EVENTS)
"""The tables that a history is read from."""
_DRILLS, _EVENTS = 10, 40


@dataclass(frozen=True)
class CheckView:
    """The last run of one check, with its findings."""

    check: str
    time_ms: int
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its findings, without those of an audit that do not count."""
        return overall(self.findings)

    def of(self, verdict: Verdict) -> list[Finding]:
        """Return its findings with this verdict."""
        return [finding for finding in self.findings if finding.verdict is verdict]


@dataclass(frozen=True)
class AuditView:
    """The last audit that found new batches: when it ran, and its verdict.

    The verdict is never better than that of the last run, which may have found no new batch.
    """

    time_ms: int
    verdict: Verdict


@dataclass(frozen=True)
class History:
    """The history of one application; the newest come first."""

    checks: tuple[CheckView, ...] = ()
    drills: tuple[PastDrill, ...] = ()
    audit: AuditView | None = None
    events: tuple[Event, ...] = ()

    def check(self, name: str) -> CheckView | None:
        """Return the last run of a check; None if it never ran."""
        return next((check for check in self.checks if check.check == name), None)


def read_history(facts: FactsDatabase, application_id: str) -> History:
    """Read what the page shows. Blocks for a few queries that the size of the history does not slow down.

    Raises `FactsUnavailable`.
    """
    checks = checks_of(last_verdicts(facts, application_id))
    ran = next((check for check in checks if check.check == "audit"), None)
    return History(
        checks,
        tuple(past_drills(facts, application_id, _DRILLS)),
        _last_audit(last_audit(facts, application_id), ran),
        tuple(newest_events(facts, application_id, _EVENTS)),
    )


def checks_of(verdicts: Sequence[PastVerdict]) -> tuple[CheckView, ...]:
    """Group the findings of the last runs by check."""
    found: dict[str, list[PastVerdict]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.check, []).append(verdict)
    return tuple(
        CheckView(check, max(row.time_ms for row in rows), tuple(row.finding for row in rows))
        for check, rows in sorted(found.items())
    )


def _last_audit(ranges: Sequence[AuditedRange], ran: CheckView | None) -> AuditView | None:
    """Return the last audit, from the ranges that were audited last, and from the last run.

    A run in which a check broke has audited no range, so the ranges alone would show an older verdict for ever. A run that
    found no new batch says nothing of batches: there, the verdict on the ranges still holds.
    """
    audited = [Finding("", one.verdict, "") for one in ranges]
    if ran is None or (ranges and ranges[0].time_ms > ran.time_ms):
        return AuditView(ranges[0].time_ms, worst(audited)) if ranges else None
    found = [finding for finding in ran.findings if not finding.evidence.get(NOTHING_NEW)]
    if len(found) == len(ran.findings):
        return AuditView(ran.time_ms, overall(found))
    return AuditView(ranges[0].time_ms, overall([*found, *audited])) if ranges else None
