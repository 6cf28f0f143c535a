"""Traces: what a collector gets, which collectors are accepted, and the documentation of the spans."""

from __future__ import annotations

import re
import threading
import time

import pytest
from opentelemetry import trace as ambient
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, use_span

from tidemark.clock import Period
from tidemark.errors import InvalidSettings
from tidemark.metrics.span import Attribute, Span, SpanName
from tidemark.metrics.traces import TraceSender, otlp_exporter
from tidemark.settings import project_root


def a_trace(began_s: float) -> Span:
    """A batch whose transaction failed in its first part."""
    produce = Span(
        SpanName.PRODUCE, Period(began_s + 0.25, began_s + 0.5), {Attribute.RECORDS: 5}, error="not delivered"
    )
    transaction = Span(SpanName.TRANSACTION, Period(began_s + 0.25, began_s + 0.75), {}, (produce,), "not delivered")
    return Span(SpanName.BATCH, Period(began_s, began_s + 1), {Attribute.TASKS: ["0_1", "0_2"]}, (transaction,))


def test_a_collector_should_get_the_tree_with_its_times_on_the_wall_clock():
    exporter = InMemorySpanExporter()
    sender = TraceSender(exporter, {"service.name": "a", "service.instance.id": "3"})
    first_ns = time.monotonic_ns()
    began_s, wall_ns = time.monotonic(), time.time_ns()
    sender.send(a_trace(began_s))
    # Both clocks are read one after the other, here and there.
    took_ns = time.monotonic_ns() - first_ns
    sender.close(60)
    found = {span.name: span for span in exporter.get_finished_spans()}
    batch, transaction, produce = found["batch"], found["transaction"], found["produce"]
    assert (batch.parent, transaction.parent, produce.parent) == (None, batch.context, transaction.context)
    assert abs(batch.start_time - wall_ns) <= took_ns
    assert batch.end_time - batch.start_time == 1_000_000_000
    assert produce.start_time - batch.start_time == 250_000_000
    assert transaction.end_time - batch.start_time == 750_000_000
    assert dict(batch.attributes) == {"tidemark.tasks": ("0_1", "0_2")}
    assert dict(produce.attributes) == {"tidemark.records": 5}
    assert (batch.status.status_code, transaction.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert produce.status.description == "not delivered"
    assert {"service.name": "a", "service.instance.id": "3"}.items() <= dict(batch.resource.attributes).items()


def test_each_trace_should_be_its_own_and_not_the_providers_of_others():
    exporter = InMemorySpanExporter()
    sender = TraceSender(exporter, {"service.name": "a"})
    other = NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
    with use_span(other):
        sender.send(a_trace(1.0))
        sender.send(a_trace(2.0))
    sender.close(60)
    roots = [span for span in exporter.get_finished_spans() if span.name == "batch"]
    assert [span.parent for span in roots] == [None, None]
    assert len({span.context.trace_id for span in roots} | {1}) == 3
    assert ambient.get_tracer_provider() is not sender._provider


class Stuck(InMemorySpanExporter):
    """A collector that does not answer before it is asked to."""

    def __init__(self):
        super().__init__()
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def export(self, spans):
        self.asked.set()
        self.may_answer.wait(60)
        return super().export(spans)


def test_closing_should_not_wait_for_a_collector_that_does_not_answer():
    exporter = Stuck()
    sender = TraceSender(exporter, {"service.name": "a"})
    sender.send(a_trace(1.0))
    sender.close(0.2)
    assert exporter.asked.wait(60)
    assert exporter.get_finished_spans() == ()
    exporter.may_answer.set()


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:4318/v1/traces", "http://localhost:4318/v1/traces", "http://[::1]:4318/v1/traces",
        "https://collector.example:4318/v1/traces",
    ],
)  # fmt: skip
def test_a_collector_on_loopback_or_with_tls_should_be_accepted(endpoint):
    otlp_exporter(endpoint).shutdown()


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("collector", "not the URL of a collector"),
        ("127.0.0.1:4318", "not the URL of a collector"),
        ("http:///v1/traces", "not the URL of a collector"),
        ("http://127.0.0.1:4318", "not the URL of a collector"),
        ("grpc://127.0.0.1:4317/v1/traces", "not the URL of a collector"),
        ("http://127.0.0.1:port/v1/traces", "it is not a URL"),
        ("http://[::1/v1/traces", "it is not a URL"),
        ("https://me:s3cret@collector.example/v1/traces", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector.example:4318/v1/traces", "collector.example is another machine, which needs https"),
    ],
)
def test_what_is_no_usable_url_should_be_refused_with_the_remedy(endpoint, why):
    with pytest.raises(InvalidSettings, match=f"^setting trace_endpoint: .*{re.escape(why)}") as refused:
        otlp_exporter(endpoint)
    assert "s3cret" not in str(refused.value)


def test_the_documentation_should_have_every_span_and_every_attribute():
    text = (project_root() / "docs" / "metrics.md").read_text()
    section = text.partition("\n## Traces\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .*$", section, re.MULTILINE)
    assert rows == [str(name) for name in SpanName]
    assert set(re.findall(r"`(tidemark\.\w+)`", section)) == set(map(str, Attribute))
