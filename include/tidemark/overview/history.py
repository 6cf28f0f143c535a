"""The history of an application in the database of facts: verdicts, drills, audits, events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.audit.table import AUDITS, last_audit
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
        """The worst verdict of its findings."""
        return worst(self.findings)

    def of(self, verdict: Verdict) -> list[Finding]:
        """Return its findings with this verdict."""
        return [finding for finding in self.findings if finding.verdict is verdict]


@dataclass(frozen=True)
class AuditView:
    """The last audit: its worst verdict over all tasks."""

    audit_id: str
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
    return History(
        checks_of(last_verdicts(facts, application_id)),
        tuple(past_drills(facts, application_id, _DRILLS)),
        _last_audit(facts, application_id),
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


def _last_audit(facts: FactsDatabase, application_id: str) -> AuditView | None:
    last = last_audit(facts, application_id)
    if not last:
        return None
    verdict = worst(Finding("", one.verdict, "") for one in last)
    return AuditView(last[0].audit_id, last[0].time_ms, verdict)
