"""The spans of a batch: committed at once, after attempts that failed, and not at all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tidemark.clock import NOT_MEASURED, Period
from tidemark.commit.record import CommitKind
from tidemark.errors import BatchAborted, InvalidSettings, OutcomeUnknown
from tidemark.instance import batch_traces as module
from tidemark.instance.batch_traces import BatchTraces, batch_traces
from tidemark.instance.commit_listener import PreparedBatch
from tidemark.metrics.span import Attribute, Span, SpanName
from tidemark.names import TaskId
from tidemark.settings import Settings
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stream_times import StreamTimes
from tidemark.tasks.update import Output, StoreUpdate, TaskUpdate

READ = Period(1.0, 2.0)


@dataclass
class WrittenTask:
    """The part of a task that has spans."""

    id: TaskId
    puts: dict[str, Period] = field(default_factory=dict)


@dataclass
class Sent:
    """A `TraceSender` that keeps what it is given."""

    traces: list[Span] = field(default_factory=list)
    closed_s: float | None = None

    def send(self, trace: Span) -> None:
        self.traces.append(trace)

    def close(self, timeout_s: float) -> None:
        self.closed_s = timeout_s


class Committed:
    """Commits at given times instead of with a broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = Sent()
        self.traces = BatchTraces("a", 3, self.sent)
        self.points: list[str] = []
        self._probe = self.traces.timed(self.points.append)
        self._monkeypatch = monkeypatch

    def reach(self, **points: float) -> None:
        for point, at_s in points.items():
            self.at(at_s)
            self._probe(point.removeprefix("_").replace("_", "-"))

    def at(self, at_s: float) -> None:
        self._monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: at_s))


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Committed:
    return Committed(monkeypatch)


def update(task: TaskId, batch: int, prepared: Period = NOT_MEASURED) -> TaskUpdate:
    """Of ten offsets three were rows, one was filtered and two were bad; two outputs and two changelog records."""
    writes = (Writes(WHOLE, [b"a", b"b"], [b"1", None]),)
    return TaskUpdate(
        task=task, batch=batch, sources={"in": (40, 50)}, stream_times=StreamTimes({}, 0), rows=3, late_rows=0, bad_rows=2,
        filtered_rows=1, stores=(StoreUpdate("s", "a-s-changelog", writes),),
        outputs=(Output("out", [{"key": b"k", "value": b"v", "timestamp": 0}] * 2),), dead_letters=(), wall_ms=0,
        prepared=prepared,
    )  # fmt: skip


def two_tasks(kind: CommitKind = CommitKind.BATCH) -> PreparedBatch:
    first, second = TaskId(0, 1), TaskId(0, 2)
    return PreparedBatch(
        kind,
        [
            (WrittenTask(first, {"s": Period(9.0, 9.5)}), update(first, 7, Period(3.0, 4.0))),
            (WrittenTask(second, {"s": Period(9.5, 9.75)}), update(second, 8, Period(4.0, 4.5))),
        ],
        READ,
    )


def shape(span: Span) -> tuple[str, float, float, list]:
    """Name, begin, end and parts."""
    return (str(span.name), span.period.began_s, span.period.ended_s, [shape(child) for child in span.children])


