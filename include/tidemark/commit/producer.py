"""The instance's one producer, transactional or idempotent, and the meaning of each of its errors.

See invariants: bounded open transactions, order of at_least_once.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import BatchAborted, InstanceFenced, OutcomeUnknown, PreflightFailed, ProducerFenced
from tidemark.kafka.member import GroupMetadata
from tidemark.kafka.messages import Message
from tidemark.kafka.record_sizes import BATCH_BYTES
from tidemark.topology.plan import Acks

_PRODUCER_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_REFUSED_BY_GROUP = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
}
"""The group has not taken the offsets, because it rebalances, or has removed this member."""
_BUFFER_WAIT_S = 0.1
_RETRY_BACKOFF_MS = 500
# The client waits this long before it sends a request again, more or less by a fifth.
_SURELY_SENT_ONCE_S = 0.8 * _RETRY_BACKOFF_MS / 1000
_RETURNS_S = 5.0
_ANY_PARTITION = -1
_EARLIEST_MS = 1
"""The smallest timestamp that can be sent: the client takes 0 as the current time."""


class BatchProducer(ABC):
    """The producer of a commit: begin, send, offsets, commit or abort.

    Of Kafka's errors it raises only `InstanceFenced`, `OutcomeUnknown` (also as `ProducerFenced`), `BatchAborted` and, if a
    permission is missing, `PreflightFailed`. After all but `BatchAborted` the producer must be thrown away.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        identity: Mapping[str, Any],
        name: str,
        timeout_ms: int,
        max_queued_records: int,
    ) -> None:
        self._timeout_s = timeout_ms / 1000
        self.name = name
        self._undelivered: list[str] = []
        self._config = {
            "batch.size": BATCH_BYTES,
            **client_config,
            **identity,
            "message.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "acks": Acks.ALL.value,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "retry.backoff.ms": _RETRY_BACKOFF_MS,
            "retry.backoff.max.ms": 2 * _RETRY_BACKOFF_MS,
            # The limits of topics are checked with `SizeLimits`; by default the client would refuse more than 1 MB.
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.messages": max_queued_records,
            "queue.buffering.max.kbytes": 2_097_151,
        }
        self._producer = Producer(self._config)

    def _client_of(self, topic: str) -> Producer:
        """Return the client that sends to a topic."""
        return self._producer

    def _clients(self) -> Sequence[Producer]:
        """Return all clients, in the order in which they are flushed."""
        return (self._producer,)

    @abstractmethod
    def init(self, timeout_s: float) -> None:
        """Finish what another holder of the name has left open; must be called first. Blocks."""

    @abstractmethod
    def begin(self) -> None:
        """Start a batch; nothing is sent yet."""

    @abstractmethod
    def send_offsets(self, offsets: Sequence[ClientPartition], group: GroupMetadata) -> None:
        """Step 5. The coordinator refuses a member of another generation."""

    @abstractmethod
    def commit(self) -> None:
        """Step 6."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the batch."""

    def send_many(self, topic: str, messages: Sequence[Message], partition: int | None = None) -> None:
        """Queue records; all go to `partition`, or by murmur2 of the key if it is None. Blocks while the queue is full.

        Records with a timestamp are sent one by one, with their headers, as produce_batch takes neither timestamps nor headers
        (see invariant: delivered before offsets). Other records get the time at which they are sent.
        """
        if messages and "timestamp" in messages[0]:
            self._send_stamped(topic, messages, partition)
        else:
            self._send_batch(topic, messages, partition)

    def _send_stamped(self, topic: str, messages: Sequence[Message], partition: int | None) -> None:
        place = _ANY_PARTITION if partition is None else partition
        client = self._client_of(topic)
        produce: Callable[..., None] = client.produce
        with self._classified(f"produce to {topic}"):
            for message in messages:
                at = message["timestamp"] or _EARLIEST_MS
                # Positional: named arguments cost a fifth of the call. The two without a value are callbacks.
                arguments = topic, message["value"], message["key"], place, None, None, at, message.get("headers")
                while True:
                    try:
                        produce(*arguments)
                        break
                    except BufferError:
                        client.poll(_BUFFER_WAIT_S)

    def _send_batch(self, topic: str, messages: Sequence[Message], partition: int | None) -> None:
        options: dict[str, Any] = {} if partition is None else {"partition": partition}
        rest, client = list(messages), self._client_of(topic)
        with self._classified(f"produce to {topic}"):
            while rest:
                queued = client.produce_batch(topic, rest, **options)
                if queued == len(rest):
                    return
                # Records that were not queued carry the reason; only a full queue is worth another try.
                refused = [message for message in rest if "_error" in message]
                if len(refused) != len(rest) - queued:
                    raise OutcomeUnknown(f"{topic}: {queued} of {len(rest)} records queued, {len(refused)} refused")
                for message in refused:
                    error = message.pop("_error")
                    if error.code() != KafkaError._QUEUE_FULL:
                        raise KafkaException(error)
                client.poll(_BUFFER_WAIT_S)
                rest = refused

    def send_one(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
    ) -> None:
        """Queue one record with headers."""
        client = self._client_of(topic)
        with self._classified(f"produce to {topic}"):
            while True:
                try:
                    client.produce(topic, value=value, key=key, headers=list(headers), on_delivery=self._delivered)
                    return
                except BufferError:
                    client.poll(_BUFFER_WAIT_S)

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._undelivered.append(str(error))

    def flush(self) -> None:
        """Wait until everything queued is acknowledged; raises `BatchAborted` if something was not."""
        with self._classified("flush"):
            left = sum(client.flush(self._timeout_s) for client in self._clients())
        if left or self._undelivered:
            self.abort()
            raise BatchAborted(f"{left} records were not acknowledged in {self._timeout_s} s {self._undelivered[:1]}")

    def _fatal_reason(self, error: KafkaError) -> KafkaError:
        """Return the error that makes every call fail, which the client may have received between two of our calls."""
        return error

    @contextmanager
    def _classified(self, what: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, SystemError) as raised:
            # The client raises a fatal error while it serves a call. A later delivery report then fails because of it, or
            # replaces it with a SystemError, which has the error as its cause or has no cause.
            found = raised if isinstance(raised, KafkaException) else raised.__cause__
            summary = isinstance(found, KafkaException)
            error: KafkaError = found.args[0] if found and summary else KafkaError(KafkaError._FATAL)
            if error.code() == KafkaError._FATAL:
                error = self._fatal_reason(error)
            if error.code() == KafkaError.FENCED_INSTANCE_ID:
                raise InstanceFenced(
                    f"{what}: the group has replaced this member by another one of the same instance: {error.str()}"
                ) from raised
            if error.code() in _PRODUCER_FENCED:
                raise ProducerFenced(
                    f"{what}: the transaction of {self.name} timed out, or another process of that name has begun "
                    f"({error.str()}); start again, which asks the broker what was committed"
                ) from raised
            if error.code() in _DENIED:
                raise PreflightFailed(
                    f"{what} of {self.name}: {error.str()}; grant the ACLs that `tidemark acls NAME --principal "
                    "User:… --instances N` prints"
                ) from raised
            refused = error.retriable() or error.code() in _REFUSED_BY_GROUP
            if error.txn_requires_abort() or (isinstance(self, IdempotentProducer) and refused):
                self.abort()
                raise BatchAborted(f"{what}: {error.str()}; the batch was aborted") from raised
            raise OutcomeUnknown(f"{what}: {error.str()} ({error.name()}); the instance starts again") from raised


