"""The tasks of the drill DAGs: run a drill, and judge the age of the last one.

Tasks import this module when they run, because it loads clients and stores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient

from tidemark.checks.never_ran import never_ran
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.drill.age import drill_age
from tidemark.drill.drill import Drill, DrillOptions
from tidemark.errors import FactsUnavailable
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import partition_counts, task_ids
from tidemark.operations.context import OperationContext
from tidemark.operations.drill_history.report import is_drillable, not_compared, nothing_to_drill
from tidemark.operations.drill_history.store_verdicts import undrilled
from tidemark.operations.drill_history.table import last_passed, write_drill
from tidemark.registry.reader import named_plan
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan
from tidemark.topology_loader import load
from tidemark.verdict import Finding
from tidemark_airflow.operations import conclude

log = logging.getLogger(__name__)


def drill_and_conclude(
    topology: str,
    follow_batches: int,
    follow_timeout_s: float,
    push_figures: Callable[[list[dict[str, Any]]], None],
) -> str:
    """Drill one application, write the result to the history, and end as the verdict requires (see `conclude`).

    `push_figures` is called with the number of keys compared, left out and different, per store and per way of rebuilding it,
    whatever the verdict.
    """
    settings, plan = Settings.load(), load(topology).plan()
    if unknown := _not_to_be_drilled(plan, settings):
        return conclude("restore_drill", topology, unknown)
    context = OperationContext.of(plan, settings, [], wall_clock_ms)
    report = Drill(context, DrillOptions(follow_batches, follow_timeout_s), LoggingRestoreListener(), log.info).run()
    for way in report.ways:
        figures = report.figures(way.way).summary
        log.info("%s: %s, RTO %.2f s, RPO %d offsets, %.1f s", way.way, figures, way.rto_s, way.rpo_offsets, way.rpo_s)
    push_figures(report.per_store())
    facts = FactsDatabase(settings)
    try:
        write_drill(facts, report)
    except FactsUnavailable as error:
        log.warning("%s; this drill is not in the history", error)
    finally:
        facts.close()
    return conclude("restore_drill", topology, report.findings)


def judge_age(topology: str, max_age_days: float) -> list[Finding]:
    """Judge the age of the last drill that passed, and whether it was of the present stores.

    Blocks: asks the broker for the present generation of each store. Raises `FactsUnavailable`, `OutcomeUnknown`, and
    `PreflightFailed` or `StartRefused` if a topic of the application was lost.
    """
    settings, plan = Settings.load(), load(topology).plan()
    if unknown := _not_to_be_drilled(plan, settings):
        return unknown
    facts = FactsDatabase(settings)
    try:
        passed = last_passed(facts, plan.application_id)
    finally:
        facts.close()
    max_age_ms = round(max_age_days * 86_400_000)
    if passed is None:
        return [drill_age(None, (), max_age_ms, wall_clock_ms())]
    admin = AdminClient(librdkafka_config(settings))
    present = named_plan(plan, settings, admin)
    newer = undrilled(passed.report, present, task_ids(present, partition_counts(admin, settings)))
    return [drill_age(passed.ended_ms, newer, max_age_ms, wall_clock_ms())]


def _not_to_be_drilled(plan: TopologyPlan, settings: Settings) -> list[Finding]:
    """Return one finding if the application cannot be drilled (it has no drillable store, or never ran), else none."""
    if not is_drillable(plan):
        return [nothing_to_drill(plan.application_id, not_compared(plan))]
    return never_ran(plan, settings, AdminClient(librdkafka_config(settings)))