def test_a_committed_batch_should_be_one_trace_of_all_that_was_done(committed):
    committed.reach(_1_begin=5.5, _4_commit_records=7.0, _5_offsets=7.5, _6_commit=8.5, _7_stores=9.75)
    committed.traces.committed(two_tasks(), Period(5.0, 10.0))
    (trace,) = committed.sent.traces
    parts = [("produce", 5.0, 7.0, []), ("offsets", 7.0, 7.5, []), ("commit", 7.5, 8.5, [])]
    assert shape(trace) == (
        "batch", 1.0, 10.0,
        [
            ("read", 1.0, 2.0, []), ("prepare", 3.0, 4.0, []), ("prepare", 4.0, 4.5, []),
            ("transaction", 5.0, 8.5, parts), ("store", 9.0, 9.5, []), ("store", 9.5, 9.75, []),
        ],
    )  # fmt: skip
    assert committed.points == ["1-begin", "4-commit-records", "5-offsets", "6-commit", "7-stores"]
    assert trace.error == ""
    assert trace.attributes == {
        Attribute.APPLICATION: "a", Attribute.INSTANCE: 3, Attribute.KIND: "batch", Attribute.SUBTOPOLOGY: 0,
        Attribute.TASKS: ["0_1", "0_2"], Attribute.BATCHES: [7, 8], Attribute.RECORDS: 12,
    }  # fmt: skip
    read, prepare, _, transaction, store, _ = trace.children
    assert read.attributes == {Attribute.RECORDS: 20}
    assert prepare.attributes == {Attribute.TASK: "0_1", Attribute.BATCH: 7, Attribute.RECORDS: 3}
    assert transaction.children[0].attributes == {Attribute.RECORDS: 8}
    assert store.attributes == {
        Attribute.TASK: "0_1", Attribute.BATCH: 7, Attribute.STORE: "s", Attribute.RECORDS: 2,
    }  # fmt: skip


def test_attempts_that_failed_should_be_in_the_trace_and_say_in_which_step(committed):
    batch = two_tasks()
    committed.reach(_1_begin=5.5, _4_commit_records=6.0)
    committed.traces.aborted(Period(5.0, 6.5), BatchAborted("no generation"))
    committed.reach(_1_begin=7.0, _4_commit_records=7.5, _5_offsets=8.0, _6_commit=8.5)
    committed.traces.committed(batch, Period(6.75, 10.0))
    (trace,) = committed.sent.traces
    failed, done = (span for span in trace.children if span.name is SpanName.TRANSACTION)
    assert shape(failed) == ("transaction", 5.0, 6.5, [("produce", 5.0, 6.0, []), ("offsets", 6.0, 6.5, [])])
    assert [part.error for part in failed.children] == ["", "no generation"]
    assert (failed.error, done.error, trace.error) == ("no generation", "", "")
    # The next batch begins without them.
    committed.reach(_4_commit_records=11.5, _5_offsets=12.0, _6_commit=12.5)
    committed.traces.committed(batch, Period(11.0, 13.0))
    assert len(committed.sent.traces[1].children) == 6


def test_a_batch_that_is_given_up_should_be_a_trace_with_its_error(committed):
    committed.reach(_1_begin=5.5)
    committed.traces.aborted(Period(5.0, 6.5), BatchAborted("not delivered"))
    committed.at(8.0)
    committed.traces.discarded(two_tasks(), OutcomeUnknown("no broker answers"))
    (trace,) = committed.sent.traces
    assert (trace.period, trace.error) == (Period(1.0, 8.0), "no broker answers")
    assert [str(span.name) for span in trace.children] == ["read", "prepare", "prepare", "transaction"]


def test_a_tick_of_several_sub_topologies_should_have_no_single_one_and_nothing_read(committed):
    updates = [(WrittenTask(task), update(task, 1)) for task in (TaskId(0, 0), TaskId(1, 0))]
    committed.reach(_4_commit_records=5.5, _5_offsets=6.0, _6_commit=6.5)
    committed.traces.committed(PreparedBatch(CommitKind.TICK, updates), Period(5.0, 7.0))
    (trace,) = committed.sent.traces
    assert Attribute.SUBTOPOLOGY not in trace.attributes
    assert trace.attributes[Attribute.KIND] == "tick"
    assert [str(span.name) for span in trace.children] == ["transaction"]


def test_closing_should_close_the_sender(committed):
    committed.traces.close(2.5)
    assert committed.sent.closed_s == 2.5


def test_an_endpoint_that_cannot_be_used_should_be_refused_at_the_start():
    with pytest.raises(InvalidSettings, match="setting trace_endpoint: "):
        batch_traces(Settings.load(trace_endpoint="collector"), "a", 0)


def test_an_instance_without_traces_should_load_nothing_of_opentelemetry():
    code = (
        "import sys; from tidemark.instance import assembly; from tidemark.settings import Settings; "
        "assert assembly.batch_traces(Settings.load(), 'a', 0) is None; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
