"""The producer of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from tidemark.errors import OutcomeUnknown, PreflightFailed

_FLUSH_S = 60.0


class ReplayProducer:
    """An idempotent producer that partitions as Java clients do. Raises `PreflightFailed` if the topic is missing."""

    def __init__(self, topic: str, client: Mapping[str, Any], timeout_s: float) -> None:
        self._topic = topic
        self._failed: list[str] = []
        self._producer = Producer(
            {
                **client,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 500_000,
                "delivery.report.only.error": True,
            }
        )
        self._check(timeout_s)

    def _check(self, timeout_s: float) -> None:
        try:
            found = self._producer.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
        except KafkaException as error:
            raise PreflightFailed(f"no Kafka broker answers ({error.args[0].str()}): run `tidemark up`") from error
        if found.error is not None:
            raise PreflightFailed(f"topic {self._topic} does not exist: run `tidemark demo`, or create it")

    def send(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        """Queue records, each a key and a value; no value deletes the key in a table.

        Blocks while the queue is full. Raises `OutcomeUnknown` if earlier records were not delivered.
        """
        left = [{"key": key, "value": value} for key, value in records]
        while left:
            queued = self._producer.produce_batch(self._topic, left, on_delivery=self._on_failure)
            # Its count is the only sign of a full queue; the messages that it left out carry `_error`.
            left = (
                [] if queued == len(left) else [{"key": m["key"], "value": m["value"]} for m in left if "_error" in m]
            )
            self._producer.poll(0.1 if left else 0)
            self._raise_failures()

    def flush(self) -> None:
        """Block until everything is delivered. Raises `OutcomeUnknown` if it is not."""
        unsent = self._producer.flush(_FLUSH_S)
        if unsent:
            self._failed.append(f"{unsent} records still queued after {_FLUSH_S:.0f} s")
        self._raise_failures()

    def _on_failure(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))

    def _raise_failures(self) -> None:
        if self._failed:
            raise OutcomeUnknown(
                f"{len(self._failed)} records were not delivered to {self._topic}: {self._failed[0]}; "
                "see `tidemark status`, then start the replay again"
            )
