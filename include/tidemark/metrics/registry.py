"""The metrics of one process: OpenTelemetry's instruments, read at each scrape, and their text for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tidemark.metrics.metric import Metric, MetricType, Readings
from tidemark.metrics.table import METRICS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from prometheus_client import CollectorRegistry

Scrape = Callable[[], bytes]
"""Returns the metrics of a process in Prometheus's text format. May block for seconds; any thread may call it."""

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of a scrape."""
_MOST_SERIES = 1_000_000
"""Above its limit, by default 2000 for each metric, OpenTelemetry adds values up under one label."""


class MetricRegistry:
    """Metrics of one process. Safe to use from several threads; nothing is loaded before the first scrape.

    OpenTelemetry keeps every registry that was scraped until the process ends, so a process needs one for all its scrapes.
    """

    def __init__(self, process: Mapping[str, str]) -> None:
        """`process` are the labels of all values."""
        self._process = process
        self._readings = Readings(process)
        self._collectors: CollectorRegistry | None = None
        # Held for a whole scrape: all instruments show the same readings.
        self._lock = threading.Lock()

    def scrape(self, read: Callable[[Readings], None]) -> bytes:
        """Return in Prometheus's text format what `read` adds. Blocks as long as `read`, which sees one scrape at a time."""
        # Importing takes a fifth of a second of processor time, which a process that nobody scrapes does not spend.
        from prometheus_client import generate_latest

        with self._lock:
            if self._collectors is None:
                self._collectors = self._make_instruments()
            readings = Readings(self._process)
            read(readings)
            self._readings = readings
            text: bytes = generate_latest(self._collectors)
            return text

    def _make_instruments(self) -> CollectorRegistry:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
        from opentelemetry.sdk.resources import Resource
        from prometheus_client import CollectorRegistry

        collectors = CollectorRegistry()
        reader = PrometheusMetricReader(
            disable_target_info=True,
            scope_info_enabled=False,
            registry=collectors,
            cardinality_limits={ObservableCounter: _MOST_SERIES, ObservableGauge: _MOST_SERIES},
        )
        # Not the global provider: that one is Airflow's or the user's.
        provider = MeterProvider([reader], Resource({}), shutdown_on_exit=False)
        meter = provider.get_meter("tidemark")
        for metric in METRICS:
            make = (
                meter.create_observable_counter if metric.type is MetricType.COUNTER else meter.create_observable_gauge
            )
            make(metric.otel_name, [self._observe(metric)], metric.otel_unit, metric.meaning)
        return collectors

    def _observe(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, labels) for value, labels in self._readings.of(metric)]

        return observe
