"""Traces of batches: each is a tree of spans, made when the batch has ended, from the times that were measured meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark.clock import NOT_MEASURED, Period
from tidemark.errors import BatchAborted, TidemarkError
from tidemark.failpoint import Probe
from tidemark.instance.commit_listener import PreparedBatch
from tidemark.metrics.span import Attribute, AttributeValue, Span, SpanName
from tidemark.metrics.traces import TraceSender, otlp_exporter
from tidemark.settings import Settings
from tidemark.tasks.task import Task
from tidemark.tasks.update import TaskUpdate

_STEPS = (
    (SpanName.PRODUCE, "4-commit-records"),
    (SpanName.OFFSETS, "5-offsets"),
    (SpanName.COMMIT, "6-commit"),
)
"""The parts of a transaction, and the point of a commit at which each has ended."""


@dataclass(frozen=True)
class _Attempt:
    """An attempt that was aborted. `steps` are the times at which the points of the commit were reached."""

    took: Period
    steps: Mapping[str, float]
    error: str


class BatchTraces:
    """A `CommitListener` that sends a trace of each batch. Used by the task loop."""

    def __init__(self, application_id: str, instance: int, sender: TraceSender) -> None:
        self._process: dict[Attribute, AttributeValue] = {
            Attribute.APPLICATION: application_id,
            Attribute.INSTANCE: instance,
        }
        self._sender = sender
        self._steps: dict[str, float] = {}
        self._aborted: list[_Attempt] = []

    def timed(self, probe: Probe) -> Probe:
        """Return a probe for a `Committer`, which notes when each point is reached and calls `probe`."""

        def note(point: str) -> None:
            self._steps[point] = time.monotonic()
            probe(point)

        return note

    def committed(self, batch: PreparedBatch, took: Period) -> None:
        """Send the trace of a batch whose stores were written."""
        transaction = Period(took.began_s, self._steps[_STEPS[-1][1]])
        written = [span for task, update in batch.updates for span in _store_spans(task, update)]
        self._end(batch, took.ended_s, [_transaction_span(batch, _Attempt(transaction, self._steps, "")), *written], "")

    def aborted(self, took: Period, aborted: BatchAborted) -> None:
        """Keep the times of an attempt until the batch has ended."""
        self._aborted.append(_Attempt(took, self._steps, str(aborted)))
        self._steps = {}

    def discarded(self, batch: PreparedBatch, error: TidemarkError) -> None:
        """Send the trace of a batch that was not committed."""
        self._end(batch, time.monotonic(), [], str(error))

    def close(self, timeout_s: float) -> None:
        """Send what is left. Blocks for at most `timeout_s`."""
        self._sender.close(timeout_s)

    def _end(self, batch: PreparedBatch, ended_s: float, last: Iterable[Span], error: str) -> None:
        aborted = [_transaction_span(batch, attempt) for attempt in self._aborted]
        children = (*_read_spans(batch), *_prepare_spans(batch), *aborted, *last)
        began_s = min((child.period.began_s for child in children), default=ended_s)
        attributes = {**self._process, **_batch_attributes(batch)}
        self._steps, self._aborted = {}, []
        self._sender.send(Span(SpanName.BATCH, Period(began_s, ended_s), attributes, children, error))


def batch_traces(settings: Settings, application_id: str, instance: int) -> BatchTraces | None:
    """Return the traces of an instance, or None if `trace_endpoint` is not set. Raises `InvalidSettings`."""
    if not settings.trace_endpoint:
        return None
    service = {"service.name": application_id, "service.instance.id": str(instance)}
    return BatchTraces(application_id, instance, TraceSender(otlp_exporter(settings.trace_endpoint), service))


def _batch_attributes(batch: PreparedBatch) -> dict[Attribute, AttributeValue]:
    tasks = [task.id for task, _ in batch.updates]
    attributes: dict[Attribute, AttributeValue] = {
        Attribute.KIND: str(batch.kind),
        Attribute.TASKS: [str(task) for task in tasks],
        Attribute.BATCHES: [update.batch for _, update in batch.updates],
        Attribute.RECORDS: batch.source_records,
    }
    subtopologies = {task.subtopology for task in tasks}
    # The tasks of a batch have one sub-topology; only a start or a tick may have several.
    return attributes | ({Attribute.SUBTOPOLOGY: subtopologies.pop()} if len(subtopologies) == 1 else {})


def _read_spans(batch: PreparedBatch) -> list[Span]:
    if batch.read is NOT_MEASURED:
        return []
    offsets = sum(end - start for _, update in batch.updates for start, end in update.sources.values())
    return [Span(SpanName.READ, batch.read, {Attribute.RECORDS: offsets})]


def _prepare_spans(batch: PreparedBatch) -> list[Span]:
    return [
        Span(SpanName.PREPARE, update.prepared, _task_attributes(update) | {Attribute.RECORDS: update.rows})
        for _, update in batch.updates
        if update.prepared is not NOT_MEASURED
    ]


def _transaction_span(batch: PreparedBatch, attempt: _Attempt) -> Span:
    """Return an attempt with its parts. If it failed, the last of them is the one in which it did."""
    sent = sum(update.records for _, update in batch.updates)
    parts: list[Span] = []
    began_s = attempt.took.began_s
    for name, point in _STEPS:
        attributes: dict[Attribute, AttributeValue] = {Attribute.RECORDS: sent} if name is SpanName.PRODUCE else {}
        ended_s = attempt.steps.get(point)
        if ended_s is None:
            parts.append(Span(name, Period(began_s, attempt.took.ended_s), attributes, error=attempt.error))
            break
        parts.append(Span(name, Period(began_s, ended_s), attributes))
        began_s = ended_s
    return Span(SpanName.TRANSACTION, attempt.took, {}, tuple(parts), attempt.error)


def _store_spans(task: Task, update: TaskUpdate) -> list[Span]:
    written = {store.store: store.records for store in update.stores}
    return [
        Span(
            SpanName.STORE,
            period,
            _task_attributes(update) | {Attribute.STORE: store, Attribute.RECORDS: written.get(store, 0)},
        )
        for store, period in task.puts.items()
    ]


def _task_attributes(update: TaskUpdate) -> dict[Attribute, AttributeValue]:
    return {Attribute.TASK: str(update.task), Attribute.BATCH: update.batch}
