"""The traces of an instance with Spark, as a collector gets them over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.integration.spark.test_sliced_read import produce, run_until

from tidemark.kafka.topics import ensure_user_topics
from tidemark.names import TopicPartition
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(200)]


class Collector:
    """Keeps the spans that it is sent, with the attributes of their process."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.url = ""

    def take(self, body: bytes) -> None:
        for found in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = attributes_of(found.resource)
            self.spans += [(service, span) for scope in found.scope_spans for span in scope.spans]


def attributes_of(described: Any) -> dict[str, Any]:
    """Attributes with one value each by their keys."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value"))
        for one in described.attributes
        if one.value.WhichOneof("value") != "array_value"
    }


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if is_known:
                collector.take(body)
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join(10)


def test_a_collector_should_get_every_batch_of_an_instance(spark, settings, admin, unique, monkeypatch):
    # A proxy of the environment could not reach the collector.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    # All spans are sent before the instance has ended, however busy the machine is.
    monkeypatch.setattr("tidemark.instance.instance._LISTENERS_CLOSE_S", 60.0)
    one_partition = settings.model_copy(update={"num_partitions": 1})
    topology, topic = Topology(unique("traced")), unique("in")
    topology.stream(topic, schema="id STRING", key="id").group_by_key().count(name="n", store="n").to(unique("out"))
    plan = topology.plan()
    ensure_user_topics(plan, one_partition, admin)
    produce(settings, topic, [(f"k{number % 7}", {"id": f"k{number % 7}"}, 1) for number in range(300)])
    with collecting() as collector:
        traced = one_partition.model_copy(update={"trace_endpoint": collector.url})
        run_until(spark, plan, traced, {TopicPartition(topic, 0): 300})
    assert {(service["service.name"], service["service.instance.id"]) for service, _ in collector.spans} == {
        (plan.application_id, "0")
    }
    spans = [span for _, span in collector.spans]
    batches = [attributes_of(span) for span in spans if span.name == "batch"]
    assert sum(batch["tidemark.records"] for batch in batches if batch["tidemark.kind"] == "batch") == 300
    by_id = {span.span_id: span for span in spans}
    reads = [span for span in spans if span.name == "read"]
    assert len(reads) == len([batch for batch in batches if batch["tidemark.kind"] == "batch"]) > 0
    for read in reads:
        batch = by_id[read.parent_span_id]
        assert (batch.name, batch.trace_id) == ("batch", read.trace_id)
        assert batch.start_time_unix_nano == read.start_time_unix_nano < read.end_time_unix_nano
    assert {span.name for span in spans} == {
        "batch", "read", "prepare", "transaction", "produce", "offsets", "commit", "store",
    }  # fmt: skip
