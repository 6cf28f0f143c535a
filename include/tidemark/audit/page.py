"""The HTML page of an audit, which loads nothing: no script, no style sheet, no image."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidemark.audit.suites import overall
from tidemark.audit.table import AuditedRange
from tidemark.verdict import Finding, Verdict

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .35rem .6rem; vertical-align: top; }
th { border-bottom: 2px solid #c8d0da; } td { border-bottom: 1px solid #e3e8ee; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } code { font-size: .85em; overflow-wrap: anywhere; }
.verdict { font-weight: 600; white-space: nowrap; } .ok { color: #12703a; } .failed { color: #b3261e; }
.warning { color: #8a5a00; } .evidence { color: #5b6675; }
@media (prefers-color-scheme: dark) {
  body { background: #14181e; color: #dde3ea; } td { border-color: #2a323c; } th { border-color: #47525f; }
  .ok { color: #6fd196; } .failed { color: #ff8a80; } .warning { color: #f0b95a; } .evidence { color: #9aa6b4; }
}
"""
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
    verdict = overall(page.findings)
    title = f"Audit of {page.application_id}"
    ranges = [
        f"<tr><td>{_text(task)}</td><td class=number>{a}</td><td class=number>{b}</td></tr>"
        for task, (a, b) in page.ranges.items()
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f"<title>{_text(title)}: {verdict}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{_text(title)}: {_verdict(verdict)}</h1>",
            f"<p>{_time(page.time_ms)}, {page.records:,} records read, {page.seconds:.1f} s, audit {_text(page.audit_id)}</p>",
            "<h2>Expectations</h2>",
            "<table><tr><th>verdict</th><th>expectation</th><th>result</th></tr>",
            *_findings(page.findings),
            "</table><h2>Batches</h2>",
            "<table><tr><th>task</th><th>first</th><th>last</th></tr>",
            *(ranges or ["<tr><td colspan=3>no new batch</td></tr>"]),
            "</table><h2>Earlier audits</h2>",
            "<table><tr><th>time</th><th>task</th><th>batches</th><th>verdict</th></tr>",
            *_past(page.past),
            "</table></body></html>",
        ]
    )


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in sorted(findings, key=lambda found: list(Verdict).index(found.verdict), reverse=True):
        evidence = {name: value for name, value in finding.evidence.items() if name != "expectation"}
        shown = f"<br><code class=evidence>{_text(json.dumps(evidence, default=str))}</code>" if evidence else ""
        yield (
            f"<tr><td>{_verdict(finding.verdict)}</td><td>{_text(finding.subject)}</td>"
            f"<td>{_text(finding.message)}{shown}</td></tr>"
        )


def _past(past: Sequence[AuditedRange]) -> Iterator[str]:
    for one in past:
        batches = f"{one.first_batch} to {one.end.batch}"
        yield (
            f"<tr><td>{_time(one.time_ms)}</td><td>{_text(str(one.end.task))}</td><td>{batches}</td>"
            f"<td>{_verdict(one.verdict)}</td></tr>"
        )


def _verdict(verdict: Verdict) -> str:
    return f'<span class="verdict {_CLASSES.get(verdict, "evidence")}">{_text(str(verdict))}</span>'


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def _text(text: str) -> str:
    return html.escape(text)
