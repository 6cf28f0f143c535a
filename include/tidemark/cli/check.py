"""Checks of an application: retention, compaction, durability, lag. Each ends with 1 if something failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tidemark.checks.compaction_sampling import SCANNED_OFFSETS, CompactionLook, check_compaction
from tidemark.checks.durability_sampling import check_durability
from tidemark.checks.lag_sampling import check_lag
from tidemark.checks.retention_sampling import check_retention
from tidemark.checks.verdict_table import keep_verdicts, past_verdicts
from tidemark.database import FactsDatabase
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load
from tidemark.verdict import Finding, Verdict, worst

_COLOURS = {Verdict.OK: "green", Verdict.FAILED: "red"}


def retention(topology: str, *, history: bool, as_json: bool) -> None:
    """Judge the retention of state, or show past verdicts."""
    _run("retention", topology, as_json, history, lambda plan, settings: check_retention(plan, settings, topology))


def compaction(
    topology: str, scanned_offsets: int | None, log_dir: Path | None, *, history: bool, as_json: bool
) -> None:
    """Judge the compaction of changelogs, or show past verdicts."""
    look = CompactionLook(scanned_offsets or SCANNED_OFFSETS, log_dir)
    _run("compaction", topology, as_json, history, lambda plan, s: check_compaction(plan, s, topology, look))


def durability(topology: str, *, history: bool, as_json: bool) -> None:
    """Judge what the loss of brokers would cost, or show past verdicts."""
    _run("durability", topology, as_json, history, check_durability)


def lag(topology: str, *, history: bool, as_json: bool) -> None:
    """Judge the lag by this sample and earlier ones, or show past verdicts."""
    _run("lag", topology, as_json, history, lambda plan, settings: check_lag(plan, settings, topology))


def _run(
    check: str,
    topology: str,
    as_json: bool,
    history: bool,
    judge: Callable[[TopologyPlan, Settings], Sequence[Finding]],
) -> None:
    settings = Settings.load()
    plan = load(topology).plan()
    if history:
        _show_history(settings, plan.application_id, check, as_json)
        return
    findings = judge(plan, settings)
    if away := keep_verdicts(settings, plan.application_id, check, findings):
        print(f"{away}; this verdict is not stored", file=sys.stderr)
    if as_json:
        print(json.dumps({"verdict": worst(findings), "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _show(f"{check} of {plan.application_id}", findings)
    if worst(findings) is Verdict.FAILED:
        sys.exit(1)


def _show(title: str, findings: Sequence[Finding]) -> None:
    table = Table("verdict", "of", "why", title=title)
    for finding in findings:
        table.add_row(_coloured(finding.verdict), finding.subject, finding.message)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"verdict: {worst(findings)}")


def _show_history(settings: Settings, application_id: str, check: str, as_json: bool) -> None:
    facts = FactsDatabase(settings)
    try:
        past = list(past_verdicts(facts, application_id, check))
    finally:
        facts.close()
    if as_json:
        print(json.dumps([{"time_ms": row.time_ms, **asdict(row.finding)} for row in past], indent=2))
        return
    if not past:
        print(f"no verdict of {check} of {application_id} yet: `tidemark check {check}` runs the check")
        return
    table = Table("at", "verdict", "of", "why", title=f"{check} of {application_id}")
    for row in past:
        at = datetime.fromtimestamp(row.time_ms / 1000, UTC).isoformat(timespec="seconds")
        table.add_row(at, _coloured(row.finding.verdict), row.finding.subject, row.finding.message)
    Console(highlight=False).print(table)


def _coloured(verdict: Verdict) -> str:
    colour = _COLOURS.get(verdict, "yellow")
    return f"[{colour}]{verdict}[/{colour}]"
