"""Decides where an audit can count sink records without a key, which do not show the task that wrote them."""

from __future__ import annotations

from collections.abc import Collection

from spark_jobs.audit.reading import SINK, AuditRange
from tidemark.audit.cut import Cut
from tidemark.audit.ranges import Base, TaskRange
from tidemark.verdict import Finding, Verdict


def countable(reading: AuditRange, cut: Cut) -> frozenset[str]:
    """Return the sinks of which all tasks' ranges begin and end at the same offsets.

    The records between were written by batches of the cut and by no others, whichever task each belongs to.
    """
    found = set()
    for topic, role in reading.roles.items():
        runs = [run for task, run in cut.ranges.items() if task.subtopology == role.sub]
        if role.role == SINK and len(runs) == role.tasks:
            begins = [_begin(run, topic) for run in runs]
            ends = [run.until.get(topic) for run in runs]
            # Before the first batches of all tasks, none of them wrote anything.
            is_new = all(run.base is Base.EMPTY for run in runs)
            if (is_new or all(begin == begins[0] for begin in begins)) and all(end == ends[0] for end in ends):
                found.add(topic)
    return frozenset(found)


def _begin(run: TaskRange, topic: str) -> dict[int, int]:
    """Return the first offsets that the audit reads of a topic for a range."""
    first = run.computed[0] if run.computed else run.records[-1]
    begin = dict(first.ends_before.get(topic, {}))
    begin.update({partition: start for name, partition, start, _, _ in run.unclaimed() if name == topic})
    return begin


def not_countable(topics: Collection[str]) -> list[Finding]:
    """Return a finding per sink with records without a key that could not be counted. These count in the verdict."""
    return [
        Finding(
            topic,
            Verdict.NOT_ENOUGH_EVIDENCE,
            "its records without a key are not counted, because the tasks' batches do not begin and end at the same "
            "offsets; audit while every task has a new batch and nothing is being written",
        )
        for topic in sorted(topics)
    ]
