"""Recomputes in plain Python, from the source topic, what a windowed count must have produced.

Independent of the product: it parses JSON with `json`, counts in dictionaries, and shares no code with Tidemark. The
only things it takes from the application are the batch ranges of its commit records: which records a batch
held decides which late ones were dropped, and that cannot be known from the source alone. `recompute` reads the
broker; `recompute_rows` is the same on lists, so a case reads as data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.truth.topics import NOTHING_PAST, Past, Row, by_partition, read_all

WindowKey = tuple[str, int]
"""A record key and the start of a window, epoch milliseconds."""

Coordinate = tuple[str, int, int]
"""Topic, partition and offset of one record."""


@dataclass(frozen=True)
class Counting:
    """The constants of one application that counts records per key in tumbling windows."""

    application_id: str = "patient-monitoring"
    source_topic: str = "pulse-events"
    sink_topic: str = "pulse-counts"
    store: str = "pulse-counts"
    subtopology: int = 0
    window_ms: int = 60_000
    grace_ms: int = 5_000
    max_ahead_ms: int = 3_600_000
    key_field: str = "patient_id"
    time_field: str = "beat_ms"
    count_field: str = "pulses"
    generation: int = 0
    types: tuple[tuple[str, type, int], ...] = (
        ("patient_id", str, 0),
        ("beat_ms", int, 64),
        ("ibi_ms", int, 32),
        ("recording", str, 0),
    )
    """Field, Python type, and the bits of an integer."""

    @property
    def changelog_topic(self) -> str:
        return f"{self.application_id}-{self.store}-changelog" + (f"-{self.generation}" if self.generation else "")

    @property
    def dlq_topic(self) -> str:
        return f"{self.application_id}-dlq"

    @property
    def commits_topic(self) -> str:
        return f"{self.application_id}-commits"

    def task(self, partition: int) -> str:
        return f"{self.subtopology}_{partition}"


PATIENT_MONITORING = Counting()


@dataclass(frozen=True)
class Batch:
    """One commit record of one task, as far as the recomputation believes it: the range of source offsets."""

    partition: int
    start: int
    end: int
    kind: str = "batch"
    number: int = -1
    """Of the batch, as the record says."""
    rewound_to: int | None = None
    """Of a rewind: the number of the batch whose state it brought back. Its range is (offset before, offset after)."""
    record: Mapping[str, object] = field(default_factory=dict, compare=False)


@dataclass
class TaskTruth:
    """What one task must have done."""

    stream_time_ms: int | None = None
    good: int = 0
    late_rows: int = 0
    next_offset: int | None = None
    counts: dict[WindowKey, int] = field(default_factory=dict)
    """What its store holds, windows that have expired included."""


@dataclass
class Truth:
    """What the application must have produced from the batches it committed."""

    events: int = 0
    tasks: dict[int, TaskTruth] = field(default_factory=dict)
    histories: dict[WindowKey, list[int]] = field(default_factory=dict)
    """Every count that was emitted, in order: one per batch that touched the window."""
    logged: dict[WindowKey, list[int | None]] = field(default_factory=dict)
    """Every count in the changelog: those that were emitted, and what a rewind brought back (None: deleted)."""
    homes: dict[WindowKey, int] = field(default_factory=dict)
    """Task partition of each window."""
    dead: dict[Coordinate, Row] = field(default_factory=dict)
    dead_again: Counter[Coordinate] = field(default_factory=Counter)
    """How often a bad record was read once more, after a rewind."""
    unprocessed: int = 0
    batches: int = 0
    """Commit records with records in their range, of all tasks."""
    faults: list[str] = field(default_factory=list)
    """Ranges that overlap or leave a gap, and commit records that state other numbers than these."""

    @property
    def counts(self) -> dict[WindowKey, int]:
        """The final count of every window."""
        return {key: history[-1] for key, history in self.histories.items()}

    @property
    def outputs(self) -> int:
        """How many records the sink, and the changelog, must have received."""
        return sum(map(len, self.histories.values()))

    @property
    def late_rows(self) -> int:
        return sum(task.late_rows for task in self.tasks.values())


def event(row: Row, rules: Counting) -> tuple[str, int] | None:
    """Key and event time of a record, or None when it is a bad one. Without a value, they are those that Kafka has."""
    if row.value is None:
        return None if row.key is None else (row.key.decode(), row.timestamp_ms)
    try:
        value: Any = json.loads(row.value)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    for name, kind, bits in rules.types:
        found: Any = value.get(name)
        if found is None:
            continue
        if type(found) is not kind:
            return None
        if bits and not -(1 << (bits - 1)) <= int(value[name]) < 1 << (bits - 1):
            return None
    key: str | None = value.get(rules.key_field)
    time_ms: int | None = value.get(rules.time_field)
    if key is None or time_ms is None or not 0 <= time_ms <= row.timestamp_ms + rules.max_ahead_ms:
        return None
    # A task counts what lies in its partition, where the producer put it by the record's own key.
    if row.key != key.encode():
        return None
    return key, time_ms


def batches_of(commits: Iterable[Row], rules: Counting) -> list[Batch]:
    """One task's commit records, in commit order, as batches. Rows are one partition's of the commits topic."""
    found = []
    for row in commits:
        if row.value is None:
            continue
        record = json.loads(row.value)
        if record["application_id"] != rules.application_id:
            continue
        for text, (start, end) in record["sources"].get(rules.source_topic, {}).items():
            if record["task"] == rules.task(int(text)):
                kind, number, rewound_to = record["kind"], record.get("batch", -1), record.get("rewound_to")
                found.append(Batch(int(text), start, end, kind, number, rewound_to, record))
    return found


def recompute(
    bootstrap: str, rules: Counting = PATIENT_MONITORING, timeout_s: float = 60.0, past: Past = NOTHING_PAST
) -> Truth:
    """Read source and commit records and count again. Blocks for the time of the reading; raises `Unreadable`."""
    rows = read_all(bootstrap, (rules.source_topic, rules.commits_topic), timeout_s, past)
    commits = by_partition(rows, rules.commits_topic)
    batches = [batch for partition in sorted(commits) for batch in batches_of(commits[partition], rules)]
    return recompute_rows(by_partition(rows, rules.source_topic), batches, rules)


def recompute_rows(source: Mapping[int, list[Row]], batches: Iterable[Batch], rules: Counting) -> Truth:
    """Count `source` (rows by partition, by offset) as tasks that committed `batches` (in order) must have."""
    truth = Truth(events=sum(map(len, source.values())))
    ranges: dict[int, list[Batch]] = {partition: [] for partition in source}
    for batch in batches:
        ranges.setdefault(batch.partition, []).append(batch)
    for partition in sorted(ranges):
        _count_task(truth, partition, source.get(partition, []), ranges[partition], rules)
    return truth


def _count_task(truth: Truth, partition: int, rows: list[Row], batches: list[Batch], rules: Counting) -> None:
    task = truth.tasks[partition] = TaskTruth()
    at = 0
    wanted = {batch.rewound_to for batch in batches if batch.kind == "rewind"}
    kept: dict[int, tuple[dict[WindowKey, int], int | None]] = {}
    for number, batch in enumerate(batches):
        label = f"task {rules.task(partition)} record {number} [{batch.start}, {batch.end})"
        if task.next_offset is not None and batch.start != task.next_offset:
            word = "overlaps" if batch.start < task.next_offset else "leaves a gap after"
            truth.faults.append(f"{label} {word} the one that ended at {task.next_offset}")
        if batch.kind == "rewind":
            if batch.rewound_to not in kept:
                truth.faults.append(f"{label} goes back to batch {batch.rewound_to}, of which there is no record")
                continue
            _rewind_task(truth, task, *kept[batch.rewound_to])
            task.next_offset = batch.end
            at = next((i for i, row in enumerate(rows) if row.offset >= batch.end), len(rows))
            continue
        if batch.kind in ("reset", "repair"):
            # Nothing of its range is processed. A reset that begins without state is the first of its life, see `Past.since`.
            task.next_offset = batch.end
            at = next((i for i, row in enumerate(rows) if row.offset >= batch.end), len(rows))
            continue
        if batch.end < batch.start:
            truth.faults.append(f"{label} runs backwards")
        task.next_offset = batch.end
        # Offsets that no batch names are skipped here, and have been reported or counted as unprocessed.
        while at < len(rows) and rows[at].offset < batch.start:
            truth.unprocessed += 1
            at += 1
        held = []
        while at < len(rows) and rows[at].offset < batch.end:
            held.append(rows[at])
            at += 1
        truth.batches += bool(held)
        _count_batch(truth, task, batch, held, rules, label)
        if batch.number in wanted:
            kept[batch.number] = dict(task.counts), task.stream_time_ms
    truth.unprocessed += len(rows) - at


def _rewind_task(truth: Truth, task: TaskTruth, counts: dict[WindowKey, int], stream_time_ms: int | None) -> None:
    """Back to a state of before: what differs is in the changelog once more, nothing is emitted."""
    for window in sorted(task.counts.keys() | counts.keys()):
        if task.counts.get(window) != counts.get(window):
            truth.logged.setdefault(window, []).append(counts.get(window))
    task.counts, task.stream_time_ms = dict(counts), stream_time_ms


def _count_batch(truth: Truth, task: TaskTruth, batch: Batch, rows: list[Row], rules: Counting, label: str) -> None:
    partials: dict[WindowKey, int] = {}
    dead = 0
    newest = task.stream_time_ms
    for row in rows:
        found = event(row, rules)
        if found is None:
            place = (row.topic, row.partition, row.offset)
            truth.dead_again[place] += place in truth.dead
            truth.dead[place] = row
            dead += 1
            continue
        key, time_ms = found
        window = (key, time_ms - time_ms % rules.window_ms)
        partials[window] = partials.get(window, 0) + 1
        newest = time_ms if newest is None else max(newest, time_ms)
        task.good += 1
    late = emitted = 0
    for window, count in partials.items():
        if task.stream_time_ms is not None and window[1] + rules.window_ms + rules.grace_ms <= task.stream_time_ms:
            late += count
            continue
        task.counts[window] = task.counts.get(window, 0) + count
        truth.histories.setdefault(window, []).append(task.counts[window])
        truth.logged.setdefault(window, []).append(task.counts[window])
        truth.homes[window] = batch.partition
        emitted += 1
    task.late_rows += late
    task.stream_time_ms = newest
    claims = {"rows": len(rows) - dead, "late_rows": late, "bad_rows": dead}
    if newest is not None:
        claims["stream_time_ms"] = newest
    _check_record(truth, batch, label, claims, emitted, rules)


def _check_record(
    truth: Truth, batch: Batch, label: str, claims: dict[str, int], emitted: int, rules: Counting
) -> None:
    """A commit record's own numbers are claims; each is compared with what was counted."""
    record = batch.record
    if batch.kind != "batch" or not record:
        return
    stated: dict[str, object] = {name: record.get(name) for name in claims}
    if "stream_time_ms" in claims:
        times = record.get("stream_times")
        stated["stream_time_ms"] = times["by_store"].get(rules.store) if isinstance(times, dict) else None
    logged = {replace(rules, generation=number).changelog_topic for number in range(rules.generation + 1)}
    for group, topics in (("sinks", {rules.sink_topic}), ("changelogs", logged)):
        numbers = record.get(group)
        claims[group] = emitted
        stated[group] = sum(numbers.get(topic, 0) for topic in topics) if isinstance(numbers, dict) else None
    truth.faults.extend(
        f"{label} says {name}={stated[name]}, counted {claims[name]}" for name in claims if stated[name] != claims[name]
    )
