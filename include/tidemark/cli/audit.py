"""Check that every record was processed exactly once and that the results are right."""

from __future__ import annotations

import json
import logging
import sys

from rich.console import Console
from rich.table import Table

from tidemark.audit.job import AuditResult, log_progress, run_audit
from tidemark.audit.suites import overall
from tidemark.checks.verdict_table import keep_verdicts
from tidemark.settings import Settings
from tidemark.topology_loader import load
from tidemark.verdict import Verdict

_COLOURS = {Verdict.OK: "green", Verdict.FAILED: "red"}


def run(topology: str, batches: int | None, *, whole: bool, as_json: bool) -> None:
    """Run an audit, store its verdicts and show them. Blocks. Ends with 1 if something is wrong."""
    settings = Settings.load()
    application_id = load(topology).application_id
    console = Console(stderr=True)
    if not console.is_terminal:
        logging.getLogger("tidemark").setLevel(logging.INFO)
    with console.status(f"auditing {application_id}") as shown:
        tell = (lambda progress: shown.update(str(progress))) if console.is_terminal else log_progress
        result = run_audit(topology, settings, batches=batches, whole=whole, tell=tell)
    if away := keep_verdicts(settings, application_id, "audit", result.findings):
        print(f"{away}; this verdict is not stored", file=sys.stderr)
    if as_json:
        print(json.dumps(result.body, indent=2))
    else:
        show(application_id, result)
    if overall(result.findings) is Verdict.FAILED:
        sys.exit(1)


def show(application_id: str, result: AuditResult) -> None:
    """Print the verdicts, the ranges and the paths of the pages."""
    console = Console(highlight=False)
    if not result.body["ranges"]:
        console.print(f"no new batch of {application_id} since the last audit")
    table = Table("verdict", "expectation", "result", title=f"audit of {application_id}")
    for finding in result.findings:
        colour = _COLOURS.get(finding.verdict, "yellow")
        table.add_row(f"[{colour}]{finding.verdict}[/{colour}]", finding.subject, finding.message)
    console.print(table)
    ranges = ", ".join(f"{task}: {first} to {last}" for task, (first, last) in result.body["ranges"].items())
    console.print(f"batches {ranges or 'none'}; {result.body['records']} records in {result.body['seconds']} s")
    if result.body["page"]:
        console.print(f"page {result.body['page']}")
    if result.body["quarantine"]:
        console.print(f"unexpected rows, with their coordinates: {result.body['quarantine']}")
    console.print(f"verdict: {overall(result.findings)}")