class TransactionalProducer(BatchProducer):
    """The producer for exactly_once: everything of a batch becomes visible together, or never.

    The client itself retries a request to a coordinator if the connection breaks. The first request may still arrive
    during the next transaction, and end it: librdkafka uses transactions v1, in which the coordinator cannot distinguish two
    transactions of one producer epoch. So whenever a request may have been sent twice, the next transaction begins with
    a new producer, whose epoch is higher. A call that returns before the client retries has sent its request once.
    """

    def __init__(
        self, client_config: Mapping[str, Any], transactional_id: str, timeout_ms: int, max_queued_records: int
    ) -> None:
        identity = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        super().__init__(client_config, identity, transactional_id, timeout_ms, max_queued_records)
        self._init_timeout_s = self._timeout_s
        self.has_aborted = False
        """Whether the last transaction was aborted, as long as there is no next one."""
        self._may_have_sent_twice = False

    def init(self, timeout_s: float) -> None:
        """Fence any other holder of the transactional id and finish its open transaction. Blocks."""
        self._init_timeout_s = timeout_s
        self._ask("init_transactions", timeout_s)
        self._may_have_sent_twice = False

    def begin(self) -> None:
        """Start a transaction; nothing is sent yet. Blocks if a new producer is needed first."""
        self.has_aborted = False
        self._undelivered.clear()
        if self._may_have_sent_twice:
            self._producer = Producer(self._config)
            self.init(self._init_timeout_s)
        with self._classified("begin_transaction"):
            self._producer.begin_transaction()

    def send_offsets(self, offsets: Sequence[ClientPartition], group: GroupMetadata) -> None:
        """Step 5. The coordinator refuses a member of another generation."""
        self._ask("send_offsets_to_transaction", self._timeout_s, list(offsets), group.opaque)

    def commit(self) -> None:
        """Step 6. After any error but a clear abort, the outcome is unknown."""
        self._ask("commit_transaction", self._timeout_s)

    def abort(self) -> None:
        """Abort the open transaction. Nothing of it is ever visible to read_committed readers (see invariant: lost markers)."""
        self.has_aborted = True
        self._ask("abort_transaction", self._timeout_s)

    def _ask(self, method: str, timeout_s: float, *arguments: object) -> None:
        """Call a method of the client that sends requests to a coordinator. Raises `OutcomeUnknown` if it does not return.

        The call runs in its own thread, because not every method keeps its timeout: after a connection has broken,
        `send_offsets_to_transaction` waits until the state of some broker changes, which may never happen (librdkafka
        issue 5456).
        """
        call = getattr(self._producer, method)
        raised: list[BaseException] = []
        returned = threading.Event()

        def ask() -> None:
            try:
                call(*arguments, timeout_s)
            except BaseException as error:  # noqa: BLE001 - the waiting thread raises it again.
                raised.append(error)
            finally:
                returned.set()

        started = time.monotonic()
        with self._classified(method):
            threading.Thread(target=ask, name=method, daemon=True).start()
            in_time = returned.wait(timeout_s + _RETURNS_S)
            self._may_have_sent_twice |= time.monotonic() - started >= _SURELY_SENT_ONCE_S
            if not in_time:
                raise OutcomeUnknown(
                    f"{method} has not returned after {timeout_s + _RETURNS_S:g} s; the instance starts again, because the "
                    "Kafka client did not keep its timeout"
                )
            if raised:
                raise raised[0]

    def _fatal_reason(self, error: KafkaError) -> KafkaError:
        # `produce` reports only that there is a fatal error; calls of the transaction report which.
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as summary:
            reason: KafkaError = summary.args[0]
            return reason
        return error


