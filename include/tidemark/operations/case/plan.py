"""Texts for the approver: what a restore or a change would do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tidemark.operations.case.case import Case
from tidemark.operations.case.plan_hash import SHORT, plan_content, plan_hash
from tidemark.operations.rewind.plan import RewindPlan
from tidemark.operations.times import format_time
from tidemark.recovery.restore_plan import RestorePlan
from tidemark.topology.plan import TopologyPlan

START_STOP_S = 30.0
"""A rough time for stopping and starting an instance: Spark's own start, and the end of a session."""


class PlanKind(StrEnum):
    """The kind of plan that leads to the target."""

    RESTORE = "restore"
    REWIND = "rewind"


@dataclass(frozen=True)
class Planned:
    """A plan with its text. `summary` is Markdown; `eta_s` estimates how long the application is stopped.

    `at_ms` is given only for a rewind. `content` is what an approval is bound to.
    """

    kind: PlanKind
    summary: str
    eta_s: float
    at_ms: int | None
    plan: Mapping[str, Any]
    content: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as it is stored."""
        return asdict(self)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Planned:
        """Read the result of `to_dict`."""
        return cls(**{**body, "kind": PlanKind(body["kind"])})


def planned_restore(case: Case, topology: TopologyPlan, made: RestorePlan, threads: int) -> Planned:
    """Plan a restore to the latest state; `threads` stores are built at the same time."""
    eta_s = made.eta_s(threads) + START_STOP_S
    lines = [
        *head(case, topology),
        f"- **What is replaced**: {made.blast_radius}. The replaced folders are kept until a later restore succeeds. "
        "Nothing is written to Kafka, no output is emitted.",
        f"- **Standstill**: about {eta_s:.0f} s (estimate). {made.source_lag} source offsets wait already, and more come "
        "meanwhile.",
        "",
        "| task | store | from | changelog offsets | MB to copy | ETA, s |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {s.task} | {s.store} | {s.source.value} | {s.from_offset} … {s.end_offset} | {s.bytes_to_copy / 1e6:.1f} | "
        f"{s.eta_s:.1f} |"
        for s in made.stores
    ]
    lines += ["", f"- **Rates**: {made.rates_from}."]
    lines += [f"- not rebuilt: {summary}" for summary in made.not_rebuilt]
    lines += [f"- passed over for {s.task}/{s.store}: {fault}" for s in made.stores for fault in s.passed_over]
    body = json.loads(made.to_json())
    content = restore_content(case, topology, PlanKind.RESTORE, body)
    return Planned(PlanKind.RESTORE, "\n".join([*lines, *tail(content)]), eta_s, None, body, content)


def planned_rewind(case: Case, topology: TopologyPlan, made: RewindPlan, took_s: float) -> Planned:
    """Plan a rewind. Its planning took `took_s` seconds, and the rewind builds the same states again."""
    eta_s = took_s + START_STOP_S
    lines = [
        *head(case, topology),
        f"- **Goes back to**: {format_time(made.at_ms)}. **It cannot be rolled back** once it is committed.",
        f"- **Consequence**: {made.warning}.",
        f"- **Standstill**: about {eta_s:.0f} s (estimate).",
        "",
        "| task | batch | committed | source offsets, from → to |",
        "|---|---|---|---|",
    ]
    for task in made.tasks:
        offsets = ", ".join(f"{topic} {at} → {task.to_offsets[topic]}" for topic, at in task.from_offsets.items())
        lines.append(f"| {task.task} | {task.to_batch} | {format_time(task.to_ms)} | {offsets} |")
    lines += ["", "| task | store | keys written | keys deleted |", "|---|---|---|---|"]
    lines += [f"| {s.task} | {s.store} | {s.written} | {s.deleted} |" for s in made.stores]
    body = json.loads(json.dumps(asdict(made)))
    content = restore_content(case, topology, PlanKind.REWIND, body)
    return Planned(PlanKind.REWIND, "\n".join([*lines, *tail(content)]), eta_s, made.at_ms, body, content)


def restore_content(case: Case, topology: TopologyPlan, kind: PlanKind, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an approval of a restore or a rewind is bound to.

    `topology` has the stores' generations; `plan` is as stored. Offsets that advance while the application runs are
    left out: a restore builds up to the offsets that are committed then, a rewind goes back from them.
    """
    parts: tuple[str, ...] = ("stores",)
    names: tuple[str, ...] = ("task", "store", "source", "location")
    if kind is PlanKind.RESTORE:
        effects = {name: plan[name] for name in ("restore_id", "asked", "selection", "not_rebuilt")}
    else:
        parts, names = ("tasks", "stores"), ("task", "store", "to_batch", "to_ms", "to_offsets")
        effects = {name: plan[name] for name in ("at_ms", "sinks")}
    for part in parts:
        effects[part] = [{name: each[name] for name in names if name in each} for each in plan[part]]
    return plan_content(case, topology, None, {"way": kind, **effects})


def tail(content: Mapping[str, Any]) -> list[str]:
    """Return the end of every plan: the hash that an approval of it is bound to."""
    return ["", f"- **Plan**: `{plan_hash(content)[:SHORT]}`. An approval is for this plan only, and is used once."]


def head(case: Case, topology: TopologyPlan) -> list[str]:
    """Return the beginning of every plan: which application is stopped for it, why, and what was asked."""
    sinks = list(dict.fromkeys(topic for s in topology.subtopologies for topic in s.sink_topics))
    waiting = f"nothing new in {', '.join(sinks)} meanwhile" if sinks else "it has no sinks"
    # The reason is free text of a user, and this is Markdown.
    reason = " ".join(case.reason.split()).replace("|", "\\|").replace("<", "&lt;")
    return [
        f"- **Application**: {case.application_id}, stopped for it: {waiting}.",
        f"- **Reason given**: {reason}",
        *(f"- **{name.capitalize()}**: `{value.replace('`', '')}`" for name, value in format_request(case)),
    ]


def format_request(case: Case) -> list[tuple[str, str]]:
    """Return what was asked for, by name, without empty parameters."""
    summary = (
        (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in case.asked.items()
    )
    return [(name, value) for name, value in summary if value]
