"""Check an application, store the verdicts, and show them or earlier ones. Each check ends with its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidemark.checks.compaction_sampling import SCANNED_OFFSETS, CompactionLook, check_compaction
from tidemark.checks.durability_sampling import check_durability
from tidemark.checks.lag_sampling import check_lag
from tidemark.checks.retention_sampling import check_retention
from tidemark.checks.skew_sampling import READ_RECORDS, check_skew
from tidemark.checks.verdict_table import keep_verdicts, past_verdicts
from tidemark.cli.output import Output, as_json
from tidemark.database import FactsDatabase
from tidemark.listing import Listing, coloured
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load
from tidemark.verdict import Finding, worst


def retention(topology: str, output: Output, *, history: bool) -> None:
    """Judge the retention of state, or show past verdicts."""
    _run("retention", topology, output, history, lambda plan, settings: check_retention(plan, settings, topology))


def compaction(
    topology: str, scanned_offsets: int | None, log_dir: Path | None, output: Output, *, history: bool
) -> None:
    """Judge the compaction of changelogs, or show past verdicts."""
    look = CompactionLook(scanned_offsets or SCANNED_OFFSETS, log_dir)
    _run("compaction", topology, output, history, lambda plan, s: check_compaction(plan, s, topology, look))


def durability(topology: str, output: Output, *, history: bool) -> None:
    """Judge what the loss of brokers would cost, or show past verdicts."""
    _run("durability", topology, output, history, check_durability)


def lag(topology: str, output: Output, *, history: bool) -> None:
    """Judge the lag by this sample and earlier ones, or show past verdicts."""
    _run("lag", topology, output, history, lambda plan, settings: check_lag(plan, settings, topology))


def skew(topology: str, read_records: int | None, output: Output, *, history: bool) -> None:
    """Judge how records and keys spread, or show past verdicts."""
    most = read_records or READ_RECORDS
    _run("skew", topology, output, history, lambda plan, settings: check_skew(plan, settings, most))


def _run(
    check: str,
    topology: str,
    output: Output,
    history: bool,
    judge: Callable[[TopologyPlan, Settings], Sequence[Finding]],
) -> None:
    settings = Settings.load()
    plan = load(topology).plan()
    if history:
        _show_history(settings, plan.application_id, check, output)
        return
    findings = judge(plan, settings)
    if away := keep_verdicts(settings, plan.application_id, check, findings):
        output.note(f"{away}; this verdict is not stored")
    listing = Listing("verdict", "of", "why", title=f"{check} of {plan.application_id}")
    for finding in findings:
        listing.add(coloured(finding.verdict), finding.subject, finding.message)
    verdict = worst(findings)
    output.show({"verdict": verdict, "findings": findings}, listing, f"verdict: {verdict}")
    sys.exit(verdict.exit_code)


def _show_history(settings: Settings, application_id: str, check: str, output: Output) -> None:
    facts = FactsDatabase(settings)
    try:
        past = list(past_verdicts(facts, application_id, check))
    finally:
        facts.close()
    listing = Listing("at", "verdict", "of", "why", title=f"{check} of {application_id}")
    for row in past:
        at = datetime.fromtimestamp(row.time_ms / 1000, UTC).isoformat(timespec="seconds")
        listing.add(at, coloured(row.finding.verdict), row.finding.subject, row.finding.message)
    nothing = f"no verdict of {check} of {application_id} yet: `tidemark check {check}` runs the check"
    rows = [{"time_ms": row.time_ms, **as_json(row.finding)} for row in past]
    output.show(rows, listing if past else nothing)