class IdempotentProducer(BatchProducer):
    """The producer for at_least_once: records are visible at once, and offsets follow when all are acknowledged.

    A crash in between processes the batch once more. `commit_offsets` is the member's own synchronous commit. If `outputs`, a
    list of topics, wait for less than all replicas in sync (`acks`), they have a client of their own: a client has one `acks`
    for all topics, and state must not depend on records that may be lost (`docs/decisions/0017-acks-of-outputs.md`). See
    invariant: order of at_least_once.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        name: str,
        timeout_ms: int,
        max_queued_records: int,
        commit_offsets: Callable[[Sequence[ClientPartition]], None],
        acks: Acks = Acks.ALL,
        outputs: Collection[str] = (),
    ) -> None:
        # produce_batch does not report a record that was not delivered, so each record's failure is reported here.
        identity = {"on_delivery": self._delivered, "delivery.report.only.error": True}
        super().__init__(client_config, identity, name, timeout_ms, max_queued_records)
        self._commit_offsets = commit_offsets
        self._outputs: frozenset[str] = frozenset()
        self._output_client = self._producer
        if acks is not Acks.ALL and outputs:
            self._outputs = frozenset(outputs)
            # Without idempotence nothing else keeps the order of two requests if the first is sent again.
            weaker = {"enable.idempotence": False, "acks": acks.value, "max.in.flight.requests.per.connection": 1}
            self._output_client = Producer({**self._config, **weaker})

    def _client_of(self, topic: str) -> Producer:
        return self._output_client if topic in self._outputs else self._producer

    def _clients(self) -> Sequence[Producer]:
        # Outputs first: an acknowledged commit record must not count outputs that were not acknowledged.
        return (self._output_client, self._producer) if self._outputs else (self._producer,)

    def init(self, timeout_s: float) -> None:
        """Do nothing, as no other holder can have left anything open."""

    def begin(self) -> None:
        """Forget the failures of the previous batch."""
        self._undelivered.clear()

    def send_offsets(self, offsets: Sequence[ClientPartition], group: GroupMetadata) -> None:
        """Step 5, under the member's own generation."""
        with self._classified("commit of the offsets"):
            self._commit_offsets(offsets)

    def commit(self) -> None:
        """Step 6 is done with step 5."""

    def abort(self) -> None:
        """Drop the queued records; written records stay, and are written once more."""
        for client in self._clients():
            client.purge()
            client.flush(self._timeout_s)
