"""The description of one metric, and the values of a scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """A counter only grows while its process lives; a gauge is the value at the scrape."""

    COUNTER = "counter"
    GAUGE = "gauge"


class MetricSource(StrEnum):
    """The kind of process whose scrape has the metric."""

    INSTANCE = "instance"
    STANDBY = "standby"
    INSTANCE_AND_STANDBY = "instance, standby"
    AIRFLOW = "Airflow"


_COMMON: Mapping[MetricSource, tuple[str, ...]] = {
    MetricSource.INSTANCE: ("application", "instance"),
    MetricSource.STANDBY: ("application", "instance"),
    MetricSource.INSTANCE_AND_STANDBY: ("application", "instance"),
    MetricSource.AIRFLOW: (),
}
_OTEL_UNITS = {"seconds": "s", "bytes": "By"}


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric. `name` is that in Prometheus; `own_labels` are the labels beside those that all values of a process have."""

    name: str
    type: MetricType
    unit: str
    source: MetricSource
    own_labels: tuple[str, ...]
    meaning: str

    @property
    def common_labels(self) -> tuple[str, ...]:
        """The labels that all values of one process have."""
        return _COMMON[self.source]

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, in the order of the documentation."""
        return (*self.common_labels, *self.own_labels)

    @property
    def otel_name(self) -> str:
        """The name of the OpenTelemetry instrument: the exporter adds `_total` to a counter."""
        return self.name.removesuffix("_total") if self.type is MetricType.COUNTER else self.name

    @property
    def otel_unit(self) -> str:
        """The unit as OpenTelemetry writes it: UCUM, with things that are counted in braces."""
        return _OTEL_UNITS.get(self.unit, f"{{{self.unit}}}")


LabelledValue = tuple[float, dict[str, str]]


class Readings:
    """The values of one scrape. `process` are the labels that all of them have in this process. Used by one thread."""

    def __init__(self, process: Mapping[str, str]) -> None:
        self._process = process
        self._values: dict[str, list[LabelledValue]] = {}

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value. `labels` are the values of `metric.own_labels`, in order. Raises `ValueError` for another number."""
        own = dict(zip(metric.own_labels, labels, strict=True))
        common = {name: self._process[name] for name in metric.common_labels}
        self._values.setdefault(metric.name, []).append((value, common | own))

    def of(self, metric: Metric) -> Sequence[LabelledValue]:
        """Return the values of a metric; none if this process does not have it."""
        return self._values.get(metric.name, ())

    def __iter__(self) -> Iterator[tuple[str, LabelledValue]]:
        """Yield every value with the name of its metric."""
        return ((name, value) for name, values in self._values.items() for value in values)
