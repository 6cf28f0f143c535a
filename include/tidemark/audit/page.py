"""The HTML page of an audit, which loads nothing: no script, no style sheet, no image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidemark.audit.suites import overall
from tidemark.audit.table import AuditedRange
from tidemark.html_page import render_page
from tidemark.verdict import MESSAGE_WITHOUT_RECORDS, Finding, Verdict

_CLASSES = {Verdict.OK: "ok", Verdict.FAILED: "failed", Verdict.WARNING: "warning"}


@dataclass(frozen=True)
class AuditPage:
    """The content of the page. `ranges` are first and last batch by task, `past` the newest audited ranges of all tasks."""

    application_id: str
    audit_id: str
    time_ms: int
    ranges: Mapping[str, tuple[int, int]]
    records: int
    seconds: float
    findings: Sequence[Finding]
    past: Sequence[AuditedRange]


def write_page(page: AuditPage, folder: Path) -> Path:
    """Write `<audit id>.html` and the same page as `index.html`; return the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    text = render(page)
    for name in (f"{page.audit_id}.html", "index.html"):
        (folder / name).write_text(text, encoding="utf-8")
    return folder / f"{page.audit_id}.html"


def render(page: AuditPage) -> str:
    """Return the whole page as HTML."""
    worst_first = sorted(page.findings, key=lambda found: list(Verdict).index(found.verdict), reverse=True)
    return render_page(
        "audit/page.html",
        page=page,
        verdict=overall(page.findings),
        findings=[(finding, _evidence(finding)) for finding in worst_first],
        classes=_CLASSES,
        time=_time,
    )


def _evidence(finding: Finding) -> str:
    """Return the figures of a finding as JSON; empty if it has none."""
    figures = {
        name: value for name, value in finding.evidence.items() if name not in ("expectation", MESSAGE_WITHOUT_RECORDS)
    }
    return json.dumps(figures, default=str) if figures else ""


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
