"""Traces of one process: spans with measured times, sent to a collector by OpenTelemetry."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidemark.errors import InvalidSettings
from tidemark.metrics.span import Span

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter

_EXAMPLE = "http://127.0.0.1:4318/v1/traces"


class TraceSender:
    """Sends traces from a thread of its own. What a collector does not take in time is dropped: nothing waits for it."""

    def __init__(self, exporter: SpanExporter, service: Mapping[str, str]) -> None:
        """`service` are the attributes of the process in all its traces."""
        # Importing takes a fifth of a second of processor time, which a process without traces does not spend.
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # Not the global provider: that one is Airflow's or the user's.
        self._provider = TracerProvider(resource=Resource.create(dict(service)), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidemark")

    def send(self, trace: Span) -> None:
        """Queue a trace, its times converted to the wall clock of now. Does not block."""
        from opentelemetry.context import Context

        # An empty context: whatever span its caller is in, a trace begins with its own.
        self._add(trace, Context(), time.time_ns() - time.monotonic_ns())

    def _add(self, span: Span, parent: Context, offset_ns: int) -> None:
        from opentelemetry.trace import StatusCode, set_span_in_context

        began_ns, ended_ns = (round(at_s * 1e9) + offset_ns for at_s in (span.period.began_s, span.period.ended_s))
        attributes = {str(name): value for name, value in span.attributes.items()}
        made = self._tracer.start_span(str(span.name), parent, attributes=attributes, start_time=began_ns)
        for child in span.children:
            self._add(child, set_span_in_context(made, parent), offset_ns)
        if span.error:
            made.set_status(StatusCode.ERROR, span.error)
        made.end(ended_ns)

    def close(self, timeout_s: float) -> None:
        """Send what is queued. Blocks for at most `timeout_s`; what is left then is lost."""
        # The provider itself waits for 30 s.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(timeout_s)


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Return an exporter to the collector at a URL, which is not asked yet. Raises `InvalidSettings` if it cannot be used."""
    host = _collector_host(endpoint)
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    session = requests.Session()
    # A proxy of the environment cannot reach the loopback of this machine.
    session.trust_env = not _is_loopback(host)
    return OTLPSpanExporter(endpoint=endpoint, session=session)


def _collector_host(endpoint: str) -> str:
    """Return the host of an HTTP URL. Raises `InvalidSettings` for another text, for a user, and without TLS to elsewhere."""
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidSettings(
            f"setting trace_endpoint: it is not a URL ({error}); write for example {_EXAMPLE}"
        ) from None
    if parts.scheme not in ("http", "https") or not host or not parts.path.strip("/"):
        raise InvalidSettings(
            f"setting trace_endpoint: it is not the URL of a collector's traces (OTLP over HTTP); write for example {_EXAMPLE}"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidSettings(
            "setting trace_endpoint: it contains a user; give the collector's credentials in OTEL_EXPORTER_OTLP_HEADERS"
        )
    if parts.scheme == "http" and not _is_loopback(host):
        raise InvalidSettings(
            f"setting trace_endpoint: {host} is another machine, which needs https; send to a collector on 127.0.0.1, which "
            "sends on, or write https"
        )
    return host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
