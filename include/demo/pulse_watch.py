"""The demo's view of patient monitoring: counts and alerts from its sinks, lag of the group, reports of instances."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from demo.patient_alert import PatientAlert
from tidemark.errors import PreflightFailed
from tidemark.processes import wait_until
from tidemark.supervision.local_instances import LocalInstance, read_instances
from tidemark.supervision.run_file import LOST

Window = tuple[str, int]
"""Patient and window start."""

_LOOK_BACK_MS = 180_000
_WINDOWS_SHOWN, _ALERTS_SHOWN = 4, 4
_TIMEOUT_S = 5.0
_LEADERS_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Snapshot:
    """The stream at one time. Ages are None, and numbers 0, while nothing is known."""

    state: str
    patients: int
    windows: int
    counts: int
    events_per_second: float
    lag: int
    commit_age_s: float | None
    fresh_updates: int
    newest: tuple[tuple[str, int, int], ...]
    """Patient, window start and pulses of some windows that changed last."""
    alerts: int = 0
    """The alerts since the demo began."""
    newest_alerts: tuple[PatientAlert, ...] = ()


@dataclass(frozen=True)
class InstanceSummary:
    """A summary of the instances of one application."""

    state: str
    events_per_second: float
    last_commit_ms: int | None

    @classmethod
    def of(cls, instances: Sequence[LocalInstance]) -> InstanceSummary:
        """Summarise instances; those that have ended are ignored."""
        alive = [one for one in instances if one.is_alive]
        if not alive:
            return cls(LOST if instances else "STARTING", 0.0, None)
        commits = [one.last_commit_ms for one in alive if one.last_commit_ms is not None]
        states = sorted({one.state for one in alive})
        rate = sum(one.records_per_second or 0.0 for one in alive)
        return cls("+".join(states), rate, max(commits, default=None))


def current(counts: Mapping[Window, tuple[int, int]], now_ms: int, grace_ms: int) -> dict[Window, int]:
    """Return the pulses of windows that still accept records; `counts` holds window end and pulses."""
    return {window: pulses for window, (end_ms, pulses) in counts.items() if end_ms + grace_ms > now_ms}


class PulseWatch:
    """Follows one running application from `began_ms` on. Joins no group and commits nothing."""

    def __init__(
        self,
        client: Mapping[str, Any],
        application_id: str,
        topics: tuple[str, str, str],
        var_dir: Path,
        grace_ms: int,
        began_ms: int,
    ) -> None:
        """`topics` are the source, the sink of counts and that of alerts; they must exist. Blocks until leaders are known.

        Raises `PreflightFailed` if the broker does not return the offsets of the sinks.
        """
        self._source, counts, self._alerts_topic = topics
        self._application_id = application_id
        self._var_dir = var_dir
        self._grace_ms = grace_ms
        self._began_ms = began_ms
        self._counts: dict[Window, tuple[int, int]] = {}
        self._newest: dict[Window, int] = {}
        self._fresh = 0
        self._alerts = 0
        self._newest_alerts: deque[PatientAlert] = deque(maxlen=_ALERTS_SHOWN)
        readers = {**client, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._group = Consumer({**readers, "group.id": application_id})
        self._sink = Consumer({**readers, "group.id": f"{application_id}-demo", "auto.offset.reset": "latest"})
        self._sink.assign(
            [
                *self._positions(counts, began_ms - _LOOK_BACK_MS),
                *self._positions(self._alerts_topic, began_ms - _LOOK_BACK_MS),
            ]
        )

    def close(self) -> None:
        """Close the consumers."""
        self._sink.close()
        self._group.close()

    def follow(self, seconds: float) -> None:
        """Read what the stream emits meanwhile. Blocks for at most `seconds`; no answer from the broker is not an error."""
        for message in self._sink.consume(50_000, seconds):
            if message.error() is None:
                self._take(message)

    def _take(self, message: Message) -> None:
        if message.topic() == self._alerts_topic:
            self._newest_alerts.append(PatientAlert.of(message.value() or b""))
            self._alerts += message.timestamp()[1] >= self._began_ms
            return
        value = json.loads(message.value() or b"{}")
        window = (str(value["patient_id"]), int(value["window_start"]))
        self._counts[window] = (int(value["window_end"]), int(value["pulses"]))
        self._newest.pop(window, None)
        self._newest[window] = int(value["pulses"])
        if message.timestamp()[1] >= self._began_ms:
            self._fresh += 1

    def snapshot(self, now_ms: int) -> Snapshot:
        """Summarise; forget windows that are over. Blocks for two round trips."""
        open_windows = current(self._counts, now_ms, self._grace_ms)
        self._counts = {window: self._counts[window] for window in open_windows}
        self._newest = {window: pulses for window, pulses in self._newest.items() if window in open_windows}
        view = InstanceSummary.of(read_instances(self._var_dir, self._application_id))
        return Snapshot(
            state=view.state,
            patients=len({patient for patient, _ in open_windows}),
            windows=len(open_windows),
            counts=sum(open_windows.values()),
            events_per_second=view.events_per_second,
            lag=self._lag(),
            commit_age_s=None if view.last_commit_ms is None else max(0.0, (now_ms - view.last_commit_ms) / 1000),
            fresh_updates=self._fresh,
            newest=tuple((*window, pulses) for window, pulses in list(self._newest.items())[-_WINDOWS_SHOWN:]),
            alerts=self._alerts,
            newest_alerts=tuple(self._newest_alerts),
        )

    def _partitions(self, topic: str) -> list[int]:
        return sorted(self._group.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions)

    def _positions(self, topic: str, since_ms: int) -> list[TopicPartition]:
        """Return the offsets at `since_ms`. Asks again while a topic that was just created has no leaders."""
        found: list[TopicPartition] = []
        failures: list[KafkaException] = []

        def is_known() -> bool:
            try:
                since = [TopicPartition(topic, p, since_ms) for p in self._partitions(topic)]
                found[:] = self._sink.offsets_for_times(since, timeout=_TIMEOUT_S)
            except KafkaException as error:
                failures.append(error)
            return bool(found)

        if not wait_until(is_known, _LEADERS_TIMEOUT_S, every_s=0.2):
            reason = failures[-1] if failures else "it has no partitions"
            raise PreflightFailed(f"failed to read topic {topic}: {reason}; look at `tidemark status`")
        return found

    def _lag(self) -> int:
        """Return the number of records after the committed offsets; all records of partitions without a committed offset."""
        try:
            places = [TopicPartition(self._source, p) for p in self._partitions(self._source)]
            lag = 0
            for place in self._group.committed(places, timeout=_TIMEOUT_S):
                first, end = self._group.get_watermark_offsets(place, timeout=_TIMEOUT_S)
                lag += end - max(first, place.offset)
        except KafkaException:
            # The broker does not answer just now: the table shows what else is known.
            return -1
        return lag
