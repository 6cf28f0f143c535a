"""Audit an application, and show what the audit found."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

from rich.console import Console

from tidemark.audit.job import AuditResult, log_progress, run_audit
from tidemark.audit.suites import overall
from tidemark.checks.verdict_table import keep_verdicts
from tidemark.cli.output import Output, View
from tidemark.listing import Listing, coloured
from tidemark.settings import Settings
from tidemark.topology_loader import load


def run(topology: str, batches: int | None, output: Output, *, whole: bool) -> None:
    """Run an audit, store its verdicts and show them. Blocks.

    Ends with 1 if something is wrong, with 10 if the worst verdict is that evidence is missing.
    """
    settings = Settings.load()
    application_id = load(topology).application_id
    console = Console(stderr=True)
    if not console.is_terminal:
        logging.getLogger("tidemark").setLevel(logging.INFO)
    with console.status(f"auditing {application_id}") as shown:
        tell = (lambda progress: shown.update(str(progress))) if console.is_terminal else log_progress
        result = run_audit(topology, settings, batches=batches, whole=whole, tell=tell)
    if away := keep_verdicts(settings, application_id, "audit", result.findings):
        output.note(f"{away}; this verdict is not stored")
    verdict = overall(result.findings)
    body = {"application_id": application_id, "verdict": verdict, **result.body}
    output.show(body, *_views(application_id, result))
    sys.exit(verdict.exit_code)


def _views(application_id: str, result: AuditResult) -> Iterator[View]:
    """Yield the verdicts, the ranges and the paths of the pages."""
    if not result.body["ranges"]:
        yield f"no new batch of {application_id} since the last audit"
    listing = Listing("verdict", "expectation", "result", title=f"audit of {application_id}")
    for finding in result.findings:
        listing.add(coloured(finding.verdict), finding.subject, finding.message)
    yield listing
    ranges = ", ".join(f"{task}: {first} to {last}" for task, (first, last) in result.body["ranges"].items())
    yield f"batches {ranges or 'none'}; {result.body['records']} records in {result.body['seconds']} s"
    if result.body["page"]:
        yield f"page {result.body['page']}"
    if result.body["quarantine"]:
        yield f"unexpected rows, with their coordinates: {result.body['quarantine']}"
    yield f"verdict: {overall(result.findings)}"
