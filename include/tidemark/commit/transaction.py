"""The instance's one transactional producer, and what each of its errors means (rule 9, row A2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import BatchAborted, InstanceFenced, OutcomeUnknown
from tidemark.membership.member import GroupMetadata

_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.FENCED_INSTANCE_ID}
_BUFFER_WAIT_S = 0.1

Message = Mapping[str, bytes | None]
"""`key` and `value` of one record."""


class TransactionalProducer:
    """Begin, send, commit or abort. Raises `InstanceFenced`, `OutcomeUnknown` or `BatchAborted`, nothing else of Kafka's.

    After `InstanceFenced` or `OutcomeUnknown` the producer must be thrown away.
    """

    def __init__(
        self, client_config: Mapping[str, Any], transactional_id: str, timeout_ms: int, max_queued_records: int
    ) -> None:
        self._timeout_s = timeout_ms / 1000
        self.transactional_id = transactional_id
        self._undelivered: list[str] = []
        self._producer = Producer(
            {
                **client_config,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "batch.size": 1 << 19,
                "queue.buffering.max.messages": max_queued_records,
                "queue.buffering.max.kbytes": 2_097_151,
            }
        )

    def init(self, timeout_s: float) -> None:
        """Fence any other holder of the transactional id and finish its open transaction. Blocks."""
        with self._classified("init_transactions"):
            self._producer.init_transactions(timeout_s)

    def begin(self) -> None:
        """Start a transaction; nothing is sent yet."""
        self._undelivered.clear()
        with self._classified("begin_transaction"):
            self._producer.begin_transaction()

    def send_many(self, topic: str, messages: Sequence[dict[str, Any]], partition: int | None = None) -> None:
        """Queue records; with `partition`, all go there, else by murmur2 of the key. Blocks while the queue is full."""
        options: dict[str, Any] = {} if partition is None else {"partition": partition}
        rest = list(messages)
        with self._classified(f"produce to {topic}"):
            while rest:
                queued = self._producer.produce_batch(topic, rest, **options)
                if queued == len(rest):
                    return
                # What was not queued carries its reason; only a full queue is worth another try (rule 10).
                refused = [message for message in rest if "_error" in message]
                if len(refused) != len(rest) - queued:
                    raise OutcomeUnknown(f"{topic}: {queued} of {len(rest)} records queued, {len(refused)} refused")
                for message in refused:
                    error = message.pop("_error")
                    if error.code() != KafkaError._QUEUE_FULL:
                        raise KafkaException(error)
                self._producer.poll(_BUFFER_WAIT_S)
                rest = refused

    def send_one(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> None:
        """Queue one record with headers."""
        with self._classified(f"produce to {topic}"):
            while True:
                try:
                    self._producer.produce(
                        topic, value=value, key=key, headers=list(headers), on_delivery=self._delivered
                    )
                    return
                except BufferError:
                    self._producer.poll(_BUFFER_WAIT_S)

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._undelivered.append(str(error))

    def flush(self) -> None:
        """Wait until everything queued has been acknowledged; raises `BatchAborted` when something was not."""
        with self._classified("flush"):
            left = self._producer.flush(self._timeout_s)
        if left or self._undelivered:
            self.abort()
            raise BatchAborted(f"{left} records not acknowledged in {self._timeout_s} s {self._undelivered[:1]}")

    def send_offsets(self, offsets: Sequence[ClientPartition], group: GroupMetadata) -> None:
        """Step 5. The coordinator refuses a member of another generation."""
        with self._classified("send_offsets_to_transaction"):
            self._producer.send_offsets_to_transaction(list(offsets), group.opaque, self._timeout_s)

    def commit(self) -> None:
        """Step 6. An error here other than a clear abort leaves the outcome unknown."""
        with self._classified("commit_transaction"):
            self._producer.commit_transaction(self._timeout_s)

    def abort(self) -> None:
        """Give the open transaction up. Nothing of it is ever visible to read_committed readers."""
        with self._classified("abort_transaction"):
            self._producer.abort_transaction(self._timeout_s)

    @contextmanager
    def _classified(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.code() in _FENCED:
                raise InstanceFenced(
                    f"transactional.id {self.transactional_id} was taken over by another copy of this instance "
                    f"({error.str()}); this copy ends"
                ) from raised
            if error.txn_requires_abort():
                self.abort()
                raise BatchAborted(f"{what}: {error.str()}; the transaction was aborted") from raised
            raise OutcomeUnknown(f"{what}: {error.str()} ({error.name()}); the instance starts anew") from raised
