"""The traces of an instance that commits on a real broker, without Spark."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.support.counting import NO_PROBE, CountingApp, CountingSource, in_thread
from tests.support.truth.topics import read_all

from tidemark.clock import Period
from tidemark.commit.record import CommitRecord
from tidemark.errors import BatchAborted, OutcomeUnknown
from tidemark.instance import batch_traces
from tidemark.instance.assembly import make_instance
from tidemark.names import commits_topic
from tidemark.processes import wait_until
from tidemark.supervision.state import InstanceState

pytestmark = [pytest.mark.broker, pytest.mark.timeout(150)]


class TimedSource(CountingSource):
    """One that says when it has read a batch, as Spark's does."""

    def next(self, timeout_s):
        began_s = time.monotonic()
        batch = super().next(timeout_s)
        return batch and replace(batch, read=Period.since(began_s))


@pytest.fixture
def collected(monkeypatch):
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(batch_traces, "otlp_exporter", lambda _endpoint: exporter)
    # All spans are sent before the instance has ended, however busy the machine is.
    monkeypatch.setattr("tidemark.instance.instance._LISTENERS_CLOSE_S", 60.0)
    return exporter


@pytest.fixture
def app(settings, admin, unique):
    traced = settings.model_copy(update={"trace_endpoint": "http://127.0.0.1:1/v1/traces"})
    return CountingApp(traced, admin, unique("traced"), source=TimedSource)


def batches(exporter):
    """The traces: each root with its spans by the span that they are part of."""
    spans = exporter.get_finished_spans()
    parts = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_time):
        parts[span.parent.span_id if span.parent else None].append(span)
    return parts.pop(None), parts


def named(spans):
    return [span.name for span in spans]


def test_each_batch_should_be_a_tree_of_spans_that_says_what_its_commit_records_say(app, collected):
    app.feed(2000)
    app.run()
    roots, parts = batches(collected)
    rows = read_all(app.settings.bootstrap_servers, [commits_topic(app.name)])
    records = [CommitRecord.from_bytes(row.value) for found in rows.values() for row in found]
    told = [
        (root.attributes["tidemark.kind"], task, batch)
        for root in roots
        for task, batch in zip(root.attributes["tidemark.tasks"], root.attributes["tidemark.batches"], strict=True)
    ]
    assert sorted(told) == sorted((record.kind, str(record.task), record.batch) for record in records)
    assert sum(root.attributes["tidemark.records"] for root in roots) == 2000
    for root in roots:
        assert (root.attributes["tidemark.application"], root.attributes["tidemark.instance"]) == (app.name, 0)
        assert root.attributes["tidemark.subtopology"] == 0
        tasks, inside = list(root.attributes["tidemark.tasks"]), parts[root.context.span_id]
        is_start = root.attributes["tidemark.kind"] == "start"
        expected = ["transaction"] if is_start else ["read", *["prepare"] * len(tasks), "transaction"]
        assert named(inside) == [*expected, *["store"] * len(tasks)]
        stores = [span for span in inside if span.name == "store"]
        assert {(s.attributes["tidemark.task"], s.attributes["tidemark.store"]) for s in stores} == {
            (task, "n") for task in tasks
        }
        (transaction,) = (span for span in inside if span.name == "transaction")
        steps = parts[transaction.context.span_id]
        assert named(steps) == ["produce", "offsets", "commit"]
        # One after the other, and within what they are part of.
        assert root.start_time == inside[0].start_time
        assert all(before.end_time <= after.start_time for before, after in itertools.pairwise(inside))
        assert inside[-1].end_time <= root.end_time
        assert [steps[0].start_time, *(step.end_time for step in steps)] == [
            transaction.start_time, steps[1].start_time, steps[2].start_time, transaction.end_time,
        ]  # fmt: skip
        if not is_start:
            assert steps[0].attributes["tidemark.records"] > 0


def run_with_a_fault(app, fault):
    """Run until all input is committed or an error ends the instance; return such errors.

    `fault` is called once with the instance, in a commit of its first batch, after changelogs and before commit records.
    """
    done = []

    def probe(point: str) -> None:
        if point == "3-changelogs" and not done and instance.states.state is InstanceState.RUNNING:
            done.append(point)
            fault(instance)

    instance = make_instance(app.plan, app.settings, 0, "counting", probe)
    stop = threading.Event()
    with in_thread(instance, TimedSource(app.settings.bootstrap_servers, f"{app.name}-in", stop)) as failures:
        assert wait_until(lambda: stop.is_set() or bool(failures), 60)
    assert done
    return failures


def test_a_batch_that_is_tried_again_should_have_both_attempts_in_one_trace(app, collected):
    def abort(instance) -> None:
        instance.committer.producer.abort()
        raise BatchAborted("one changelog did not grow")

    app.feed(100)
    assert run_with_a_fault(app, abort) == []
    roots, parts = batches(collected)
    tried = [
        transactions
        for root in roots
        if len(transactions := [s for s in parts[root.context.span_id] if s.name == "transaction"]) > 1
    ]
    ((first, second),) = tried
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "one changelog did not grow")
    assert named(parts[first.context.span_id]) == ["produce"]
    assert second.status.status_code is StatusCode.UNSET
    assert named(parts[second.context.span_id]) == ["produce", "offsets", "commit"]
    assert first.end_time <= second.start_time


def test_the_batch_that_ends_an_instance_should_be_its_last_trace_with_the_error(app, collected):
    def end(instance) -> None:
        raise OutcomeUnknown("no broker answers")

    app.feed(100)
    (error,) = run_with_a_fault(app, end)
    assert isinstance(error, OutcomeUnknown)
    roots, parts = batches(collected)
    last = roots[-1]
    assert (last.status.status_code, last.status.description) == (StatusCode.ERROR, "no broker answers")
    assert set(named(parts[last.context.span_id])) == {"read", "prepare"}
    assert [root.status.status_code for root in roots[:-1]] == [StatusCode.UNSET] * (len(roots) - 1)


def test_without_an_endpoint_there_should_be_no_traces(app, collected):
    app.feed(100)
    app.run(NO_PROBE, app.settings.model_copy(update={"trace_endpoint": ""}))
    assert collected.get_finished_spans() == ()
