"""Run restore drills, and show their reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.filesize import decimal

from tidemark.checks.verdict_table import write_verdicts
from tidemark.cli.output import Output, View, console
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.drill.drill import Drill, DrillOptions
from tidemark.errors import FactsUnavailable
from tidemark.events.progress import RichRestoreListener
from tidemark.listing import Listing
from tidemark.operations.context import OperationContext
from tidemark.operations.drill_history.rates import newest_rates
from tidemark.operations.drill_history.report import DrillReport, RebuildMethod
from tidemark.operations.drill_history.table import past_drills, write_drill
from tidemark.operations.times import format_time
from tidemark.settings import Settings
from tidemark.topology.durations import duration_ms
from tidemark.topology_loader import load
from tidemark.verdict import Verdict


def run(topology: str, follow_batches: int, follow_for: str, output: Output) -> None:
    """Run a drill, store its report and show it. Blocks.

    Ends with 1 if a key is proven to differ, with 10 if evidence is missing.
    """
    settings = Settings.load()
    plan = load(topology).plan()
    facts = FactsDatabase(settings)
    try:
        messages = console(stderr=True)
        options = DrillOptions(follow_batches, duration_ms(follow_for, "--follow-for") / 1000)
        context = OperationContext.of(plan, settings, [], wall_clock_ms)
        context.require_has_run()
        with RichRestoreListener(messages) as listener:
            report = Drill(context, options, listener, messages.print).run()
        try:
            write_drill(facts, report)
            write_verdicts(facts, plan.application_id, "restore_drill", report.ended_ms, report.findings)
        except FactsUnavailable as error:
            messages.print(f"{error}; this drill is not in the history")
    finally:
        facts.close()
    output.show(report.to_dict(), *_views(report))
    sys.exit(report.verdict.exit_code)


def history(topology: str, output: Output) -> None:
    """Show earlier drills, the newest first."""
    application_id = load(topology).plan().application_id
    facts = FactsDatabase(Settings.load())
    try:
        found = list(past_drills(facts, application_id))
    finally:
        facts.close()
    numbers = ("RTO, s", "keys", "bytes", "compared", "left out", "differing")
    listing = Listing(
        "drill",
        "ended",
        "verdict",
        "RTO, s",
        "RPO",
        "keys",
        "bytes",
        "compared",
        "left out",
        "differing",
        right=numbers,
    )
    for past in found:
        rto = "" if past.rto_s is None else f"{past.rto_s:,.1f}"
        rpo = "" if past.rpo_offsets is None else f"{past.rpo_offsets:,} offsets, {past.rpo_s:,.1f} s"
        whole = past.report["figures"][RebuildMethod.CHANGELOG]
        compared = (f"{whole[figure]:,}" for figure in ("compared", "left_out", "differing"))
        ended = format_time(past.ended_ms)
        listing.add(past.drill_id, ended, past.verdict, rto, rpo, f"{past.keys:,}", decimal(past.bytes), *compared)
    nothing = f"no drill of {application_id} has been run; `tidemark drill run NAME` runs one"
    output.show([past.report for past in found], listing if found else nothing)


def _views(report: DrillReport) -> Iterator[View]:
    numbers = ("keys", "compared", "left out", "differing", "bytes", "records", "seconds", "keys/s")
    title = f"drill {report.drill_id} of {report.application_id}"
    listing = Listing("task", "store", "by", "verdict", *numbers, right=numbers, title=title)
    for store in report.stores:
        rate = store.rates.get("keys_per_s")
        listing.add(
            store.task, store.store, store.way, store.verdict, f"{store.keys:,}", f"{store.compared:,}",
            f"{store.left_out:,}", f"{store.differing:,}", decimal(store.bytes), f"{store.records:,}",
            f"{store.seconds:.2f}", "" if rate is None else f"{rate:,.0f}",
        )  # fmt: skip
    yield listing
    for way in report.ways:
        yield (
            f"{way.way}: {report.figures(way.way).summary}, RTO {way.rto_s:.2f} s, RPO {way.rpo_offsets} source offsets, "
            f"{way.rpo_s:.1f} s of commits (all of it in Kafka)"
        )
    if report.rates:
        yield f"rates for restore plans: {newest_rates([report.to_dict()]).summary}"
    for summary in report.not_compared:
        yield f"not compared: {summary}"
    for finding in report.findings:
        if finding.verdict is not Verdict.OK:
            yield f"{finding.verdict}: {finding.subject}: {finding.message}"
    claim = f"; {report.claim}" if report.verdict is Verdict.OK else ""
    yield f"drill {report.drill_id}: {report.verdict}{claim}"
